"""Read JSON lines, an array of objects, or an object of columns as tables of text or of lists of text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import NoReturn, TypeGuard

import pyarrow as pa

from glassloop.data.bad_rows import BadRows
from glassloop.data.delimited import CHUNK_ROWS
from glassloop.data.headers import refuse_names
from glassloop.data.opening import is_broken, opened_text
from glassloop.data.values import cell_text, column_array
from glassloop.errors import DataError, listed, visible
from glassloop.records import Json
from glassloop.settings import repeated

ONE_OR_ARRAY = "write one object per line, or one array of objects"


def read_json(path: Path, encoding: str | None = None, bad: BadRows | None = None) -> Iterator[pa.Table]:
    """Yield the rows of JSON lines, of an array of objects, or of an object of equally long columns."""
    bad = bad or BadRows()
    with opened_text(path, encoding, lenient=bad.skip) as lines:
        blank: list[str] = []  # before the first row: an array may start after blank lines, rows may not
        for start in lines:
            if start.strip():
                break
            blank.append(start)
        else:
            raise DataError(f"{path.name}: the file is empty", "check the path; at least one row is needed")
        if start.lstrip().startswith("{") and (first := json_object(start)) is not None and not column_lists(first):
            yield from tables_of(path, parsed_lines(path, chain(blank, [start], lines), bad), bad)
        else:
            yield from tables_of(path, enumerate(whole_file(path, start + "".join(lines)), 1), bad)


def whole_file(path: Path, text: str) -> list[Json]:
    """Return the rows of one array of objects, or of one object of columns."""
    try:
        whole = read_json_value(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path.name}: not JSON: {error}", ONE_OR_ARRAY) from error
    if isinstance(whole, dict) and column_lists(whole):
        if len({len(column) for column in whole.values()}) > 1:
            lengths = listed(f"{name}: {len(column)}" for name, column in whole.items())
            raise DataError(
                f"{path.name}: the columns have different lengths ({lengths})", "give all columns the same number of rows"
            )
        whole = [dict(zip(whole, row, strict=True)) for row in zip(*whole.values(), strict=True)]
    if not isinstance(whole, list):
        raise DataError(f"{path.name}: does not contain rows", ONE_OR_ARRAY)
    return whole


def json_object(line: str) -> dict[str, Json] | None:
    """Return the object on this line; None if the line alone is not an object."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def column_lists(found: dict[str, Json]) -> TypeGuard[dict[str, list[Json]]]:
    """Return whether an object holds columns (lists of cells) rather than one row."""
    return bool(found) and all(isinstance(value, list) for value in found.values())


def read_json_value(text: str) -> Json:
    """Return what JSON text holds, by the standard: without NaN, and without repeated keys."""
    value: Json = json.loads(text, parse_constant=refuse_constant, object_pairs_hook=unique_keys)
    return value


def refuse_constant(name: str) -> NoReturn:
    """Raise for NaN and Infinity, which are not JSON."""
    raise ValueError(f"{name} is not allowed in JSON")


def unique_keys(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """Return an object. Raise if it has a key twice: Python would silently keep the last value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"the key {visible(repeated([name for name, _ in pairs])[0])} occurs twice")
    return found


def parsed_lines(path: Path, lines: Iterable[str], bad: BadRows) -> Iterator[tuple[int, Json]]:
    """Yield the number and the value of each line. Report lines that are not JSON, and blank ones except at the end."""
    blank: list[int] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            blank.append(number)
            continue
        for before in blank:
            bad.add(path, before, "the row is blank", "remove the blank line")
        blank.clear()
        try:
            value = read_json_value(line)
        except (ValueError, RecursionError) as error:
            bad.add(path, number, f"not JSON: {error}", "write one object per line")
            continue
        if bad.skip and is_broken(line):
            bad.add(path, number, "the row contains a byte that is not text", "")
        else:
            yield number, value


def tables_of(path: Path, rows: Iterable[tuple[int, object]], bad: BadRows | None = None) -> Iterator[pa.Table]:
    """Yield numbered rows as tables of text or of lists of text. The keys of the first row are the columns."""
    bad, columns, num_read = bad or BadRows(), dict[str, None](), 0  # columns: in their order, and fast to search
    rows = iter(rows)
    while chunk := list(islice(rows, CHUNK_ROWS)):
        objects: list[tuple[int, dict[str, object]]] = []
        for number, row in chunk:
            if not isinstance(row, dict) or not row:
                bad.add(path, number, f"not an object: {visible(row)}", 'write {"text": …, "label": …}')
                continue
            try:
                row = flat(row) if any(isinstance(cell, dict) for cell in row.values()) else row
            except (ValueError, RecursionError) as error:
                bad.add(path, number, str(error), "rename a key, or use fewer levels")
                continue
            if not columns:
                columns = dict.fromkeys(row)
                refuse_names(path.name, [*columns])
            if strange := [name for name in row if name not in columns]:
                problem = f"key {visible(strange[0])} is not in the first row ({listed(columns)})"
                bad.add(path, number, problem, "give every row the same keys")
                continue
            objects.append((number, row))
        num_read += len(objects)
        cells = {name: [cell_text(path, number, name, row.get(name)) for number, row in objects] for name in columns}
        if objects:
            yield pa.table({name: column_array(path, objects[0][0], name, column) for name, column in cells.items()})
    bad.refuse_most(path, num_read)


def flat(row: dict[object, object], before: str = "") -> dict[str, object]:
    """Return a row with the fields of nested objects as columns of their own: {"a": {"b": 1}} has the column a.b."""
    found: dict[str, object] = {}
    for name, cell in row.items():
        inner = flat(cell, f"{before}{name}.") if isinstance(cell, dict) else {f"{before}{name}": cell}
        if twice := found.keys() & inner.keys():
            raise ValueError(f"the key {visible(min(twice))} occurs twice")
        found |= inner
    return found
