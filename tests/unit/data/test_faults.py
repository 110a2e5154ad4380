"""Rows that cannot be read: an error, or a list with their numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassloop.base.errors import DataError
from glassloop.data.faults import SKIP, BadRows


@pytest.mark.parametrize(("offer", "remedy"), [(False, "fix it"), (True, f"fix it; {SKIP}")])
def test_the_first_one_is_an_error(offer, remedy, refused):
    with refused("d.csv, row 1,234: wrong", remedy):
        BadRows(offer=offer).add(Path("x/d.csv"), 1234, "wrong", "fix it")


def test_skipped_rows_are_counted_and_listed_by_file(tmp_path):
    bad = BadRows(skip=True)
    for name, row in [("a.csv", 3), ("a.csv", 5), ("b.csv", 2)]:
        bad.add(Path(name), row, 'has "quotes"', "")
    bad.add(Path("a.csv"), 5, "reported again", "")
    assert bad.num_rows == 3
    bad.write(tmp_path / "list.csv")
    assert (tmp_path / "list.csv").read_text() == (
        'file,row,problem\na.csv,3,"has ""quotes"""\na.csv,5,reported again\nb.csv,2,"has ""quotes"""\n'
    )


def test_rows_keep_their_numbers_in_the_file():
    bad, path = BadRows(skip=True), Path("a.csv")
    for row in (3, 2, 6):
        bad.add(path, row, "", "")
    assert [bad.number_of(path, row) for row in (1, 2, 3, 4, 5)] == [1, 4, 5, 7, 8]
    assert bad.number_of(Path("b.csv"), 2) == 2


def test_a_file_with_more_bad_rows_than_good_ones_is_refused():
    bad, path = BadRows(skip=True), Path("a.csv")
    for row in (2, 3):
        bad.add(path, row, "broken", "")
    bad.refuse_most(path, 2)
    bad.refuse_most(Path("b.csv"), 0)
    with pytest.raises(DataError, match=r"a\.csv: 2 of 3 rows cannot be read, for example row 2: broken"):
        bad.refuse_most(path, 1)
