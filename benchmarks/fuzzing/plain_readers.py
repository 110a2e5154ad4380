"""Data files read a second time, by code that shares nothing with Glassloop's: what its readers are compared with."""

from __future__ import annotations

import codecs
import json
import math
import re
from pathlib import Path
from typing import Any


class NotReadableError(ValueError):
    """The file has no plain reading."""


def plain_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file with every cell as text (or a list of texts); raises where it has no plain reading."""
    if path.suffix == ".parquet":
        return parquet_rows(path)
    try:
        content = path.read_bytes()
        encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8"
        text = content.decode(encoding).removeprefix("\ufeff")
    except (OSError, UnicodeDecodeError) as error:
        raise NotReadableError(str(error)) from error
    if path.suffix in (".json", ".jsonl"):
        return json_rows(text)
    records = [line.split("\t") for line in re.split("\r\n|\n|\r", text)] if path.suffix == ".tsv" else csv_records(text)
    while records and records[-1] == [""]:
        records.pop()
    if not records:
        raise NotReadableError("empty")
    header = [name.strip() or f"column_{place}" for place, name in enumerate(records[0], 1)]
    if len({*header}) < len(header) or any(len(record) != len(header) for record in records):
        raise NotReadableError("ragged, or a column twice")
    return [dict(zip(header, record, strict=True)) for record in records[1:]]


def parquet_rows(path: Path) -> list[dict[str, Any]]:
    """The rows as Arrow reads them whole; Glassloop reads in parts, and converts."""
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path).read()
        if len({*table.column_names}) < len(table.column_names):
            raise NotReadableError("a column twice")
        return [{name: plain(cell) for name, cell in row.items()} for row in table.to_pylist()]
    except NotReadableError:
        raise
    except Exception as error:
        raise NotReadableError(str(error)) from error


def csv_records(text: str) -> list[list[str]]:
    """Records as RFC 4180 has them: a quoted cell may hold anything, its quotes doubled."""
    records: list[list[str]] = [[]]
    place = 0
    while place <= len(text):
        if text.startswith('"', place):
            cell, place = quoted_cell(text, place + 1)
        else:
            end = re.compile(r"[,\r\n]|\Z").search(text, place).start()  # type: ignore[union-attr]
            cell, place = text[place:end], end
        records[-1].append(cell)
        if place >= len(text):
            break
        if text[place] != ",":
            if text[place] not in "\r\n":
                raise NotReadableError("text after a closing quote")
            place += text.startswith("\r\n", place)
            records.append([])
        place += 1
    return records


def quoted_cell(text: str, place: int) -> tuple[str, int]:
    parts = []
    while True:
        end = text.find('"', place)
        if end < 0:
            raise NotReadableError("a quote is not closed")
        parts.append(text[place:end])
        if not text.startswith('"', end + 1):
            return '"'.join(parts), end + 1
        place = end + 2


def json_rows(text: str) -> list[dict[str, Any]]:
    """One object a line, an array of objects, or an object of columns."""
    try:
        found = json.loads(text)
        if isinstance(found, dict) and found and all(isinstance(column, list) for column in found.values()):
            lengths = {len(column) for column in found.values()}
            if len(lengths) != 1:
                raise NotReadableError("columns of unequal length")
            found = [dict(zip(found, cells, strict=True)) for cells in zip(*found.values(), strict=True)]
        rows = found if isinstance(found, list) else [found]
    except (ValueError, RecursionError):
        try:
            rows = [json.loads(line) for line in re.split("\r\n|\n|\r", text) if line.strip()]
        except (ValueError, RecursionError) as error:
            raise NotReadableError(str(error)) from error
    if not all(isinstance(row, dict) for row in rows):
        raise NotReadableError("not rows")
    return [{name: plain(cell) for name, cell in row.items()} for row in rows]


def plain(cell: Any) -> Any:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return None
    if isinstance(cell, list):
        return [plain(part) for part in cell]
    return str(cell).lower() if isinstance(cell, bool) else str(cell)
