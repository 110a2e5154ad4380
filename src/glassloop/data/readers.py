"""Read a data file as Arrow tables of a bounded size: CSV, TSV, JSON, Excel, Parquet. Cells stay as they are written."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import math
import sys
import zipfile
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain, count, islice
from operator import not_
from pathlib import Path
from typing import BinaryIO, NoReturn, TextIO, TypeAlias, TypeGuard, TypeVar, cast

import numpy as np
import pyarrow as pa

from glassloop.base.errors import DataError, SettingsError, counted, did_you_mean, listed, visible
from glassloop.base.files import is_protected_table, kind_of_special, protected, restored, sha256_of
from glassloop.base.records import Json
from glassloop.data.columns import LABEL_NAMES, PAIR_NAMES, TEXT_NAMES, is_float
from glassloop.data.rows import arrow_array
from glassloop.settings.training import DataSettings, name_problem, repeated

Cells = TypeVar("Cells")
CellText: TypeAlias = "str | list[CellText] | None"
Numbered = tuple[int, list[str]]  # a row and its number in the file, from 1
Units = Callable[[TextIO], Iterable[Sequence[str]]]  # the rows of a text, to number them

DEFAULTS = DataSettings()
DELIMITED = (".csv", ".tsv", ".txt")
JSON = (".json", ".jsonl", ".ndjson")
EXCEL = (".xlsx", ".xls", ".ods")
SUFFIXES = (*DELIMITED, *JSON, ".parquet", *EXCEL)
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
FORMATS = f"use one of {listed(SUFFIXES)}, or one of these with {listed(COMPRESSED)}"
CHUNK_ROWS = 10_000
SKIP = "to skip such rows: --bad_rows skip"
NOT_TEXT = "the row contains a byte that is not text"


# --- rows that cannot be read --------------------------------------------------------------------------------------
class BadRows:
    """The rows of some files that cannot be read. The first one is an error, which may `offer` to skip and list such rows."""

    def __init__(self, *, skip: bool = False, offer: bool = False) -> None:
        self.skip, self.offer = skip, offer
        self.rows: dict[Path, dict[int, str]] = {}

    def add(self, path: Path, row: int, problem: str, remedy: str = "") -> None:
        if not self.skip:
            raise DataError(f"{path.name}, row {row:,}: {problem}", f"{remedy}; {SKIP}" if self.offer else remedy)
        self.rows.setdefault(path, {})[row] = problem

    @property
    def num_rows(self) -> int:
        return sum(map(len, self.rows.values()))

    def number_of(self, path: Path, row: int) -> int:
        """Return the number in its file of a row that would have the number `row` if no row had been skipped."""
        skipped = sorted(self.rows.get(path, ()))
        before = 0
        while (passed := bisect_right(skipped, row + before)) > before:
            before = passed
        return row + before

    def refuse_most(self, path: Path, num_read: int) -> None:
        """Raise `DataError` if most rows of a file were skipped: then something else is wrong with it."""
        if (number := len(skipped := self.rows.get(path, {}))) > num_read:
            row, problem = next(iter(skipped.items()))
            rows = f"{number:,} of {counted(num_read + number, 'row', 'rows')} cannot be read, for example row {row:,}"
            remedy = "check the delimiter (--delimiter) and the encoding (--encoding)"
            raise DataError(f"{path.name}: {rows}: {problem}", remedy)

    def write(self, path: Path) -> None:
        """Write a CSV file of file, row and problem, because a number of rows alone cannot be checked."""
        with path.open("w", encoding="utf-8", newline="") as opened:
            writer = csv.writer(opened)
            writer.writerow(["file", "row", "problem"])
            for file, rows in self.rows.items():
                name = protected(visible(file.name, 255)[1:-1])
                writer.writerows([name, row, protected(problem)] for row, problem in rows.items())


REFUSED = BadRows()  # it stays empty, because the first row is an error


def sound(table: pa.Table, source: str) -> pa.Table:
    """Return `table` with all its texts as plain strings. Raise `DataError` if its content is damaged."""
    # Arrow trusts the files it maps: a wrong offset would read other memory, and invalid UTF-8 would end in a traceback.
    try:
        table.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"{source}: the rows are damaged: {error}", "write the data again") from error
    texts = (pa.string(), pa.large_string(), pa.string_view())
    for place, field in enumerate(table.schema):
        is_category = pa.types.is_dictionary(field.type) and field.type.value_type in texts
        if is_category or pa.types.is_string_view(field.type):
            table = table.set_column(place, field.name, table[place].cast(pa.string()))
    return table


def refuse_half_character(text: str, what: str) -> None:
    """Raise if a text contains half of a surrogate pair, which cannot be saved or tokenized."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"{what} contains {text[error.start]!r}, which is half of a surrogate pair"
        raise DataError(problem, "write the whole character, or remove it") from error


# --- bytes and text ------------------------------------------------------------------------------------------------
GZIP, BZIP, XZ, ZSTD, ZIP = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
BZIP_BLOCK = b"1AY&SY"
OLD_OFFICE = b"\xd0\xcf\x11\xe0"
MARKS = (
    *((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF8, "utf-8-sig")),
    *((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")),
)
SAMPLE_BYTES = 400
DAMAGED = (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError)


@contextmanager
def opened_bytes(path: Path) -> Iterator[BinaryIO]:
    """Open a file as bytes, decompressed. Raise `DataError` if it is damaged."""
    try:
        with path.open("rb") as opened:
            start = opened.read(10)
            opened.seek(0)
            # The first bytes decide, not the name: downloads are often renamed.
            if start.startswith(GZIP):
                yield cast(BinaryIO, gzip.GzipFile(fileobj=opened))
            elif start.startswith(BZIP) and start[4:] == BZIP_BLOCK:
                yield cast(BinaryIO, bz2.BZ2File(opened))
            elif start.startswith(XZ):
                yield cast(BinaryIO, lzma.LZMAFile(opened))  # noqa: SIM115
            elif start.startswith(ZSTD):
                yield cast(BinaryIO, io.BufferedReader(pa.CompressedInputStream(opened, "zstd")))
            elif start.startswith(ZIP):
                with zipfile.ZipFile(opened) as archive, archive.open(only_member(path, archive)) as member:
                    yield cast(BinaryIO, member)
            else:
                yield opened
    except (OSError, *DAMAGED) as error:
        if isinstance(error, OSError) and error.strerror is not None:
            raise DataError(f"{path}: {error.strerror}", "check the path and its permissions") from error
        raise DataError(f"{path.name}: the compressed file is damaged: {error}", "compress or download it again") from error


def only_member(path: Path, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    """Return the only file in a zip archive. Raise `DataError` if there are several, or if it needs a password."""
    if "[Content_Types].xml" in archive.namelist():
        raise DataError(f"{path.name}: the file is an Excel file", f"rename it to {path.stem}.xlsx")
    hidden = ("__MACOSX/", ".")  # what macOS adds
    members = [one for one in archive.infolist() if not one.is_dir() and not one.filename.startswith(hidden)]
    if len(members) != 1:
        names = listed(one.filename for one in members) or "nothing"
        remedy = "extract it, and use a file of it, or a folder with one file per split (train.csv, validation.csv)"
        raise DataError(f"{path.name}: the archive must contain one file; found {names}", remedy)
    if members[0].flag_bits & 1:
        raise DataError(f"{path.name}: the archive needs a password", "extract it, and use the file in it")
    return members[0]


def decompressed(path: Path) -> Path | io.BytesIO:
    """Return a file as a library opens it: by its path, or in memory if its name says that it is compressed."""
    if path.suffix.lower() not in COMPRESSED:
        return path
    with opened_bytes(path) as opened:
        return io.BytesIO(opened.read())


@contextmanager
def opened_text(
    path: Path, encoding: str | None = None, *, lenient: bool = False, rows_of: Units | None = None
) -> Iterator[TextIO]:
    """Open a file as text: what its byte order mark says, else the chosen encoding, else UTF-8. `rows_of` is for errors."""
    with opened_bytes(path) as opened:
        start = opened.read(SAMPLE_BYTES)
    if start.startswith(OLD_OFFICE):
        raise DataError(f"{path.name}: the file is an Excel file", f"rename it to {path.stem}.xls")
    marked = next((name for mark, name in MARKS if start.startswith(mark)), None)
    if marked and encoding and not codecs.lookup(encoding).name.startswith(bare := marked.removesuffix("-sig")):
        raise DataError(f"{path.name}: the byte order mark says {bare.upper()}, but encoding is {encoding}", "omit --encoding")
    for first, wide in enumerate(("utf-16-be", "utf-16-le") if not marked and not encoding else ()):
        if start[first::2].count(0) > len(start) // 4:  # every second byte of Latin letters is 0
            raise DataError(f"{path.name}: the file seems to be UTF-16 without a byte order mark", f"use --encoding {wide}")
    name = marked or encoding or "utf-8"
    errors = "surrogateescape" if lenient else "strict"  # halves of surrogate pairs are for `is_broken` to find
    try:
        with opened_bytes(path) as opened, io.TextIOWrapper(opened, encoding=name, errors=errors, newline="") as text:
            yield text
    except UnicodeDecodeError as error:
        raise undecodable(path, name, rows_of) from error


def is_broken(row: Sequence[str]) -> bool:
    """Return whether a row of a text that was opened leniently contains a byte that could not be decoded."""
    try:
        "".join(row).encode()
    except UnicodeEncodeError:
        return True
    return False


def undecodable(path: Path, encoding: str, rows_of: Units | None) -> DataError:
    """Return the error for the first byte that cannot be decoded, with its row and its position."""
    decoder = codecs.getincrementaldecoder(encoding.removesuffix("-sig"))()
    position = byte = 0
    with opened_bytes(path) as opened:
        for block in chain(iter(lambda: opened.read(1 << 16), b""), [b""]):
            waiting = len(decoder.getstate()[0])  # bytes of a character that began in the block before
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                position, byte = position - waiting + error.start, error.object[error.start]
                break
            position += len(block)
    row = None
    with (
        suppress(ValueError),  # UTF-16 has no lenient reading
        opened_bytes(path) as opened,
        io.TextIOWrapper(opened, encoding, "surrogateescape", newline="") as text,
    ):
        rows = rows_of(text) if rows_of else text
        row = next((number for number, row in enumerate(rows, 1) if is_broken(row)), None)
    where = f"{path.name}, {'row' if rows_of else 'line'} {row:,}" if row else path.name
    name = encoding.removesuffix("-sig").upper() if encoding.startswith("utf") else encoding
    encodings = "--encoding cp1252 (Windows) or --encoding latin-1" if name == "UTF-8" else "--encoding utf-8"
    remedy = f"set the encoding of the file, for example {encodings}; {SKIP}"
    return DataError(f"{where}: byte 0x{byte:02x} at position {position:,} is not {name}", remedy)


# --- cells and columns ---------------------------------------------------------------------------------------------
MISSING = ("NAType", "NaTType")  # the types of missing values in pandas, by name so that pandas need not be installed
PLAIN = (int, float, Decimal, date, time)
ONLY = "use text, a number or a list"


def cell_text(path: Path, number: int, name: str, cell: object) -> CellText:
    """Return a value as text, a list as a list of texts, and a missing value (or NaN, as in pandas) as None."""
    where = f"{path.name}, row {number:,}: {visible(name)}"
    if isinstance(cell, str):
        refuse_half_character(cell, where)
        return str(cell)
    if hasattr(cell, "tolist"):  # a number or an array of NumPy or torch
        cell = cell.tolist()
    if cell is None or type(cell).__name__ in MISSING or (isinstance(cell, float) and math.isnan(cell)):
        return None
    if isinstance(cell, list | tuple):
        if any(isinstance(part, list | tuple) for part in cell):
            raise DataError(f"{where} is a list of lists", ONLY)
        return [cell_text(path, number, name, part) for part in cell]
    if isinstance(cell, bool):
        return str(cell).lower()
    if not isinstance(cell, PLAIN) or (isinstance(cell, int) and cell.bit_length() > 10_000):
        kind = "an object" if isinstance(cell, dict) else f"of the type {type(cell).__name__}"
        raise DataError(f"{where} is {kind}", ONLY)
    return str(cell)


MOST_COLUMNS = 100_000
SAMPLED_ROWS = 1000
DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
OTHER_NAMES = (
    "id idx index name date title body content comment message review document description "
    "sentiment rating stars topic intent source url language split"
)
USUAL_NAMES = {*LABEL_NAMES, *TEXT_NAMES, *chain.from_iterable(PAIR_NAMES), *OTHER_NAMES.split()}


def settle_header(
    name: str, head: list[list[str]], settings: DataSettings, delimiter: str | None = None
) -> tuple[list[str], bool]:
    """Return the column names of a table, and whether its first row holds them. `delimiter`: to notice a wrong one."""
    first, header, names = head[0], settings.header, settings.column_names
    if names:
        if len(names) != len(first) and header is not False:
            fields = f"{counted(len(first), 'field', 'fields')}: {listed(map(visible, first), 4)}"
            problem = f"{name}: --columns gives {counted(len(names), 'name', 'names')}, but row 1 has {fields}"
            raise DataError(problem, "give one name for each field, or set the delimiter with --delimiter")
        cells = [cell.strip().lower() for cell in first]
        if header is None and (cells == [one.lower() for one in names] or {*cells} & USUAL_NAMES):
            problem = f"row 1 looks like column names ({listed(first)}), but --columns is for files without a header"
            remedy = "omit --columns, or add --header to replace the names in row 1, or --no-header if row 1 is data"
            raise DataError(f"{name}: {problem}", remedy)
        return [*names], header is True
    if header is False:
        return [f"column_{place}" for place in range(1, len(first) + 1)], False
    if delimiter and len(first) == 1 and (others := [one for one in DELIMITERS if one != delimiter and one in first[0]]):
        sign = "tab" if others[0] == "\t" else others[0]
        remedy = f'the columns may be separated by a {DELIMITERS[others[0]]}: --delimiter "{sign}"'
        raise DataError(f"{name}: only one column was found: {visible(first[0])}", remedy)
    if header is None and looks_like_data(head, settings):
        example = f"--columns {suggested_names(head)}, or use --no-header for column_1, column_2"
        problem = f"{name}: row 1 looks like data, not like column names: {listed(map(visible, first), 4)}"
        raise DataError(problem, f"name the columns, for example {example}; if row 1 holds the names, use --header")
    columns = [cell.strip() or f"column_{place}" for place, cell in enumerate(first, 1)]
    refuse_names(name, columns, "rename one of them, or replace all names: --header --columns NAME,NAME")
    return columns, True


def looks_like_data(head: list[list[str]], settings: DataSettings) -> bool:
    """Return whether the first row is data: one of its cells is a number, or occurs again in its column."""
    # Refused, not guessed: reading a file without a header on a guess would give its columns names that no later file has.
    first = head[0]
    cells = [cell.strip() for cell in first]
    named = {*settings.text_columns, *settings.pair_columns, *settings.label_columns}
    if any(cell in named or cell.lower() in USUAL_NAMES for cell in cells):
        return False
    numbers = sum(map(is_float, cells))
    if numbers and numbers < sum(map(bool, cells)):  # a table whose names are all numbers was written by pandas
        return True
    others = [row for row in head[1:SAMPLED_ROWS] if row != first and len(row) == len(first)]
    return any(cell and any(row[place].strip() == cell for row in others) for place, cell in enumerate(cells))


def suggested_names(head: list[list[str]]) -> str:
    """Return names for the columns of a file without a header: text and text_pair for the texts, label for a short list."""
    rows = [row for row in head[:SAMPLED_ROWS] if len(row) == len(head[0])]
    columns = [*zip(*rows, strict=True)]
    words = [sum(cell.count(" ") for cell in column) / len(rows) for column in columns]
    texts = sorted(sorted(range(len(columns)), key=lambda place: -words[place])[: 2 if sum(n >= 2 for n in words) > 1 else 1])
    rest = [place for place in range(len(columns)) if place not in texts]
    label = min(rest, key=lambda place: len(Counter(columns[place])), default=None)
    roles = dict(zip(texts, ("text", "text_pair"), strict=False)) | ({} if label is None else {label: "label"})
    return ",".join(roles.get(place, f"column_{place + 1}") for place in range(len(columns)))


def refuse_names(name: str, columns: list[str], remedy: str = "rename one of them") -> None:
    """Raise if there are too many columns, or if a name is there twice or cannot be a name."""
    if len(columns) > MOST_COLUMNS:
        most = f"there are {len(columns):,} columns; at most {MOST_COLUMNS:,} are supported"
        raise DataError(f"{name}: {most}", "keep only the columns with texts and labels, or check the delimiter")
    if twice := repeated(columns):
        raise DataError(f"{name}: column {visible(twice[0])} occurs twice: {listed(columns)}", remedy)
    for column in columns:
        if problem := name_problem(column) if isinstance(column, str) else f"the name {column!r} is not text":
            raise DataError(f"{name}: {problem}", "rename the column")


# --- CSV and TSV ---------------------------------------------------------------------------------------------------
QUOTES = 'quote a text that contains ", and double the quotes in it ("")'
NOT_CLOSED = "unexpected end of data"  # what the csv module says about a quote that is opened and not closed
EMPTY = "check the path; a header and at least one row are needed"


def read_delimited(
    path: Path, delimiter: str, *, quoted: bool, settings: DataSettings = DEFAULTS, bad: BadRows = REFUSED
) -> Iterator[pa.Table]:
    """Yield the rows of a text file with all cells as text. Rows that cannot be read are reported to `bad`."""

    # Python's csv module: `datasets` turns the cells NA and null into missing values, and pyarrow does not name the row
    # of an invalid byte.
    def reader_of(lines: TextIO) -> Iterator[list[str]]:
        return csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE, strict=True)

    # Fields may be longer than the csv module's 128 KiB until the file is closed: an error about its bytes reads them again.
    before = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        with opened_text(path, settings.encoding, lenient=bad.skip, rows_of=reader_of) as lines:
            rows = without_blank_end(numbered_rows(path, reader_of(lines), bad))
            yield from tables_of_cells(path, rows, settings, bad, delimiter)
    finally:
        csv.field_size_limit(before)


def numbered_rows(path: Path, reader: Iterator[list[str]], bad: BadRows) -> Iterator[Numbered]:
    """Yield the rows of a reader with their numbers. Report those with wrong quotes."""
    for number in count(1):
        try:
            yield number, next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if NOT_CLOSED in str(error):  # all rows that follow belong to it
                problem = f"{path.name}, row {number:,}: a quote is opened and not closed until the end of the file"
                raise DataError(problem, QUOTES) from error
            bad.add(path, number, str(error), QUOTES)


def without_blank_end(rows: Iterable[tuple[int, Cells]], blank: Callable[[Cells], bool] = not_) -> Iterator[tuple[int, Cells]]:
    """Yield `rows` without the blank ones at the end. A blank row between others stays."""
    waiting = []
    for number, row in rows:
        waiting.append((number, row))
        if not blank(row):
            yield from waiting
            waiting.clear()


def tables_of_cells(
    path: Path, rows: Iterator[Numbered], settings: DataSettings, bad: BadRows, delimiter: str | None = None
) -> Iterator[pa.Table]:
    """Yield numbered rows of cells as tables. Report rows with too many or too few fields, or with broken bytes."""
    head = [*islice(rows, SAMPLED_ROWS)]
    if not head:
        raise DataError(f"{path.name}: the file is empty", EMPTY)
    if not head[0][1]:
        raise DataError(f"{path.name}, row 1: the row is blank", "remove the blank line: the header comes first")
    columns, has_header = settle_header(path.name, [row for _, row in head], settings, delimiter)
    is_protected = has_header and is_protected_table(columns)
    names = [*map(restored, columns)] if is_protected else columns
    header, num_read = head[0][1] if has_header else None, 0
    rest = chain(head[1:] if has_header else head, rows)
    while chunk := [*islice(rest, CHUNK_ROWS)]:
        whole = []
        for number, row in chunk:
            if len(row) != len(columns):
                fields = f"has {len(row)} fields, but the header has {len(columns)}" if row else "is blank"
                remedy = "quote a field that contains the delimiter, remove the row, or set the delimiter with --delimiter"
                bad.add(path, number, f"the row {fields} ({listed(columns)})", remedy)
            elif row == header:
                bad.add(path, number, f"the row repeats the header ({listed(columns)})", "remove the row")
            elif bad.skip and (is_broken(row) or any("\0" in cell for cell in row)):
                bad.add(path, number, NOT_TEXT)
            else:
                whole.append(row)
        num_read += len(whole)
        if whole:
            read = ([*map(restored, cells)] if is_protected else cells for cells in zip(*whole, strict=True))
            yield pa.table([arrow_array(cells, pa.string()) for cells in read], names=names)
    bad.refuse_most(path, num_read)


# --- JSON ----------------------------------------------------------------------------------------------------------
ONE_OR_ARRAY = "write one object per line, or one array of objects"


def read_json(path: Path, encoding: str | None = None, bad: BadRows = REFUSED) -> Iterator[pa.Table]:
    """Yield the rows of JSON lines, of an array of objects, or of an object of equally long columns."""
    with opened_text(path, encoding, lenient=bad.skip) as lines:
        head: list[str] = []  # up to the first row: an array may start after blank lines, rows may not
        for start in lines:
            head.append(start)
            if start.strip():
                break
        else:
            raise DataError(f"{path.name}: the file is empty", "check the path; at least one row is needed")
        try:
            first = json.loads(start) if start.lstrip().startswith("{") else None
        except (ValueError, RecursionError):
            first = None
        if isinstance(first, dict) and not has_columns(first):
            yield from tables_of(path, parsed_lines(path, chain(head, lines), bad), bad)
        else:
            text = start + "".join(lines)
            try:
                whole = strict_json(text)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path.name}: not JSON: {error}", ONE_OR_ARRAY) from error
            if isinstance(whole, dict) and has_columns(whole):
                if len({len(column) for column in whole.values()}) > 1:
                    lengths = listed(f"{name}: {len(column)}" for name, column in whole.items())
                    problem = f"{path.name}: the columns have different lengths ({lengths})"
                    raise DataError(problem, "give all columns the same number of rows")
                whole = [dict(zip(whole, row, strict=True)) for row in zip(*whole.values(), strict=True)]
            if not isinstance(whole, list):
                raise DataError(f"{path.name}: does not contain rows", ONE_OR_ARRAY)
            yield from tables_of(path, enumerate(whole, 1), bad)


def has_columns(value: dict[str, Json]) -> TypeGuard[dict[str, list[Json]]]:
    """Return whether an object holds columns (lists of cells) rather than one row."""
    return bool(value) and all(isinstance(cells, list) for cells in value.values())


def strict_json(text: str) -> Json:
    """Return what JSON text holds, by the standard: without NaN, and without repeated keys."""

    def refuse_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not allowed in JSON")

    def unique_keys(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        found = dict(pairs)
        if len(found) < len(pairs):  # Python would silently keep the last value
            raise ValueError(f"the key {visible(repeated([name for name, _ in pairs])[0])} occurs twice")
        return found

    return json.loads(text, parse_constant=refuse_constant, object_pairs_hook=unique_keys)  # type: ignore[no-any-return]


def parsed_lines(path: Path, lines: Iterable[str], bad: BadRows) -> Iterator[tuple[int, Json]]:
    """Yield the number and the value of each line. Report lines that are not JSON, and blank ones except at the end."""
    for number, line in without_blank_end(enumerate(lines, 1), lambda line: not line.strip()):
        if not line.strip():
            bad.add(path, number, "the row is blank", "remove the blank line")
            continue
        try:
            value = strict_json(line)
        except (ValueError, RecursionError) as error:
            bad.add(path, number, f"not JSON: {error}", "write one object per line")
            continue
        if bad.skip and is_broken(line):
            bad.add(path, number, NOT_TEXT)
        else:
            yield number, value


def tables_of(path: Path, rows: Iterable[tuple[int, object]], bad: BadRows = REFUSED) -> Iterator[pa.Table]:
    """Yield numbered rows as tables of text or of lists of text. The keys of the first row are the columns."""
    columns: dict[str, None] = {}  # in their order, and fast to search
    num_read = 0
    rows = iter(rows)
    while chunk := [*islice(rows, CHUNK_ROWS)]:
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
            else:
                objects.append((number, row))
        num_read += len(objects)
        arrays: dict[str, pa.Array] = {}
        texts = {name: [cell_text(path, number, name, row.get(name)) for number, row in objects] for name in columns}
        for name, cells in texts.items() if objects else ():
            kinds = {number: isinstance(cell, list) for number, cell in enumerate(cells, objects[0][0]) if cell is not None}
            are_lists = next(iter(kinds.values()), False)
            if odd := [number for number, is_list in kinds.items() if is_list != are_lists]:
                problem = f"{path.name}, row {odd[0]:,}: {visible(name)} mixes lists and single values"
                raise DataError(problem, "use only one of them")
            arrays[name] = arrow_array(cells, pa.list_(pa.string()) if are_lists else pa.string())
        if objects:
            yield pa.table(arrays)
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


# --- Excel and Parquet ---------------------------------------------------------------------------------------------
def read_excel(path: Path, settings: DataSettings, bad: BadRows) -> Iterator[pa.Table]:
    """Yield the rows of a sheet: the only one with cells, or the one the user has chosen."""
    try:
        from python_calamine import CalamineError, CalamineWorkbook
    except ImportError as error:
        problem = f"{path.name}: reading Excel files needs the package python-calamine"
        raise SettingsError(problem, "pip install 'glassloop[excel]'") from error
    try:
        book = CalamineWorkbook.from_object(decompressed(path))
    except CalamineError as error:
        kind = "it needs a password" if "assword" in type(error).__name__ else error
        raise DataError(f"{path.name}: the Excel file cannot be read: {kind}", "open and save it again as .xlsx") from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}", "check the path and its permissions") from error
    names, wanted = book.sheet_names, settings.sheet
    if wanted is not None and wanted not in names:
        near = did_you_mean(wanted, names)
        raise DataError(f"{path.name}: there is no sheet {visible(wanted)}; found {listed(names)}{near}", "set --sheet")
    filled = [wanted] if wanted is not None else [name for name in names if book.get_sheet_by_name(name).height]
    if len(filled) > 1:
        problem = f"{path.name}: several sheets contain cells: {listed(filled)}"
        raise DataError(problem, f"choose one, for example --sheet {visible(filled[0])}")
    if not filled:
        raise DataError(f"{path.name}: the file is empty", EMPTY)
    texts = ([*map(cell_as_text, row)] for row in book.get_sheet_by_name(filled[0]).iter_rows())
    rows = [*without_blank_end(enumerate((cells if any(cells) else [] for cells in texts), 1))]
    if len(rows) > 1 and sum(map(bool, rows[0][1])) == 1 < sum(map(bool, rows[1][1])):
        title = next(filter(None, rows[0][1]))
        problem = f"{path.name}: row 1 contains only {visible(title)}, which looks like a title above the table"
        raise DataError(problem, "delete the rows above the column names")
    yield from tables_of_cells(path, iter(rows), settings, bad)


def cell_as_text(cell: int | float | str | bool | date | time | datetime | timedelta) -> str:
    """Return a cell as text. Excel stores whole numbers as fractions: 1.0 is 1."""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return cell.isoformat() if isinstance(cell, date | time) else str(cell)


def read_parquet(path: Path) -> Iterator[pa.Table]:
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(decompressed(path)) as parquet:
            refuse_names(path.name, parquet.schema_arrow.names)
            for batch in parquet.iter_batches(CHUNK_ROWS):
                yield sound(pa.Table.from_batches([batch]), path.name)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path.name}: the Parquet file cannot be read: {error}", "write the file again") from error


# --- any file ------------------------------------------------------------------------------------------------------
def read_file(path: Path, settings: DataSettings = DEFAULTS, bad: BadRows | None = None) -> Iterator[pa.Table]:
    """Return the rows of a data file in the format of its extension. In a .tsv file a quote is an ordinary character."""
    suffix, delimiter = data_suffix(path), settings.delimiter_sign
    bad = bad or BadRows(skip=settings.bad_rows == "skip", offer=True)
    tables, texts = (*DELIMITED, *EXCEL), (*DELIMITED, *JSON)
    used = {"columns": tables, "header": tables, "encoding": texts, "sheet": EXCEL}
    if unused := [name for name, kinds in used.items() if getattr(settings, name) is not None and suffix not in kinds]:
        raise SettingsError(f"{path.name}: {listed(unused)} does not apply to {suffix} files", f"omit {listed(unused)}")
    if suffix == ".parquet":
        return read_parquet(path)
    if suffix in EXCEL:
        return read_excel(path, settings, bad)
    if suffix in JSON:
        return read_json(path, settings.encoding, bad)
    if suffix == ".txt" and delimiter is None:
        problem = f"{path.name}: the delimiter of a .txt file is not known"
        raise DataError(problem, "set it, for example --delimiter tab or --delimiter ,")
    quoted = suffix != ".tsv" and not (suffix == ".txt" and delimiter == "\t")
    return read_delimited(path, delimiter or ("," if quoted else "\t"), quoted=quoted, settings=settings, bad=bad)


def data_suffix(path: Path) -> str:
    """Return the extension of a data file in lower case, without that of its compression: `.csv` for a.csv.gz."""
    suffix = path.suffix.lower()
    if suffix == ".zip" and path.is_file():
        try:
            with zipfile.ZipFile(path) as archive:
                return Path(only_member(path, archive).filename).suffix.lower()
        except (OSError, DataError, *DAMAGED):
            pass  # reported when it is opened
    return Path(path.stem).suffix.lower() if suffix in COMPRESSED else suffix


def refuse_unsupported(path: Path) -> None:
    if path.suffix.lower() == ".zip":
        with opened_bytes(path):
            pass  # it raises unless there is one file in it
    if data_suffix(path) not in SUFFIXES:
        raise DataError(f"{path.name}: this file format is not supported", FORMATS)


def refuse_special(path: Path) -> None:
    if kind := kind_of_special(path):  # a pipe, a socket or a device, which cannot be read more than once
        raise DataError(f"{path} is {kind}, not a file", "write the rows to a file, for example data.csv, and use that file")


def first_row_number(path: Path, settings: DataSettings = DEFAULTS) -> int:
    """Return the number of the first row of data, as a person counts rows in the file: a header is row 1."""
    has_header = settings.header if settings.header is not None else not settings.columns
    return 2 if has_header and data_suffix(path) in (*DELIMITED, *EXCEL) else 1


def checksums(paths: Iterable[Path]) -> list[str]:
    try:
        return [sha256_of(path) for path in paths]
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}", "check the path and its permissions") from error


class SpooledSplit:
    """The rows of a split, parsed once and spooled to an Arrow file at `path`, because they are read twice."""

    notes: tuple[str, ...] = ()
    bad: BadRows | None = None

    def __init__(self, path: Path, source: str, tables: Iterable[pa.Table]) -> None:
        self.path, self.source, self.num_rows = path, source, 0
        self.schema: pa.Schema | None = None
        for table in tables:
            if self.schema is None:
                self.schema = table.schema
                writer = pa.ipc.new_stream(str(path), table.schema)
            if sorted(table.column_names) == sorted(self.schema.names):
                table = table.select(self.schema.names)
            if table.schema != self.schema:
                one, other = (listed(f"{field.name} ({field.type})" for field in each) for each in (self.schema, table.schema))
                problem = f"{path.name}: the columns are not the same in all rows: {one} and {other}"
                raise DataError(problem, "give all rows the same columns and types of values")
            writer.write_table(table)
            self.num_rows += table.num_rows
        if self.schema is not None:
            writer.close()

    def tables(self) -> Iterator[pa.Table]:
        if self.schema is not None:
            with pa.memory_map(str(self.path)) as mapped:
                for batch in pa.ipc.open_stream(mapped):
                    yield pa.Table.from_batches([batch])

    def row_name(self, row: int) -> str:
        return f"{self.source}, row {row + 1:,}"

    def row_numbers(self) -> np.ndarray:
        return np.arange(1, self.num_rows + 1)
