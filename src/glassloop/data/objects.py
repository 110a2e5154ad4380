"""Python objects and data sets of the hub as a source: `datasets`, pandas frames, lists of dicts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from glassloop.data.bad_rows import BadRows
from glassloop.data.cells import UNLABELLED
from glassloop.data.columns import LABEL_NAMES, NOTHING_KNOWN, Known
from glassloop.data.delimited import CHUNK_ROWS
from glassloop.data.file_source import SPLIT_NAMES
from glassloop.data.formats import arrow_rows
from glassloop.data.interfaces import Row
from glassloop.data.json_rows import tables_of
from glassloop.data.soundness import sound
from glassloop.errors import DataError, listed, visible
from glassloop.hub import hub_unreachable
from glassloop.records import Json

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

SPLIT_NAME = re.compile(r"\w[\w .-]*")


@dataclass(frozen=True)
class ObjectSource:
    """Python objects by split."""

    objects: dict[str, ObjectSplit]
    known: Known

    def key(self) -> list[Json]:
        """Return a checksum of all rows."""
        hasher = hashlib.sha256()
        for name, split in self.objects.items():
            hasher.update(name.encode())
            for table in split.tables():
                hasher.update(repr(list(zip(table.column_names, table.schema.types, strict=True))).encode())
                for batch in table.combine_chunks().to_batches():
                    hasher.update(batch.serialize())
        return ["object", hasher.hexdigest()]

    def splits(self, scratch: Path) -> dict[str, ObjectSplit]:
        """Return the splits. They are in memory or memory-mapped already, so `scratch` is not used."""
        return self.objects


class ObjectSplit:
    """The rows of one object: a `Dataset`, a pandas frame or a list of dicts. Raise `DataError` for any other object."""

    notes: tuple[str, ...] = ()
    bad: BadRows | None = None

    def __init__(self, source: str, data: object, label: tuple[str, ...] = ()) -> None:
        from datasets import Dataset

        self.source, self.known = source, NOTHING_KNOWN
        if type(data).__name__ == "DataFrame" and hasattr(data, "iloc"):
            try:
                data = Dataset.from_pandas(data, preserve_index=False)
            except (pa.ArrowException, TypeError, ValueError) as error:
                reason = ": ".join(str(part) for part in reversed(error.args))
                raise DataError(f"{source}: {reason}", "use one type of value and a different name for each column") from error
        if not isinstance(data, list | Dataset):
            raise DataError(
                f"data of the type {type(data).__name__} cannot be read",
                "pass a datasets.Dataset or DatasetDict, a pandas frame, a list of dicts, or a dict of those by split",
            )
        self.data, self.table = data, arrow_rows(data)
        if self.table is not None:
            self.known = named_label(self.table, label)

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows."""
        if self.table is not None:
            return dataset_tables(self.table, self.source)
        rows = self.data if isinstance(self.data, list) else map(plain_cells, self.data)
        return tables_of(Path(self.source), enumerate(rows, 1))

    def row_name(self, row: int) -> str:
        """Return what a person calls a row."""
        return f"{self.source}, row {row + 1:,}"


def object_source(data: object, label: tuple[str, ...] = ()) -> ObjectSource:
    """Return a Python object as a source: one that `ObjectSplit` takes, or a dict of those by split."""
    given = data if isinstance(data, Mapping) else {"train": data}
    objects: dict[str, ObjectSplit] = {}
    for split, part in given.items():
        name = SPLIT_NAMES.get(str(split), str(split))
        if name in objects:
            problem = f"several splits could be the {name} split;"
        elif not SPLIT_NAME.fullmatch(name):
            problem = f"{visible(name)} cannot be the name of a split;"
        else:
            objects[name] = ObjectSplit(name, part, label)
            continue
        raise DataError(f"{problem} found {listed(given)}", "name the splits train, validation and test")
    if not objects:
        raise DataError("the data set has no splits", "add at least one split")
    return ObjectSource(objects, next((split.known for split in objects.values() if split.known.label), NOTHING_KNOWN))


def plain_cells(row: Row) -> dict[str, object]:
    """Return a row that a transform made, with tensors and arrays as plain numbers."""
    return {name: cell.tolist() if hasattr(cell, "tolist") else cell for name, cell in row.items()}


def named_label(data: Dataset, wanted: tuple[str, ...]) -> Known:
    """Return the label names that the features hold: those of the wanted column, the usual one, or the only one with names."""
    from datasets import ClassLabel

    kinds = {name: getattr(feature, "feature", feature) for name, feature in data.features.items()}
    named = {name: tuple(kind.names) for name, kind in kinds.items() if isinstance(kind, ClassLabel)}
    likely = list(wanted or [name for name in kinds if name.lower() in LABEL_NAMES] or named)
    return Known(label=likely[0], label_names=named[likely[0]]) if len(likely) == 1 and likely[0] in named else NOTHING_KNOWN


def dataset_tables(data: Dataset, split: str) -> Iterator[pa.Table]:
    """Yield the rows of a `Dataset` in Arrow format, with label names in place of numbers: names do not depend on order."""
    from datasets import ClassLabel

    named = {}
    for name, feature in data.features.items():
        if isinstance(kind := getattr(feature, "feature", feature), ClassLabel):
            named[name] = pa.array([*kind.names, str(UNLABELLED)])
    for table in data.iter(CHUNK_ROWS):
        table = sound(table, split)
        for column, names in named.items():
            cells = table[column].combine_chunks()
            if are_lists := not pa.types.is_integer(cells.type):
                cells = cells.cast(pa.list_(pa.int64()))
            numbers = cells.values if are_lists else cells
            if (largest := pc.max(numbers).as_py()) is not None and largest > len(names) - 2:
                raise DataError(
                    f"{split}: column {visible(column)} contains label {largest}, but only {len(names) - 1} labels have names",
                    "give every number a name in the features, or cast the column to numbers",
                )
            texts = names.take(pc.if_else(pc.less(numbers, 0), len(names) - 1, numbers))
            if are_lists:
                texts = pc.if_else(cells.is_valid(), pa.ListArray.from_arrays(cells.offsets, texts), None)
            table = table.set_column(table.column_names.index(column), column, texts)
        yield table


def hub_splits(name: str, config: str | None) -> DatasetDict:
    """Return a data set of the hub, or its copy in the hub's own cache if the hub cannot be reached."""
    import datasets
    from datasets.naming import camelcase_to_snakecase

    reason = hub_unreachable()
    *owner, own_name = name.split("/")
    cached = Path(datasets.config.HF_DATASETS_CACHE) / "___".join([*owner, camelcase_to_snakecase(own_name)])
    if reason and not cached.is_dir():
        local = " or the original files with --data_dir (or GLASSLOOP_DATA)" if name == "nyu-mll/glue" else ""
        raise DataError(
            f"{name}: the hub cannot be reached ({reason}), and its cache has no copy",
            f"work offline with a local file or folder{local}, or with quickstart",
        )
    try:
        with offline(bool(reason)):
            found = datasets.load_dataset(name, config)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise DataError(f"{name}: {first_line}", "check the name on the hub; --name chooses a configuration") from error
    return found


@contextmanager
def offline(wanted: bool) -> Iterator[None]:
    """Make `datasets` use its cache at once instead of trying to reach the hub for half a minute."""
    from datasets import config

    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = wanted or before
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before
