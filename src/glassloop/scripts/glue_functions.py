"""The classes and functions for GLUE that transformers had until version 4."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassloop.data.glue import GLUE_TASKS
from glassloop.errors import SettingsError
from glassloop.metric_values import Numbers
from glassloop.metrics import load_metric

if TYPE_CHECKING:
    from glassloop.transformers_types import Tokenizer

NAMES = {"sst-2": "sst2", "sts-b": "stsb", "mnli-mm": "mnli_mismatched"}  # how transformers wrote the tasks
TASKS = {old: GLUE_TASKS[new] for old, new in {**{name: name for name in GLUE_TASKS if name != "ax"}, **NAMES}.items()}
glue_tasks_num_labels = {name: len(task.label_names or ("score",)) for name, task in TASKS.items()}
glue_output_modes = {name: "classification" if task.label_names else "regression" for name, task in TASKS.items()}


@dataclass
class InputExample:
    """One row of a task.

    Args:
        guid: The name of the row.
        text_a: The text.
        text_b: The second text.
        label: The name of the label.
    """

    guid: str
    text_a: str
    text_b: str | None = None
    label: str | None = None


@dataclass(eq=False)
class InputFeatures(Mapping[str, object]):
    """One encoded row.

    Args:
        input_ids: The numbers of the tokens.
        attention_mask: 1 for tokens, 0 for padding.
        token_type_ids: 0 for the first text, 1 for the second.
        label: The number of the label, or the score.
    """

    input_ids: list[int]
    attention_mask: list[int] | None = None
    token_type_ids: list[int] | None = None
    label: int | float | None = None

    def __getitem__(self, name: str) -> object:
        return self._given()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given())

    def __len__(self) -> int:
        return len(self._given())

    def _given(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if value is not None}


class DataProcessor:
    """Base class for the rows of a task; a script defines how they are read."""

    def get_train_examples(self, data_dir: str) -> list[InputExample]:
        """Return the rows to train on.

        Args:
            data_dir: The folder of the data.
        """
        raise NotImplementedError

    def get_dev_examples(self, data_dir: str) -> list[InputExample]:
        """Return the rows to evaluate on.

        Args:
            data_dir: The folder of the data.
        """
        raise NotImplementedError

    def get_labels(self) -> list[str]:
        """Return the names of the labels."""
        raise NotImplementedError

    @classmethod
    def _read_tsv(cls, input_file: str, quotechar: str | None = None) -> list[list[str]]:
        with Path(input_file).open(encoding="utf-8-sig", newline="") as lines:
            if quotechar is None:
                return [*csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)]
            return [*csv.reader(lines, delimiter="\t", quotechar=quotechar)]


def glue_convert_examples_to_features(
    examples: Sequence[InputExample],
    tokenizer: Tokenizer,
    max_length: int | None = None,
    task: str | None = None,
    label_list: Sequence[str] | None = None,
    output_mode: str | None = None,
    **padding: object,
) -> list[InputFeatures]:
    """Return encoded rows, padded to `max_length`.

    Args:
        examples: The rows.
        tokenizer: The tokenizer.
        max_length: The number of tokens of all rows. Default: the largest number that the model takes.
        task: The GLUE task, from which labels and mode are known.
        label_list: The names of the labels.
        output_mode: "classification" or "regression".
        **padding: Accepted for compatibility: the tokenizer knows how to pad.
    """
    known = TASKS.get(task or "")
    names = [*(label_list or (known.label_names if known else None) or ())]
    mode = output_mode or glue_output_modes.get(task or "", "classification")
    if mode == "classification" and not names:
        raise SettingsError("glue_convert_examples_to_features has no label names", "pass label_list=, or task=")
    encode: Callable[..., Any] = tokenizer
    pairs = [(one.text_a, one.text_b) for one in examples]
    encoded = [encode(text, pair, max_length=max_length, padding="max_length", truncation=True) for text, pair in pairs]

    def label_of(example: InputExample) -> int | float | None:
        if example.label is None:
            return None
        return names.index(example.label) if mode == "classification" else float(example.label)

    return [
        InputFeatures(row["input_ids"], row["attention_mask"], row.get("token_type_ids"), label_of(one))
        for row, one in zip(encoded, examples, strict=True)
    ]


def glue_compute_metrics(task_name: str, preds: Numbers, labels: Numbers) -> dict[str, float]:
    """Return the metrics of a task under the names that transformers used.

    Args:
        task_name: The GLUE task.
        preds: The predictions.
        labels: The true labels.
    """
    task = NAMES.get(task_name, task_name)
    found = load_metric("glue", task).compute(predictions=preds, references=labels)
    short = {"matthews_correlation": "mcc", "accuracy": "mnli/acc" if task.startswith("mnli") else "acc"}
    named = {short.get(name, name): value for name, value in found.items()}
    if {"acc", "f1"} <= {*named}:
        named["acc_and_f1"] = (named["acc"] + named["f1"]) / 2
    if {"pearson", "spearmanr"} <= {*named}:
        named["corr"] = (named["pearson"] + named["spearmanr"]) / 2
    return named


def simple_accuracy(preds: Numbers, labels: Numbers) -> float:
    """Return the share of predictions that are right.

    Args:
        preds: The predictions.
        labels: The true labels.
    """
    return load_metric("accuracy").compute(predictions=preds, references=labels)["accuracy"]
