"""Delimited text: rows keep their numbers, and broken ones are refused or skipped. test_readers.py tests formats."""

from __future__ import annotations

import pytest

from glassloop.base.errors import DataError
from glassloop.data.faults import BadRows
from glassloop.data.readers import read_delimited, without_blank_end
from glassloop.settings.fields import DataSettings

CONTENT = b't,l\na,1\n\nb"c\xff,2\n"d"e,3\nf,4\ng\0,5\nt,l\nh,6\ni,7\nj,8\nk,9\nl,1\n\n'
PROBLEMS = {
    3: "the row is blank (t, l)",
    4: "the row contains a byte that is not text",
    5: "',' expected after '\"'",
    7: "the row contains a byte that is not text",
    8: "the row repeats the header (t, l)",
}


def test_everything_that_cannot_be_read_is_skipped(write):
    bad, path = BadRows(skip=True), write("d.csv", CONTENT)
    tables = read_delimited(path, ",", quoted=True, bad=bad)
    assert [row["t"] for table in tables for row in table.to_pylist()] == [*"afhijkl"]
    assert bad.rows[path] == PROBLEMS


def test_a_byte_after_a_very_long_cell_is_reported_with_its_row(write):
    """The csv module refuses cells of more than 131,072 characters unless it is told otherwise."""
    path = write("d.csv", b"t,l\n" + b"x" * 200_000 + b",1\na\xff,2\n")
    with pytest.raises(DataError, match=r"d\.csv, row 3: byte 0xff at position 200,008 is not UTF-8"):
        [*read_delimited(path, ",", quoted=True)]


def test_a_quote_that_is_not_closed_is_never_skipped(write, refused):
    path = write("d.csv", 't,l\na,1\n"b,2\nc,3\n')
    with refused(
        "d.csv, row 3: a quote is opened and not closed until the end of the file",
        'quote a text that contains ", and double the quotes in it ("")',
    ):
        [*read_delimited(path, ",", quoted=True, bad=BadRows(skip=True))]


def test_a_header_that_the_user_replaces_is_no_row(write):
    path, settings = write("d.csv", "t,t\na,1\n"), DataSettings(columns="x,y", header=True)
    (table,) = read_delimited(path, ",", quoted=True, settings=settings)
    assert table.to_pylist() == [{"x": "a", "y": "1"}]


def test_blank_rows_stay_between_others():
    assert [*without_blank_end([(1, ["a"]), (2, []), (3, ["b"]), (4, [])])] == [(1, ["a"]), (2, []), (3, ["b"])]


@pytest.mark.parametrize("rows", [999, 1000, 1001, 10_001])
def test_no_row_is_lost_after_the_sample_of_the_header(rows, write):
    path = write("d.csv", "text,label\n" + "".join(f"t{row},{row % 2}\n" for row in range(rows)))
    assert [cell for table in read_delimited(path, ",", quoted=True) for cell in table["text"].to_pylist()] == [
        f"t{row}" for row in range(rows)
    ]
