"""Rows in Arrow files, and rows given to a Trainer: their format, labels, whether they repeat, and how often they are read."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from enum import Enum
from functools import cached_property, partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypedDict, TypeGuard, cast, overload

import numpy as np
from numpy.typing import ArrayLike

from glassloop.base.errors import DataError, SettingsError, listed, visible
from glassloop.data.interfaces import Collator, Row, Rows
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

if TYPE_CHECKING:
    import pyarrow as pa
    import torch
    from datasets import Dataset
    from torch import Tensor

    from glassloop.data.interfaces import Config


TRANSFORM = "custom"  # what datasets calls the format of set_transform and with_transform
LENGTH_ROWS = 10_000
READ_TOGETHER = 1_000
LABEL_KEYS = ("labels", "label", "label_ids")
TYPE_REMEDY = "use whole numbers, or set problem_type"

# Rows in columns, which can be read as Arrow tables.
TableRows: TypeAlias = "Dataset | ArrowRows"


# --- Arrow ---------------------------------------------------------------------------------------------------------
# Almost every conversion of pyarrow, such as `pa.array`, `to_numpy` and a scalar argument, imports pandas if it is installed,
# which takes a quarter of a second. `arrow_array` and `numbers_of` do not.
def arrow_array(cells: Sequence[object] | np.ndarray, kind: pa.DataType) -> pa.Array:
    """Return cells as an Arrow array of numbers, texts or lists of these. None is a missing cell."""
    import pyarrow as pa  # here and below, because `glassloop predict` of a text does not load it

    is_known = None if isinstance(cells, np.ndarray) else [cell is not None for cell in cells]
    valid = None if is_known is None or all(is_known) else packed_bits(is_known)
    if pa.types.is_boolean(kind):
        return pa.Array.from_buffers(kind, len(cells), [valid, packed_bits(cells)])
    if not pa.types.is_string(kind) and not pa.types.is_list(kind):
        known = cells if valid is None else [0 if cell is None else cell for cell in cells]
        numbers = np.ascontiguousarray(cast("Sequence[float]", known), dtype=kind.to_pandas_dtype())
        return pa.Array.from_buffers(kind, len(cells), [valid, pa.py_buffer(numbers)])
    parts = cast("Sequence[str]", cells if valid is None else ["" if cell is None else cell for cell in cells])
    content = "".join(parts).encode() if pa.types.is_string(kind) else b""
    lengths = map(len, parts) if content.isascii() else (len(part.encode()) for part in parts)
    ends = np.cumsum([0, *lengths])
    if ends[-1] > np.iinfo(np.int32).max:
        return pa.array(cells, kind)  # in several chunks
    buffers = [valid, pa.py_buffer(ends.astype(np.int32))]
    if pa.types.is_string(kind):
        return pa.Array.from_buffers(kind, len(cells), [*buffers, pa.py_buffer(content)])
    return pa.Array.from_buffers(kind, len(cells), buffers, children=[arrow_array([*chain(*parts)], kind.value_type)])


def packed_bits(bits: Sequence[object] | np.ndarray) -> pa.Buffer:
    import pyarrow as pa

    return pa.py_buffer(np.packbits(np.asarray(bits, dtype=bool), bitorder="little"))


def numbers_of(cells: pa.Array) -> np.ndarray:
    """Return an Arrow array as `to_numpy` does. Numbers are not copied unless some are missing."""
    import pyarrow as pa

    if cells.null_count or not (pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type)):
        return np.asarray(cells.to_numpy(zero_copy_only=False))
    return np.from_dlpack(cells)


class Format(TypedDict):
    """What `datasets` says about how rows are read."""

    type: str | None
    format_kwargs: dict[str, object]
    columns: list[str]
    output_all_columns: bool


class ArrowRows:
    """Rows of a memory-mapped Arrow file, with the methods of a `datasets.Dataset` that Glassloop needs.

    `rows[3]` is a row as a dict; `rows[:9]`, `rows[[1, 5]]` and `rows["text"]` read lists of cells. Every other method is
    that of `rows.to_dataset()`: `rows.map(...)` returns a `datasets.Dataset`.

    Args:
        path: An Arrow file in the stream format.
        file: Its whole table, if it is open already.
        column_names: The columns that rows have. None: those of the file.
        numbers: Which rows of the file these are. None: all.
        as_arrow: Whether reading returns Arrow tables.
    """

    def __init__(
        self, path: Path, file: pa.Table | None = None, column_names: list[str] | None = None,
        numbers: np.ndarray | None = None, *, as_arrow: bool = False,
    ) -> None:  # fmt: skip
        self.path, self.file = path, opened_table(path) if file is None else file
        self.column_names: list[str] = self.file.column_names if column_names is None else column_names
        self.numbers, self.as_arrow = numbers, as_arrow

    def __reduce__(self) -> tuple[object, ...]:
        # The path instead of the rows, for the processes of a DataLoader.
        return partial(ArrowRows, as_arrow=self.as_arrow), (self.path, None, self.column_names, self.numbers)

    @cached_property
    def data(self) -> pa.Table:
        """All rows of the file, with the columns of these rows."""
        return self.file.select(self.column_names)

    @property
    def format(self) -> Format:
        kind = "arrow" if self.as_arrow else None
        return {"type": kind, "format_kwargs": {}, "columns": self.column_names, "output_all_columns": False}

    def __len__(self) -> int:
        return int(self.file.num_rows) if self.numbers is None else len(self.numbers)

    def __iter__(self) -> Iterator[Row]:
        for start in range(0, len(self), READ_TOGETHER):
            table = self.table(slice(start, start + READ_TOGETHER))
            yield from (table.slice(row, 1) for row in range(len(table))) if self.as_arrow else table.to_pylist()

    # Several rows are a dict of lists, a column is a list; in Arrow format they are tables and arrays, which have no types.
    @overload
    def __getitem__(self, key: int) -> Row: ...
    @overload
    def __getitem__(self, key: slice | str | Iterable[int]) -> pa.Table: ...
    def __getitem__(self, key: int | slice | str | Iterable[int]) -> Row | pa.Table:
        import pyarrow as pa

        if isinstance(key, str):
            if key not in self.column_names:
                raise KeyError(f"there is no column {visible(key)}; found {listed(self.column_names)}")
            cells = self.select_columns(key).table(slice(None))[key]
            return cells if self.as_arrow else cells.to_pylist()
        if not isinstance(key, int | np.integer):
            table = self.table(key)
            return table if self.as_arrow else table.to_pydict()
        number, num_rows = int(key), len(self)
        if not -num_rows <= number < num_rows:
            raise IndexError(f"there is no row {number}, only {num_rows:,} rows")
        number = number % num_rows if self.numbers is None else int(self.numbers[number])
        batches, starts = self.batches
        of = bisect_right(starts, number) - 1
        row = batches[of].slice(number - starts[of], 1)
        return pa.Table.from_batches([row]) if self.as_arrow else row.to_pylist()[0]

    def table(self, key: slice | Iterable[int]) -> pa.Table:
        """Return the rows of a slice, or those with these numbers, in their order. Negative numbers count from the end."""
        import pyarrow as pa

        numbers = np.arange(*key.indices(len(self))) if isinstance(key, slice) else self.places(key)
        numbers = numbers if self.numbers is None else self.numbers[numbers]
        if len(numbers) > 1 and (np.diff(numbers) == 1).all():
            return self.data.slice(numbers[0], len(numbers))
        batches, starts = self.batches  # `take` would copy the columns of whole batches
        of = np.searchsorted(starts, numbers, side="right") - 1
        parts = [batches[batch].slice(row, 1) for batch, row in zip(of.tolist(), (numbers - starts[of]).tolist(), strict=True)]
        return pa.Table.from_batches(parts, self.data.schema)

    @cached_property
    def batches(self) -> tuple[list[pa.RecordBatch], np.ndarray]:
        """The batches of the file, and the number of the first row of each."""
        batches = [batch for batch in self.data.to_batches() if batch.num_rows]
        return batches, np.cumsum([0, *(batch.num_rows for batch in batches)])[:-1]

    def places(self, numbers: Iterable[int]) -> np.ndarray:
        """Return row numbers from 0 on. Raise `IndexError` for a row that does not exist."""
        places = np.asarray(numbers if isinstance(numbers, np.ndarray | range) else [*numbers], dtype=np.int64)
        if len(wrong := places[(places < -len(self)) | (places >= len(self))]):
            raise IndexError(f"there is no row {wrong[0]}, only {len(self):,} rows")
        return np.where(places < 0, places + len(self), places)

    def select(self, numbers: Iterable[int]) -> ArrowRows:
        """Return the rows with these numbers."""
        places = self.places(numbers)
        places = places if self.numbers is None else self.numbers[places]
        return ArrowRows(self.path, self.file, self.column_names, places, as_arrow=self.as_arrow)

    def select_columns(self, names: str | Sequence[str]) -> ArrowRows:
        """Return the rows with these columns only."""
        chosen = [names] if isinstance(names, str) else [*names]
        return ArrowRows(self.path, self.file, chosen, self.numbers, as_arrow=self.as_arrow)

    def remove_columns(self, names: str | Sequence[str]) -> ArrowRows:
        """Return the rows without these columns."""
        removed = {names} if isinstance(names, str) else {*names}
        return self.select_columns([name for name in self.column_names if name not in removed])

    def with_format(self, kind: str | None = None, **options: object) -> TableRows:
        """Return rows that are read as Arrow tables ("arrow") or as lists of cells (None); in other formats, a `Dataset`."""
        if kind not in (None, "arrow") or options:
            return self.to_dataset().with_format(kind, **options)
        return ArrowRows(self.path, self.file, self.column_names, self.numbers, as_arrow=kind == "arrow")

    def iter(self, batch_size: int) -> Iterator[pa.Table]:
        """Yield some rows at a time."""
        return (self[start : start + batch_size] for start in range(0, len(self), batch_size))

    def to_dataset(self, split: str | None = None, kinds: Mapping[str, object] | None = None) -> Dataset:
        """Return the rows as a `datasets.Dataset`, for everything else that can be done with one.

        Args:
            split: The name of the split.
            kinds: Features of some columns, such as a `ClassLabel`. By default they follow from the types in the file.
        """
        from datasets import Dataset, DatasetInfo, Features
        from datasets.table import MemoryMappedTable

        features = Features({**Features.from_arrow_schema(self.file.schema), **(kinds or {})})
        found = Dataset(MemoryMappedTable(self.file, str(self.path)), DatasetInfo(features=features), split)
        if self.column_names != self.file.column_names:
            found = found.select_columns(self.column_names)
        return found if self.numbers is None else found.select(self.numbers)

    if not TYPE_CHECKING:  # Glassloop calls only the methods above

        def __getattr__(self, name: str) -> object:
            if name.startswith("_"):  # what copying and a DataLoader look for
                raise AttributeError(name)
            return getattr(self.to_dataset(), name)


def opened_table(path: Path) -> pa.Table:
    import pyarrow as pa

    return pa.ipc.open_stream(pa.memory_map(str(path))).read_all()


# --- formats -------------------------------------------------------------------------------------------------------
def refuse_unreadable(rows: Rows | None, name: str) -> Rows:
    """Return the data set called `name`. Raise `SettingsError` if it is missing, empty, or not readable by row number."""
    if rows is None:
        raise SettingsError(f"the Trainer has no {name}", f"pass {name}=")
    if not hasattr(rows, "__len__") or not hasattr(rows, "__getitem__"):
        problem = f"a {type(rows).__name__} does not support len() and [number], so its order cannot be repeated"
        raise SettingsError(problem, "pass a datasets.Dataset, a list of dicts, or another object with len() and [number]")
    if len(rows) == 0:
        raise SettingsError("the data set has no rows", "add at least one row")
    return rows


def is_dataset(rows: object) -> TypeGuard[TableRows]:
    """Return whether rows are a `datasets.Dataset` or `ArrowRows`."""
    # Recognized by its methods, so that datasets need not be loaded. A stream, `datasets.IterableDataset`, has no format.
    return hasattr(rows, "with_format") and hasattr(rows, "remove_columns") and hasattr(rows, "format")


def is_table(rows: object) -> TypeGuard[TableRows]:
    """Return whether rows are a `datasets.Dataset` or `ArrowRows`, without a transform, which is code of the user."""
    return is_dataset(rows) and rows.format["type"] != TRANSFORM


def arrow_rows(rows: object) -> TableRows | None:
    """Return the chosen columns of a table in Arrow format; None if only its own `[number]` gives what the user chose."""
    # A format such as torch or numpy changes only the type of a value. A transform, or an option such as a dtype, may change
    # the value.
    if not is_table(rows) or rows.format["format_kwargs"]:
        return None
    columns = chosen_columns(rows)
    return (rows if len(columns) == len(rows.column_names) else rows.select_columns(columns)).with_format("arrow")


def chosen_columns(rows: TableRows) -> list[str]:
    """Return the columns that rows of a table have: those of `set_format(columns=)`, by default all."""
    return list(rows.column_names if rows.format["output_all_columns"] else rows.format["columns"])


def known_columns(rows: Rows, taken: Container[str]) -> tuple[Rows, list[str]]:
    """Return the rows of a table without columns that are not `taken`, and the names of the dropped columns."""
    if not is_table(rows):
        return rows, []
    columns = chosen_columns(rows)
    if "input_ids" not in columns and not any(name in taken and not name.startswith("label") for name in columns):
        tokenize = "tokenize it first: glassloop.encode(examples, tokenizer, max_length), or dataset.map(tokenizer, …)"
        remedy = f"{tokenize}; if a collator does it, set remove_unused_columns=False"
        raise SettingsError(f"the data set has no column input_ids; found {listed(columns)}", remedy)
    unused = [name for name in columns if name not in taken]
    return (rows.remove_columns(unused) if unused else rows), unused


def lengths_of(rows: Rows) -> np.ndarray:
    """Return the number of tokens of each row, if possible without reading the tokens."""
    import pyarrow.compute as pc

    table = arrow_rows(rows)
    if table is None:
        return np.array([len(rows[number]["input_ids"]) for number in range(len(rows))], dtype=np.int32)
    tables = table.select_columns("input_ids").iter(LENGTH_ROWS)
    parts = [numbers_of(pc.list_value_length(table["input_ids"].combine_chunks())) for table in tables]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)


# --- whether rows repeat -------------------------------------------------------------------------------------------
PROBED_ROWS = (4, 32)  # at least and at most; each is read three times, so few rows of a small data set


# Whether rows are random is measured, not declared. Random rows are not hashed, counted or read ahead of a checkpoint.
class Repeats(Enum):
    """What a second reading gives, and what that means for a resumed run."""

    SAME = "the same"
    GLOBAL = "they use the global random generators, so a resumed run repeats them"
    OWN = "they use their own random generator, which is not in a checkpoint, so a resumed run draws different ones"


def repeats(read: Callable[[], object]) -> Repeats:
    """Read three times; return which random generator the results use. The global generators are restored."""
    with random_states_kept():
        before = global_states()
        first = read()
        drew = global_states() != before
        second = read()
    with random_states_kept():
        again = read()  # with the global generators where they were for the first
    if again != first or (second != first and not drew):
        return Repeats.OWN
    return Repeats.GLOBAL if drew else Repeats.SAME


def repeats_of(rows: Rows) -> Repeats:
    """Return whether a data set gives the same rows each time. Rows in memory or in a file do; a reader finds out once."""
    if isinstance(rows, RowReader):
        return rows.repeats
    if isinstance(rows, list | tuple) or arrow_rows(rows) is not None:
        return Repeats.SAME
    few, many = PROBED_ROWS
    probed = min(max(few, len(rows) // many), many)
    numbers = np.unique(np.linspace(0, len(rows) - 1, probed).astype(int)).tolist()
    return repeats(lambda: [content_of(rows[number]) for number in numbers])


def collator_repeats(collate: Collator, rows: Sequence[Row]) -> Repeats:
    """Return whether a collator makes the same batch of the same rows each time. It gets copies, which it may change."""
    return repeats(lambda: content_of(collate(deepcopy(rows))))


@contextmanager
def random_states_kept(device: torch.device | None = None, seed: int | None = None) -> Iterator[None]:
    """Restore the global random number generators, and that of `device`, after a block that may start with a `seed`."""
    import torch  # here, because `glassloop inspect` does not load it

    python, numpy = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if device is not None and device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices):
            if seed is not None:
                random.seed(seed)
                np.random.seed(seed % 2**32)
                torch.default_generator.manual_seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def global_states() -> tuple[object, ...]:
    import torch

    kind, keys, *rest = np.random.get_state()
    return random.getstate(), kind, np.asarray(keys).tobytes(), *rest, torch.get_rng_state().numpy().tobytes()


def content_of(row: object) -> str:
    """Return all cells of a row or a batch as text, whatever the types of their arrays."""
    texts = []
    for key, cell in cells_of(row):
        try:
            texts.append(f"{key}{np.asarray(cell).tolist()}")
        except ValueError:  # lists of different lengths
            texts.append(f"{key}{cell}")
    return "".join(texts)


def cells_of(row: object) -> list[tuple[object, object]]:
    """Return the cells of a row, a batch or an object with attributes, each with its name or place."""
    if isinstance(row, Mapping):
        return [(key, row[key]) for key in sorted(row)]
    if isinstance(row, Iterable):
        return [*enumerate(row)]
    return sorted(vars(row).items()) if hasattr(row, "__dict__") else [(0, row)]


# --- labels --------------------------------------------------------------------------------------------------------
def labels_among(columns: Mapping[str, ArrayLike]) -> np.ndarray | None:
    """Return the labels of some rows in the type that a loss takes; None if there is no label column."""
    found = {key: np.asarray(columns[key]) for key in LABEL_KEYS if key in columns}
    if not found:
        return None
    (first, labels), *others = found.items()
    for key, other in others:
        if not np.array_equal(labels, other):
            row = int(np.argmax([not np.array_equal(*pair) for pair in zip(labels, other, strict=True)]))
            problem = f"{visible(first)} and {visible(key)} have different values ({labels[row]} and {other[row]})"
            raise DataError(problem, "remove the column that is not the label")
    if labels.dtype.kind not in "fiub":
        raise DataError(f"the labels have the type {labels.dtype}, which is not a number", TYPE_REMEDY)
    return labels.astype(np.float32 if labels.dtype.kind == "f" else np.int64)


def labels_in(rows: Rows | None) -> np.ndarray | None:
    """Return the labels of all rows; None if they have none under a usual name."""
    if rows is None:
        return None
    columns: dict[str, ArrayLike] = {}
    if (table := arrow_rows(rows)) is not None:
        keys = [key for key in LABEL_KEYS if key in table.column_names]
        cells = table.select_columns(keys)[:] if keys else {}
        columns = {key: label_cells(cells[key].combine_chunks()) for key in keys}
    elif isinstance(rows[0], Mapping):
        read = getattr(rows, "look", rows.__getitem__)  # a reader keeps what it has read
        found = [{key: np.asarray(row[key]) for key in LABEL_KEYS if key in row} for row in map(read, range(len(rows)))]
        columns = {key: [row[key] for row in found if key in row] for key in dict.fromkeys(key for row in found for key in row)}
    return labels_among(columns)


def label_cells(cells: pa.Array) -> ArrayLike:
    """Return an Arrow column of numbers as an array, and one of lists of numbers as lists."""
    numbers: ArrayLike = cells.to_pylist() if hasattr(cells, "offsets") else numbers_of(cells)
    return numbers


def without_missing_labels(rows: Rows) -> Rows:
    """Return rows without the label columns in which every cell is missing, such as those of a test split without labels."""
    table = arrow_rows(rows)
    names = [] if table is None else [key for key in LABEL_KEYS if key in table.column_names]
    missing = [name for name in names if table.data.column(name).null_count == len(table.data)]  # type: ignore[union-attr]
    return rows.remove_columns(missing) if missing else rows  # type: ignore[attr-defined]  # a `Dataset`


def infer_task(config: Config, first_labels: Callable[[], Tensor | None], say: Callable[[str], None]) -> None:
    """Set multi-label classification if the first row has one number for each label, as transformers does for fractions."""
    task, num_labels = config.problem_type, int(config.num_labels)
    labels = None if task == SEVERAL else first_labels()
    if labels is None:
        return
    if task == SCORE or num_labels == 1:
        if labels.ndim != 1:
            raise DataError(f"the score of a row is a list of length {labels.shape[1]:,}", "use one number per row, not a list")
    elif labels.ndim == 1 and labels.is_floating_point():
        raise DataError(f"the labels have the type {str(labels.dtype)[6:]}, but classes are whole numbers", TYPE_REMEDY)
    elif labels.ndim == 2:
        problem = f"the label of a row has {labels.shape[1]:,} numbers, but"
        if task == CLASSES:
            raise DataError(f"{problem} problem_type is {task}", "use one class number per row, or set problem_type")
        if labels.shape[1] != num_labels:
            raise DataError(f"{problem} the model has {num_labels:,} labels", "load the model with as many labels")
        config.problem_type = SEVERAL
        say(f"each row has one number for each of the {num_labels:,} labels: training as {SEVERAL}")


def refuse_labels(rows: Rows, task: str, num_labels: int, *, needed: bool, ignored: int | None = None) -> None:
    """Raise if a row has a class number that the model does not have, unless it is `ignored`, or no label if it is `needed`."""
    # On a GPU the loss would fail without saying where.
    table = arrow_rows(rows)
    if needed and not any(key in (rows[0] if table is None else table.column_names) for key in LABEL_KEYS):
        raise SettingsError("the training rows have no labels", f"name their column one of {listed(LABEL_KEYS)}")
    labels = labels_in(rows) if table is not None and task == CLASSES else None
    if labels is None:
        return
    if labels.dtype.kind == "f":  # a missing label turns all of them into fractions
        raise DataError(f"the labels have the type {labels.dtype}, but classes are whole numbers", TYPE_REMEDY)
    if len(wrong := np.flatnonzero(((labels < 0) | (labels >= num_labels)) & (labels != ignored))):
        problem = f"row {wrong[0]:,} (from 0) has the label {labels[wrong[0]]}; the model has 0 to {num_labels - 1}"
        raise DataError(problem, "fix the labels, or remove the label column if the labels are unknown")


# --- reading each row as rarely as possible ------------------------------------------------------------------------
MOST_AHEAD = 64 * 2**20  # bytes of rows that are kept until their batch is due
MOST_NOTED = 2_000  # rows whose texts, tokens and labels are kept for the report
REPORTED = ("input_ids", "attention_mask", *LABEL_KEYS)


class RowReader:
    """Reads the rows of a data set that is not a file. Keeps the columns in `taken`, and tells `say` those that it drops."""

    # A `__getitem__` may decode, tokenize or augment, so a pass over all rows is expensive. What a training must know about
    # them is noted when a row is read for another reason. If it must be known before the first step, the rows that are read
    # for it are kept, up to a limit, and handed out when their batch is due.

    def __init__(
        self, rows: Rows, taken: Container[str] | None = None, say: Callable[[list[str]], None] = lambda names: None
    ) -> None:
        self.rows, self.taken, self._say = rows, taken, say
        self.in_memory = isinstance(rows, list | tuple)  # so that reading them costs nothing
        self.number = len(rows)  # when reading began
        self.noted: dict[int, dict[str, object]] = {}  # texts, tokens and labels of a few rows, for the report
        self.words: set[int] = set()  # token ids that occur in the rows that were read
        self.hides_inside = False  # an attention mask hides tokens inside a row that was read
        self._hashes = np.zeros(len(rows), dtype=np.int64)  # 0: not read yet
        self._lengths: np.ndarray | None = None
        self._seen_lengths = np.full(len(rows), -1, dtype=np.int32)
        self._ahead: dict[int, Row] = {}
        self._bytes_ahead = 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Row:
        row = self._ahead.pop(number, None)
        if row is None:
            return self._read(number)
        self._bytes_ahead -= size_of(row)
        return row

    def look(self, number: int, *, keep: bool = False) -> Row:
        """Return a row before its batch is due; keep it until then if there is room, and it repeats or `keep` says so."""
        # A training must draw rows that do not repeat when their batch is due.
        if number in self._ahead:
            return self._ahead[number]
        row = self._read(number)
        size = size_of(row)
        if (keep or self._is_known_to_repeat) and not self.in_memory and self._bytes_ahead + size <= MOST_AHEAD:
            self._ahead[number] = row
            self._bytes_ahead += size
        return row

    def _read(self, number: int) -> Row:
        as_given = row = self.rows[number]
        taken = self.taken if isinstance(row, dict) else None  # of dicts only, as transformers does
        if taken is not None and (unused := [name for name in row if name not in taken]):
            self._say(unused)
            row = {name: cell for name, cell in row.items() if name in taken}
        if self.in_memory:
            return row
        if len(self.rows) <= MOST_NOTED and number not in self.noted and isinstance(as_given, Mapping):
            reported = (name for name in as_given if isinstance(as_given[name], str) or name in REPORTED)
            self.noted[number] = {name: as_given[name] for name in reported}
        if not self._hashes[number]:
            self._hashes[number] = hash_of(row)
            if isinstance(row, Mapping) and np.ndim(ids := row.get("input_ids", 0)) == 1:
                self._seen_lengths[number] = len(ids)
                self.words.update(np.asarray(ids).tolist())
                if (mask := row.get("attention_mask")) is not None and not self.hides_inside:
                    self.hides_inside = hides_inside((np.asarray(mask), np.array([len(mask)], dtype=np.int32)))
        return row

    @cached_property
    def first(self) -> Row:
        """The first row, which shows columns and labels; read once."""
        return self.look(0)

    @cached_property
    def repeats(self) -> Repeats:
        """Whether rows are the same each time they are read; a few rows are read to find out."""
        return repeats_of(self.rows)

    @property
    def _is_known_to_repeat(self) -> bool:
        return vars(self).get("repeats") is Repeats.SAME

    def survey(self) -> None:
        """Read every row that was not read yet, so that words, masks and hashes of all rows are known."""
        for number in np.flatnonzero(self._hashes == 0).tolist():
            self.look(number)

    def known_hashes(self) -> np.ndarray:
        """Return eight bytes for each row as the model gets it; zero for rows that were not read yet."""
        return self._hashes.copy()

    def row_hashes(self) -> np.ndarray:
        if self.in_memory:
            return np.array([hash_of(self[number]) for number in range(len(self))], dtype=np.int64)
        self.survey()
        return self.known_hashes()

    def lengths(self, seed: int | None) -> np.ndarray:
        if self._lengths is None and (self.in_memory or (seed is not None and self.repeats is not Repeats.SAME)):
            # A training reads random rows with its seed: the same lengths, and so the same order, after a resume.
            with random_states_kept(seed=seed or 0):
                self._lengths = np.array([len(self.rows[number]["input_ids"]) for number in range(len(self))], dtype=np.int32)
        elif self._lengths is None and not self._is_known_to_repeat:  # each evaluation reads such rows in the same order
            return np.array([len(self.look(number, keep=True)["input_ids"]) for number in range(len(self))], dtype=np.int32)
        elif self._lengths is None:
            for number in np.flatnonzero(self._seen_lengths < 0).tolist():
                self._seen_lengths[number] = len(self.look(number)["input_ids"])
            self._lengths = self._seen_lengths
        return self._lengths

    def release(self) -> None:
        self._ahead.clear()
        self._bytes_ahead = 0


def hash_of(row: Row) -> int:
    return int.from_bytes(blake2b(content_of(row).encode(), digest_size=8).digest(), "little", signed=True)


def size_of(row: Row) -> int:
    cells = [cell for _, cell in cells_of(row)]
    return sum(getattr(cell, "nbytes", 0) or 40 * len(cell) if hasattr(cell, "__len__") else 40 for cell in cells)


def hides_inside(mask: tuple[np.ndarray, np.ndarray]) -> bool:
    """Return whether a mask hides a token that is followed by a visible one, or a whole row, or is not of 0 and 1."""
    values, lengths = mask  # the masks of some rows one after the other, and the length of each
    starts = (np.cumsum(lengths) - lengths)[lengths > 0]
    follows = np.ones(len(values), dtype=bool)
    follows[starts] = False
    visible, odd = values != 0, (values != 0) & (values != 1)
    appears = visible[1:] > visible[:-1]
    return bool(odd.any() or (lengths == 0).any() or not visible[starts].all() or (appears & follows[1:]).any())
