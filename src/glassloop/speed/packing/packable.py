"""Whether the rows of a data set can be packed: one list of tokens per row, and hidden tokens only at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from glassloop.data.batches import Batches
from glassloop.data.collator import is_standard
from glassloop.data.interfaces import Row
from glassloop.data.row_labels import LABEL_KEYS
from glassloop.data.row_reader import RowReader, hides_inside
from glassloop.data.stability import Repeats
from glassloop.data.stacking import has_no_number, stacks_rows
from glassloop.errors import SettingsError, listed
from glassloop.speed.packing.layout import Ragged, join_rows

TOKEN_KEYS = ("input_ids", "token_type_ids", "attention_mask")
READ_ROWS = 10_000
HIDDEN = "an attention mask hides tokens inside a row, not only at its end"


class HiddenInsideError(SettingsError):
    """An attention mask hides tokens that are not at the end of their row."""

    def __init__(self) -> None:
        super().__init__(HIDDEN, "use backend plain")


def why_not_columns(batches: Batches) -> str | None:
    """Return why rows like the first one cannot be packed: they have no token ids, or columns beside them. None if they can."""
    if not isinstance(batches, Batches) or not is_standard(batches.collate):
        return "the batches are those of a DataLoader or of a custom collator"
    if not stacks_rows(batches.collate) and batches.table is not None:
        return None  # its columns are lists of tokens, and labels
    row = first_row(batches)
    if not isinstance(row, Mapping) or np.ndim(row.get("input_ids", 0)) != 1:
        return "a row has no list of input_ids"
    others = [name for name, cell in row.items() if name not in (*TOKEN_KEYS, *LABEL_KEYS) and not has_no_number(cell)]
    return f"the rows have {listed(others)}" if others else None


def why_not_masks(batches: Batches) -> str | None:
    """Return why the attention masks of rows do not allow packing; None if they do. Rows that change are not read."""
    if batches.repeats is not Repeats.SAME:
        return None
    if isinstance(batches.rows, RowReader) and not batches.rows.in_memory:
        batches.rows.survey()
        return HIDDEN if batches.rows.hides_inside else None
    return HIDDEN if any(hides_inside(mask) for mask in masks_of(batches)) else None


def masks_of(batches: Batches) -> Iterator[Ragged]:
    """Yield the attention masks of a data set, of many rows at a time."""
    table = batches.table
    if table is not None and "attention_mask" in table.column_names:
        for part in table.select_columns("attention_mask").iter(READ_ROWS):
            cells = part["attention_mask"].combine_chunks()
            yield cells.flatten().to_numpy(zero_copy_only=False), np.diff(cells.offsets.to_numpy()).astype(np.int32)
    if table is None and "attention_mask" in first_row(batches):
        for start in range(0, len(batches.rows), READ_ROWS):
            numbers = range(start, min(start + READ_ROWS, len(batches.rows)))
            yield join_rows([np.asarray(batches.rows[number]["attention_mask"]) for number in numbers])


def first_row(batches: Batches) -> Row:
    """Return the first row of a data set."""
    rows = batches.rows
    row: Row = rows.first if isinstance(rows, RowReader) else batches.read(np.zeros(1, dtype=np.int64))[0]
    return row
