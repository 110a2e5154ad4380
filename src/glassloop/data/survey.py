"""The first pass over the rows of a split: check every text, collect the different label cells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glassloop.data.cells import LabelCells, label_cells
from glassloop.data.facts import text_keys
from glassloop.data.interfaces import RawSplit
from glassloop.data.joining import columns_of_text
from glassloop.errors import DataError, listed, visible
from glassloop.run_folder.record import Columns
from glassloop.settings import DataSettings
from glassloop.stages import advance


@dataclass(frozen=True)
class Survey:
    """What the first pass found: 13 bytes per row, whatever the length of the texts."""

    found: LabelCells
    keys: np.ndarray  # a hash of the texts of each row
    empties: np.ndarray  # how many texts of each row are empty


@dataclass(frozen=True)
class Part:
    """The rows of a raw split that become a split of their own."""

    raw: RawSplit
    survey: Survey
    rows: np.ndarray  # one bool per row

    @property
    def keys(self) -> np.ndarray:
        """The hashes of the texts of these rows."""
        return np.asarray(self.survey.keys[self.rows])

    @property
    def num_empty(self) -> int:
        """How many texts of these rows are empty."""
        return int(self.survey.empties[self.rows].sum())

    def where(self, value: str | None) -> str:
        """Return what a person calls the first row with this label cell (None: a missing one)."""
        row = self.survey.found.first_row(value)
        return self.raw.source if row is None else self.raw.row_name(row)


def survey_split(name: str, split: RawSplit, head: pa.Table, columns: Columns, settings: DataSettings) -> Part:
    """Check all texts of a split and collect its label cells. `head` holds its first rows."""
    names = dict.fromkeys(head.column_names)
    absent = [part for text in columns.texts for part in columns_of_text(text, names) if part not in names]
    labelled = all(column in names for column in columns.label)
    if not labelled and not name.startswith("test"):
        absent += [column for column in columns.label if column not in names]
    if absent:
        raise DataError(
            f"{split.source}: there is no column {listed(absent)}; found {listed(names)}",
            "give every split the columns of the training rows (only test may have no labels)",
        )
    for column in columns.label if labelled else ():
        kind = head[column].type
        if pa.types.is_nested(getattr(kind, "value_type", kind) if is_list(kind) else kind):
            raise DataError(
                f"{split.source}: column {visible(column)} has the type {kind}, which cannot be a label",
                "name the label column with --label",
            )
    found, keys, empties, index = LabelCells(), [], [], 0
    for table in split.tables():
        texts = [table[column].combine_chunks() for column in columns.texts]
        checked = [
            check_text(text, column, split, index, settings.empty == "keep")
            for column, text in zip(columns.texts, texts, strict=True)
        ]
        empties.append(np.sum(checked, axis=0, dtype=np.uint8))
        keys.append(text_keys([text.to_pylist() for text in texts]))
        if labelled:
            found.add(label_cells(table, columns.label, settings.label_separator))
        index += table.num_rows
        advance(table.num_rows)
    return Part(split, Survey(found, np.concatenate(keys), np.concatenate(empties)), np.ones(index, dtype=bool))


def is_list(kind: pa.DataType) -> bool:
    """Return whether cells of this type are lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def check_text(text: pa.Array, column: str, split: RawSplit, first: int, keep_empty: bool) -> np.ndarray:
    """Return which cells are empty. Raise `DataError` if there are any and they may not be kept, or if a cell is not text."""
    if not (pa.types.is_string(text.type) or pa.types.is_large_string(text.type)):
        raise DataError(
            f"{split.source}: column {visible(column)} has the type {text.type}, which is not text",
            "name the text column with --text",
        )
    with_nul = pc.fill_null(pc.match_substring(text, "\0"), False).to_numpy(zero_copy_only=False)
    if with_nul.any():
        name = split.row_name(first + int(np.argmax(with_nul)))
        raise DataError(
            f"{name}: {visible(column)} contains a NUL byte", "remove the byte: the file may be damaged, or not a text file"
        )
    empty = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(text), ""), True).to_numpy(zero_copy_only=False)
    if empty.any() and not keep_empty:
        rows = np.flatnonzero(empty)
        names = [split.row_name(first + int(row)) for row in rows[:6]]  # naming a row may mean reading up to it
        raise DataError(
            f"{names[0]}: {visible(column)} is empty" + also(names[1:], len(rows) - len(names)),
            "fill or remove the rows, or keep them with --empty keep",
        )
    return np.asarray(empty)


def also(names: list[str], more: int) -> str:
    """Return `; so are row 5, row 9 and 20 more`, or nothing."""
    rest = f" and {more:,} more" if more else ""
    return f"; so are {', '.join(name.rpartition(', ')[2] for name in names)}{rest}" if names else ""
