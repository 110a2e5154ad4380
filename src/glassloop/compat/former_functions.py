"""Functions and classes that libraries no longer have, with what they returned: for GLUE, scikit-learn, AdamW, IPython."""

from __future__ import annotations

import collections.abc
import csv
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.optim.optimizer import ParamsT

from glassloop.base.errors import SettingsError
from glassloop.compat.substitution import LEDGER
from glassloop.data.glue import GLUE_TASKS
from glassloop.scores.metrics import Array, Numbers, load_metric

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR

    from glassloop.data.interfaces import Tokenizer


# Of torch._six.
string_classes = (str, bytes)
int_classes = int
container_abcs = collections.abc
inf, nan = math.inf, math.nan
PY3, PY37 = True, True


def is_never_available() -> bool:
    """Return False: transformers no longer works with this library."""
    return False


def is_offline_mode() -> bool:
    """Return whether the hub may not be asked."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def send_example_telemetry(*arguments: object, **named: object) -> None:
    """Do nothing. The former function sent the name of an example script to the hub."""


def warmup_linear_schedule(optimizer: Optimizer, warmup_steps: int, t_total: int, last_epoch: int = -1) -> LambdaLR:
    """Return a learning rate schedule that rises linearly, then falls linearly to 0."""
    from transformers import get_linear_schedule_with_warmup

    found: LambdaLR = get_linear_schedule_with_warmup(optimizer, warmup_steps, t_total, last_epoch)
    return found


def warmup_constant_schedule(optimizer: Optimizer, warmup_steps: int, last_epoch: int = -1) -> LambdaLR:
    """Return a learning rate schedule that rises linearly, then stays."""
    from transformers import get_constant_schedule_with_warmup

    found: LambdaLR = get_constant_schedule_with_warmup(optimizer, warmup_steps, last_epoch)
    return found


def pad_sequences(
    sequences: Sequence[Sequence[float]],
    maxlen: int | None = None,
    dtype: str = "int32",
    padding: str = "pre",
    truncating: str = "pre",
    value: float = 0.0,
) -> Array:
    """Return rows of different lengths as one array, as keras did."""
    length = max(map(len, sequences), default=0) if maxlen is None else maxlen
    found = np.full((len(sequences), length), value, dtype=dtype)
    for row, numbers in zip(found, sequences, strict=True):
        kept = numbers[:length] if truncating == "post" else numbers[max(len(numbers) - length, 0) :]
        if len(kept):
            row[slice(None, len(kept)) if padding == "post" else slice(length - len(kept), None)] = kept
    return found


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
        """Return the rows to train on."""
        raise NotImplementedError

    def get_dev_examples(self, data_dir: str) -> list[InputExample]:
        """Return the rows to evaluate on."""
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
    """Return encoded rows, padded to `max_length`."""
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
    """Return the metrics of a task under the names that transformers used."""
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
    """Return the share of predictions that are right."""
    return load_metric("accuracy").compute(predictions=preds, references=labels)["accuracy"]


def compute_class_weight(class_weight: object, *positional: object, **named: object) -> Array:
    """Return the weight of each class, from arguments by place or by name."""
    from sklearn.utils.class_weight import compute_class_weight as today

    if positional:
        LEDGER.note("compute_class_weight(weight, classes, y)", "classes=, y=", "by name only since scikit-learn 1.0")
        named |= dict(zip(("classes", "y"), positional, strict=False))
    return np.asarray(today(class_weight, **named))


def mean_squared_error(true: object, predicted: object, *, squared: bool = True, **named: object) -> float | Array:
    """Return the mean squared error, or its root."""
    from sklearn import metrics

    if not squared:
        LEDGER.note("mean_squared_error(squared=False)", "root_mean_squared_error", "removed in scikit-learn 1.6")
    function = metrics.mean_squared_error if squared else metrics.root_mean_squared_error
    found: float | Array = function(true, predicted, **named)
    return found


def plot_confusion_matrix(estimator: object, rows: object, true: object, **named: object) -> object:
    """Draw the confusion matrix of an estimator."""
    from sklearn.metrics import ConfusionMatrixDisplay

    return ConfusionMatrixDisplay.from_estimator(estimator, rows, true, **named)


version_info = (0, 0, 0)


def display(*values: object, **options: object) -> None:
    """Print values."""
    for value in values:
        sys.stdout.write(f"{value}\n" if isinstance(value, Shown) else f"{value!r}\n")


def clear_output(wait: bool = False) -> None:
    """Do nothing: output that was printed stays."""


def get_ipython() -> None:
    """Return None, as outside of a notebook."""


class Shown:
    """Content that a notebook would draw; its text is printed.

    Args:
        data: The content.
        **options: Accepted for compatibility.
    """

    def __init__(self, data: object = "", **options: object) -> None:
        self.data = data

    def __str__(self) -> str:
        return str(self.data)


HTML = Markdown = Image = Javascript = Shown


class AdamW(torch.optim.Optimizer):
    """Adam with weight decay that is applied after the update, as transformers computed it.

    Args:
        params: The parameters to train, or groups of them.
        lr: The learning rate.
        betas: The decay rates of the running averages of gradients and of their squares.
        eps: Added to the denominator, before the correction of the bias.
        weight_decay: The weight decay of groups that do not set their own.
        correct_bias: Whether to correct the bias of the running averages. BERT's original code did not.
        no_deprecation_warning: Accepted for compatibility.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
        no_deprecation_warning: bool = False,
    ) -> None:
        for name, value, fits in (
            ("lr", lr, lr >= 0),
            ("betas", betas, all(0 <= beta < 1 for beta in betas)),
            ("eps", eps, eps >= 0),
        ):
            if not fits:
                raise ValueError(f"{name}={value} is out of range")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "correct_bias": correct_bias}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the parameters."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [one for one in group["params"] if one.grad is not None]
            by_step: dict[int, list[torch.Tensor]] = {}
            for one in parameters:
                state = self.state[one]
                if not state:
                    state |= {"step": 0, "exp_avg": torch.zeros_like(one), "exp_avg_sq": torch.zeros_like(one)}
                state["step"] += 1
                by_step.setdefault(state["step"], []).append(one)
            for number, these in by_step.items():
                self._update(these, number, group["betas"], group["eps"], group["correct_bias"], group["lr"])
                if group["weight_decay"] > 0:
                    torch._foreach_mul_(these, 1 - group["lr"] * group["weight_decay"])
        return loss

    def _update(
        self,
        parameters: list[torch.Tensor],
        number: int,
        betas: tuple[float, float],
        eps: float,
        correct_bias: bool,
        rate: float,
    ) -> None:
        """Update parameters that have been updated equally often, without their weight decay."""
        beta1, beta2 = betas
        gradients = [one.grad for one in parameters if one.grad is not None]
        means = [self.state[one]["exp_avg"] for one in parameters]
        squares = [self.state[one]["exp_avg_sq"] for one in parameters]
        torch._foreach_mul_(means, beta1)
        torch._foreach_add_(means, gradients, alpha=1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
        scale = rate
        if correct_bias:
            scale = rate * math.sqrt(1 - beta2**number) / (1 - beta1**number)
        denominators = torch._foreach_sqrt(squares)
        torch._foreach_add_(denominators, eps)
        torch._foreach_addcdiv_(parameters, means, denominators, value=-scale)
