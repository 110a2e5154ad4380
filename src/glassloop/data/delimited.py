"""Read CSV and TSV files as tables with all cells as text."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TextIO

import pyarrow as pa

from glassloop.data.bad_rows import BadRows
from glassloop.data.headers import SAMPLED_ROWS, settle_header
from glassloop.data.opening import is_broken, opened_text
from glassloop.errors import DataError, listed
from glassloop.formulas import is_protected_table, restored
from glassloop.settings import DataSettings

CHUNK_ROWS = 10_000
QUOTES = 'quote a text that contains ", and double the quotes in it ("")'
NOT_CLOSED = "unexpected end of data"  # what the csv module says about a quote that is opened and not closed
DEFAULTS = DataSettings()

Numbered = tuple[int, list[str]]  # a row and its number in the file, from 1


def read_delimited(
    path: Path, delimiter: str, *, quoted: bool, settings: DataSettings = DEFAULTS, bad: BadRows | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of a text file with all cells as text.

    Args:
        path: The file.
        delimiter: The character between two fields.
        quoted: Whether a field may be quoted.
        settings: Whether there is a header, names for the columns, and the encoding.
        bad: Where rows that cannot be read are reported. Default: the first one is an error.
    """
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
