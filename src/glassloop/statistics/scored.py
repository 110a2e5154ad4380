"""The predictions of one model as arrays: what every interval, test and curve is computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glassloop.errors import ModelError
from glassloop.metric_values import Array
from glassloop.metrics import decide
from glassloop.records import Json
from glassloop.run_folder.predictions import read_predictions
from glassloop.run_folder.record import RunRecord
from glassloop.settings import CLASSES, SCORE, SEVERAL


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


def scored_rows(entries: Sequence[Mapping[str, Json]], task: str, labels: Sequence[str] | None) -> ScoredRows:
    """Return the lines of a predictions file as arrays.

    Args:
        entries: What `read_predictions` returns.
        task: The task of the run.
        labels: The label names of the run; None for regression.

    Raises:
        ModelError: If a row has no label or logits, or a label that is not one of `labels`.
    """
    names = tuple(labels or ())
    numbers = {name: number for number, name in enumerate(names)}
    width = len(names) if task != SCORE else 1
    references: Array
    try:
        logits = np.asarray([entry["logits"] for entry in entries], dtype=np.float64).reshape(len(entries), -1)
        found = [entry["label"] for entry in entries]
        if task == SCORE:
            references = np.asarray(found, dtype=np.float64)
        elif task == CLASSES:
            references = np.asarray([numbers[label] for label in found], dtype=np.int64)  # type: ignore[index]
        else:
            references = np.zeros((len(found), width), dtype=np.int64)
            for row, several in enumerate(found):
                references[row, [numbers[label] for label in several]] = 1  # type: ignore[index, union-attr]
        if logits.shape[1] != width or not len(entries) or not np.isfinite(logits).all():
            raise ValueError(f"logits of the shape {logits.shape}")
    except (LookupError, TypeError, ValueError) as error:
        raise ModelError(
            f"the predictions do not fit the run's labels: {type(error).__name__}: {error}", "restore the file, or train again"
        ) from error
    return ScoredRows(task, names, decide(logits, task), references, logits)


def scored_split(folder: Path, record: RunRecord, split: str) -> ScoredRows:
    """Return the stored predictions of a run for a split. Raises `SettingsError` or `ModelError` if there are none."""
    return scored_rows(read_predictions(folder, split), record.data.task, record.data.labels)


def has_rows_right(task: str) -> bool:
    """Return whether a row of this task is either right or wrong."""
    return task in (CLASSES, SEVERAL)
