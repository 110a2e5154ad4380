"""Open a data file as bytes or text: decompress it, find its encoding, and name the first byte that cannot be decoded."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO, cast

import pyarrow as pa

from glassloop.base.errors import DataError, listed
from glassloop.data.faults import SKIP

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

    Args:
        path: The file.
        encoding: The encoding that the user has chosen.
        lenient: Whether a byte that cannot be decoded becomes half of a surrogate pair, for `is_broken` to find.
        rows_of: How to divide the text into rows, so that an error can name the row of a byte.

    Raises:
        DataError: If a byte cannot be decoded, or the file cannot be read.
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
    """Open a file as text in a given encoding."""
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
