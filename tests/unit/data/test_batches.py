"""Batches: the collated rows of an epoch's order, shared among processes without loss."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from encoded_rows import LABELS, SIZES, random_rows, same
from transformers import DataCollatorWithPadding

from glassloop.data.batches import Batches, PaddingCollator, epoch_order


@pytest.fixture
def tokenizer(tiny_tokenizer) -> Any:
    return copy.deepcopy(tiny_tokenizer)


def lists(order: list[np.ndarray]) -> list[list[int]]:
    return [rows.tolist() for rows in order]


def dataset_of(rows: list[dict]) -> Dataset:
    return Dataset.from_list(rows)


@pytest.mark.parametrize("label", ["none", "labels", "label", "scores", "multi-hot"])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("seed", [None, 5])
def test_an_epoch_is_the_collated_rows_of_its_order(seed, grouped, label, tokenizer):
    rows = random_rows(1, 45, "input_ids token_type_ids", LABELS[label])
    if label == "scores":  # as they are stored: a score has 32 bits
        rows = [{**row, "label": float(np.float32(row["label"]))} for row in rows]
    collate = PaddingCollator(tokenizer)
    batches = Batches(dataset_of(rows), collate, 8, seed=seed, group_by_length=grouped)
    lengths = np.array([len(row["input_ids"]) for row in rows])
    for epoch in (0, 3):
        order = epoch_order(45, 8, seed=seed, epoch=epoch, lengths=lengths if grouped else None)
        assert lists(batches.order(epoch)) == lists(order)
        found = list(batches.epoch(epoch))
        assert len(found) == len(batches) == 6
        for batch, numbers in zip(found, order, strict=True):
            wanted = collate([rows[number] for number in numbers])
            labels = {} if batch.labels is None else {"labels": batch.labels}
            assert same({**batch.inputs, **labels}, wanted)
            assert ("labels" in wanted) == (label != "none")
            assert (batch.numbers.tolist(), batch.size) == (numbers.tolist(), len(numbers))


@pytest.mark.parametrize("skip", [0, 1, 4, 6, 9])
def test_skipping_gives_the_tail(skip, tokenizer):
    batches = Batches(dataset_of(random_rows(2, 45, "input_ids", LABELS["labels"])), PaddingCollator(tokenizer), 8, seed=1)
    whole, tail = list(batches.epoch(2)), list(batches.epoch(2, skip=skip))
    assert len(tail) == len(whole[skip:])
    for one, other in zip(whole[skip:], tail, strict=True):
        assert one.numbers.tolist() == other.numbers.tolist()
        assert same(one.inputs, other.inputs)
        assert torch.equal(one.labels, other.labels)


@pytest.mark.parametrize("num_processes", [1, 2, 3])
@pytest.mark.parametrize("size", [45, 41, 42, 48])
@pytest.mark.parametrize("grouped", [False, True])
def test_processes_share_every_batch(num_processes, size, grouped, tokenizer):
    data, collate = dataset_of(random_rows(3, size, "input_ids", LABELS["labels"])), PaddingCollator(tokenizer)
    options = {"seed": 4, "group_by_length": grouped}
    whole = list(Batches(data, collate, 8, **options).epoch(1))
    shares = [
        list(Batches(data, collate, 8, **options, rank=rank, num_processes=num_processes).epoch(1))
        for rank in range(num_processes)
    ]
    assert {len(share) for share in shares} == {len(whole)}
    for batch, *parts in zip(whole, *shares, strict=True):
        assert sorted(number for part in parts for number in part.numbers.tolist()) == sorted(batch.numbers.tolist())
        assert {part.size for part in parts} == {batch.size} == {len(batch.numbers)}
        for part in parts:  # a process without a row still runs one, so that all take the same number of steps
            numbers = part.numbers if len(part.numbers) else batch.numbers[:1]
            wanted = collate([data[int(number)] for number in numbers])
            assert same({**part.inputs, "labels": part.labels}, wanted)
    if size == 41 and num_processes > 1:
        assert [len(share[-1].numbers) for share in shares] == [1] + [0] * (num_processes - 1)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("size", "batch_size"), SIZES[1:])
def test_the_number_of_batches_is_known_before(size, batch_size, drop_last, tokenizer):
    data = Dataset.from_dict({"input_ids": [[1]] * size})
    batches = Batches(data, PaddingCollator(tokenizer), batch_size, drop_last=drop_last)
    assert (
        len(batches)
        == len(batches.order())
        == len(list(batches.epoch()))
        == (size // batch_size if drop_last else -(-size // batch_size))
    )


@pytest.mark.parametrize("grouped", [False, True])
def test_rows_and_collators_of_any_kind(grouped, tokenizer):
    rows = random_rows(6, 30, "input_ids token_type_ids", LABELS["label"])
    ours, theirs = PaddingCollator(tokenizer), DataCollatorWithPadding(tokenizer)
    wanted = list(Batches(dataset_of(rows), ours, 4, seed=2, group_by_length=grouped).epoch())
    for data, collate in ((rows, ours), (rows, theirs), (dataset_of(rows), theirs)):
        found = list(Batches(data, collate, 4, seed=2, group_by_length=grouped).epoch())
        for one, other in zip(found, wanted, strict=True):
            assert same({**one.inputs, "labels": one.labels}, {**other.inputs, "labels": other.labels})
            assert one.numbers.tolist() == other.numbers.tolist()


@pytest.mark.parametrize("num_processes", [1, 2, 3])
def test_whole_batches_are_dealt_to_the_processes(num_processes, tokenizer):
    batches = Batches(dataset_of(random_rows(7, 45, "input_ids")), PaddingCollator(tokenizer), 8)
    dealt = [[*batches.whole(rank, num_processes)] for rank in range(num_processes)]
    order = batches.order()
    for rank, share in enumerate(dealt):
        assert [batch.numbers.tolist() for batch in share] == lists(order[rank::num_processes])
        assert [batch.size for batch in share] == [len(numbers) for numbers in order[rank::num_processes]]


def test_selected_and_formatted_data_sets(tokenizer):
    rows = random_rows(5, 30, "input_ids token_type_ids", LABELS["labels"])
    chosen = [7, 3, 29, 3]
    collate = PaddingCollator(tokenizer)
    for data in (dataset_of(rows).select(chosen), dataset_of(rows).select(chosen).with_format("torch")):
        (batch,) = Batches(data, collate, 4).epoch()
        assert same({**batch.inputs, "labels": batch.labels}, collate([rows[number] for number in chosen]))
