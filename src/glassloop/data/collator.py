"""From rows to the tensors of a batch: padded to the longest row or stacked, labels in the type that a loss takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from glassloop.base.errors import ModelError, SettingsError, listed
from glassloop.data.interfaces import CellColumns, Collator, Row
from glassloop.data.order import padded_width
from glassloop.data.rows import LABEL_KEYS, labels_among

if TYPE_CHECKING:
    from torch import Tensor

    from glassloop.data.interfaces import Tokenizer


THE_SAME = ("default_data_collator", "DefaultDataCollator", "torch_default_data_collator")


def stacked(rows: Sequence[Row] | CellColumns) -> dict[str, Tensor]:
    """Return a batch of rows that all have the same length; texts and other cells without numbers are dropped.

    Gives the same batches as transformers' `default_data_collator`.
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


class PaddingCollator:
    """Pads rows to the longest of them, or up to the next multiple, and returns tensors.

    Gives the same batches as transformers' `DataCollatorWithPadding`.

    Args:
        tokenizer: Says which id pads, and on which side.
        pad_to_multiple_of: Pad to a multiple of this number. None pads to the longest row.
        least: Pad to at least this many tokens.

    Attributes:
        fills: The number that pads each column.
        on_left: Whether rows are padded on the left.
        multiple: Rows are padded to a multiple of this number.
        least: Rows are padded to at least this many tokens.

    Raises:
        ModelError: If the tokenizer has no padding token.
    """

    def __init__(self, tokenizer: Tokenizer, pad_to_multiple_of: int | None = None, least: int = 0) -> None:
        if tokenizer.pad_token_id is None:
            raise ModelError("the tokenizer has no padding token", "set one: tokenizer.pad_token = tokenizer.eos_token")
        self.fills = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id, "attention_mask": 0}
        self.on_left = tokenizer.padding_side == "left"
        self.multiple, self.least = pad_to_multiple_of or 1, least

    def __call__(self, rows: Sequence[Row] | CellColumns) -> dict[str, Tensor]:
        """Return the padded batch.

        Args:
            rows: A list of rows, or a dict with a list of cells for each column.

        Returns:
            input_ids, attention_mask, and token_type_ids, labels and other columns of numbers if the rows have them.

        Raises:
            SettingsError: If the rows have a column that a batch cannot contain, such as texts.
            DataError: If the labels are not numbers, or two label columns differ.
        """
        import torch

        columns = rows if isinstance(rows, Mapping) else {key: [row[key] for row in rows] for key in rows[0]}
        others = [key for key in columns if key not in (*self.fills, *LABEL_KEYS)]
        refuse_other_columns([key for key in others if has_no_number(columns[key][0])])
        ids = columns["input_ids"]
        width = padded_width(max(self.least, *(len(row) for row in ids)), self.multiple)
        columns = {"attention_mask": [np.ones(len(row), dtype=np.int64) for row in ids], **columns}
        batch = {key: self.pad(columns[key], width, fill) for key, fill in self.fills.items() if key in columns}
        if (labels := labels_among(columns)) is not None:
            batch["labels"] = torch.from_numpy(labels)
        for key in others:
            refuse_lengths(key, {np.shape(cell) for cell in columns[key]})
            batch[key] = torch.tensor([np.asarray(cell).tolist() for cell in columns[key]])
        return batch

    def pad(self, cells: Sequence[Sequence[int]] | np.ndarray, width: int, fill: int) -> Tensor:
        """Return the `cells` of one column as a tensor that is `width` wide, padded with `fill`."""
        import torch

        padded = np.full((len(cells), width), fill, dtype=np.int64)
        for place, row in enumerate(cells):
            if self.on_left:
                padded[place, width - len(row) :] = row
            else:
                padded[place, : len(row)] = row
        return torch.from_numpy(padded)


def collator_of(given: Collator | None, tokenizer: Tokenizer | None, multiple: int | None) -> Collator:
    """Return the user's collator, or one of Glassloop if none is given or if it would give the same batches."""
    if stacks_rows(given):
        return stacked
    if given is not None and type(given).__name__ != "DataCollatorWithPadding":
        return given
    tokenizer = getattr(given, "tokenizer", None) or tokenizer
    if tokenizer is None:
        raise SettingsError("Trainer needs a tokenizer to pad batches", "pass processing_class=tokenizer or data_collator=")
    padding, least = getattr(given, "padding", True), getattr(given, "max_length", None)
    if padding == "max_length" and least is not None:
        return PaddingCollator(tokenizer, given.pad_to_multiple_of, least)  # type: ignore[union-attr]  # of transformers
    if padding not in (True, "longest"):
        return given  # type: ignore[return-value]  # without a collator, padding is True
    return PaddingCollator(tokenizer, getattr(given, "pad_to_multiple_of", None) or multiple)


def is_standard(collate: object) -> bool:
    """Return whether a collator only pads or stacks rows, so that a batch consists of what the rows contain."""
    return isinstance(collate, PaddingCollator) or stacks_rows(collate)


def refuse_other_columns(columns: Iterable[str]) -> None:
    known = ("input_ids", "token_type_ids", "attention_mask", *LABEL_KEYS)
    if others := [key for key in columns if key not in known]:
        raise SettingsError(
            f"a batch cannot contain {listed(others)}", "remove these columns first: dataset.remove_columns([…])"
        )
