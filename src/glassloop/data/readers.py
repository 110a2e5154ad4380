"""Read a data file as Arrow tables of a bounded size. Cells stay as they are written; faults are reported with their row."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pyarrow as pa

from glassloop.data.bad_rows import BadRows
from glassloop.data.delimited import CHUNK_ROWS, DEFAULTS, read_delimited
from glassloop.data.excel import EXCEL, read_excel
from glassloop.data.headers import refuse_names
from glassloop.data.json_rows import read_json
from glassloop.data.opening import COMPRESSED, data_suffix, opened_bytes
from glassloop.data.soundness import sound
from glassloop.errors import DataError, SettingsError, listed
from glassloop.files import kind_of_special
from glassloop.settings import DataSettings

DELIMITED = (".csv", ".tsv", ".txt")
JSON = (".json", ".jsonl", ".ndjson")
SUFFIXES = (*DELIMITED, *JSON, ".parquet", *EXCEL)


def read_file(path: Path, settings: DataSettings = DEFAULTS, bad: BadRows | None = None) -> Iterator[pa.Table]:
    """Return the rows of a data file in the format of its extension. In a .tsv file a quote is an ordinary character.

    Args:
        path: The file. It may be compressed.
        settings: The delimiter, header, column names, encoding and sheet of the file.
        bad: Where rows that cannot be read are reported. Default: as the settings say.
    """
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
