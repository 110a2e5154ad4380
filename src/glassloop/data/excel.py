"""Read a sheet of an Excel or OpenDocument file as tables with all cells as text."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from glassloop.data.bad_rows import BadRows
from glassloop.data.delimited import Numbered, tables_of_cells, without_blank_end
from glassloop.data.opening import COMPRESSED, opened_bytes
from glassloop.errors import DataError, SettingsError, did_you_mean, listed, visible
from glassloop.settings import DataSettings

if TYPE_CHECKING:
    from python_calamine import CalamineSheet, CalamineWorkbook

EXCEL = (".xlsx", ".xls", ".ods")
Value = int | float | str | bool | date | time | datetime | timedelta


def read_excel(path: Path, settings: DataSettings, bad: BadRows) -> Iterator[pa.Table]:
    """Yield the rows of a sheet: the only one with cells, or the one the user has chosen."""
    sheet = chosen_sheet(path, opened_workbook(path), settings.sheet)
    rows = [*without_blank_end(numbered_cells(sheet))]
    if len(rows) > 1 and sum(map(bool, rows[0][1])) == 1 < sum(map(bool, rows[1][1])):
        title = next(filter(None, rows[0][1]))
        raise DataError(
            f"{path.name}: row 1 contains only {visible(title)}, which looks like a title above the table",
            "delete the rows above the column names",
        )
    yield from tables_of_cells(path, iter(rows), settings, bad)


def opened_workbook(path: Path) -> CalamineWorkbook:
    """Open a file. Raise `SettingsError` without the package that reads it, and `DataError` if it cannot be read."""
    try:
        from python_calamine import CalamineError, CalamineWorkbook
    except ImportError as error:
        raise SettingsError(
            f"{path.name}: reading Excel files needs the package python-calamine", "pip install 'glassloop[excel]'"
        ) from error
    try:
        if path.suffix.lower() not in COMPRESSED:
            return CalamineWorkbook.from_path(path)
        with opened_bytes(path) as opened:
            return CalamineWorkbook.from_filelike(BytesIO(opened.read()))
    except CalamineError as error:
        kind = "it needs a password" if "assword" in type(error).__name__ else error
        raise DataError(f"{path.name}: the Excel file cannot be read: {kind}", "open and save it again as .xlsx") from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}", "check the path and its permissions") from error


def chosen_sheet(path: Path, book: CalamineWorkbook, wanted: str | None) -> CalamineSheet:
    """Return the wanted sheet, or the only one with cells. Raise `DataError` if there are several, or none."""
    names = book.sheet_names
    if wanted is not None and wanted not in names:
        near = did_you_mean(wanted, names)
        raise DataError(f"{path.name}: there is no sheet {visible(wanted)}; found {listed(names)}{near}", "set --sheet")
    filled = [wanted] if wanted is not None else [name for name in names if book.get_sheet_by_name(name).height]
    if len(filled) > 1:
        raise DataError(
            f"{path.name}: several sheets contain cells: {listed(filled)}",
            f"choose one, for example --sheet {visible(filled[0])}",
        )
    if not filled:
        raise DataError(f"{path.name}: the file is empty", "check the path; a header and at least one row are needed")
    return book.get_sheet_by_name(filled[0])


def numbered_cells(sheet: CalamineSheet) -> Iterator[Numbered]:
    """Yield the rows of a sheet with their numbers; a row without any cell is empty."""
    for number, row in enumerate(sheet.iter_rows(), 1):
        cells = [cell_as_text(cell) for cell in row]
        yield number, cells if any(cells) else []


def cell_as_text(cell: Value) -> str:
    """Return a cell as text. Excel stores whole numbers as fractions: 1.0 is 1."""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return cell.isoformat() if isinstance(cell, date | time) else str(cell)
