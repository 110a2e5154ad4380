"""Several columns as one text."""

from __future__ import annotations

import pyarrow as pa
import pytest
from given_split import GivenSplit

from glassloop.data.joining import JoinedSplit, columns_of_text, with_joined


@pytest.mark.parametrize(
    ("name", "found", "columns"),
    [("a", ["a"], ("a",)), ("a,b", ["a", "b"], ("a", "b")), ("a,b", ["a,b", "a", "b"], ("a,b",)), ("a, b", [], ("a", "b"))],
)
def test_a_name_may_mean_several_columns(name, found, columns):
    assert columns_of_text(name, found) == columns


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_empty_cells_are_omitted(kind):
    table = pa.table({"a": pa.array(["x", "", None, " ", "y "], kind), "b": pa.array(["1", "2", "3", None, "4"], kind)})
    joined = with_joined(table, ["a,b", "b"], "d.csv")
    assert joined["a,b"].to_pylist() == ["x\n1", "2", "3", "", "y \n4"]
    assert joined.column_names == ["a", "b", "a,b"]


def test_only_texts_are_joined(refused):
    with refused('d.csv: column "n" has the type int64, which is not text', "join only columns with text: --text"):
        with_joined(pa.table({"a": ["x"], "n": [1]}), ["a,n"], "d.csv")


def test_a_split_has_the_joined_texts():
    split = JoinedSplit(GivenSplit("d.csv", [pa.table({"a": ["x"], "b": ["y"]})], ("note",)), ("a,b",))
    assert [table["a,b"].to_pylist() for table in split.tables()] == [["x\ny"]]
    assert (split.source, split.notes, split.bad, split.row_name(3)) == ("d.csv", ("note",), None, "d.csv, row 5")
