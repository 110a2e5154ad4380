"""The labels of rows that are given to a Trainer: read, counted, and checked against the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from glassloop.data.batches import KIND_REMEDY, LABEL_KEYS, Batches, labels_among
from glassloop.data.formats import arrow_rows
from glassloop.errors import DataError, SettingsError, listed
from glassloop.settings import CLASSES, SCORE, SEVERAL


def labels_in(rows: Any) -> np.ndarray | None:
    """Return the labels of all rows of a `Dataset` or of a list of dicts; None where they have none under a usual name."""
    if rows is None:
        return None
    table = arrow_rows(rows)
    if table is None:
        return labels_among(rows_to_columns(rows)) if isinstance(rows[0], Mapping) else None
    keys = [key for key in LABEL_KEYS if key in table.column_names]
    columns = table.select_columns(keys)[:] if keys else {}
    return labels_among({key: cells_of(columns[key].combine_chunks()) for key in keys})


def rows_to_columns(rows: Any) -> dict[str, list[Any]]:
    """Return the labels of rows that are read one by one, by their key; each row is read once."""
    found: dict[str, list[Any]] = {}
    for number in range(len(rows)):
        row = rows[number]
        for key in LABEL_KEYS:
            if key in row:
                found.setdefault(key, []).append(np.asarray(row[key]))
    return found


def cells_of(cells: Any) -> Any:
    """Return an Arrow column of numbers, or of lists of numbers, as an array."""
    return cells.to_pylist() if hasattr(cells, "offsets") else cells.to_numpy(zero_copy_only=False)


def infer_task(config: Any, batches: Batches, say: Callable[[str], None]) -> None:
    """Set multi-label classification where a row has one number for each label, as transformers does for fractions.

    Raises where the labels of the first row do not fit what the model's config says.
    """
    task, num_labels = config.problem_type, int(config.num_labels)
    if task == SEVERAL:
        return
    first = np.zeros(1, dtype=np.int64)
    labels = batches.batch(first, first).labels
    if labels is None:
        return
    if task == SCORE or num_labels == 1:
        if labels.ndim != 1:
            raise DataError(f"a row has a list of {labels.shape[1]:,} as its score", "give one number a row, not a list")
        return
    if labels.ndim == 1 and labels.is_floating_point():
        raise DataError(f"the labels are of the kind {str(labels.dtype)[6:]}, not class numbers", KIND_REMEDY)
    if labels.ndim == 2:
        problem = f"a row has {labels.shape[1]:,} numbers as its label, but"
        if task == CLASSES:
            raise DataError(f"{problem} problem_type is {task}", "give one class number a row, or set problem_type")
        if labels.shape[1] != num_labels:
            raise DataError(f"{problem} the model has {num_labels:,} labels", "load the model with as many labels")
        config.problem_type = SEVERAL
        say(f"the labels hold one number for each of {num_labels:,} labels: trained as {SEVERAL}")


def refuse_labels(rows: Any, task: str, num_labels: int, *, needed: bool) -> None:
    """Raise for a class number the model does not have: a loss would fail, on a GPU without saying where."""
    table = arrow_rows(rows)
    names = rows[0] if table is None else table.column_names
    if needed and not any(key in names for key in LABEL_KEYS):
        raise SettingsError("the training rows have no labels", f"name their column one of {listed(LABEL_KEYS)}")
    labels = labels_in(rows) if table is not None and task == CLASSES else None
    if labels is None:
        return
    if labels.dtype.kind == "f":  # a missing label makes fractions of all of them
        raise DataError(f"the labels are of the kind {labels.dtype}, not class numbers", KIND_REMEDY)
    if len(wrong := np.flatnonzero((labels < 0) | (labels >= num_labels))):
        raise DataError(
            f"row {wrong[0]:,} (from 0) has the label {labels[wrong[0]]}; the model has 0 to {num_labels - 1}",
            "fix the labels, or remove their column where there are none to compare with",
        )
