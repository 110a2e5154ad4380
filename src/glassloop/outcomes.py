"""The outcome of an evaluation: metrics, the majority baseline, the scores of each class, and the predictions file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from glassloop.data.examples import Examples
from glassloop.data.writers import row_writer
from glassloop.engine.evaluate import Evaluation
from glassloop.errors import SettingsError, visible
from glassloop.files import replacing, write_text
from glassloop.measures import Measures, short_metrics
from glassloop.metric_values import AVERAGED, CORRELATIONS
from glassloop.metrics import decide, probabilities
from glassloop.run_folder.record import ClassRecord, RunRecord
from glassloop.settings import SCORE, SEVERAL


@dataclass(frozen=True)
class Outcome:
    """The evaluation of one split, the majority baseline (None without training rows), and the scores of each class."""

    split: str
    prefix: str  # of its metrics in the record of a run
    found: Evaluation
    baseline: dict[str, float] | None
    classes: dict[str, ClassRecord]
    measures: Measures

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics without prefix and without timings."""
        return short_metrics(self.found.metrics, self.prefix)


def outcome_of(
    examples: Examples,
    split: str,
    found: Evaluation,
    measures: Measures,
    prefix: str = "eval",
    trained_on: Mapping[str, int] | None = None,
) -> Outcome:
    """Return an evaluation with the majority baseline and the scores of each class.

    Args:
        examples: The data.
        split: The split that was evaluated.
        found: The evaluation.
        measures: The metrics that were computed.
        prefix: What the names of the metrics begin with.
        trained_on: How many training rows each class had, if the training rows are not among the examples.
    """
    compared = trained_on is not None or ("train" in examples.splits and split != "train")
    baseline = majority_baseline(examples, split, measures, trained_on) if compared else None
    classes = {}
    if found.labels is not None and examples.labels and "f1_macro" in measures.keys:
        classes = class_scores(decide(found.logits, examples.task), found.labels, examples.labels.names)
    return Outcome(split, prefix, found, baseline, classes, measures)


def validation_names(examples: Examples) -> list[str]:
    """Return the validation splits that have labels. The first one is evaluated during training."""
    return [name for name, fact in examples.facts.items() if name.startswith("validation") and not fact.unlabelled]


def prefixes(splits: list[str]) -> list[str]:
    """Return the prefix of each split's metrics: `eval` for the first, then `eval_mismatched` for validation_mismatched."""
    return ["eval", *(f"eval_{split.removeprefix('validation_')}" for split in splits[1:])][: len(splits)]


def scored(record: RunRecord, outcomes: list[Outcome]) -> RunRecord:
    """Return the record of a run with the results of its evaluations."""
    evaluation = {name: value for outcome in outcomes for name, value in outcome.found.metrics.items()}
    baseline = {f"{outcome.prefix}_{key}": value for outcome in outcomes for key, value in (outcome.baseline or {}).items()}
    return replace(record, evaluation=evaluation, baseline=short_metrics(baseline), classes=outcomes[0].classes or None)


def majority_baseline(
    examples: Examples, split: str, measures: Measures, trained_on: Mapping[str, int] | None = None
) -> dict[str, float]:
    """Return the metrics of always predicting the most frequent training label, or the mean score.

    Omits correlations, and the F1 of a class that is never predicted: they are not defined.
    """
    references = labels_of(examples, split)
    names = examples.labels.names if examples.labels else ()
    undefined = ["matthews_correlation", *CORRELATIONS]
    if examples.task == SCORE:
        guess: float | np.ndarray = float(labels_of(examples, "train").mean())
    elif examples.task == SEVERAL:
        guess = (labels_of(examples, "train").mean(axis=0) >= 0.5).astype(int)
    else:
        counts = (
            np.bincount(labels_of(examples, "train")) if trained_on is None else [trained_on.get(name, 0) for name in names]
        )
        guess = int(np.argmax(counts))
        undefined += AVERAGED if names[guess] != measures.positive else ()
    predictions = np.broadcast_to(guess, np.shape(references))
    metric = measures.metric(examples.task, names or ["score"])
    values = metric.compute(predictions=predictions, references=references)
    return {key: value for key, value in values.items() if key not in undefined}


def labels_of(examples: Examples, split: str) -> np.ndarray:
    """Return the labels of a split as numbers, scores, or rows of 0 and 1."""
    cells = examples.splits[split].with_format("arrow")[:][examples.columns.label_name]
    if examples.task != SEVERAL:
        return np.asarray(cells.to_numpy())
    rows = np.zeros((len(cells), examples.num_labels), dtype=np.int64)
    for row, numbers in enumerate(cells.to_pylist()):
        rows[row, numbers] = 1
    return rows


def class_scores(predictions: np.ndarray, references: np.ndarray, names: tuple[str, ...]) -> dict[str, ClassRecord]:
    """Return precision, recall and F1 of each class; None if there is nothing to count."""
    if predictions.ndim == 1:
        predictions, references = (np.eye(len(names), dtype=bool)[rows.astype(np.int64)] for rows in (predictions, references))
    given, wanted = predictions.astype(bool), references.astype(bool)
    right, predicted, support = (rows.sum(axis=0).tolist() for rows in (given & wanted, given, wanted))
    found = {}
    for number, name in enumerate(names):
        hits, chosen, true = right[number], predicted[number], support[number]
        precision, recall = hits / chosen if chosen else None, hits / true if true else None
        found[name] = ClassRecord(precision, recall, 2 * hits / (chosen + true) if chosen + true else None, true)
    return found


def write_predictions(path: Path, examples: Examples, split: str, found: Evaluation) -> None:
    """Write one line per row: texts, label, prediction and logits, from which every metric can be computed again."""
    decided = decide(found.logits, examples.task)
    names = examples.labels.names if examples.labels else None
    lines = []
    for row, (logits, choice) in enumerate(zip(found.logits.tolist(), decided.tolist(), strict=True)):
        entry: dict[str, object] = {"row": row, "prediction": label_of(choice, names)}
        if found.labels is not None:
            entry["label"] = label_of(found.labels[row].tolist(), names)
        texts = {name: examples.splits[split][row][name] for name in examples.columns.texts}
        lines.append(json.dumps({**entry, "logits": logits, **texts}, ensure_ascii=False, allow_nan=False))
    write_text(path, "\n".join(lines) + "\n")


def write_evaluated(path: Path, examples: Examples, found: Mapping[str, Evaluation]) -> int:
    """Write one row per evaluated row: split, row, texts, label, prediction and probabilities. Return the number of rows.

    Args:
        path: The file to write; its ending chooses the format.
        examples: The data.
        found: The evaluation of each split.

    Raises:
        SettingsError: If a text column has the name of a column that is written.
    """
    names = examples.labels.names if examples.labels else None
    scores = [f"score_{name}" for name in names or ()]
    texts, own = [*examples.columns.texts], ["split", "row", "label", "prediction", *scores]
    if twice := [name for name in texts if name in own]:
        raise SettingsError(f"the text column {visible(twice[0])} would be written twice", "rename it, or omit --out")
    number = 0
    with replacing(path) as writing, writing.open("w", encoding="utf-8", newline="") as opened:
        write = row_writer(opened, path.suffix.lower(), [*own[:2], *texts, *own[2:]])
        for split, evaluation in found.items():
            choices = decide(evaluation.logits, examples.task).tolist()
            likely = probabilities(evaluation.logits, examples.task).tolist() if names else [[]] * len(choices)
            labels = labels_of(examples, split).tolist()
            for row, (choice, label, shares) in enumerate(zip(choices, labels, likely, strict=True)):
                cells = {name: examples.splits[split][row][name] for name in texts}
                answer = {"label": label_of(label, names), "prediction": label_of(choice, names)}
                numbers = {name: round(share, 6) for name, share in zip(scores, shares, strict=True)}
                write({"split": split, "row": row, **cells, **answer, **numbers})
            number += len(choices)
    return number


def label_of(choice: float | list[float], names: tuple[str, ...] | None) -> str | float | list[str]:
    """Return the name of a class number, the names of a row of 0 and 1, or, without names, the score itself."""
    if isinstance(choice, list):
        return [name for name, chosen in zip(names or (), choice, strict=True) if chosen]
    return choice if names is None else names[int(choice)]
