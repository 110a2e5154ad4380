"""Python objects as tables: `datasets`, pandas frames, lists of dicts, and what the hub gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from glassloop.data.cells import UNLABELLED
from glassloop.data.columns import LABEL_NAMES, Known
from glassloop.data.formats import arrow_rows
from glassloop.data.readers import CHUNK_ROWS, tables_of
from glassloop.data.soundness import sound
from glassloop.errors import DataError, visible
from glassloop.hub import hub_unreachable

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict


def object_tables(split: str, data: Any, label: tuple[str, ...] = ()) -> tuple[Known, Callable[[], Iterator[pa.Table]]]:
    """The rows of one object as tables, and what its features say about the `label` column."""
    from datasets import Dataset

    if isinstance(data, list):
        return Known(), lambda: tables_of(Path(split), enumerate(data, 1))
    if type(data).__name__ == "DataFrame" and hasattr(data, "iloc"):
        try:
            data = Dataset.from_pandas(data, preserve_index=False)
        except (pa.ArrowException, TypeError, ValueError) as error:
            told = ": ".join(str(part) for part in reversed(error.args))
            raise DataError(f"{split}: {told}", "give every column one kind of value and a name of its own") from error
    if not isinstance(data, Dataset):
        raise DataError(
            f"data of the kind {type(data).__name__} cannot be read",
            "give a datasets.Dataset or DatasetDict, a pandas frame, a list of dicts, or a dict of those by split",
        )
    table = arrow_rows(data)
    if table is None:
        return Known(), lambda: tables_of(Path(split), enumerate(map(plain_cells, data), 1))
    return named_label(table, label), partial(dataset_tables, table, split)


def plain_cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row that a transform made, tensors and arrays as plain numbers."""
    return {name: cell.tolist() if hasattr(cell, "tolist") else cell for name, cell in row.items()}


def named_label(data: Dataset, wanted: tuple[str, ...]) -> Known:
    """The names of the label column, where the features have them: the wanted column, the usual one, or the only named one."""
    from datasets import ClassLabel

    kinds = {name: getattr(feature, "feature", feature) for name, feature in data.features.items()}
    named = {name: tuple(kind.names) for name, kind in kinds.items() if isinstance(kind, ClassLabel)}
    likely = list(wanted or [name for name in kinds if name.lower() in LABEL_NAMES] or named)
    return Known(label=likely[0], label_names=named[likely[0]]) if len(likely) == 1 and likely[0] in named else Known()


def dataset_tables(data: Dataset, split: str) -> Iterator[pa.Table]:
    """Yield the rows of a `Dataset` in Arrow format, label numbers replaced by their names, whose order cannot be mistaken."""
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
                    f"{split}: column {visible(column)} holds label {largest}, but only {len(names) - 1} labels have names",
                    "give every number a name in the features, or cast the column to numbers",
                )
            texts = names.take(pc.if_else(pc.less(numbers, 0), len(names) - 1, numbers))
            if are_lists:
                texts = pc.if_else(cells.is_valid(), pa.ListArray.from_arrays(cells.offsets, texts), None)
            table = table.set_column(table.column_names.index(column), column, texts)
        yield table


def hub_splits(name: str, config: str | None) -> DatasetDict:
    """A data set of the hub, or its copy in the hub's own cache where the hub cannot be reached."""
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
    """Lets `datasets` use its cache at once instead of trying to reach the hub for half a minute."""
    from datasets import config

    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = wanted or before
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before
