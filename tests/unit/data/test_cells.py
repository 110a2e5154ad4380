"""Label cells as text: told apart, counted and found again, whatever kind of column they come from."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from glassloop.data import labels as cells_module
from glassloop.data.labels import LabelCells, label_cells


def cells_of(cells: list, chunk: int = 4) -> LabelCells:
    found = LabelCells()
    kind = pa.list_(pa.string()) if any(isinstance(cell, list) for cell in cells) else pa.string()
    for start in range(0, len(cells), chunk):
        found.add(pa.array(cells[start : start + chunk], kind))
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("several", [False, True])
def test_label_cells_against_counting_by_hand(seed, several):
    random = np.random.default_rng(seed)
    words = ["x", "y", "z", None]
    cells = [words[number] for number in random.integers(0, 4, 50)]
    if several:
        cells = [None if cell is None else [cell] * int(random.integers(0, 2)) + ["w"] for cell in cells]
    found = cells_of(cells, 7)
    plain = [tuple(cell) if isinstance(cell, list) else cell for cell in cells]
    assert [found.cells[code] for code in found.codes] == plain
    assert (found.are_lists, found.overflowed, found.labelled) == (several, False, True)
    for rows in (slice(None), random.random(50) < 0.5):
        chosen = np.array(plain, dtype=object)[rows]
        parts = [part for cell in chosen if cell is not None for part in ([*cell] if several else [cell])]
        assert found.counts(rows) == {value: parts.count(value) for value in set(parts)}
    for value in ["x", "y", "w", None, "never"]:
        held = [row for row, cell in enumerate(plain) if cell == value or (several and cell and value in cell)]
        assert found.first_row(value) == (held[0] if held else None)
    assert sorted(found.values()) == sorted({part for cell in plain if cell for part in ([*cell] if several else [cell])})


def test_no_cells_at_all():
    found = LabelCells()
    assert (found.codes.tolist(), found.cells, found.first_row("x"), found.labelled) == ([], [], None, False)


@pytest.mark.parametrize(
    ("cells", "labelled"), [(["-1", "-1"], False), (["-1.0"], False), (["-1", "0"], True), (["-1", None], True), (["-2"], True)]
)
def test_marks_that_labels_are_kept_secret(cells, labelled):
    assert cells_of(cells).labelled is labelled


def test_beyond_the_limit_cells_are_no_longer_distinguished(monkeypatch):
    monkeypatch.setattr(cells_module, "MAX_CLASSES", 5)
    exactly = cells_of(list("abcde") * 2)
    assert (exactly.overflowed, exactly.codes.tolist()) == (False, [0, 1, 2, 3, 4] * 2)
    beyond = cells_of([*"abcde", "f", "g", "a", None])
    assert (beyond.overflowed, beyond.codes.tolist()) == (True, [0, 1, 2, 3, 4, 4, 4, 0, 4])
    lists = [[*"abcdefg"][: 1 + place] for place in range(7)]
    assert [*cells_of(lists).codes] == [*range(7)]  # however many sets of labels there are


# --- from tables -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "separator", "wanted"),
    [
        (pa.array(["a", None, "b"]), None, ["a", None, "b"]),
        (pa.array(["a", None, "b"], pa.large_string()), None, ["a", None, "b"]),
        (pa.array([1, None, -1], pa.int8()), None, ["1", None, "-1"]),
        (pa.array([0.5, 1.0, None, 0.1], pa.float64()), None, ["0.5", "1.0", None, "0.1"]),
        (pa.array([Decimal("0.5")]), None, ["0.5"]),
        (pa.array([True, False, None]), None, ["true", "false", None]),
        (pa.array(["b", "a", "b", None]).dictionary_encode(), None, ["b", "a", "b", None]),
        (pa.array([["a"], [], None, ["b", "c"]]), None, [["a"], [], None, ["b", "c"]]),
        (pa.array([["a"], ["b", "c"]], pa.large_list(pa.string())), ",", [["a"], ["b", "c"]]),
        (pa.array([[1, 0], [0, 1]], pa.list_(pa.int64(), 2)), None, [["1", "0"], ["0", "1"]]),
        (pa.array([[1], [0, 2]]), None, [["1"], ["0", "2"]]),
        (pa.array(["a, b", "", None, "c,,a", " , "]), ",", [["a", "b"], [], None, ["c", "a"], []]),
        (pa.array(["a || b", "c"]), "||", [["a", "b"], ["c"]]),
        (pa.array([12, 3]), "|", [["12"], ["3"]]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else None,
)
def test_any_kind_of_cell_as_text(cells, separator, wanted):
    table = pa.table({"text": ["t"] * len(cells), "label": cells})
    for chunked in (table, pa.concat_tables([table.slice(0, 1), table.slice(1)])):
        assert label_cells(chunked, ("label",), separator).to_pylist() == wanted


def test_several_columns_of_zero_and_one():
    table = pa.table({"b": ["1", "0", "TRUE", "2", None], "a": [1, 0, 0, 1, 1], "c": [True, False, False, True, True]})
    assert label_cells(table, ("b", "a", "c"), None).to_pylist() == [["b", "a", "c"], [], ["b"], None, None]
