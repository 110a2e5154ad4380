"""Rows read once and given as often as asked for; tables that do not fit together are refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from glassloop.data.files import SpooledSplit


def spooled(parts: list[pa.Table], path: Path) -> SpooledSplit:
    split = SpooledSplit(path, "data.csv")
    for part in parts:
        split.add(part)
    split.close()
    return split


def test_rows_are_read_once_and_given_as_often_as_asked_for(tmp_path: Path) -> None:
    parts = [pa.table({"text": ["a", "b"], "label": ["x", "y"]}), pa.table({"label": ["z"], "text": ["c"]})]
    split = spooled(parts, tmp_path / "train")
    for _ in range(2):
        assert [row["text"] + row["label"] for table in split.tables() for row in table.to_pylist()] == ["ax", "by", "cz"]


def test_rows_are_counted_and_named(tmp_path: Path) -> None:
    split = spooled([pa.table({"text": ["a", "b"]}), pa.table({"text": ["c"]})], tmp_path / "train")
    assert (split.num_rows, split.row_name(2), split.notes) == (3, "data.csv, row 3", ())


def test_no_rows_are_no_tables(tmp_path: Path) -> None:
    assert [*spooled([], tmp_path / "train").tables()] == []


def test_tables_of_other_columns_are_refused(tmp_path: Path, refused) -> None:
    parts = [pa.table({"text": ["a"], "label": ["x"]}), pa.table({"text": ["b"], "label": [1]})]
    with refused(
        "train: the columns are not the same in all rows: text (string), label (string) and text (string), label (int64)",
        "give all rows the same columns and types of values",
    ):
        spooled(parts, tmp_path / "train")
