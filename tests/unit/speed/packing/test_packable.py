"""Which rows can be packed: their columns, and masks that hide tokens only at the end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from datasets import Dataset

from glassloop.backends.fast.packing import HIDDEN, hides_inside, join_rows, why_not_columns, why_not_masks
from glassloop.data.batches import Batches
from glassloop.data.collator import PaddingCollator, stacked


@pytest.mark.parametrize(
    ("rows", "hides"),
    [
        ([[1, 1, 0], [1, 0, 0]], False),
        ([[1, 1], [1, 1, 1]], False),
        ([[1, 0], [1, 1]], False),
        ([[True, False]], False),
        ([[0, 1, 1]], True),
        ([[1, 1], [1, 0, 1]], True),
        ([[1, 1], [0, 0]], True),
        ([[1, 2]], True),
        ([[1.0, 0.5]], True),
        ([[1], []], True),
    ],
)
def test_tokens_may_be_hidden_at_the_end_only(rows: Any, hides: bool) -> None:
    assert hides_inside(join_rows([np.asarray(row) for row in rows])) is hides


def row(**others: Any) -> dict[str, Any]:
    return {"input_ids": [2, 7, 3], "labels": 1, **others}


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (row(), None),
        (row(attention_mask=[1, 1, 0], text="a", note=None), None),
        (row(position_ids=[0, 1, 2]), "the rows have position_ids"),
        (row(input_ids=[[2, 3], [2, 3]]), "a row has no list of input_ids"),
        ({"inputs_embeds": [0.5], "labels": 1}, "a row has no list of input_ids"),
        (SimpleNamespace(**row()), "a row has no list of input_ids"),
    ],
)
def test_rows_need_token_ids_and_no_other_inputs(first: Any, why: str | None) -> None:
    assert why_not_columns(Batches([first], stacked, 1)) == why


def test_batches_of_others_are_not_packed(tiny_tokenizer) -> None:
    other = "the batches are those of a DataLoader or of a custom collator"
    assert why_not_columns(Batches([row()], lambda rows: {}, 1)) == other
    assert why_not_columns(iter([])) == other  # type: ignore[arg-type]
    assert why_not_columns(Batches([row()], PaddingCollator(tiny_tokenizer), 1)) is None


class Drawn:
    """Rows that differ between reads."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> dict[str, Any]:
        return row(attention_mask=[0, 1, 1], token_type_ids=np.random.randint(0, 2, 3))


@pytest.mark.parametrize("kind", [list, Dataset.from_list])
def test_every_mask_counts(kind: Any) -> None:
    good, bad = row(attention_mask=[1, 1, 0]), row(attention_mask=[0, 1, 1])
    assert why_not_masks(Batches(kind([row()] * 3), stacked, 1)) is None
    assert why_not_masks(Batches(kind([good] * 3), stacked, 1)) is None
    assert why_not_masks(Batches(kind([good, good, bad]), stacked, 1)) == HIDDEN
    assert why_not_masks(Batches(kind([good, bad, good]).select([0, 2]) if kind is not list else [good], stacked, 1)) is None
    assert why_not_masks(Batches(Drawn(), stacked, 1)) is None, "one reading says nothing about the next"
