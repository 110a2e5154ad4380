"""Column names: a header is found, a row of data is never taken for one, and given names fit the file."""

from __future__ import annotations

import pytest

from glassloop.data.readers import looks_like_data, settle_header, suggested_names
from glassloop.settings.fields import DataSettings

REVIEWS = [["Great film", "1"], ["Bad film", "0"], ["So so", "1"]]


@pytest.mark.parametrize(
    ("head", "is_data"),
    [
        (REVIEWS, True),  # a number beside a text
        ([["1", "Great film"], ["0", "Bad"]], True),
        ([["Great film", "pos"], ["Bad", "neg"], ["Fine", "pos"]], True),  # a cell that occurs again
        ([["Great film", "pos"], ["Bad", "neg"]], False),  # nothing tells: no column is called label, which is an error later
        ([["text", "1"], ["a", "0"]], False),  # a usual name
        ([["Review Text", "Score"], ["a", "1"], ["b", "1"]], False),
        ([["How do you like it?", "Answer"], ["a", "1"], ["a", "1"]], False),
        ([["0", "1"], ["a", "b"], ["c", "b"]], False),  # written by pandas
        ([["", "content"], ["0", "a"]], False),
        ([["review", "2024"], ["a", "1"]], False),
        ([["Great film", "pos"], ["Great film", "pos"]], False),  # a repeated row alone tells nothing
        ([["a", "3.5"]], True),
        ([["only"]], False),
    ],
)
def test_what_looks_like_data(head, is_data):
    assert looks_like_data(head, DataSettings()) == is_data


def test_columns_that_the_user_names_are_a_header():
    head = [["what", "2024"], ["a", "1"]]
    assert looks_like_data(head, DataSettings())
    assert not looks_like_data(head, DataSettings(text="what", label="2024"))


@pytest.mark.parametrize(
    ("head", "names"),
    [
        (REVIEWS, "text,label"),
        ([["1", "Great film"], ["0", "Bad film"]], "label,text"),
        ([["7", "a b c", "d e f", "x"], ["8", "g h i", "j k l", "x"]], "column_1,text,text_pair,label"),
        ([["a"]], "text"),
    ],
)
def test_names_are_suggested(head, names):
    assert suggested_names(head) == names


@pytest.mark.parametrize(
    ("settings", "names", "has_header"),
    [
        ({"columns": "text,label"}, ["text", "label"], False),
        ({"columns": "text,label", "header": False}, ["text", "label"], False),
        ({"columns": "text,label", "header": True}, ["text", "label"], True),
        ({"header": False}, ["column_1", "column_2"], False),
        ({"header": True}, ["Great film", "1"], True),
    ],
)
def test_the_user_decides(settings, names, has_header):
    assert settle_header("d.csv", REVIEWS, DataSettings(**settings)) == (names, has_header)


def test_names_that_repeat_the_header_are_refused(refused):
    remedy = "omit --columns, or add --header to replace the names in row 1, or --no-header if row 1 is data"
    with refused("d.csv: row 1 looks like column names (A, B), but --columns is for files without a header", remedy):
        settle_header("d.csv", [["A", "B"], ["c", "d"]], DataSettings(columns="a,b"))
