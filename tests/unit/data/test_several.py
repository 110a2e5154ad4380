"""Several labels in one cell: lists are read, separators are offered, and single labels stay as they are."""

from __future__ import annotations

import pytest

from glassloop.base.errors import DataError
from glassloop.data.labels import items_of, lists_in, refuse_several


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("", []),
        (" ", []),
        ("'a'", ["a"]),
        ("'a', 'b'", ["a", "b"]),
        ('"a", "b"', ["a", "b"]),
        ("'a, b', \"it's\"", ["a, b", "it's"]),
        ("'it\\'s'", ["it's"]),
        ("a, b c", ["a", "b c"]),
        ("1, 2.5,", ["1", "2.5"]),
        ("'a' 'b'", None),  # as NumPy writes it: Python would read ab
        ("'a", None),
        ("['a']", None),
    ],
)
def test_items_of_a_list(text, items):
    assert items_of(text) == items


@pytest.mark.parametrize(
    ("cells", "lists"),
    [
        (["['a', 'b']", None, " [] "], [["a", "b"], None, []]),
        (["[a, b]", "[c]"], [["a", "b"], ["c"]]),
        (["[POS]", "[NEG]"], None),  # names of classes
        (["['a']", "b"], None),
        (["['a' 'b']"], None),
        ([None], None),
        (["a"], None),
    ],
)
def test_lists_are_read_only_if_all_cells_are_lists(cells, lists):
    assert lists_in(cells) == lists


def where(value: str | None) -> str:
    return "d.csv, row 2"


@pytest.mark.parametrize(
    "values",
    [
        ["a", "b"],
        ["a;b", "c;d"],  # the parts occur in no other cell
        ["Arts, Music", "Arts, Film", "Sport"],
        ["Smith, John", "Smith"],
        ["and/or", "and", "or"],
        ["a;", "b"],
        ["[POS]", "[NEG]"],
        ["1", "2"],
    ],
)
def test_single_labels_stay(values):
    refuse_several(values, where)


@pytest.mark.parametrize(
    ("values", "separator"),
    [
        (["a;b", "a", "b"], ";"),
        (["a; b", "b ;c", "c;a"], ";"),
        (["a|b", "b|a"], "|"),
        (["x,y", "x", "y,z", "z"], ","),
        (["1;2", "2", "1"], ";"),
    ],
)
def test_several_labels_are_offered(values, separator):
    with pytest.raises(DataError) as raised:
        refuse_several(values, where)
    assert f'--label_separator "{separator}"' in raised.value.remedy
    assert "--task single_label_classification" in raised.value.remedy


def test_a_decimal_comma_is_named():
    with pytest.raises(DataError, match='label "0,5" is a number with a decimal comma, or two labels'):
        refuse_several(["0,5", "1", "1,5"], where)
