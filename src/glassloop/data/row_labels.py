"""The labels of rows that are given to a Trainer: read, counted, and checked against the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from glassloop.data.formats import arrow_rows
from glassloop.data.interfaces import Rows
from glassloop.errors import DataError, SettingsError, listed, visible
from glassloop.settings import CLASSES, SCORE, SEVERAL

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

    from glassloop.transformers_types import Config

LABEL_KEYS = ("labels", "label", "label_ids")
TYPE_REMEDY = "use whole numbers, or set problem_type"


def labels_among(columns: Mapping[str, ArrayLike]) -> np.ndarray | None:
    """Return the labels of some rows in the type that a loss takes; None if there is no label column."""
    found = {key: np.asarray(columns[key]) for key in LABEL_KEYS if key in columns}
    if not found:
        return None
    (first, labels), *others = found.items()
    for key, other in others:
        if not np.array_equal(labels, other):
            row = int(np.argmax([not np.array_equal(*pair) for pair in zip(labels, other, strict=True)]))
            values = f"{labels[row]} and {other[row]}"
            problem = f"{visible(first)} and {visible(key)} have different values ({values})"
            raise DataError(problem, "remove the column that is not the label")
    if labels.dtype.kind not in "fiub":
        raise DataError(f"the labels have the type {labels.dtype}, which is not a number", TYPE_REMEDY)
    return labels.astype(np.float32 if labels.dtype.kind == "f" else np.int64)


def labels_in(rows: Rows | None) -> np.ndarray | None:
    """Return the labels of all rows; None if they have none under a usual name."""
    if rows is None:
        return None
    table = arrow_rows(rows)
    if table is None:
        return labels_among(label_columns(rows)) if isinstance(rows[0], Mapping) else None
    keys = [key for key in LABEL_KEYS if key in table.column_names]
    columns = table.select_columns(keys)[:] if keys else {}
    return labels_among({key: cells_of(columns[key].combine_chunks()) for key in keys})


def without_missing_labels(rows: Rows) -> Rows:
    """Return rows without the label columns in which every cell is missing, such as those of a test split without labels."""
    table = arrow_rows(rows)
    names = [] if table is None else [key for key in LABEL_KEYS if key in table.column_names]
    missing = [name for name in names if table.data.column(name).null_count == len(table.data)]  # type: ignore[union-attr]
    return rows.remove_columns(missing) if missing else rows  # type: ignore[attr-defined]  # a `Dataset`


def label_columns(rows: Rows) -> dict[str, list[np.ndarray]]:
    """Return the label cells of rows that are read one by one, by column; each row is read once."""
    found: dict[str, list[np.ndarray]] = {}
    read = getattr(rows, "look", rows.__getitem__)  # a reader keeps what it has read
    for number in range(len(rows)):
        row = read(number)
        for key in LABEL_KEYS:
            if key in row:
                found.setdefault(key, []).append(np.asarray(row[key]))
    return found


def cells_of(cells: pa.Array) -> ArrayLike:
    """Return an Arrow column of numbers as an array, and one of lists of numbers as lists."""
    numbers: ArrayLike = cells.to_pylist() if hasattr(cells, "offsets") else cells.to_numpy(zero_copy_only=False)
    return numbers


def infer_task(config: Config, first_labels: Callable[[], Tensor | None], say: Callable[[str], None]) -> None:
    """Set multi-label classification if a row has one number for each label, as transformers does for fractions.

    `first_labels` reads the labels of the first row. Raise `DataError` if they do not fit the model's config.
    """
    task, num_labels = config.problem_type, int(config.num_labels)
    if task == SEVERAL:
        return
    labels = first_labels()
    if labels is None:
        return
    if task == SCORE or num_labels == 1:
        if labels.ndim != 1:
            raise DataError(f"the score of a row is a list of length {labels.shape[1]:,}", "use one number per row, not a list")
        return
    if labels.ndim == 1 and labels.is_floating_point():
        raise DataError(f"the labels have the type {str(labels.dtype)[6:]}, but classes are whole numbers", TYPE_REMEDY)
    if labels.ndim == 2:
        problem = f"the label of a row has {labels.shape[1]:,} numbers, but"
        if task == CLASSES:
            raise DataError(f"{problem} problem_type is {task}", "use one class number per row, or set problem_type")
        if labels.shape[1] != num_labels:
            raise DataError(f"{problem} the model has {num_labels:,} labels", "load the model with as many labels")
        config.problem_type = SEVERAL
        say(f"each row has one number for each of the {num_labels:,} labels: training as {SEVERAL}")


def refuse_labels(rows: Rows, task: str, num_labels: int, *, needed: bool, ignored: int | None = None) -> None:
    """Raise if a row has a class number that the model does not have: on a GPU the loss would fail without saying where.

    `needed`: rows must have labels. `ignored`: a number that is allowed although it is no class.
    """
    table = arrow_rows(rows)
    if needed and not any(key in (rows[0] if table is None else table.column_names) for key in LABEL_KEYS):
        raise SettingsError("the training rows have no labels", f"name their column one of {listed(LABEL_KEYS)}")
    labels = labels_in(rows) if table is not None and task == CLASSES else None
    if labels is None:
        return
    if labels.dtype.kind == "f":  # a missing label turns all of them into fractions
        raise DataError(f"the labels have the type {labels.dtype}, but classes are whole numbers", TYPE_REMEDY)
    if len(wrong := np.flatnonzero(((labels < 0) | (labels >= num_labels)) & (labels != ignored))):
        raise DataError(
            f"row {wrong[0]:,} (from 0) has the label {labels[wrong[0]]}; the model has 0 to {num_labels - 1}",
            "fix the labels, or remove the label column if the labels are unknown",
        )
