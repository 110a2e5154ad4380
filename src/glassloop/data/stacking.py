"""Batches of rows that need no padding, because they all have the same length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from glassloop.data.interfaces import CellColumns, Row
from glassloop.data.row_labels import LABEL_KEYS, labels_among
from glassloop.errors import SettingsError

if TYPE_CHECKING:
    from torch import Tensor

THE_SAME = ("default_data_collator", "DefaultDataCollator", "torch_default_data_collator")


def stacked(rows: Sequence[Row] | CellColumns) -> dict[str, Tensor]:
    """Return a batch of rows that all have the same length; texts and other cells without numbers are dropped.

    Gives the same batches as transformers' `default_data_collator`.

    Args:
        rows: A list of rows, or a dict with a list of cells for each column.
    """
    import torch

    if not isinstance(rows, Mapping):
        rows = [row if isinstance(row, Mapping) else vars(row) for row in rows]
        rows = {name: [row[name] for row in rows] for name in rows[0]}
    batch = {}
    for name, cells in rows.items():
        if name in LABEL_KEYS or has_no_number(cells[0]):
            continue
        refuse_lengths(name, {np.shape(cell) for cell in cells})
        whole = isinstance(cells[0], np.ndarray | np.integer) and cells[0].dtype.kind in "iu"  # a file has small integers
        made = np.stack(list(cells)).astype(np.int64) if whole else torch.stack([torch.as_tensor(cell) for cell in cells])
        batch[name] = torch.as_tensor(made)
    labels = labels_among({name: rows[name] for name in LABEL_KEYS if name in rows})
    if labels is not None:
        batch["labels"] = torch.from_numpy(labels)
    return batch


def stacks_rows(collate: object) -> bool:
    """Return whether a collator is `stacked`, or the one of transformers that gives the same batches."""
    name = getattr(collate, "__name__", type(collate).__name__)
    from_transformers = getattr(collate, "__module__", "").startswith("transformers.")
    return collate is stacked or (from_transformers and name in THE_SAME and getattr(collate, "return_tensors", "pt") == "pt")


def has_no_number(cell: object) -> bool:
    """Return whether a cell is a text or missing, and so no part of a batch."""
    return cell is None or isinstance(cell, str)


def refuse_lengths(name: str, shapes: set[tuple[int, ...]]) -> None:
    """Raise `SettingsError` if the cells of a column have several shapes."""
    if len(shapes) > 1:
        problem = f"the rows have different lengths of {name}, and nothing pads them"
        raise SettingsError(problem, "pass processing_class=tokenizer, which pads tokens, or data_collator=")
