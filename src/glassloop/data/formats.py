"""Rows as their user formatted them: which columns of a `datasets.Dataset` are chosen, and whether Arrow can read them."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any

from glassloop.data.interfaces import Rows
from glassloop.errors import SettingsError, listed

if TYPE_CHECKING:
    from datasets import Dataset

TRANSFORM = "custom"  # what datasets calls the format of set_transform and with_transform


def refuse_unreadable(rows: Rows | None, name: str) -> Rows:
    """Return the data set called `name`. Raises `SettingsError` if it is missing, empty, or not readable by row number."""
    if rows is None:
        raise SettingsError(f"there is no {name}", "give one to the Trainer")
    if not hasattr(rows, "__len__") or not hasattr(rows, "__getitem__"):
        raise SettingsError(
            f"a {type(rows).__name__} has no length or no rows by number, so its order cannot be repeated",
            "give a datasets.Dataset, a list of dicts, or another data set with len() and [number]",
        )
    if len(rows) == 0:
        raise SettingsError("the data set has no rows", "give at least one row")
    return rows


def arrow_rows(rows: Any) -> Dataset | None:
    """Return the chosen columns of a `Dataset` in Arrow format; None where only its own `[number]` gives what the user chose.

    A format such as torch or numpy changes the kind of a value, not the value; a transform, or an option such as a dtype, may
    change it.
    """
    if not hasattr(rows, "with_format"):
        return None
    if rows.format["type"] == TRANSFORM or rows.format["format_kwargs"]:
        return None
    columns = chosen_columns(rows)
    chosen = rows if len(columns) == len(rows.column_names) else rows.select_columns(columns)
    return chosen.with_format("arrow")


def chosen_columns(rows: Any) -> list[str]:
    """Return the columns that rows of a `Dataset` hold: those of `set_format(columns=)`, by default all."""
    format_ = rows.format
    return list(rows.column_names if format_["output_all_columns"] else format_["columns"])


def known_columns(rows: Any, taken: Container[str]) -> tuple[Any, list[str]]:
    """Drop columns of a `Dataset` that are not `taken`; return the rows and what was dropped.

    Rows of another kind, and rows that a transform makes, stay as they are.
    """
    if not hasattr(rows, "remove_columns") or rows.format["type"] == TRANSFORM:
        return rows, []
    columns = chosen_columns(rows)
    if "input_ids" not in columns:
        raise SettingsError(
            f"the data set has no column input_ids; found {listed(columns)}",
            "tokenize it first: glassloop.encode(examples, tokenizer, max_length), or dataset.map(tokenizer, …)",
        )
    unused = [name for name in columns if name not in taken]
    return (rows.remove_columns(unused) if unused else rows), unused
