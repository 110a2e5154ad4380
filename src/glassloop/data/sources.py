"""Where examples come from: a GLUE task, a file, a folder, the hub, a Python object, or our own generated corpus."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from glassloop.cache import open_or_build
from glassloop.data import quickstart
from glassloop.data.columns import Known
from glassloop.data.examples import Examples, load_prepared, prepare
from glassloop.data.glue import GLUE_TASKS, MSR_FILES, find_glue_files, glue_task, has_no_header, read_glue
from glassloop.data.labels import LabelSet
from glassloop.data.objects import hub_splits, object_tables
from glassloop.data.readers import CHUNK_ROWS, SUFFIXES, first_row_number, read_file, refuse_special
from glassloop.data.spool import spooled
from glassloop.data.survey import RawSplit
from glassloop.errors import DataError, SettingsError, did_you_mean, listed, visible
from glassloop.files import find_path, names_beside, scratch_dir, sha256_of
from glassloop.hub import is_hub_name
from glassloop.metrics import GLUE
from glassloop.settings import CLASSES, DataSettings, data_settings

QUICKSTART_ROWS = 2400
SPLIT_NAMES = {
    "training": "train",
    "dev": "validation",
    "val": "validation",
    "valid": "validation",
    "eval": "validation",
}
SPLIT_NAME = re.compile(r"\w[\w .-]*")
SPLIT_FILE = re.compile(r"(train|training|dev|val|valid|validation|eval|test)([-_.]\d.*)?", re.IGNORECASE)


@dataclass(frozen=True)
class Source:
    """A data set before its rows are looked at. `key` changes when its content does; `read` may use a scratch folder."""

    key: Callable[[], list[Any]]
    read: Callable[[Path], dict[str, RawSplit]]
    known: Known = field(default_factory=Known)


def load_dataset(path: Any = "quickstart", name: str | None = None, *, split: str | None = None, **settings: Any) -> Any:
    """A checked, memory-mapped `datasets.DatasetDict`, or one `Dataset` of it where `split` is named.

    `path` is "quickstart", "glue" with a task as `name` (or "glue/mrpc"), a file, a folder, a hub name, or a Python object:
    `Dataset`, `DatasetDict`, pandas frame, list of dicts, or a dict of those by split. `settings` are those of `DataSettings`.
    """
    splits = load_examples(path, name=name, **settings).splits
    if split is None:
        return splits
    if split not in splits:
        raise SettingsError(f"there is no split {visible(split)}{did_you_mean(split, splits)}", f"use one of {listed(splits)}")
    return splits[split]


def load_examples(path: Any = "quickstart", *, outputs: LabelSet | None = None, **given: Any) -> Examples:
    """Like `load_dataset`, with all that is known about the data: columns, task, labels, counts and notes.

    `outputs` are the labels of a trained model. They keep their numbers: the setting `labels` then only says which of them
    the numbers in the data mean.
    """
    settings = data_settings(given)
    source = find_source(path, settings)
    content = source.key()
    described = {**asdict(settings), "data_dir": None, "key": content, "known": asdict(source.known), "code": code_key()}
    described["outputs"] = asdict(outputs) if outputs else None

    def build(folder: Path) -> None:
        with scratch_dir(folder / "scratch") as scratch:
            prepare(source.read(scratch), settings, source.known, folder, outputs)
        if source.key() != content:  # the rows that were read are not those that the key stands for
            if isinstance(path, str | Path):
                raise DataError(
                    f"{visible(path, 200)}: changed while it was read", "try again when nothing writes to it any more"
                )
            raise DataError("the data set gave other rows when it was read again", "give rows that stay the same")

    key = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]
    return open_or_build("data", key, build, load_prepared)


def code_key() -> str:
    """Changes whenever the code that reads and prepares changes, so that nothing stale is found in the cache."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


def find_source(path: Any, settings: DataSettings) -> Source:
    """What `path` means, without looking at any row."""
    if not isinstance(path, str | Path):
        return object_source(path, settings)
    text = str(path)
    if text == "quickstart":
        return quickstart_source(settings)
    if settings.rows is not None:
        raise SettingsError("rows is given, but only the quickstart data are generated", "leave rows away")
    if text == "glue" or text.startswith("glue/"):
        task = text.partition("/")[2] or settings.name
        if not task:
            raise DataError("glue is a collection of tasks", f"name one: glue/mrpc, or any of {listed(GLUE_TASKS, 20)}")
        return glue_source(task, settings)
    where = find_path(path)
    if where:
        refuse_special(where)
    if where and where.is_dir():
        return folder_source(where, settings)
    if where and where.is_file():
        if where.suffix.lower() not in SUFFIXES:
            raise DataError(f"{where.name}: files of this kind are not read", f"give one of {listed(SUFFIXES)}")
        return files_source({"train": [where]}, settings)
    if Path(path).suffix.lower() in SUFFIXES or not is_hub_name(text):
        names = names_beside(path)
        lost = Path(path).name in names  # it is there, and yet it is not
        missing = "is a link to nothing" if lost else f"there is no such file or folder{did_you_mean(Path(path).name, names)}"
        raise DataError(
            f"{visible(text, 200)}: {missing}",
            "name a file, a folder, glue/mrpc, quickstart, or a hub data set (owner/name)",
        )
    return object_source(hub_splits(text, settings.name), settings)


def quickstart_source(settings: DataSettings) -> Source:
    """The generated corpus: training pairs, and a sixth as many (at most 5,000) for validation and for test."""
    rows = settings.rows or QUICKSTART_ROWS
    held_out = max(min(rows // 6, 5000), 2)

    def read(scratch: Path) -> dict[str, RawSplit]:
        pairs = quickstart.generate_pairs(rows + 2 * held_out, settings.split_seed)
        sizes = {"train": rows, "validation": held_out, "test": held_out}
        return {split: generated(split, islice(pairs, size), scratch) for split, size in sizes.items()}

    known = Known("sentence1", "sentence2", "label", quickstart.LABEL_NAMES, CLASSES, ("accuracy", "f1"))
    return Source(lambda: ["quickstart", rows, settings.split_seed], read, known)


def generated(split: str, pairs: Iterator[tuple[str, str, int]], scratch: Path) -> RawSplit:
    def tables() -> Iterator[pa.Table]:
        while chunk := list(islice(pairs, CHUNK_ROWS)):
            first, second, label = zip(*chunk, strict=True)
            names = [quickstart.LABEL_NAMES[number] for number in label]
            yield pa.table({"sentence1": first, "sentence2": second, "label": names})

    return RawSplit(
        spooled(tables(), scratch / split), lambda row: f"quickstart {split}, row {row + 1:,}", f"quickstart {split}"
    )


def glue_source(task: str, settings: DataSettings) -> Source:
    """A GLUE task from the original files where they are, else from the hub."""
    known = replace(glue_task(task).known, metrics=GLUE[task])
    files = find_glue_files(task, settings.data_dir)
    if files is None:
        return replace(object_source(hub_splits("nyu-mll/glue", task), settings), known=known)

    def read(scratch: Path) -> dict[str, RawSplit]:
        return {split: raw_glue(task, split, file, scratch / split) for split, file in files.items()}

    def key() -> list[Any]:
        beside = [file for folder in {file.parent for file in files.values()} if (file := folder / MSR_FILES[2]).is_file()]
        return ["glue", task, [*files], hashes_of([*files.values(), *beside])]

    return Source(key, read, known)


def raw_glue(task: str, split: str, file: Path, spool: Path) -> RawSplit:
    skipped: list[int] = []
    tables = spooled(read_glue(task, split, file, skipped), spool)
    header = 0 if has_no_header(task, split) else 1

    def row_name(row: int) -> str:
        for table in tables():
            if row < table.num_rows:
                return f"{file.name}, row {table['idx'][row].as_py() + header + 1:,}"
            row -= table.num_rows
        return file.name

    notes = (f"{file.name}: {len(skipped):,} broken rows of the original file are left out",) if skipped else ()
    return RawSplit(tables, row_name, file.name, notes)


def folder_source(folder: Path, settings: DataSettings) -> Source:
    """A folder saved by `datasets`, or one of files named by split: train.csv, validation.csv, train-00000-of-00002.parquet."""
    if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
        from datasets import load_from_disk

        try:
            saved = load_from_disk(str(folder))
        except Exception as error:  # damaged files end in exceptions of any kind there
            problem = f"{folder}: not a readable saved data set: {type(error).__name__}: {error}"
            raise DataError(problem, "save it again with save_to_disk") from error
        return object_source(saved, settings)
    found: dict[str, list[Path]] = {}
    data_files = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
    for path in data_files:
        if match := SPLIT_FILE.fullmatch(path.stem):
            split = match[1].lower()
            found.setdefault(SPLIT_NAMES.get(split, split), []).append(path)
    if "train" not in found:
        raise DataError(
            f"{folder}: there is no file named train (found {listed(path.name for path in data_files) or 'no data file'})",
            "name the files by split: train.csv, validation.csv, test.csv; or name one file instead of the folder",
        )
    for split, paths in found.items():
        whole = [path for path in paths if not re.search(r"\d", path.stem)]
        if len({path.suffix for path in paths}) > 1 or (whole and len(paths) > 1):
            raise DataError(
                f"{folder}: which file is the {split} split? found {listed(path.name for path in paths)}", "keep one"
            )
    order = {"train": 0, "validation": 1, "test": 2}
    return files_source({split: found[split] for split in sorted(found, key=lambda split: order[split])}, settings)


def files_source(files: Mapping[str, list[Path]], settings: DataSettings) -> Source:
    """Files by split; several files of a split are read one after the other."""

    def read(scratch: Path) -> dict[str, RawSplit]:
        return {split: raw_files(paths, scratch / split, settings) for split, paths in files.items()}

    def key() -> list[Any]:
        return ["files", [[split, [path.suffix.lower() for path in paths], hashes_of(paths)] for split, paths in files.items()]]

    return Source(key, read)


def hashes_of(paths: list[Path]) -> list[str]:
    """Return the checksums of files; raises `DataError` for one that cannot be read."""
    try:
        return [sha256_of(path) for path in paths]
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}", "check the path and its permissions") from error


def raw_files(paths: list[Path], spool: Path, settings: DataSettings) -> RawSplit:
    starts: list[tuple[int, Path]] = []

    def tables() -> Iterator[pa.Table]:
        number = 0
        for path in paths:
            starts.append((number, path))
            for table in read_file(path, settings.delimiter_sign):
                number += table.num_rows
                yield table

    def row_name(row: int) -> str:
        start, path = max(((start, path) for start, path in starts if start <= row), default=(0, paths[0]))
        return f"{path.name}, row {row - start + first_row_number(path):,}"

    return RawSplit(spooled(tables(), spool), row_name, listed(path.name for path in paths))


def object_source(data: Any, settings: DataSettings) -> Source:
    """A Python object: `Dataset`, `DatasetDict`, pandas frame, list of dicts, or a dict of those by split."""
    splits = data if isinstance(data, Mapping) else {"train": data}
    raw: dict[str, tuple[Known, Callable[[], Iterator[pa.Table]]]] = {}
    for split, part in splits.items():
        name = SPLIT_NAMES.get(str(split), str(split))
        if name in raw or not SPLIT_NAME.fullmatch(name):
            problem = f"which one is the {name} split?" if name in raw else f"{visible(name)} cannot be the name of a split;"
            raise DataError(f"{problem} found {listed(splits)}", "name the splits train, validation and test")
        raw[name] = object_tables(str(split), part, settings.label_columns)
    if not raw:
        raise DataError("the data set has no splits", "give at least one split")
    known = next((known for known, _ in raw.values() if known.label), Known())

    def key() -> list[Any]:
        hasher = hashlib.sha256()
        for split, (_, tables) in raw.items():
            hasher.update(split.encode())
            for table in tables():
                hasher.update(repr(list(zip(table.column_names, table.schema.types, strict=True))).encode())
                for batch in table.combine_chunks().to_batches():
                    hasher.update(batch.serialize())
        return ["object", hasher.hexdigest()]

    def read(scratch: Path) -> dict[str, RawSplit]:
        return {split: RawSplit(tables, partial(row_of, split), split) for split, (_, tables) in raw.items()}

    return Source(key, read, known)


def row_of(split: str, row: int) -> str:
    return f"{split}, row {row + 1:,}"
