"""The label cells of a split as text: the different cells, and which one each row has."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glassloop.data.several import lists_in

UNLABELLED = -1  # what public data sets write if the labels are secret
MAX_CLASSES = 10_000

Cell = str | tuple[str, ...] | None


class LabelCells:
    """The different label cells of a split, and four bytes per row that say which one it has."""

    def __init__(self) -> None:
        self.codes_of: dict[Cell, int] = {}
        self.parts: list[np.ndarray] = []
        self.overflowed = False

    def add(self, cells: pa.Array) -> None:
        """Add the cells of the next rows. After `MAX_CLASSES` different texts (scores), all new ones count as one."""
        if pa.types.is_list(cells.type):
            rows = [None if row is None or None in row else tuple(row) for row in cells.to_pylist()]
            codes = (self.codes_of.setdefault(row, len(self.codes_of)) for row in rows)  # lists are never scores
            self.parts.append(np.fromiter(codes, dtype=np.int32, count=len(rows)))
        else:
            encoded = cells.dictionary_encode()
            known = [self.code(value) for value in encoded.dictionary.to_pylist()]
            lookup = np.array(known + ([self.code(None)] if encoded.null_count else []))
            indices = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)
            self.parts.append(lookup.astype(np.int32)[indices])

    def code(self, cell: Cell) -> int:
        """Return the number of a cell, a new one for a new cell."""
        if cell not in self.codes_of and len(self.codes_of) >= MAX_CLASSES:
            self.overflowed = True
            return MAX_CLASSES - 1
        return self.codes_of.setdefault(cell, len(self.codes_of))

    @property
    def codes(self) -> np.ndarray:
        """For each row, the number of its cell in `cells`."""
        if len(self.parts) > 1:
            self.parts = [np.concatenate(self.parts)]
        return self.parts[0] if self.parts else np.zeros(0, dtype=np.int32)

    @property
    def cells(self) -> list[Cell]:
        """The different cells."""
        return list(self.codes_of)

    @property
    def are_lists(self) -> bool:
        """Whether rows have several labels."""
        return any(isinstance(cell, tuple) for cell in self.codes_of)

    def values(self) -> list[str]:
        """Return the different label texts, one by one if rows have several."""
        return list(dict.fromkeys(value for cell in self.cells if cell is not None for value in parts_of(cell)))

    def counts(self, rows: np.ndarray | slice = slice(None)) -> Counter[str]:
        """Return how often each label text occurs in the chosen rows."""
        found: Counter[str] = Counter()
        for cell, number in zip(self.cells, np.bincount(self.codes[rows], minlength=len(self.codes_of)), strict=False):
            for value in parts_of(cell) if cell is not None and number else ():
                found[value] += int(number)
        return found

    def first_row(self, value: str | None) -> int | None:
        """Return the first row whose cell is or contains `value`; None if there is none."""
        wanted = [code for cell, code in self.codes_of.items() if cell == value or (isinstance(cell, tuple) and value in cell)]
        rows = np.flatnonzero(np.isin(self.codes, wanted))
        return int(rows[0]) if len(rows) else None

    @property
    def labelled(self) -> bool:
        """Whether there are labels: a column, and not only marks that the labels are secret."""
        return not set(self.cells) <= {str(UNLABELLED), f"{UNLABELLED}.0"}


def parts_of(cell: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the label texts of a cell."""
    return cell if isinstance(cell, tuple) else (cell,)


def label_cells(table: pa.Table, columns: tuple[str, ...], separator: str | None) -> pa.Array:
    """Return the label cells of a table as text, or as lists of text if a row may have several labels."""
    if len(columns) > 1:
        parts = [as_text(table[name].combine_chunks()) for name in columns]
        rows = zip(*(part.to_pylist() for part in parts), strict=True)
        return pa.array([several_columns(row, columns) for row in rows], pa.list_(pa.string()))
    cells = as_text(table[columns[0]].combine_chunks())
    if pa.types.is_string(cells.type) and (lists := lists_in(cells.to_pylist())) is not None:
        return pa.array(lists, pa.list_(pa.string()))
    if separator is not None and not pa.types.is_list(cells.type):
        split = (None if cell is None else cell.split(separator) for cell in cells.to_pylist())
        parted = [None if row is None else [part.strip() for part in row if part.strip()] for row in split]
        return pa.array(parted, pa.list_(pa.string()))
    return cells


def several_columns(row: tuple[str | None, ...], columns: tuple[str, ...]) -> list[str] | None:
    """Return the names of the columns with 1; None if a cell is neither 0 nor 1."""
    meaning = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}
    if any(cell is None or cell.lower() not in meaning for cell in row):
        return None
    return [name for name, cell in zip(columns, row, strict=True) if cell is not None and meaning[cell.lower()]]


def as_text(cells: pa.Array) -> pa.Array:
    """Return label cells of any type as text; lists stay lists."""
    kind = cells.type
    if pa.types.is_dictionary(kind):
        return as_text(cells.dictionary_decode())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pc.cast(cells, pa.list_(pa.string()))
    if pa.types.is_floating(kind):
        return pa.array([None if cell is None else repr(cell) for cell in cells.to_pylist()], pa.string())
    return pc.cast(cells, pa.string())
