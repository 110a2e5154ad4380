"""Rows that are padded already are stacked; others need a tokenizer."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import DataCollatorWithPadding, default_data_collator

from glassloop.base.errors import SettingsError
from glassloop.data.batches import Batches
from glassloop.data.collator import stacked, stacks_rows


def test_rows_of_one_length_are_stacked() -> None:
    rows = [{"input_ids": [1, 2], "text": "a", "label": 0}, {"input_ids": np.array([3, 4]), "text": "b", "label": 1}]
    batch = stacked(rows)
    assert {name: value.tolist() for name, value in batch.items()} == {"input_ids": [[1, 2], [3, 4]], "labels": [0, 1]}


def test_objects_with_attributes_are_rows_too() -> None:
    batch = stacked([SimpleNamespace(input_ids=torch.tensor([1, 2]), labels=0.5)])
    assert batch["labels"].dtype == torch.float32


def test_rows_of_several_lengths_need_a_tokenizer() -> None:
    with pytest.raises(SettingsError, match="different lengths of input_ids"):
        stacked([{"input_ids": [1]}, {"input_ids": [1, 2]}])


ROWS = [{"input_ids": [place, 0], "attention_mask": [1, 0], "label": place % 2, "text": "a"} for place in range(5)]


@pytest.mark.parametrize("kind", ["lists", "arrays", "tensors", "a file"])
def test_batches_are_those_of_transformers(kind: str) -> None:
    made = {"lists": list, "arrays": np.array, "tensors": torch.tensor, "a file": list}[kind]
    rows = [{name: made(cell) if isinstance(cell, list) else cell for name, cell in row.items()} for row in ROWS]
    wanted = default_data_collator(rows)
    batch = next(Batches(Dataset.from_list(rows) if kind == "a file" else rows, stacked, 5).epoch())
    found = {**batch.inputs, "labels": batch.labels}
    assert {name: (value.dtype, value.tolist()) for name, value in found.items()} == {
        name: (value.dtype, value.tolist()) for name, value in wanted.items()
    }


def test_only_the_same_collators_count(tiny_tokenizer) -> None:
    assert stacks_rows(stacked)
    assert stacks_rows(default_data_collator)
    assert not stacks_rows(DataCollatorWithPadding(tiny_tokenizer))
    assert not stacks_rows(lambda rows: rows)
    assert not stacks_rows(None)
