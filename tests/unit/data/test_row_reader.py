"""Rows that are read one by one: unused columns are dropped, and what was read is remembered."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from glassloop.data import row_reader
from glassloop.data.row_reader import RowReader, repeats_of
from glassloop.data.rows import Repeats


class Rows:
    """Rows that a function makes, and the numbers of those that were read."""

    def __init__(self, make: Callable[[int], Any], number: int = 6) -> None:
        self.make, self.number, self.read = make, number, []  # type: ignore[var-annotated]

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, row: int) -> Any:
        self.read.append(row)
        return self.make(row)


def tokens(row: int) -> dict[str, Any]:
    return {
        "input_ids": [1] * (1 + row),
        "attention_mask": [1] * (1 + row),
        "labels": row % 2,
        "idx": row,
        "text": f"row {row}",
    }


def test_columns_that_are_not_taken_are_dropped_and_named() -> None:
    said: list[list[str]] = []
    reader = RowReader(Rows(tokens), {"input_ids", "labels"}, said.append)
    assert [*reader[0]] == [*reader.look(1)] == ["input_ids", "labels"]
    assert said[0] == ["attention_mask", "idx", "text"]
    assert [*RowReader([tokens(0)], None)[0]] == [*tokens(0)]
    assert RowReader(Rows(lambda row: (row, row)), {"input_ids"})[2] == (2, 2), "rows of another kind stay as they are"


def test_a_row_that_was_read_ahead_is_not_read_again() -> None:
    rows = Rows(tokens)
    reader = RowReader(rows)
    assert reader.repeats is Repeats.SAME
    rows.read.clear()
    assert reader.lengths(seed=3).tolist() == [1, 2, 3, 4, 5, 6]
    assert np.array_equal(reader.row_hashes(), RowReader([tokens(row) for row in range(6)]).row_hashes())
    assert [reader[row]["idx"] for row in (4, 2)] == [4, 2]
    assert rows.read == [0, 1, 2, 3, 4, 5]
    reader[4]
    assert rows.read[6:] == [4], "a row is kept for one batch"
    reader.release()
    reader[0]
    assert rows.read[7:] == [0]


def test_only_as_many_rows_are_kept_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_reader, "MOST_AHEAD", 0)
    rows = Rows(tokens)
    reader = RowReader(rows)
    repeats_of(reader)
    rows.read.clear()
    reader.survey()
    reader.survey()
    assert [reader[row]["idx"] for row in range(6)] == [*range(6)]
    assert rows.read == [*range(6)] * 2


def test_random_rows_of_a_training_are_not_kept() -> None:
    rows = Rows(lambda row: {"input_ids": torch.randint(9, (3,))})
    reader = RowReader(rows)
    assert reader.repeats is Repeats.GLOBAL
    rows.read.clear()
    assert reader.lengths(seed=1).tolist() == [3] * 6
    assert not torch.equal(reader.look(2)["input_ids"], reader[2]["input_ids"])
    assert rows.read == [0, 1, 2, 3, 4, 5, 2, 2]


def test_an_evaluation_reads_rows_once_whether_they_repeat_or_not() -> None:
    rows = Rows(lambda row: {"input_ids": torch.randint(9, (3 + row,))})
    reader = RowReader(rows)
    for _ in range(2):
        rows.read.clear()
        assert reader.lengths(None).tolist() == [3, 4, 5, 6, 7, 8]
        assert [len(reader[row]["input_ids"]) for row in (5, 0, 1, 2, 3, 4)] == [8, 3, 4, 5, 6, 7]
        assert rows.read == [*range(6)]


def test_words_masks_and_texts_of_rows_that_were_read() -> None:
    reader = RowReader(Rows(lambda row: {"input_ids": [row, 9], "attention_mask": [row > 0, 1], "text": "a b", "other": 1}))
    reader[1]
    assert (reader.words, reader.hides_inside, [*reader.noted]) == ({1, 9}, False, [1])
    assert [*reader.noted[1]] == ["input_ids", "attention_mask", "text"]
    reader[0]
    assert reader.hides_inside


@pytest.mark.parametrize(
    "make",
    [lambda row: (row, [1]), lambda row: SimpleNamespace(ids=[row]), lambda row: row, lambda row: {"parts": [[row], [1, 2]]}],
    ids=["tuple", "object", "number", "lists"],
)
def test_rows_of_any_kind_have_hashes(make: Callable[[int], Any]) -> None:
    hashes = RowReader(Rows(make)).row_hashes()
    assert len({*hashes.tolist()}) == 6
    assert 0 not in hashes
    assert np.array_equal(hashes, RowReader(Rows(make)).row_hashes())
