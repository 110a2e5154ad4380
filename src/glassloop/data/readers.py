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
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from io import BytesIO
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn, TextIO, TypeAlias, TypeGuard, cast

import pyarrow as pa

from glassloop.base.errors import DataError, SettingsError, counted, did_you_mean, listed, visible
from glassloop.base.files import is_protected_table, kind_of_special, protected, restored, sha256_of
from glassloop.base.records import Json
from glassloop.data.columns import LABEL_NAMES, PAIR_NAMES, TEXT_NAMES, is_float
from glassloop.settings.training import DataSettings, name_problem, repeated

if TYPE_CHECKING:
    from python_calamine import CalamineSheet, CalamineWorkbook


SKIP = "to skip such rows: --bad_rows skip"


# The rows are listed in a file, because a number alone cannot be checked.
class BadRows:
    """The rows of some files that cannot be read.

    The first one is an error, unless `skip` says to skip and list them. `offer`: the error suggests that.
    """

    def __init__(self, *, skip: bool = False, offer: bool = False) -> None:
        self.skip, self.offer = skip, offer
        self.rows: dict[Path, dict[int, str]] = {}

    def add(self, path: Path, row: int, problem: str, remedy: str) -> None:
        """Raise `DataError` for a row, or add it to the list if such rows are skipped."""
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
        while (found := bisect_right(skipped, row + before)) > before:
            before = found
        return row + before

    def refuse_most(self, path: Path, num_read: int) -> None:
        """Raise `DataError` if most rows of a file were skipped: then something else is wrong with it."""
        skipped = self.rows.get(path, {})
        if len(skipped) > num_read:
            row, problem = next(iter(skipped.items()))
            raise DataError(
                f"{path.name}: {len(skipped):,} of {counted(num_read + len(skipped), 'row', 'rows')} cannot be read, for "
                f"example row {row:,}: {problem}",
                "check the delimiter (--delimiter) and the encoding (--encoding)",
            )

    def write(self, path: Path) -> None:
        """Write the list as a CSV file: file, row and problem."""
        with path.open("w", encoding="utf-8", newline="") as opened:
            writer = csv.writer(opened)
            writer.writerow(["file", "row", "problem"])
            for file, rows in self.rows.items():
                writer.writerows(
                    [protected(visible(file.name, 255)[1:-1]), row, protected(problem)] for row, problem in rows.items()
                )


def sound(table: pa.Table, source: str) -> pa.Table:
    """Return `table` with all its texts as plain strings. Raise `DataError` if its content is damaged.

    Arrow trusts the files it maps: a wrong offset would read other memory, and invalid UTF-8 would end in a traceback.
    """
    try:
        table.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"{source}: the rows are damaged: {error}", "write the data again") from error
    for place, field in enumerate(table.schema):
        if pa.types.is_string_view(field.type) or is_coded_text(field.type):
            table = table.set_column(place, field.name, table[place].cast(pa.string()))
    return table


def is_coded_text(kind: pa.DataType) -> bool:
    """Return whether texts are stored as numbers of a dictionary, as pandas stores categories."""
    text_kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return bool(pa.types.is_dictionary(kind)) and any(is_kind(kind.value_type) for is_kind in text_kinds)


def refuse_half_character(text: str, what: str) -> None:
    """Raise if a text contains half of a surrogate pair, which cannot be saved or tokenized."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{what} contains {text[error.start]!r}, which is half of a surrogate pair",
            "write the whole character, or remove it",
        ) from error


COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
GZIP, BZIP, XZ, ZSTD, ZIP = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
BZIP_BLOCK = b"1AY&SY"
OLD_OFFICE = b"\xd0\xcf\x11\xe0"
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
SAMPLE_BYTES = 400
DAMAGED = (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError)
Units = Callable[[TextIO], Iterable[Sequence[str]]]  # the rows of a text, to number them


@contextmanager
def opened_bytes(path: Path) -> Iterator[BinaryIO]:
    """Open a file as bytes, decompressed. Its first bytes decide, not its name. Raise `DataError` if it is damaged."""
    # The first bytes decide on the compression, because downloads are often renamed.
    try:
        with path.open("rb") as plain:
            start = plain.read(10)
            plain.seek(0)
            if start.startswith(GZIP):
                yield cast(BinaryIO, gzip.GzipFile(fileobj=plain))
            elif start.startswith(BZIP) and start[4:] == BZIP_BLOCK:
                yield cast(BinaryIO, bz2.BZ2File(plain))
            elif start.startswith(XZ):
                yield cast(BinaryIO, lzma.LZMAFile(plain))  # noqa: SIM115
            elif start.startswith(ZSTD):
                yield cast(BinaryIO, io.BufferedReader(pa.CompressedInputStream(plain, "zstd")))
            elif start.startswith(ZIP):
                with zipfile.ZipFile(plain) as archive, archive.open(only_member(path, archive)) as member:
                    yield cast(BinaryIO, member)
            else:
                yield plain
    except DAMAGED as error:
        raise DataError(f"{path.name}: the compressed file is damaged: {error}", "compress or download it again") from error
    except OSError as error:
        if error.strerror is None:
            raise DataError(f"{path.name}: the compressed file is damaged: {error}", "compress or download it again") from error
        raise DataError(f"{path}: {error.strerror}", "check the path and its permissions") from error


def only_member(path: Path, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    """Return the only file in a zip archive. Raise `DataError` if there are several, or if it needs a password."""
    if "[Content_Types].xml" in archive.namelist():
        raise DataError(f"{path.name}: the file is an Excel file", f"rename it to {path.stem}.xlsx")
    hidden = ("__MACOSX/", ".")  # what macOS adds
    members = [one for one in archive.infolist() if not one.is_dir() and not one.filename.startswith(hidden)]
    if len(members) != 1:
        names = listed(one.filename for one in members) or "nothing"
        raise DataError(
            f"{path.name}: the archive must contain one file; found {names}",
            "extract it, and use a file of it, or a folder with one file per split (train.csv, validation.csv)",
        )
    if members[0].flag_bits & 1:
        raise DataError(f"{path.name}: the archive needs a password", "extract it, and use the file in it")
    return members[0]


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


@contextmanager
def opened_text(
    path: Path, encoding: str | None = None, *, lenient: bool = False, rows_of: Units | None = None
) -> Iterator[TextIO]:
    """Open a file as text: UTF-8, what its byte order mark says, or another encoding.

    `lenient`: a byte that cannot be decoded becomes half of a surrogate pair, for `is_broken` to find. `rows_of` divides the
    text into rows, so that an error can name the row of a byte. Raise `DataError` if a byte cannot be decoded.
    """
    with opened_bytes(path) as opened:
        found = encoding_of(path, opened.read(SAMPLE_BYTES), encoding)
    try:
        with decoded(path, found, "surrogateescape" if lenient else "strict") as text:
            yield text
    except UnicodeDecodeError as error:
        raise undecodable(path, found, rows_of) from error


@contextmanager
def decoded(path: Path, encoding: str, errors: str) -> Iterator[TextIO]:
    with opened_bytes(path) as opened, io.TextIOWrapper(opened, encoding=encoding, errors=errors, newline="") as text:
        yield text


def encoding_of(path: Path, start: bytes, chosen: str | None) -> str:
    """Return the encoding of a file: that of its byte order mark, or the chosen one, or UTF-8."""
    if start.startswith(OLD_OFFICE):
        raise DataError(f"{path.name}: the file is an Excel file", f"rename it to {path.stem}.xls")
    marked = next((name for mark, name in MARKS if start.startswith(mark)), None)
    if marked and chosen and not codecs.lookup(chosen).name.startswith(marked.removesuffix("-sig")):
        shown = marked.removesuffix("-sig").upper()
        raise DataError(f"{path.name}: the byte order mark says {shown}, but encoding is {chosen}", "omit --encoding")
    if marked or chosen:
        return marked or chosen or ""
    for first, name in enumerate(("utf-16-be", "utf-16-le")):
        if start[first::2].count(0) > len(start) // 4:  # every second byte of Latin letters is 0
            raise DataError(f"{path.name}: the file seems to be UTF-16 without a byte order mark", f"use --encoding {name}")
    return "utf-8"


def is_broken(row: Sequence[str]) -> bool:
    """Return whether a row of a text that was opened leniently contains a byte that could not be decoded."""
    try:
        "".join(row).encode()
    except UnicodeEncodeError:
        return True
    return False


def undecodable(path: Path, encoding: str, rows_of: Units | None) -> DataError:
    """Return the error for the first byte that cannot be decoded, with its row and its position."""
    position, byte = first_undecodable(path, encoding)
    row = None
    try:
        with decoded(path, encoding, "surrogateescape") as text:
            rows = rows_of(text) if rows_of else text
            row = next((number for number, row in enumerate(rows, 1) if is_broken(row)), None)
    except ValueError:
        pass  # UTF-16 has no lenient reading
    where = f"{path.name}, {'row' if rows_of else 'line'} {row:,}" if row else path.name
    shown = encoding.removesuffix("-sig").upper() if encoding.startswith("utf") else encoding
    encodings = "--encoding cp1252 (Windows) or --encoding latin-1" if shown == "UTF-8" else "--encoding utf-8"
    return DataError(
        f"{where}: byte 0x{byte:02x} at position {position:,} is not {shown}",
        f"set the encoding of the file, for example {encodings}; {SKIP}",
    )


def first_undecodable(path: Path, encoding: str) -> tuple[int, int]:
    """Return the position and the value of the first byte that cannot be decoded."""
    decoder = codecs.getincrementaldecoder(encoding.removesuffix("-sig"))()
    position = 0
    with opened_bytes(path) as opened:
        while True:
            block = opened.read(1 << 16)
            waiting = len(decoder.getstate()[0])
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                return position - waiting + error.start, error.object[error.start]
            if not block:
                return position, 0
            position += len(block)


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


MOST_COLUMNS = 100_000
SAMPLED_ROWS = 1000
DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
USUAL_NAMES = {
    *LABEL_NAMES,
    *TEXT_NAMES,
    *(name for pair in PAIR_NAMES for name in pair),
    *(
        "id",
        "idx",
        "index",
        "name",
        "date",
        "title",
        "body",
        "content",
        "comment",
        "message",
        "review",
        "document",
        "description",
    ),
    *("sentiment", "rating", "stars", "topic", "intent", "source", "url", "language", "split"),
}


def settle_header(
    name: str, head: list[list[str]], settings: DataSettings, delimiter: str | None = None
) -> tuple[list[str], bool]:
    """Return the column names of a table, and whether its first row holds them.

    Raise `DataError` if the first row looks like data, or a name is there twice. `delimiter`: to notice a wrong one.
    """
    first, given = head[0], settings.column_names
    if given:
        refuse_wrong_names(name, first, given, settings.header)
        return [*given], settings.header is True
    if settings.header is False:
        return [f"column_{place}" for place in range(1, len(first) + 1)], False
    other = next(
        (sign for sign in DELIMITERS if delimiter and len(first) == 1 and sign != delimiter and sign in first[0]), None
    )
    if other:
        raise DataError(
            f"{name}: only one column was found: {visible(first[0])}",
            f'the columns may be separated by a {DELIMITERS[other]}: --delimiter "{other if other != chr(9) else "tab"}"',
        )
    if settings.header is None and looks_like_data(head, settings):
        raise DataError(
            f"{name}: row 1 looks like data, not like column names: {listed(map(visible, first), 4)}",
            f"name the columns, for example --columns {suggested_names(head)}, or use --no-header for column_1, column_2; "
            "if row 1 holds the names, use --header",
        )
    columns = [cell.strip() or f"column_{place}" for place, cell in enumerate(first, 1)]
    refuse_names(name, columns, "rename one of them, or replace all names: --header --columns NAME,NAME")
    return columns, True


def refuse_wrong_names(name: str, first: list[str], given: tuple[str, ...], header: bool | None) -> None:
    """Raise if the given names do not fit the first row, or if that row seems to hold names already."""
    if len(given) != len(first) and header is not False:
        fields = f"{counted(len(first), 'field', 'fields')}: {listed(map(visible, first), 4)}"
        raise DataError(
            f"{name}: --columns gives {counted(len(given), 'name', 'names')}, but row 1 has {fields}",
            "give one name for each field, or set the delimiter with --delimiter",
        )
    cells = [cell.strip().lower() for cell in first]
    if header is None and (cells == [one.lower() for one in given] or {*cells} & USUAL_NAMES):
        raise DataError(
            f"{name}: row 1 looks like column names ({listed(first)}), but --columns is for files without a header",
            "omit --columns, or add --header to replace the names in row 1, or --no-header if row 1 is data",
        )


def looks_like_data(head: list[list[str]], settings: DataSettings) -> bool:
    """Return whether the first row is data: one of its cells is a number, or occurs again in its column."""
    # Refused, not guessed: reading a file without a header on a guess would give its columns names that no later file
    # has.
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
        raise DataError(
            f"{name}: there are {len(columns):,} columns; at most {MOST_COLUMNS:,} are supported",
            "keep only the columns with texts and labels, or check the delimiter",
        )
    if twice := repeated(columns):
        raise DataError(f"{name}: column {visible(twice[0])} occurs twice: {listed(columns)}", remedy)
    for column in columns:
        if problem := name_problem(column) if isinstance(column, str) else f"the name {column!r} is not text":
            raise DataError(f"{name}: {problem}", "rename the column")


CHUNK_ROWS = 10_000
QUOTES = 'quote a text that contains ", and double the quotes in it ("")'
NOT_CLOSED = "unexpected end of data"  # what the csv module says about a quote that is opened and not closed
DEFAULTS = DataSettings()
Numbered = tuple[int, list[str]]  # a row and its number in the file, from 1


def read_delimited(
    path: Path, delimiter: str, *, quoted: bool, settings: DataSettings = DEFAULTS, bad: BadRows | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of a text file with all cells as text.

    Rows that cannot be read are reported to `bad`, by default as an error.
    """
    # Python's csv module: `datasets` turns the cells NA and null into missing values, and pyarrow does not name the row
    # of an invalid byte.
    bad = bad or BadRows()

    def reader_of(lines: TextIO) -> Iterator[list[str]]:
        return csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE, strict=True)

    # Fields have no limit until the file is closed: an error about its bytes reads the rows again.
    with unlimited_fields(), opened_text(path, settings.encoding, lenient=bad.skip, rows_of=reader_of) as lines:
        rows = without_blank_end(numbered_rows(path, reader_of(lines), bad))
        yield from tables_of_cells(path, rows, settings, bad, delimiter)


def numbered_rows(path: Path, reader: Iterator[list[str]], bad: BadRows) -> Iterator[Numbered]:
    """Yield the rows of a reader with their numbers. Report those with wrong quotes."""
    number = 0
    while True:
        number += 1
        try:
            yield number, next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if NOT_CLOSED in str(error):  # all rows that follow belong to it
                problem = f"{path.name}, row {number:,}: a quote is opened and not closed until the end of the file"
                raise DataError(problem, QUOTES) from error
            bad.add(path, number, str(error), QUOTES)


def without_blank_end(rows: Iterable[Numbered]) -> Iterator[Numbered]:
    """Yield `rows` without the blank ones at the end. A blank row between others stays, as an empty row."""
    blank: list[int] = []
    for number, row in rows:
        if row:
            yield from ((before, []) for before in blank)
            blank.clear()
            yield number, row
        else:
            blank.append(number)


def tables_of_cells(
    path: Path, rows: Iterator[Numbered], settings: DataSettings, bad: BadRows, delimiter: str | None = None
) -> Iterator[pa.Table]:
    """Yield numbered rows of cells as tables. Report rows with too many or too few fields, or with broken bytes."""
    head = [*islice(rows, SAMPLED_ROWS)]
    if not head:
        raise DataError(f"{path.name}: the file is empty", "check the path; a header and at least one row are needed")
    if not head[0][1]:
        raise DataError(f"{path.name}, row 1: the row is blank", "remove the blank line: the header comes first")
    columns, has_header = settle_header(path.name, [row for _, row in head], settings, delimiter)
    is_protected = has_header and is_protected_table(columns)
    names = [*map(restored, columns)] if is_protected else columns
    header, width, num_read = head[0][1] if has_header else None, len(columns), 0
    rest = chain(head[1:] if has_header else head, rows)
    while chunk := [*islice(rest, CHUNK_ROWS)]:
        whole = [
            row
            for number, row in chunk
            if (len(row) == width and row != header and not bad.skip) or is_whole(path, number, row, columns, header, bad)
        ]
        num_read += len(whole)
        if whole:
            read = ([*map(restored, cells)] if is_protected else cells for cells in zip(*whole, strict=True))
            yield pa.table([pa.array(cells, pa.string()) for cells in read], names=names)
    bad.refuse_most(path, num_read)


def is_whole(path: Path, number: int, row: list[str], columns: list[str], header: list[str] | None, bad: BadRows) -> bool:
    """Return whether a row can be used. Report it if it has other fields than the header, broken bytes, or is the header."""
    if len(row) != len(columns):
        found = f"has {len(row)} fields, but the header has {len(columns)}" if row else "is blank"
        bad.add(
            path,
            number,
            f"the row {found} ({listed(columns)})",
            "quote a field that contains the delimiter, remove the row, or set the delimiter with --delimiter",
        )
    elif row == header:
        bad.add(path, number, f"the row repeats the header ({listed(columns)})", "remove the row")
    elif bad.skip and (is_broken(row) or any("\0" in cell for cell in row)):
        bad.add(path, number, "the row contains a byte that is not text", "")
    else:
        return True
    return False


@contextmanager
def unlimited_fields() -> Iterator[None]:
    """Allow texts longer than the csv module's 128 KiB while a file is read."""
    before = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        yield
    finally:
        csv.field_size_limit(before)


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


DELIMITED = (".csv", ".tsv", ".txt")
JSON = (".json", ".jsonl", ".ndjson")
SUFFIXES = (*DELIMITED, *JSON, ".parquet", *EXCEL)


def read_file(path: Path, settings: DataSettings = DEFAULTS, bad: BadRows | None = None) -> Iterator[pa.Table]:
    """Return the rows of a data file in the format of its extension. In a .tsv file a quote is an ordinary character."""
    suffix, delimiter = data_suffix(path), settings.delimiter_sign
    bad = bad or BadRows(skip=settings.bad_rows == "skip", offer=True)
    refuse_unused(path, suffix, settings)
    if suffix == ".parquet":
        return read_parquet(path)
    if suffix in EXCEL:
        return read_excel(path, settings, bad)
    if suffix in JSON:
        return read_json(path, settings.encoding, bad)
    if suffix == ".txt" and delimiter is None:
        raise DataError(
            f"{path.name}: the delimiter of a .txt file is not known", "set it, for example --delimiter tab or --delimiter ,"
        )
    quoted = suffix != ".tsv" and not (suffix == ".txt" and delimiter == "\t")
    return read_delimited(path, delimiter or ("," if quoted else "\t"), quoted=quoted, settings=settings, bad=bad)


def refuse_unused(path: Path, suffix: str, settings: DataSettings) -> None:
    """Raise `SettingsError` for a setting that has no meaning for this format."""
    unused = {
        "columns": settings.columns is not None and suffix not in (*DELIMITED, *EXCEL),
        "header": settings.header is not None and suffix not in (*DELIMITED, *EXCEL),
        "encoding": settings.encoding is not None and suffix not in (*DELIMITED, *JSON),
        "sheet": settings.sheet is not None and suffix not in EXCEL,
    }
    if names := [name for name, is_unused in unused.items() if is_unused]:
        raise SettingsError(f"{path.name}: {listed(names)} does not apply to {suffix} files", f"omit {listed(names)}")


def supported(path: Path) -> bool:
    """Return whether the extension of a file, without that of its compression, is one that `read_file` knows."""
    return data_suffix(path) in SUFFIXES


def refuse_unsupported(path: Path) -> None:
    """Raise `DataError` if the extension of a file is not supported."""
    if path.suffix.lower() == ".zip":
        with opened_bytes(path):
            pass  # it raises unless there is one file in it
    if not supported(path):
        raise DataError(
            f"{path.name}: this file format is not supported",
            f"use one of {listed(SUFFIXES)}, or one of these with {listed(COMPRESSED)}",
        )


def refuse_special(path: Path) -> None:
    """Raise for a pipe, a socket or a device, which cannot be read more than once."""
    if kind := kind_of_special(path):
        raise DataError(f"{path} is {kind}, not a file", "write the rows to a file, for example data.csv, and use that file")


def first_row_number(path: Path, settings: DataSettings = DEFAULTS) -> int:
    """Return the number of the first row of data, as a person counts rows in the file: a header is row 1."""
    has_header = settings.header if settings.header is not None else not settings.columns
    return 2 if has_header and data_suffix(path) in (*DELIMITED, *EXCEL) else 1


def read_parquet(path: Path) -> Iterator[pa.Table]:
    """Yield the rows of a Parquet file with their own types."""
    import pyarrow.parquet as pq

    source: Path | BytesIO = path
    if path.suffix.lower() in COMPRESSED:
        with opened_bytes(path) as opened:
            source = BytesIO(opened.read())
    try:
        with pq.ParquetFile(source) as parquet:
            refuse_names(path.name, parquet.schema_arrow.names)
            for batch in parquet.iter_batches(CHUNK_ROWS):
                yield sound(pa.Table.from_batches([batch]), path.name)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path.name}: the Parquet file cannot be read: {error}", "write the file again") from error


# Parsed rows are spooled to an Arrow file, because they are read twice.
class SpooledSplit:
    """The rows of a split in an Arrow file at `path`. Add all tables, then close it, then read it."""

    notes: tuple[str, ...] = ()
    bad: BadRows | None = None

    def __init__(self, path: Path, source: str) -> None:
        self.path, self.source, self.num_rows = path, source, 0
        self.writer: pa.ipc.RecordBatchStreamWriter | None = None
        self.schema: pa.Schema | None = None

    def add(self, table: pa.Table) -> None:
        """Write the next rows. Raise `DataError` if their columns are not those of the rows before."""
        if self.writer is None or self.schema is None:
            self.schema, self.writer = table.schema, pa.ipc.new_stream(str(self.path), table.schema)
        if sorted(table.column_names) == sorted(self.schema.names):
            table = table.select(self.schema.names)
        if table.schema != self.schema:
            one, other = (listed(f"{field.name} ({field.type})" for field in each) for each in (self.schema, table.schema))
            raise DataError(
                f"{self.path.name}: the columns are not the same in all rows: {one} and {other}",
                "give all rows the same columns and types of values",
            )
        self.writer.write_table(table)
        self.num_rows += table.num_rows

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()

    def tables(self) -> Iterator[pa.Table]:
        if self.writer is not None:
            with pa.memory_map(str(self.path)) as mapped:
                for batch in pa.ipc.open_stream(mapped):
                    yield pa.Table.from_batches([batch])

    def row_name(self, row: int) -> str:
        return f"{self.source}, row {row + 1:,}"


def checksums(paths: list[Path]) -> list[str]:
    """Return the checksums of files. Raise `DataError` for one that cannot be read."""
    try:
        return [sha256_of(path) for path in paths]
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}", "check the path and its permissions") from error
