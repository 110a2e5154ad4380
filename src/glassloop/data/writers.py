"""Write rows as .csv, .tsv, .jsonl or .parquet: Glassloop reads every cell back, and no spreadsheet runs one as a formula."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

import pyarrow as pa
import pyarrow.compute as pc

from glassloop.base.errors import DataError, SettingsError, alternatives, visible
from glassloop.base.files import protected
from glassloop.data.columns import is_string

Row = dict[str, object]
TARGETS, PARQUET = (".csv", ".tsv", ".jsonl"), ".parquet"
NOT_IN_TSV = "[\t\n\r]"


def refuse_target(path: Path, suffixes: Sequence[str] = TARGETS) -> None:
    if path.suffix.lower() not in suffixes:
        problem = f"{path.name}: predictions are written as {alternatives(suffixes)}"
        raise SettingsError(problem, "choose a name with one of these endings")
    if path.is_dir():
        raise SettingsError(f"{path} is a folder", f"choose a file, for example {path / 'predictions.csv'}")
    if path.exists() and not path.is_file():
        raise SettingsError(f"{path} is not a file", "choose a new file, or one that may be replaced")


def refuse_existing(path: Path) -> None:
    if path.exists():
        raise SettingsError(f"{path} exists", "choose another file with --out, or replace it with --overwrite")


def row_writer(opened: TextIO, suffix: str, columns: Sequence[str], *, header: bool = True) -> Callable[[Row], object]:
    """Write the header, if the format has one and it is wanted; return a function that writes a row."""
    if suffix == ".jsonl":
        return lambda row: opened.write(json.dumps(plain(row), ensure_ascii=False, allow_nan=False) + "\n")
    if suffix == ".csv":
        write: Callable[[list[str]], object] = csv.writer(opened).writerow
    else:  # without quoting, like GLUE's files and the reader
        write = lambda cells: opened.write("\t".join(cells) + "\n")  # noqa: E731
    if header:
        write([table_cell(name) for name in columns])
    return lambda row: write([table_cell(row[name]) for name in columns])


def plain(value: object) -> object:
    """Return a value as JSON: a NaN is a missing cell, as in pandas; an infinite number, a date or a decimal is text."""
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


def table_cell(value: object) -> str:
    """Return a cell of a table: text that starts like a formula gets an apostrophe; several texts are joined with a bar."""
    # No option switches this off: a reader could not tell a table without apostrophes from one with them.
    value = plain(value)
    if isinstance(value, list) and all(isinstance(part, str) and "|" not in part for part in value):
        value = "|".join(value)
    elif isinstance(value, list | dict):
        value = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str):
        return protected(value)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def written_table(table: pa.Table, source: str) -> pa.Table:
    """Return a table with dates and times as text, exact to the nanosecond. Raise `DataError` for a column of bytes."""
    for place, field in enumerate(table.schema):
        if has_bytes(field.type):
            problem = f"{source}: column {visible(field.name)} contains bytes, which cannot be written as text"
            raise DataError(problem, "remove the column")
        if pa.types.is_temporal(field.type) and not pa.types.is_duration(field.type):
            table = table.set_column(place, field.name, pc.cast(table[field.name], pa.string()))
    return table


def has_bytes(kind: pa.DataType) -> bool:
    """Return whether cells of a type are or contain bytes, as a column of images does."""
    if pa.types.is_dictionary(kind):
        return has_bytes(kind.value_type)
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    parts = (kind.field(place).type for place in range(kind.num_fields))
    return any(is_kind(kind) for is_kind in kinds) or any(map(has_bytes, parts))


def refuse_for_tsv(table: pa.Table, first: int, source: str, added: Sequence[str]) -> None:
    """Raise with the first name or cell that contains a tab or a line end, which a file without quoting cannot contain."""
    contains = "contains a tab or a line end, which a .tsv file cannot contain"
    remedy = "write a .csv or .jsonl file instead: --out"
    for name in (*table.column_names, *added):
        if re.search(NOT_IN_TSV, name):
            raise DataError(f"the column name {visible(name)} {contains}", remedy)
    for name in table.column_names:
        cells = table[name].combine_chunks()
        if pa.types.is_nested(cells.type) or pa.types.is_dictionary(cells.type):
            cells = pa.array([table_cell(cell) for cell in cells.to_pylist()], pa.string())
        if is_string(cells.type):
            row = pc.index(pc.match_substring_regex(cells, NOT_IN_TSV), True).as_py()
            if row >= 0:
                raise DataError(f"{source}, row {first + row:,}: {visible(name)} {contains}", remedy)
