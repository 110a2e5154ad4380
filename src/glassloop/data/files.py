"""Data files on disk as a source: which file is which split, and their rows, read once into an Arrow file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from glassloop.base.errors import DataError, SettingsError, did_you_mean, listed, visible
from glassloop.base.files import sha256_of
from glassloop.base.records import Json
from glassloop.data.columns import NOTHING_KNOWN, Known, columns_of_text, with_joined
from glassloop.data.interfaces import Texts
from glassloop.data.readers import (
    COMPRESSED,
    SUFFIXES,
    BadRows,
    data_suffix,
    first_row_number,
    read_file,
    refuse_special,
    supported,
)
from glassloop.data.writers import written_table
from glassloop.settings.training import DataSettings


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


SPLIT_NAMES = {"training": "train", "dev": "validation", "val": "validation", "valid": "validation", "eval": "validation"}
SPLIT_FILE = re.compile(r"(train|training|dev|val|valid|validation|eval|test)([-_.]\d.*)?", re.IGNORECASE)
SPLIT_ORDER = ("train", "validation", "test")


@dataclass(frozen=True)
class FileSource:
    """Files by split. Several files of a split are read one after the other."""

    files: Mapping[str, list[Path]]
    settings: DataSettings
    known: Known = NOTHING_KNOWN

    def key(self) -> list[Json]:
        return ["files", [[split, [*map(data_suffix, paths)], [*checksums(paths)]] for split, paths in self.files.items()]]

    def splits(self, scratch: Path) -> dict[str, FileSplit]:
        return {split: FileSplit(paths, self.settings, scratch / split) for split, paths in self.files.items()}


class FileSplit(SpooledSplit):
    """The rows of the files of one split. A row is named by its file and its number there."""

    def __init__(self, paths: list[Path], settings: DataSettings, spool: Path) -> None:
        super().__init__(spool, listed(path.name for path in paths))
        self.settings = settings
        self.bad: BadRows = BadRows(skip=settings.bad_rows == "skip", offer=True)
        self.starts: list[tuple[int, Path]] = []  # the number of rows before each file
        for path in paths:
            self.starts.append((self.num_rows, path))
            for table in read_file(path, settings, self.bad):
                self.add(table)
        self.close()

    def row_name(self, row: int) -> str:
        start, path = max((start, path) for start, path in self.starts if start <= row)
        number = row - start + first_row_number(path, self.settings)
        return f"{path.name}, row {self.bad.number_of(path, number):,}"


def files_by_split(folder: Path) -> dict[str, list[Path]]:
    """Return the data files of a folder by split: train.csv, validation.csv, train-00000-of-00002.parquet."""
    found: dict[str, list[Path]] = {}
    data_files = sorted(path for path in folder.iterdir() if path.is_file() and supported(path))
    for path in data_files:
        if match := SPLIT_FILE.fullmatch(bare_name(path)):
            split = match[1].lower()
            found.setdefault(SPLIT_NAMES.get(split, split), []).append(path)
    if "train" not in found:
        raise DataError(
            f"{folder}: there is no file named train (found {listed(path.name for path in data_files) or 'no data file'})",
            "name the files by split: train.csv, validation.csv, test.csv; or use one file instead of the folder",
        )
    for split, paths in found.items():
        whole = [path for path in paths if not re.search(r"\d", bare_name(path))]
        if len({data_suffix(path) for path in paths}) > 1 or (whole and len(paths) > 1):
            raise DataError(
                f"{folder}: several files could be the {split} split: {listed(path.name for path in paths)}", "keep one"
            )
    return {split: found[split] for split in SPLIT_ORDER if split in found}


def bare_name(path: Path) -> str:
    """Return the name of a file without its extensions: `train` for train.csv.gz and train.zip."""
    return Path(path.stem).stem if path.suffix.lower() in COMPRESSED else path.stem


def checksums(paths: list[Path]) -> list[str]:
    """Return the checksums of files. Raise `DataError` for one that cannot be read."""
    try:
        return [sha256_of(path) for path in paths]
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}", "check the path and its permissions") from error


@dataclass(frozen=True)
class FileRows:
    """Some rows of a file: their columns as they are written, and the texts to predict."""

    first: int  # the number of the first row in the file
    table: pa.Table  # the columns of the file
    texts: Texts  # the texts, or the first and the second texts of pairs


def checked_rows(
    source: Path, settings: DataSettings, texts: Sequence[str], added: Sequence[str], bad: BadRows
) -> Iterator[FileRows]:
    """Yield the rows of a file.

    `texts` are the columns of the texts, each of which may name several; `added` those that predictions will add. Raise
    `DataError` for the first row that cannot be predicted.
    """
    if source.exists():
        refuse_special(source)
    if not source.is_file() or not supported(source):
        raise DataError(
            f"{source}: there is no such data file", f"use one of {listed(SUFFIXES)}, or one of these with {listed(COMPRESSED)}"
        )
    number = first_row_number(source, settings)
    for table in read_file(source, settings, bad):
        refuse_columns(source, table.column_names, texts, added)
        table = written_table(table, source.name)
        joined = with_joined(table, texts, source.name)
        columns = [joined[name].to_pylist() for name in texts]
        for name, cells in zip(texts, columns, strict=True):
            for place, cell in enumerate(cells):
                if isinstance(cell, str) and cell:
                    continue
                where = f"{source.name}, row {bad.number_of(source, number + place):,}"
                if cell is None or cell == "":
                    raise DataError(f"{where}: the text is empty", "fill or remove the row")
                raise DataError(f"{where}: {visible(name)} is {visible(cell)}, not text", "name the text column with --text")
        yield FileRows(number, table, columns)
        number += table.num_rows


def refuse_columns(source: Path, found: Sequence[str], texts: Sequence[str], added: Sequence[str]) -> None:
    """Raise if a file does not have the columns of the texts, or has one that predictions would overwrite."""
    if not texts:
        raise SettingsError(f"{source.name}: the text column is not known; found {listed(found)}", "name it with --text")
    for name in (part for text in texts for part in columns_of_text(text, found)):
        if name not in found:
            there = f"found {listed(found)}{did_you_mean(name, found)}"
            raise DataError(
                f"{source.name}: there is no column {visible(name)}; {there}", "name the columns with --text and --text_pair"
            )
    for name in added:
        if name in found:
            raise DataError(
                f"{source.name}: there is already a column {visible(name)}",
                "rename it: predictions are written to a column of that name",
            )
