"""Rows in the format that their user chose: which columns of a `datasets.Dataset` count, and whether Arrow can read them."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, TypeGuard

from glassloop.data.interfaces import Rows
from glassloop.errors import SettingsError, listed

if TYPE_CHECKING:
    from datasets import Dataset

TRANSFORM = "custom"  # what datasets calls the format of set_transform and with_transform


def refuse_unreadable(rows: Rows | None, name: str) -> Rows:
    """Return the data set called `name`. Raise `SettingsError` if it is missing, empty, or not readable by row number."""
    if rows is None:
        raise SettingsError(f"the Trainer has no {name}", f"pass {name}=")
    if not hasattr(rows, "__len__") or not hasattr(rows, "__getitem__"):
        raise SettingsError(
            f"a {type(rows).__name__} does not support len() and [number], so its order cannot be repeated",
            "pass a datasets.Dataset, a list of dicts, or another object with len() and [number]",
        )
    if len(rows) == 0:
        raise SettingsError("the data set has no rows", "add at least one row")
    return rows


def is_dataset(rows: object) -> TypeGuard[Dataset]:
    """Return whether rows are a `datasets.Dataset`. Recognize it by its methods, so that datasets need not be loaded.

    A `datasets.IterableDataset`, which is a stream, has no format.
    """
    return hasattr(rows, "with_format") and hasattr(rows, "remove_columns") and hasattr(rows, "format")


def is_table(rows: object) -> TypeGuard[Dataset]:
    """Return whether rows are a `datasets.Dataset` without a transform, which is code of the user."""
    return is_dataset(rows) and rows.format["type"] != TRANSFORM


def arrow_rows(rows: object) -> Dataset | None:
    """Return the chosen columns of a `Dataset` in Arrow format; None if only its own `[number]` gives what the user chose.

    A format such as torch or numpy changes the type of a value, not the value. A transform, or an option such as a dtype, may
    change the value.
    """
    if not is_dataset(rows):
        return None
    if rows.format["type"] == TRANSFORM or rows.format["format_kwargs"]:
        return None
    columns = chosen_columns(rows)
    chosen = rows if len(columns) == len(rows.column_names) else rows.select_columns(columns)
    return chosen.with_format("arrow")


def chosen_columns(rows: Dataset) -> list[str]:
    """Return the columns that rows of a `Dataset` have: those of `set_format(columns=)`, by default all."""
    format_ = rows.format
    return list(rows.column_names if format_["output_all_columns"] else format_["columns"])


def known_columns(rows: Rows, taken: Container[str]) -> tuple[Rows, list[str]]:
    """Return the rows without columns that are not `taken`, and the names of the dropped columns.

    Rows of another kind, and rows that a transform makes, stay as they are.
    """
    if not is_table(rows):
        return rows, []
    columns = chosen_columns(rows)
    if "input_ids" not in columns and not any(name in taken and not name.startswith("label") for name in columns):
        raise SettingsError(
            f"the data set has no column input_ids; found {listed(columns)}",
            "tokenize it first: glassloop.encode(examples, tokenizer, max_length), or dataset.map(tokenizer, …); if a collator "
            "does it, set remove_unused_columns=False",
        )
    unused = [name for name in columns if name not in taken]
    return (rows.remove_columns(unused) if unused else rows), unused
