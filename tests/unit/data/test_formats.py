"""Rows as their user formatted them: chosen columns, transforms, and what stays fast."""

from __future__ import annotations

from typing import Any

import pytest
from datasets import Dataset

from glassloop.data.rows import arrow_rows, chosen_columns, known_columns, refuse_unreadable

ROWS = Dataset.from_dict({"input_ids": [[1, 2], [3]], "labels": [0, 1], "text": ["a", "b"]})


def shouted(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {"input_ids": [[number + 10 for number in ids] for ids in batch["input_ids"]]}


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        (ROWS, ["input_ids", "labels", "text"]),
        (ROWS.with_format("torch"), ["input_ids", "labels", "text"]),
        (ROWS.with_format("numpy", columns=["input_ids"]), ["input_ids"]),
        (ROWS.with_format(columns=["labels", "input_ids"]), ["labels", "input_ids"]),
        (ROWS.with_format("torch", columns=["input_ids"], output_all_columns=True), ["input_ids", "labels", "text"]),
    ],
)
def test_a_format_that_changes_no_value_is_read_as_arrow(rows: Dataset, columns: list[str]) -> None:
    assert {*chosen_columns(rows)} == {*columns}
    table = arrow_rows(rows)[:]
    assert {*table.column_names} == {*columns}
    assert table["input_ids"].to_pylist() == [[1, 2], [3]]


@pytest.mark.parametrize("rows", [ROWS.to_list(), ROWS.with_transform(shouted), ROWS.with_format("torch", dtype="float16")])
def test_what_may_change_values_is_read_row_by_row(rows: Any) -> None:
    assert arrow_rows(rows) is None


def test_columns_that_are_not_taken_are_dropped_unless_a_transform_reads_them() -> None:
    taken = {"input_ids", "labels"}
    rows, unused = known_columns(ROWS, taken)
    assert (rows.column_names, unused) == (["input_ids", "labels"], ["text"])
    rows, unused = known_columns(ROWS.with_format("torch", columns=["input_ids"]), taken)
    assert ([*rows[0]], unused) == (["input_ids"], [])
    transformed = ROWS.with_transform(shouted)
    assert known_columns(transformed, taken) == (transformed, [])
    assert known_columns([{"a": 1}], taken) == ([{"a": 1}], [])


def test_what_cannot_be_read_by_number_is_refused(says) -> None:
    with says("the Trainer has no train_dataset", "pass train_dataset="):
        refuse_unreadable(None, "train_dataset")
    with says("the data set has no rows"):
        refuse_unreadable([], "train_dataset")
    with says("a list_iterator does not support len() and [number], so its order cannot be repeated"):
        refuse_unreadable(iter([]), "train_dataset")
