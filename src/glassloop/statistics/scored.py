"""The predictions of one model as arrays: what every interval, test and curve is computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glassloop.errors import ModelError, shortened
from glassloop.metric_values import Array
from glassloop.metrics import decide
from glassloop.records import Json
from glassloop.run_folder.layout import predictions_name
from glassloop.run_folder.predictions import RESTORE, read_predictions
from glassloop.run_folder.record import RunRecord
from glassloop.settings import CLASSES, SCORE, SEVERAL

LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class ScoredRows:
    """Predictions and labels of one model on the rows of a split.

    Attributes:
        task: single_label_classification, multi_label_classification or regression.
        labels: The label names; empty for regression.
        predictions: A class number per row, a row of 0 and 1 per row, or a score per row.
        references: The true labels in the same form.
        logits: The outputs of the model, one line per row.
    """

    task: str
    labels: tuple[str, ...]
    predictions: Array
    references: Array
    logits: Array

    def __len__(self) -> int:
        return len(self.references)

    @property
    def right(self) -> Array:
        """Whether each row is predicted correctly. Of several labels, all must be right."""
        equal = self.predictions == self.references
        return np.asarray(equal.all(axis=1) if equal.ndim == 2 else equal)


def stored_logits(entries: Sequence[Mapping[str, Json]], width: int, path: Path) -> Array:
    """Return the logits of the lines of a file, one line per row.

    Args:
        entries: The lines.
        width: The number of outputs of the model.
        path: The file, for messages.

    Raises:
        ModelError: If a row does not have so many finite numbers, in the range of a model's outputs.
    """
    try:
        found = numbers_of([entry["logits"] for entry in entries])
    except (LookupError, TypeError, ValueError, OverflowError):
        found = None
    if found is not None and found.shape in ((len(entries), width), (len(entries),) * (width == 1)) and len(entries):
        return found.reshape(len(entries), width)
    for number, entry in enumerate(entries, 1):
        try:
            alone = numbers_of(entry["logits"])
        except (LookupError, TypeError, ValueError, OverflowError):
            alone = None
        if alone is None or alone.size != width or alone.ndim > 1:
            raise ModelError(f"{path}, line {number:,}: logits are not {width:,} finite numbers of a model", RESTORE)
    raise ModelError(f"{path}: there are no rows", RESTORE)


def numbers_of(value: object) -> Array | None:
    """Return a number, or lists of numbers, as an array; None for texts, and for numbers that are not those of a model.

    Beyond fp32, differences and squares of numbers are no longer finite.
    """
    found = np.asarray(value)
    if found.dtype.kind not in "iuf" or not (np.abs(found.astype(np.float64)) <= LARGEST).all():
        return None
    return np.asarray(found, dtype=np.float64)


def scored_rows(entries: Sequence[Mapping[str, Json]], task: str, labels: Sequence[str] | None, path: Path) -> ScoredRows:
    """Return the lines of a predictions file as arrays.

    Args:
        entries: What `read_predictions` returns.
        task: The task of the run.
        labels: The label names of the run; None for regression.
        path: The file, for messages.

    Raises:
        ModelError: If a row has no label or logits, or a label that is not one of `labels`.
    """
    names = tuple(labels or ())
    numbers = {name: number for number, name in enumerate(names)}
    width = len(names) if task != SCORE else 1
    references: Array
    logits = stored_logits(entries, width, path)
    try:
        found = [entry["label"] for entry in entries]
        if task == SCORE:
            scores = numbers_of(found)
            if scores is None or scores.ndim != 1:
                raise ValueError("a label is not a number")
            references = scores
        elif task == CLASSES:
            references = np.asarray([numbers[label] for label in found], dtype=np.int64)  # type: ignore[index]
        else:
            references = np.zeros((len(found), width), dtype=np.int64)
            for row, several in enumerate(found):
                references[row, [numbers[label] for label in several]] = 1  # type: ignore[index, union-attr]
    except (LookupError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {shortened(str(error))}"
        raise ModelError(f"{path}: the predictions do not fit the run's labels: {reason}", RESTORE) from error
    return ScoredRows(task, names, decide(logits, task), references, logits)


def scored_split(folder: Path, record: RunRecord, split: str) -> ScoredRows:
    """Return the stored predictions of a run for a split. Raises `SettingsError` or `ModelError` if there are none."""
    path = folder / predictions_name(split)
    return scored_rows(read_predictions(folder, split), record.data.task, record.data.labels, path)


def has_rows_right(task: str) -> bool:
    """Return whether a row of this task is either right or wrong."""
    return task in (CLASSES, SEVERAL)
