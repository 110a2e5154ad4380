"""Values of JSON and Python as the text that a cell of a CSV file would have."""

from __future__ import annotations

import math
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from glassloop.data.soundness import refuse_half_character
from glassloop.errors import DataError, visible

MISSING = ("NAType", "NaTType")  # the types of missing values in pandas, by name so that pandas need not be installed
CellText: TypeAlias = "str | list[CellText] | None"
PLAIN = (int, float, Decimal, date, time)


def cell_text(path: Path, number: int, name: str, cell: object) -> CellText:
    """Return a value as text, a list as a list of texts, and a missing value as None. NaN counts as missing, as in pandas.

    Raise `DataError` for a value without a text form, such as bytes or an object.
    """
    if isinstance(cell, str):
        refuse_half_character(cell, f"{path.name}, row {number:,}: {visible(name)}")
        return str(cell)
    if hasattr(cell, "tolist"):  # a number or an array of NumPy or torch
        cell = cell.tolist()
    if cell is None or type(cell).__name__ in MISSING or (isinstance(cell, float) and math.isnan(cell)):
        return None
    if isinstance(cell, list | tuple):
        if any(isinstance(part, list | tuple) for part in cell):
            raise DataError(f"{path.name}, row {number:,}: {visible(name)} is a list of lists", "use text, a number or a list")
        return [cell_text(path, number, name, part) for part in cell]
    if isinstance(cell, bool):
        return str(cell).lower()
    if not isinstance(cell, PLAIN) or (isinstance(cell, int) and cell.bit_length() > 10_000):
        kind = "an object" if isinstance(cell, dict) else f"of the type {type(cell).__name__}"
        raise DataError(f"{path.name}, row {number:,}: {visible(name)} is {kind}", "use text, a number or a list")
    return str(cell)


def column_array(path: Path, first: int, name: str, cells: list[CellText]) -> pa.Array:
    """Return one column of the rows from number `first` on: all texts, or all lists of texts."""
    kinds = {number: isinstance(cell, list) for number, cell in enumerate(cells, first) if cell is not None}
    are_lists = next(iter(kinds.values()), False)
    if odd := [number for number, is_list in kinds.items() if is_list != are_lists]:
        raise DataError(f"{path.name}, row {odd[0]:,}: {visible(name)} mixes lists and single values", "use only one of them")
    return pa.array(cells, pa.list_(pa.string()) if are_lists else pa.string())
