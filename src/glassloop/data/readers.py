"""Read a data file as Arrow tables of a bounded size. Cells stay as they are written; faults are reported with their row."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import NoReturn, TextIO, TypeGuard

import pyarrow as pa

from glassloop.data.soundness import sound
from glassloop.data.values import cell_text, column_array
from glassloop.errors import DataError, listed, visible
from glassloop.files import kind_of_special
from glassloop.records import Json
from glassloop.settings import name_problem, repeated

CHUNK_ROWS = 10_000
MOST_COLUMNS = 100_000
DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet")


def read_file(path: Path, delimiter: str | None = None) -> Iterator[pa.Table]:
    """Return the rows of a data file in the format of its extension. In a .tsv file a quote is an ordinary character."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return read_parquet(path)
    if suffix in (".json", ".jsonl", ".ndjson"):
        return read_json(path)
    if suffix == ".tsv":
        return read_delimited(path, delimiter or "\t", quoted=False)
    return read_delimited(path, delimiter or ",", quoted=True)


def refuse_special(path: Path) -> None:
    """Raise for a pipe, a socket or a device, which cannot be read more than once."""
    if kind := kind_of_special(path):
        raise DataError(f"{path} is {kind}, not a file", "write the rows to a file, for example data.csv, and use that file")


def first_row_number(path: Path) -> int:
    """Return the number of the first row of data, as a person counts rows in the file: a header is row 1."""
    return 2 if path.suffix.lower() in (".csv", ".tsv", ".txt") else 1


def read_delimited(
    path: Path, delimiter: str, *, quoted: bool, names: list[str] | None = None, skipped: list[int] | None = None
) -> Iterator[pa.Table]:
    """Yield the rows with all cells as text.

    `names` replaces a header. Rows with too many or too few fields are refused; with a list `skipped`, they are skipped and
    their numbers added to it.
    """
    with opened_text(path) as lines, unlimited_fields():
        reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE, strict=True)
        rows = without_blank_end(reader)
        try:
            if (header := names or next(rows, None)) is None:
                raise DataError(f"{path.name}: the file is empty", "check the path; a header and at least one row are needed")
            if not header:
                raise DataError(f"{path.name}, row 1: the row is blank", "remove the blank line: the header comes first")
            columns = names or checked_header(path, header, delimiter)
            number = 1 if names else 2
            while chunk := list(islice(rows, CHUNK_ROWS)):
                if any(len(row) != len(columns) for row in chunk):
                    if skipped is None:
                        refuse_ragged(path, chunk, columns, number)
                    skipped += [place for place, row in enumerate(chunk, number) if len(row) != len(columns)]
                number += len(chunk)
                if whole := [row for row in chunk if len(row) == len(columns)]:
                    cells = zip(*whole, strict=True)
                    yield pa.table([pa.array(column, pa.string()) for column in cells], names=columns)
        except csv.Error as error:
            where = f"{path.name}, line {reader.line_num:,}"
            raise DataError(f"{where}: {error}", 'quote a text that contains ", and double the quotes in it ("")') from error


def without_blank_end(rows: Iterable[list[str]]) -> Iterator[list[str]]:
    """Yield `rows` without the blank lines at the end. A blank line between rows stays, as an empty row."""
    blank = 0
    for row in rows:
        if row:
            yield from ([] for _ in range(blank))
            blank = 0
            yield row
        else:
            blank += 1


def checked_header(path: Path, header: list[str], delimiter: str) -> list[str]:
    """Return the column names. Raise `DataError` if the delimiter seems wrong, or a name is there twice or is not a name."""
    other = next((sign for sign in DELIMITERS if len(header) == 1 and sign != delimiter and sign in header[0]), None)
    if other:
        raise DataError(
            f"{path.name}: only one column was found: {visible(header[0])}",
            f'the columns may be separated by a {DELIMITERS[other]}: --delimiter "{other if other != chr(9) else "tab"}"',
        )
    columns = [name.strip() or f"column_{place}" for place, name in enumerate(header, 1)]
    refuse_names(path, columns)
    return columns


def refuse_names(path: Path, columns: list[str]) -> None:
    """Raise if there are too many columns, or if a name is there twice or cannot be a name."""
    if len(columns) > MOST_COLUMNS:
        raise DataError(
            f"{path.name}: there are {len(columns):,} columns; at most {MOST_COLUMNS:,} are supported",
            "keep only the columns with texts and labels, or check the delimiter",
        )
    if twice := repeated(columns):
        raise DataError(f"{path.name}: column {visible(twice[0])} occurs twice: {listed(columns)}", "rename one of them")
    for name in columns:
        if problem := name_problem(name) if isinstance(name, str) else f"the name {name!r} is not text":
            raise DataError(f"{path.name}: {problem}", "rename the column")


def refuse_ragged(path: Path, chunk: list[list[str]], columns: list[str], first: int) -> NoReturn:
    """Raise with the first row that has too many or too few fields."""
    number, row = next((number, row) for number, row in enumerate(chunk, first) if len(row) != len(columns))
    found = f"has {len(row)} fields, but the header has {len(columns)}" if row else "is blank"
    raise DataError(
        f"{path.name}, row {number:,}: the row {found} ({listed(columns)})",
        "quote a field that contains the delimiter, remove the row, or set the delimiter with --delimiter",
    )


def read_json(path: Path) -> Iterator[pa.Table]:
    """Yield the rows of JSON lines, of an array of objects, or of an object of equally long columns."""
    with opened_text(path) as lines:
        blank: list[str] = []  # before the first row: an array may start after blank lines, rows may not
        for start in lines:
            if start.strip():
                break
            blank.append(start)
        else:
            raise DataError(f"{path.name}: the file is empty", "check the path; at least one row is needed")
        if start.lstrip().startswith("{") and (first := json_object(start)) is not None and not column_lists(first):
            yield from tables_of(path, parsed_lines(path, chain(blank, [start], lines)))
            return
        try:
            whole = read_json_value(start + "".join(lines))
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path.name}: not JSON: {error}", "write one object per line, or one array of objects") from error
        if isinstance(whole, dict) and column_lists(whole):
            if len({len(column) for column in whole.values()}) > 1:
                lengths = listed(f"{name}: {len(column)}" for name, column in whole.items())
                raise DataError(
                    f"{path.name}: the columns have different lengths ({lengths})", "give all columns the same number of rows"
                )
            whole = [dict(zip(whole, row, strict=True)) for row in zip(*whole.values(), strict=True)]
        if not isinstance(whole, list):
            raise DataError(f"{path.name}: does not contain rows", "write one object per line, or one array of objects")
        yield from tables_of(path, enumerate(whole, 1))


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


def parsed_lines(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, Json]]:
    """Yield the number and the value of each line that is not blank."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield number, read_json_value(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path.name}, row {number:,}: not JSON: {error}", "write one object per line") from error


def tables_of(path: Path, rows: Iterable[tuple[int, object]]) -> Iterator[pa.Table]:
    """Yield numbered rows as tables of text or of lists of text. The keys of the first row are the columns."""
    rows, expected = iter(rows), 1
    columns: dict[str, None] = {}  # in their order, and fast to search
    while chunk := list(islice(rows, CHUNK_ROWS)):
        if not columns and isinstance(chunk[0][1], dict):
            columns = dict.fromkeys(chunk[0][1])
            refuse_names(path, [*columns])
        objects: list[tuple[int, dict[str, object]]] = []
        for number, row in chunk:
            if number != expected:
                raise DataError(f"{path.name}, row {expected:,}: the row is blank", "remove the blank line")
            expected += 1
            if not isinstance(row, dict) or not row:
                raise DataError(f"{path.name}, row {number:,}: not an object: {visible(row)}", 'write {"text": …, "label": …}')
            if strange := [name for name in row if name not in columns]:
                raise DataError(
                    f"{path.name}, row {number:,}: key {visible(strange[0])} is not in the first row ({listed(columns)})",
                    "give every row the same keys",
                )
            objects.append((number, row))
        cells = {name: [cell_text(path, number, name, row.get(name)) for number, row in objects] for name in columns}
        yield pa.table({name: column_array(path, chunk[0][0], name, column) for name, column in cells.items()})


def read_parquet(path: Path) -> Iterator[pa.Table]:
    """Yield the rows of a Parquet file with their own types."""
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as parquet:
            refuse_names(path, parquet.schema_arrow.names)
            for batch in parquet.iter_batches(CHUNK_ROWS):
                yield sound(pa.Table.from_batches([batch]), path.name)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path.name}: the Parquet file cannot be read: {error}", "write the file again") from error


@contextmanager
def opened_text(path: Path) -> Iterator[TextIO]:
    """Open a file as UTF-8 text, with or without a byte order mark. Report the first invalid byte with its offset."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as opened:
            yield opened
    except UnicodeDecodeError as error:
        offset, line = invalid_byte(path)
        raise DataError(
            f"{path.name}, line {line:,}: byte {offset:,} is not UTF-8",
            "save the file as UTF-8 (for example with iconv)",
        ) from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", "check the path and its permissions") from error


def invalid_byte(path: Path) -> tuple[int, int]:
    """Return offset and line of the first byte that is not UTF-8."""
    offset = 0
    with path.open("rb") as opened:
        for number, line in enumerate(opened, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return offset + error.start, number
            offset += len(line)
    return offset, 0


@contextmanager
def unlimited_fields() -> Iterator[None]:
    """Allow texts longer than the csv module's 128 KiB while a file is read."""
    before = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        yield
    finally:
        csv.field_size_limit(before)
