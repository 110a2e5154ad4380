"""Padding: bit-identical to transformers, on both sides, for every kind of label."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from encoded_rows import LABELS, random_rows, same
from transformers import DataCollatorWithPadding, DefaultDataCollator, default_data_collator

from glassloop.base.errors import ModelError, SettingsError
from glassloop.data.batches import Batches, PaddingCollator, collator_of, stacked, stacks_rows


@pytest.fixture
def tokenizer(tiny_tokenizer) -> Any:
    return copy.deepcopy(tiny_tokenizer)


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("multiple", [None, 8])
def test_padding_is_that_of_transformers_bit_for_bit(multiple, side, label, tokenizer):
    tokenizer.padding_side = side
    theirs, ours = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=multiple), PaddingCollator(tokenizer, multiple)
    for seed, keys in enumerate(["input_ids", "input_ids token_type_ids", "attention_mask input_ids token_type_ids"]):
        for size in (1, 2, 9):
            rows = random_rows(seed, size, keys, LABELS[label])
            wanted = theirs(copy.deepcopy(rows))
            columns = {key: [row[key] for row in rows] for key in rows[0]}
            assert same(ours(rows), wanted)
            assert same(ours(columns), wanted)


@pytest.mark.parametrize("tensors", ["np", "pt"])
def test_padding_of_what_a_tokenizer_gives(tensors, tokenizer):
    texts = ["the film is good", "a story was bad"]
    columns = tokenizer(texts, return_tensors=tensors)
    assert same(PaddingCollator(tokenizer)(columns), tokenizer(texts, return_tensors="pt"))
    rows = [tokenizer(text) for text in [*texts, "very good"]]
    assert same(PaddingCollator(tokenizer)(rows), DataCollatorWithPadding(tokenizer)(rows))


def test_other_padding_tokens_are_used(tokenizer):
    tokenizer.pad_token = "[MASK]"
    rows = [{"input_ids": [5, 6, 7]}, {"input_ids": [8]}]
    assert PaddingCollator(tokenizer)(rows)["input_ids"].tolist() == [[5, 6, 7], [8, 4, 4]]


def test_what_cannot_be_padded(tokenizer, refused):
    with refused("a batch cannot contain text", "remove these columns first: dataset.remove_columns([…])", SettingsError):
        PaddingCollator(tokenizer)([{"input_ids": [1], "text": "a", "idx": 3}])
    with pytest.raises(SettingsError, match="the rows have different lengths of parts, and nothing pads them"):
        PaddingCollator(tokenizer)([{"input_ids": [1], "parts": [1]}, {"input_ids": [1], "parts": [1, 2]}])
    tokenizer.pad_token = None
    remedy = "set one: tokenizer.pad_token = tokenizer.eos_token"
    with refused("the tokenizer has no padding token", remedy, ModelError):
        PaddingCollator(tokenizer)


@pytest.mark.parametrize("multiple", [None, 8])
def test_padding_to_a_fixed_width_is_that_of_transformers(multiple, tokenizer):
    theirs = DataCollatorWithPadding(tokenizer, padding="max_length", max_length=48, pad_to_multiple_of=multiple)
    rows = random_rows(0, 5, "input_ids token_type_ids", LABELS["label"])
    assert same(collator_of(theirs, None, 4)(rows), theirs(copy.deepcopy(rows)))


def test_only_a_collator_that_pads_otherwise_is_kept(tokenizer, refused):
    """Padding to the longest row or to a given width is done here; a collator of the user's own stays what it is."""
    longest = collator_of(DataCollatorWithPadding(tokenizer, pad_to_multiple_of=16), None, 8)
    assert (type(longest), longest.multiple) == (PaddingCollator, 16)
    assert collator_of(None, tokenizer, 8).multiple == 8
    fixed = DataCollatorWithPadding(tokenizer, padding="max_length")
    assert collator_of(fixed, tokenizer, None) is fixed, "the width is that of the tokenizer"
    assert collator_of(default_data_collator, None, None) is collator_of(DefaultDataCollator(), tokenizer, 8) is stacked
    assert collator_of(dict, tokenizer, None) is dict
    problem, remedy = "Trainer needs a tokenizer to pad batches", "pass processing_class=tokenizer or data_collator="
    with refused(problem, remedy, SettingsError):
        collator_of(None, None, None)


# --- Rows that are padded already are stacked; others need a tokenizer.


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
