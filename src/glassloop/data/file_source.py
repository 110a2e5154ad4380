"""Data files on disk as a source: which file is which split, and their rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from glassloop.data.bad_rows import BadRows
from glassloop.data.columns import NOTHING_KNOWN, Known
from glassloop.data.opening import COMPRESSED, data_suffix
from glassloop.data.readers import first_row_number, read_file, supported
from glassloop.data.spool import SpooledSplit
from glassloop.errors import DataError, listed
from glassloop.files import sha256_of
from glassloop.records import Json
from glassloop.settings import DataSettings

SPLIT_NAMES = {
    "training": "train",
    "dev": "validation",
    "val": "validation",
    "valid": "validation",
    "eval": "validation",
}
SPLIT_FILE = re.compile(r"(train|training|dev|val|valid|validation|eval|test)([-_.]\d.*)?", re.IGNORECASE)
SPLIT_ORDER = ("train", "validation", "test")


@dataclass(frozen=True)
class FileSource:
    """Files by split. Several files of a split are read one after the other."""

    files: Mapping[str, list[Path]]
    settings: DataSettings
    known: Known = NOTHING_KNOWN

    def key(self) -> list[Json]:
        """Return the checksums of the files."""
        return [
            "files",
            [[split, [*map(data_suffix, paths)], [*checksums(paths)]] for split, paths in self.files.items()],
        ]

    def splits(self, scratch: Path) -> dict[str, FileSplit]:
        """Read all files."""
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
        """Return the file of a row and its number there."""
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
