"""Load examples from any source: a GLUE task, a file, a folder, the hub, a Python object, or the generated corpus."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glassloop.base.cache import open_or_build
from glassloop.base.errors import DataError, SettingsError, did_you_mean, listed, visible
from glassloop.base.files import find_path, names_beside, scratch_dir
from glassloop.base.network import hub_unreachable, is_hub_name, offline
from glassloop.base.output import stage
from glassloop.base.records import Json
from glassloop.data import quickstart, readers
from glassloop.data.columns import LABEL_NAMES, NOTHING_KNOWN, UNLABELLED, Known, LabelSet
from glassloop.data.examples import Examples, Source, load_prepared, prepare
from glassloop.data.glue import GLUE_TASKS, find_glue_files, glue_source, known_of
from glassloop.data.interfaces import Data
from glassloop.data.readers import SUFFIXES, BadRows, SpooledSplit, data_suffix, read_file
from glassloop.data.rows import arrow_array, arrow_rows
from glassloop.settings.training import CLASSES, FILE_SETTINGS, PATHS, DataSettings, data_settings

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict


SPLIT_NAMES = {"training": "train", "dev": "validation", "val": "validation", "valid": "validation", "eval": "validation"}
SPLIT_FILE = re.compile(r"(train|training|dev|val|valid|validation|eval|test)([-_.]\d.*)?", re.IGNORECASE)
SPLIT_NAME = re.compile(r"\w[\w .-]*")
QUICKSTART_ROWS = 2400
QUICKSTART_KNOWN = Known("sentence1", "sentence2", "label", quickstart.LABEL_NAMES, CLASSES, ("accuracy", "f1"))
IN_MEMORY = "rows_in_memory"  # as the banner and the report name them
SAVED = ("dataset_dict.json", "state.json")
READING = "reading the data"
USUAL_DATA = "use a file, a folder, glue/mrpc, quickstart, or a hub data set (owner/name)"


def load_dataset(
    path: Data = "quickstart", name: str | None = None, *, split: str | None = None, **settings: object
) -> DatasetDict | Dataset:
    """Return checked, memory-mapped splits.

    Args:
        path: "quickstart", "glue" with a task as `name` (or "glue/mrpc"), a file, a folder, a hub name, or a Python object: a
            `Dataset`, a `DatasetDict`, a frame of pandas or polars, an Arrow table, a list of dicts, or a dict of
            those by split.
        name: The GLUE task, or the configuration of a hub data set.
        split: Return only this split.
        **settings: Settings of `DataSettings`, such as `text`, `label` and `validation_share`.

    Returns:
        A `datasets.DatasetDict`, or one `datasets.Dataset` if `split` is given.

    Raises:
        DataError: If the data cannot be found or read, or a row has no text or no label.
        SettingsError: If a setting is unknown or invalid, or there is no such split.
    """
    splits = cached_examples(path, data_settings({"name": name, **settings})).splits
    if split is None:
        return splits
    if split not in splits:
        raise SettingsError(f"there is no split {visible(split)}{did_you_mean(split, splits)}", f"use one of {listed(splits)}")
    return splits[split]


def load_examples(path: Data = "quickstart", *, outputs: LabelSet | None = None, **settings: object) -> Examples:
    """Return checked, memory-mapped splits with all that is known about them. The result is cached by content.

    Args:
        path: The data, as in `load_dataset`.
        outputs: The labels of a trained model. They keep their numbers: the setting `labels` then only says which of them the
            numbers in the data mean.
        **settings: Settings of `DataSettings`.

    Returns:
        The splits with their columns, task, labels, counts and notes.

    Raises:
        DataError: If the data cannot be found or read, or a row has no text or no label.
        SettingsError: If a setting is unknown or invalid.
    """
    return cached_examples(path, data_settings(settings), outputs)


def cached_examples(path: Data, settings: DataSettings, outputs: LabelSet | None = None) -> Examples:
    """Return the examples from the cache; read and check the data first if it is not there."""
    source = find_source(path, settings)
    content = source.key()

    def build(folder: Path) -> None:
        with scratch_dir(folder / "scratch") as scratch:
            prepare(source.splits(scratch), settings, source.known, folder, outputs)
        if source.key() != content:  # the rows that were read are not those that the key stands for
            if isinstance(path, str | Path):
                problem = f"{visible(path, 200)}: changed while it was read"
                raise DataError(problem, "try again when no other program writes to it")
            raise DataError("the data set returned different rows when it was read again", "use data that does not change")

    described = {**asdict(settings), **dict.fromkeys(PATHS), "key": content, "known": asdict(source.known), "code": code_key()}
    described["outputs"] = asdict(outputs) if outputs else None
    key = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]
    name = Path(path).name if isinstance(path, str | Path) and Path(path).is_absolute() else path
    with stage(f"reading {name}" if isinstance(name, str) else READING, counts_as=READING):
        return open_or_build("data", key, build, load_prepared)


def code_key() -> str:
    """Return a checksum of the code that reads and prepares data, so that nothing stale is found in the cache."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


def find_source(path: Data, settings: DataSettings) -> Source:
    """Return what `path` means, without reading any row of a file."""
    if not isinstance(path, str | Path):
        refuse_file_settings(path, settings)
        return object_source(path, settings.label_columns)
    text = str(path)
    if settings.rows is not None and text != "quickstart":
        raise SettingsError("rows applies only to the quickstart data, which is generated", "omit rows")
    collection, _, task = text.partition("/")
    if not (is_public := text == "quickstart" or collection == "glue") and (where := find_path(path)):
        readers.refuse_special(where)
        return path_source(where, settings)
    if not is_public and (Path(path).suffix.lower() in (*SUFFIXES, *readers.COMPRESSED) or not is_hub_name(text)):
        names = names_beside(path)
        broken = Path(path).name in names  # listed by its folder, and yet not there
        missing = "is a broken link" if broken else f"there is no such file or folder{did_you_mean(Path(path).name, names)}"
        raise DataError(f"{visible(text, 200)}: {missing}", USUAL_DATA)
    refuse_file_settings(path, settings)
    if text == "quickstart":
        return quickstart_source(settings.rows or QUICKSTART_ROWS, settings.split_seed)
    if not is_public:
        return object_source(hub_splits(text, settings.name), settings.label_columns)
    if not (task := task or settings.name or ""):
        raise DataError("glue is a collection of tasks", f"name one: glue/mrpc, or any of {listed(GLUE_TASKS, 20)}")
    if (files := find_glue_files(task, settings.data_dir)) is not None:
        return glue_source(task, files)
    return replace(object_source(hub_splits("nyu-mll/glue", task), settings.label_columns), known=known_of(task))


def path_source(where: Path, settings: DataSettings) -> Source:
    """Return an existing file or folder as a source, with the files of other splits that the user has named."""
    if where.is_dir() and any((where / name).is_file() for name in SAVED):
        from datasets import load_from_disk

        refuse_file_settings(where, settings)
        for path in sorted(where.rglob("*")):
            if path.exists():
                readers.refuse_special(path)  # opening a pipe would wait forever
        try:
            saved = load_from_disk(str(where))
        except Exception as error:  # damaged files end in exceptions of any kind there
            problem = f"{where}: the saved data set cannot be read: {type(error).__name__}: {error}"
            raise DataError(problem, "save it again with save_to_disk") from error
        return object_source(saved, settings.label_columns)
    if where.is_file():
        readers.refuse_unsupported(where)
    files = files_by_split(where) if where.is_dir() else {"train": [where]}
    for split in ("validation", "test"):
        if name := getattr(settings, split):
            if split in files:
                problem = f"{where}: there is a {split} split in the folder ({listed(path.name for path in files[split])})"
                raise SettingsError(problem, f"omit --{split}, or name the file of the training rows instead of the folder")
            if (file := find_path(name)) is None or not file.is_file():
                near = did_you_mean(Path(name).name, names_beside(name))
                raise DataError(f"--{split} {visible(name, 200)}: there is no such file{near}", "check the path")
            readers.refuse_unsupported(file)
            files[split] = [file]

    def key() -> list[Json]:
        return ["files", [[split, [*map(data_suffix, paths)], [*readers.checksums(paths)]] for split, paths in files.items()]]

    def splits(scratch: Path) -> dict[str, FileSplit]:
        return {split: FileSplit(paths, settings, scratch / split) for split, paths in files.items()}

    return Source(NOTHING_KNOWN, key, splits)


def stored_rows(data: Data) -> Path:
    """Write rows that are in memory to the cache, where other processes find them, and return their folder."""

    def build(folder: Path) -> None:
        from datasets import DatasetDict
        from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

        shows_bars = not are_progress_bars_disabled()
        disable_progress_bars()
        try:
            DatasetDict({name: split.as_dataset() for name, split in object_splits(data).items()}).save_to_disk(
                str(folder / IN_MEMORY)
            )
        finally:
            if shows_bars:
                enable_progress_bars()

    key = hashlib.sha256(json.dumps(object_source(data).key()).encode()).hexdigest()[:32]
    return open_or_build("rows", key, build, lambda folder: folder / IN_MEMORY)


def refuse_file_settings(path: Data, settings: DataSettings) -> None:
    """Raise `SettingsError` for a setting that says how to read files, if the data is not a file."""
    defaults, names = DataSettings(), (*FILE_SETTINGS, "validation", "test")
    used = [name for name in names if name != "delimiter" and getattr(settings, name) != getattr(defaults, name)]
    if used:
        what = visible(path, 200) if isinstance(path, str | Path) else "this data"
        raise SettingsError(f"{listed(used)} applies only to files, and {what} is not a file", f"omit {listed(used)}")


# --- files ---------------------------------------------------------------------------------------------------------
class FileSplit(SpooledSplit):
    """The rows of the files of one split, read one after the other. A row is named by its file and its number there."""

    def __init__(self, paths: list[Path], settings: DataSettings, spool: Path) -> None:
        self.settings = settings
        self.bad: BadRows = BadRows(skip=settings.bad_rows == "skip", offer=True)
        self.starts: list[tuple[int, Path]] = []  # the number of rows before each file
        super().__init__(spool, listed(path.name for path in paths), self.read(paths))

    def read(self, paths: list[Path]) -> Iterator[pa.Table]:
        for path in paths:
            self.starts.append((self.num_rows, path))
            yield from read_file(path, self.settings, self.bad)

    def row_name(self, row: int) -> str:
        start, path = max((start, path) for start, path in self.starts if start <= row)
        number = row - start + readers.first_row_number(path, self.settings)
        return f"{path.name}, row {self.bad.number_of(path, number):,}"

    def row_numbers(self) -> np.ndarray:
        numbers = super().row_numbers()
        for start, path in self.starts:  # the numbers of several files continue
            later = numbers[start:]
            before = int(later[0]) - readers.first_row_number(path, self.settings) if len(later) else 0
            for skipped in sorted(self.bad.rows.get(path, ())):
                later[later >= skipped + before] += 1
        return numbers


def files_by_split(folder: Path) -> dict[str, list[Path]]:
    """Return the data files of a folder by split: train.csv, validation.csv, train-00000-of-00002.parquet."""
    found: dict[str, list[Path]] = {}
    data_files = sorted(path for path in folder.iterdir() if path.is_file() and data_suffix(path) in SUFFIXES)
    for path in data_files:
        if match := SPLIT_FILE.fullmatch(bare_name(path)):
            split = match[1].lower()
            found.setdefault(SPLIT_NAMES.get(split, split), []).append(path)
    if "train" not in found:
        names = listed(path.name for path in data_files) or "no data file"
        remedy = "name the files by split: train.csv, validation.csv, test.csv; or use one file instead of the folder"
        raise DataError(f"{folder}: there is no file named train (found {names})", remedy)
    for split, paths in found.items():
        whole = [path for path in paths if not re.search(r"\d", bare_name(path))]
        if len({data_suffix(path) for path in paths}) > 1 or (whole and len(paths) > 1):
            problem = f"{folder}: several files could be the {split} split: {listed(path.name for path in paths)}"
            raise DataError(problem, "keep one")
    return {split: found[split] for split in ("train", "validation", "test") if split in found}


def bare_name(path: Path) -> str:
    """Return the name of a file without its extensions: `train` for train.csv.gz and train.zip."""
    return Path(path.stem).stem if path.suffix.lower() in readers.COMPRESSED else path.stem


# --- Python objects, and the hub -----------------------------------------------------------------------------------
class ObjectSplit:
    """The rows of one object: a `Dataset`, a pandas frame or a list of dicts. Raise `DataError` for any other object."""

    notes: tuple[str, ...] = ()
    bad: BadRows | None = None

    def __init__(self, source: str, data: object, label: tuple[str, ...] = ()) -> None:
        from datasets import ClassLabel, Dataset

        self.source, self.known = source, NOTHING_KNOWN
        if type(data).__name__ == "DataFrame" and hasattr(data, "iloc"):
            try:
                data = Dataset.from_pandas(data, preserve_index=False)
            except (pa.ArrowException, TypeError, ValueError) as error:
                reason = ": ".join(str(part) for part in reversed(error.args))
                raise DataError(f"{source}: {reason}", "use one type of value and a different name for each column") from error
        elif hasattr(data, "__arrow_c_stream__"):  # a frame of polars, a table of pyarrow, and others
            data = arrow_dataset(data)
        if not isinstance(data, list | Dataset):
            remedy = "pass a datasets.Dataset or DatasetDict, a frame, a list of dicts, or a dict of those by split"
            raise DataError(f"data of the type {type(data).__name__} cannot be read", remedy)
        self.data, self.table = data, arrow_rows(data)
        self.names: dict[str, tuple[str, ...]] = {}  # the label names that features hold, by column
        if self.table is not None:
            features = self.table.features  # type: ignore[union-attr]  # of a `Dataset`
            kinds = {name: getattr(feature, "feature", feature) for name, feature in features.items()}
            self.names = {name: tuple(kind.names) for name, kind in kinds.items() if isinstance(kind, ClassLabel)}
            # The names of the wanted column, of the usual one, or of the only one with names.
            likely = [*(label or [name for name in kinds if name.lower() in LABEL_NAMES] or self.names)]
            if len(likely) == 1 and likely[0] in self.names:
                self.known = Known(label=likely[0], label_names=self.names[likely[0]])

    def tables(self) -> Iterator[pa.Table]:
        if self.table is not None:
            return (self.with_names(readers.sound(table, self.source)) for table in self.table.iter(readers.CHUNK_ROWS))
        rows = self.data
        if not isinstance(rows, list):  # a transform may make tensors and arrays
            rows = ({name: cell.tolist() if hasattr(cell, "tolist") else cell for name, cell in row.items()} for row in rows)
        return readers.tables_of(Path(self.source), enumerate(rows, 1))

    def as_dataset(self) -> Dataset:
        """Return the rows as a `Dataset`, which can be saved."""
        from datasets import Dataset

        return self.table.with_format(None) if self.table is not None else Dataset(pa.concat_tables(self.tables()))

    def with_names(self, table: pa.Table) -> pa.Table:
        """Return a table with label names in place of numbers: names do not depend on their order."""
        for column, known in self.names.items():
            names = pa.array([*known, str(UNLABELLED)])
            cells = table[column].combine_chunks()
            if are_lists := not pa.types.is_integer(cells.type):
                cells = cells.cast(pa.list_(pa.int64()))
            numbers = cells.values if are_lists else cells
            if (largest := pc.max(numbers).as_py()) is not None and largest >= len(known):
                problem = f"column {visible(column)} contains label {largest}, but only {len(known)} labels have names"
                remedy = "give every number a name in the features, or cast the column to numbers"
                raise DataError(f"{self.source}: {problem}", remedy)
            texts = names.take(pc.if_else(pc.less(numbers, 0), len(known), numbers))
            if are_lists:
                texts = pc.if_else(cells.is_valid(), pa.ListArray.from_arrays(cells.offsets, texts), None)
            table = table.set_column(table.column_names.index(column), column, texts)
        return table

    def row_name(self, row: int) -> str:
        return f"{self.source}, row {row + 1:,}"

    def row_numbers(self) -> np.ndarray:
        return np.arange(1, len(self.data) + 1)


def arrow_dataset(data: object) -> Dataset:
    """Return a table that offers itself in Arrow format, as frames of polars do, as a `Dataset`."""
    from datasets import Dataset

    table = pa.table(data)
    plain = [field.with_type(pa.large_string()) if pa.types.is_string_view(field.type) else field for field in table.schema]
    return Dataset(table.cast(pa.schema(plain)))  # `datasets` cannot save views


def object_splits(data: object, label: tuple[str, ...] = ()) -> dict[str, ObjectSplit]:
    """Return the splits of an object that `ObjectSplit` takes, which is then the training split, or of a dict of those."""
    parts = data if isinstance(data, Mapping) else {"train": data}
    objects: dict[str, ObjectSplit] = {}
    for split, part in parts.items():
        name = SPLIT_NAMES.get(str(split), str(split))
        problem = "" if SPLIT_NAME.fullmatch(name) else f"{visible(name)} cannot be the name of a split"
        if name in objects:
            problem = f"several splits could be the {name} split"
        if problem:
            raise DataError(f"{problem}; found {listed(parts)}", "name the splits train, validation and test")
        objects[name] = ObjectSplit(name, part, label)
    if not objects:
        raise DataError("the data set has no splits", "add at least one split")
    return objects


def object_source(data: object, label: tuple[str, ...] = ()) -> Source:
    """Return a Python object as a source: one that `ObjectSplit` takes, or a dict of those by split."""
    objects = object_splits(data, label)

    def key() -> list[Json]:
        hasher = hashlib.sha256()
        for name, split in objects.items():
            hasher.update(name.encode())
            for table in split.tables():
                hasher.update(repr(list(zip(table.column_names, table.schema.types, strict=True))).encode())
                for batch in table.combine_chunks().to_batches():
                    hasher.update(batch.serialize())
        return ["object", hasher.hexdigest()]

    known = next((split.known for split in objects.values() if split.known.label), NOTHING_KNOWN)
    return Source(known, key, lambda scratch: objects)  # which are in memory or memory-mapped already


def hub_splits(name: str, config: str | None) -> DatasetDict:
    """Return a data set of the hub, or its copy in the hub's own cache if the hub cannot be reached."""
    import datasets
    from datasets.naming import camelcase_to_snakecase

    reason = hub_unreachable()
    *owner, own_name = name.split("/")
    cached = Path(datasets.config.HF_DATASETS_CACHE) / "___".join([*owner, camelcase_to_snakecase(own_name)])
    if reason and not cached.is_dir():
        local = " or the original files with --data_dir (or GLASSLOOP_DATA)" if name == "nyu-mll/glue" else ""
        problem = f"{name}: the hub cannot be reached ({reason}), and its cache has no copy"
        raise DataError(problem, f"work offline with a local file or folder{local}, or with quickstart")
    try:
        with offline("datasets.config", bool(reason)):
            return datasets.load_dataset(name, config)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise DataError(f"{name}: {first_line}", "check the name on the hub; --name chooses a configuration") from error


# --- the generated corpus ------------------------------------------------------------------------------------------
def quickstart_source(num_rows: int, seed: int) -> Source:
    """Return the generated corpus: training pairs, and a sixth as many (at most 5,000) for validation and for test."""
    held_out = max(min(num_rows // 6, 5000), 2)
    sizes = {"train": num_rows, "validation": held_out, "test": held_out}

    def splits(scratch: Path) -> dict[str, SpooledSplit]:
        pairs = quickstart.generate_pairs(sum(sizes.values()), seed)

        def tables(size: int) -> Iterator[pa.Table]:
            rows = islice(pairs, size)
            while chunk := [*islice(rows, readers.CHUNK_ROWS)]:
                first, second, label = zip(*chunk, strict=True)
                names = [quickstart.LABEL_NAMES[number] for number in label]
                columns = {"sentence1": first, "sentence2": second, "label": names}
                yield pa.table({name: arrow_array(cells, pa.string()) for name, cells in columns.items()})

        return {name: SpooledSplit(scratch / name, f"quickstart {name}", tables(size)) for name, size in sizes.items()}

    return Source(QUICKSTART_KNOWN, lambda: ["quickstart", num_rows, seed], splits)
