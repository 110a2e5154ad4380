"""Rows that differ between reads are found out, and whose random numbers they draw; nothing is drawn by finding out."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset

from glassloop.data.rows import Repeats, collator_repeats, content_of, global_states, repeats, rows_repeat

FIXED = [{"input_ids": [1, 2, number], "labels": 0} for number in range(50)]
generators = random.Random(1), np.random.default_rng(1), torch.Generator().manual_seed(1)
counter = iter(range(10**6))


class Rows:
    """A data set whose third token is made by a function."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def __len__(self) -> int:
        return 50

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"input_ids": np.array([1, 2, self.make(number)]), "labels": torch.tensor(0)}


CASES: dict[str, tuple[Any, Repeats]] = {
    "fixed": (lambda number: number, Repeats.SAME),
    "python's": (lambda number: random.random(), Repeats.GLOBAL),
    "numpy's": (lambda number: np.random.rand(), Repeats.GLOBAL),
    "torch's": (lambda number: torch.rand(()).item(), Repeats.GLOBAL),
    "drawn, and rarely used": (lambda number: int(random.random() < 1e-9), Repeats.GLOBAL),
    "python's own": (lambda number: generators[0].random(), Repeats.OWN),
    "numpy's own": (lambda number: generators[1].random(), Repeats.OWN),
    "torch's own": (lambda number: torch.rand((), generator=generators[2]).item(), Repeats.OWN),
    "both": (lambda number: random.random() + generators[0].random(), Repeats.OWN),
    "counted": (lambda number: next(counter), Repeats.OWN),
    "rarely another": (lambda number: int(generators[0].random() < 0.1), Repeats.OWN),
}


@pytest.mark.parametrize("case", CASES)
def test_whose_random_numbers_rows_draw(case: str) -> None:
    make, expected = CASES[case]
    before = global_states()
    assert rows_repeat(Rows(make)) is expected
    assert global_states() == before


def test_rows_in_memory_and_in_files_are_not_read() -> None:
    class Unread(list[Any]):
        def __getitem__(self, number: Any) -> Any:
            pytest.fail("read")

    assert rows_repeat(Unread(FIXED)) is Repeats.SAME
    table = Dataset.from_list(FIXED)
    assert rows_repeat(table) is rows_repeat(table.with_format("torch", columns=["input_ids"])) is Repeats.SAME
    drawn = table.with_transform(lambda batch: {"input_ids": [[random.random()] for _ in batch["input_ids"]]})
    assert rows_repeat(drawn) is Repeats.GLOBAL
    assert rows_repeat(table.with_transform(lambda batch: batch)) is Repeats.SAME


def test_a_collator_is_called_on_the_same_rows() -> None:
    def emptied(rows: list[dict[str, Any]]) -> dict[str, Any]:
        return {"labels": torch.tensor([row.pop("labels") for row in rows])}

    rows = [dict(row) for row in FIXED[:4]]
    assert collator_repeats(emptied, rows) is Repeats.SAME
    assert rows == FIXED[:4]
    assert collator_repeats(lambda rows: {"x": torch.rand(3)}, rows) is Repeats.GLOBAL
    assert collator_repeats(lambda rows: {"x": torch.rand(3, generator=generators[2])}, rows) is Repeats.OWN


def test_content_does_not_depend_on_the_kind_of_an_array() -> None:
    kinds = ([1, 2], np.array([1, 2], dtype=np.int8), torch.tensor([1, 2]))
    assert len({content_of({"b": 1, "a": cells}) for cells in kinds}) == 1
    assert content_of({"a": [1, 2]}) != content_of({"a": [1, 3]})
    assert content_of((torch.tensor([1]), 2)) == content_of(([1], 2))


def test_nothing_is_drawn_where_reading_fails() -> None:
    before = global_states()
    with pytest.raises(ZeroDivisionError):
        repeats(lambda: random.random() / 0)
    assert global_states() == before
