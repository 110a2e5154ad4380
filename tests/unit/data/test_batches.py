"""Batches: padded to the last bit as transformers does it, planned as a pure function, shared without loss."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import DataCollatorWithPadding

from glassloop.data.batches import Batches, PaddingCollator, padding_waste, plan_epoch
from glassloop.errors import ModelError, SettingsError

SIZES = [(0, 4), (1, 4), (4, 4), (7, 8), (50, 1), (64, 16), (1003, 8)]


@pytest.fixture
def tokenizer(tiny_tokenizer) -> Any:
    return copy.deepcopy(tiny_tokenizer)


def random_rows(seed: int, size: int, keys: str = "input_ids token_type_ids attention_mask", label: Any = None) -> list[dict]:
    """Encoded rows of random lengths. `label` makes the label of a row from a random generator."""
    random = np.random.default_rng(seed)
    rows = []
    for length in random.integers(1, 40, size):
        values = {
            "input_ids": random.integers(5, 100, length).tolist(),
            "token_type_ids": random.integers(0, 2, length).tolist(),
            "attention_mask": random.integers(0, 2, length).tolist(),
        }
        rows.append({key: values[key] for key in keys.split()} | (label(random) if label else {}))
    return rows


def same(found: Any, wanted: Any) -> bool:
    return sorted(found) == sorted(wanted) and all(
        found[key].dtype == wanted[key].dtype and torch.equal(found[key], wanted[key]) for key in wanted
    )


LABELS = {
    "none": None,
    "label": lambda random: {"label": int(random.integers(0, 5))},
    "labels": lambda random: {"labels": int(random.integers(0, 5))},
    "label_ids": lambda random: {"label_ids": int(random.integers(0, 5))},
    "scores": lambda random: {"label": float(random.normal())},
    "multi-hot": lambda random: {"labels": random.integers(0, 2, 3).astype(float).tolist()},
}


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("multiple", [None, 8])
def test_padding_is_that_of_transformers_to_the_last_bit(multiple, side, label, tokenizer):
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
    with refused("a batch cannot hold text, idx", "remove these columns first: dataset.remove_columns([…])", SettingsError):
        PaddingCollator(tokenizer)([{"input_ids": [1], "text": "a", "idx": 3}])
    tokenizer.pad_token = None
    remedy = "set one: tokenizer.pad_token = tokenizer.eos_token"
    with refused("the tokenizer has no padding token", remedy, ModelError):
        PaddingCollator(tokenizer)


# --- plans -------------------------------------------------------------------------------------------------------


def skewed(size: int, seed: int = 0) -> np.ndarray:
    return np.minimum(np.random.default_rng(seed).lognormal(3, 1, size).astype(int) + 1, 512)


def listed(plan: list[np.ndarray]) -> list[list[int]]:
    return [rows.tolist() for rows in plan]


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("seed", [None, 0, 7])
@pytest.mark.parametrize(("size", "batch_size"), SIZES)
def test_every_example_comes_once(size, batch_size, seed, grouped):
    lengths = skewed(size) if grouped else None
    for epoch in range(2):
        plan = plan_epoch(size, batch_size, seed=seed, epoch=epoch, lengths=lengths)
        assert sorted(number for rows in plan for number in rows.tolist()) == list(range(size))
        assert [len(rows) for rows in plan] == [batch_size] * (size // batch_size) + [size % batch_size] * (
            size % batch_size > 0
        )
        assert listed(plan) == listed(plan_epoch(size, batch_size, seed=seed, epoch=epoch, lengths=lengths))
        dropped = plan_epoch(size, batch_size, seed=seed, epoch=epoch, lengths=lengths, drop_last=True)
        assert listed(dropped) == listed(plan)[: size // batch_size]


@pytest.mark.parametrize("grouped", [False, True])
def test_seed_and_epoch_both_matter_and_cannot_be_exchanged(grouped):
    lengths = skewed(200) if grouped else None
    plans = {
        (seed, epoch): listed(plan_epoch(200, 8, seed=seed, epoch=epoch, lengths=lengths))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len({str(plan) for plan in plans.values()}) == 9  # (0, 1) and (1, 0) among them


def test_a_shuffled_plan_is_one_permutation_cut_into_batches():
    order = np.random.default_rng((42, 3)).permutation(7).tolist()
    assert listed(plan_epoch(7, 3, seed=42, epoch=3)) == [order[:3], order[3:6], order[6:]]


def test_a_plan_leaves_the_random_state_of_everyone_else_alone():
    before, torch_before = np.random.get_state()[1].copy(), torch.get_rng_state()
    plan_epoch(100, 8, seed=1, lengths=skewed(100))
    assert (np.random.get_state()[1] == before).all()
    assert torch.equal(torch.get_rng_state(), torch_before)


def test_without_a_seed_the_order_is_that_of_the_data():
    assert listed(plan_epoch(7, 3, seed=None, epoch=5)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert listed(plan_epoch(5, 2, seed=None, lengths=np.array([3, 9, 3, 1, 9]))) == [[1, 4], [0, 2], [3]]


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("size", [512, 5000])
def test_grouping_by_length_wastes_less_and_still_shuffles(size, multiple):
    lengths = skewed(size)
    for epoch in range(3):
        plain = plan_epoch(size, 16, seed=3, epoch=epoch)
        grouped = plan_epoch(size, 16, seed=3, epoch=epoch, lengths=lengths)
        assert padding_waste(lengths, grouped, multiple) < 0.5 * padding_waste(lengths, plain, multiple)
        longest = [int(lengths[rows].max()) for rows in grouped[:-1]]
        assert longest not in (sorted(longest), sorted(longest, reverse=True))


@pytest.mark.parametrize("batch_size", [0, -1])
def test_batch_sizes_that_cannot_be_meant(batch_size, refused):
    with refused(f"the batch size is {batch_size}", "use a whole number of 1 or more", SettingsError):
        plan_epoch(10, batch_size, seed=0)


@pytest.mark.parametrize("multiple", [1, 8, 64])
@pytest.mark.parametrize("seed", range(3))
def test_waste_is_that_of_counting_padding(seed, multiple, tokenizer):
    rows = random_rows(seed, 50, "input_ids")
    plan = plan_epoch(50, 8, seed=seed)
    lengths = np.array([len(row["input_ids"]) for row in rows])
    masks = [PaddingCollator(tokenizer, multiple)([rows[number] for number in part])["attention_mask"] for part in plan]
    padding, tokens = sum(int((mask == 0).sum()) for mask in masks), sum(mask.numel() for mask in masks)
    assert padding_waste(lengths, plan, multiple) == pytest.approx(padding / tokens)


def test_waste_of_nothing():
    assert padding_waste(np.zeros(0, dtype=int), []) == 0.0
    assert padding_waste(np.array([3, 3]), [np.array([0, 1])]) == 0.0


# --- batches of a data set ---------------------------------------------------------------------------------------


def dataset_of(rows: list[dict]) -> Dataset:
    return Dataset.from_list(rows)


@pytest.mark.parametrize("label", ["none", "labels", "label", "scores", "multi-hot"])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("seed", [None, 5])
def test_an_epoch_is_the_collated_rows_of_its_plan(seed, grouped, label, tokenizer):
    rows = random_rows(1, 45, "input_ids token_type_ids", LABELS[label])
    if label == "scores":  # as they are stored: a score has 32 bits
        rows = [{**row, "label": float(np.float32(row["label"]))} for row in rows]
    collate = PaddingCollator(tokenizer)
    batches = Batches(dataset_of(rows), collate, 8, seed=seed, group_by_length=grouped)
    lengths = np.array([len(row["input_ids"]) for row in rows])
    for epoch in (0, 3):
        plan = plan_epoch(45, 8, seed=seed, epoch=epoch, lengths=lengths if grouped else None)
        assert listed(batches.plan(epoch)) == listed(plan)
        found = list(batches.epoch(epoch))
        assert len(found) == len(batches) == 6
        for batch, numbers in zip(found, plan, strict=True):
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
        == len(batches.plan())
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
    plan = batches.plan()
    for rank, share in enumerate(dealt):
        assert [batch.numbers.tolist() for batch in share] == listed(plan[rank::num_processes])
        assert [batch.size for batch in share] == [len(numbers) for numbers in plan[rank::num_processes]]


def test_selected_and_formatted_data_sets(tokenizer):
    rows = random_rows(5, 30, "input_ids token_type_ids", LABELS["labels"])
    chosen = [7, 3, 29, 3]
    collate = PaddingCollator(tokenizer)
    for data in (dataset_of(rows).select(chosen), dataset_of(rows).select(chosen).with_format("torch")):
        (batch,) = Batches(data, collate, 4).epoch()
        assert same({**batch.inputs, "labels": batch.labels}, collate([rows[number] for number in chosen]))
