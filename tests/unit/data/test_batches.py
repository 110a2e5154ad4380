"""How rows form batches: a pure order, padding bit-identical to transformers, and shares of processes without loss."""

from __future__ import annotations

import copy
import random
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from encoded_rows import LABELS, SIZES, random_rows, same
from transformers import DataCollatorWithPadding, DefaultDataCollator, default_data_collator

from glassloop.base.errors import ModelError, SettingsError
from glassloop.data.batches import Batches, PaddingCollator, collator_of, epoch_order, padding_waste, seed_all, stacked
from glassloop.data.rows import random_states_kept


def skewed(size: int, seed: int = 0) -> np.ndarray:
    return np.minimum(np.random.default_rng(seed).lognormal(3, 1, size).astype(int) + 1, 512)


def listed(order: list[np.ndarray]) -> list[list[int]]:
    return [rows.tolist() for rows in order]


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("seed", [None, 0, 7])
@pytest.mark.parametrize(("size", "batch_size"), SIZES)
def test_every_example_comes_once(size, batch_size, seed, grouped):
    lengths = skewed(size) if grouped else None
    for epoch in range(2):
        order = epoch_order(size, batch_size, seed=seed, epoch=epoch, lengths=lengths)
        assert sorted(number for rows in order for number in rows.tolist()) == list(range(size))
        whole, rest = divmod(size, batch_size)
        assert [len(rows) for rows in order] == [batch_size] * whole + [rest] * (rest > 0)
        assert listed(order) == listed(epoch_order(size, batch_size, seed=seed, epoch=epoch, lengths=lengths))
        dropped = epoch_order(size, batch_size, seed=seed, epoch=epoch, lengths=lengths, drop_last=True)
        assert listed(dropped) == listed(order)[: size // batch_size]


def test_seed_and_epoch_both_matter_and_the_order_without_a_seed(refused):
    for grouped in [False, True]:
        lengths = skewed(200) if grouped else None
        pairs = product(range(3), repeat=2)
        orders = {str(listed(epoch_order(200, 8, seed=seed, epoch=epoch, lengths=lengths))) for seed, epoch in pairs}
        assert len(orders) == 9  # of (0, 1) and (1, 0) among them
    order = np.random.default_rng((42, 3)).permutation(7).tolist()
    assert listed(epoch_order(7, 3, seed=42, epoch=3)) == [order[:3], order[3:6], order[6:]]
    assert listed(epoch_order(7, 3, seed=None, epoch=5)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert listed(epoch_order(5, 2, seed=None, lengths=np.array([3, 9, 3, 1, 9]))) == [[1, 4], [0, 2], [3]]
    for batch_size in (0, -1):
        with refused(f"the batch size is {batch_size}", "use a whole number of 1 or more", SettingsError):
            epoch_order(10, batch_size, seed=0)
    before, torch_before = np.random.get_state()[1].copy(), torch.get_rng_state()
    epoch_order(100, 8, seed=1, lengths=skewed(100))
    assert (np.random.get_state()[1] == before).all()
    assert torch.equal(torch.get_rng_state(), torch_before)


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("size", [512, 5000])
def test_grouping_by_length_wastes_less_and_still_shuffles(size, multiple):
    lengths = skewed(size)
    for epoch in range(3):
        plain = epoch_order(size, 16, seed=3, epoch=epoch)
        grouped = epoch_order(size, 16, seed=3, epoch=epoch, lengths=lengths)
        assert padding_waste(lengths, grouped, multiple) < 0.5 * padding_waste(lengths, plain, multiple)
        longest = [int(lengths[rows].max()) for rows in grouped[:-1]]
        assert longest not in (sorted(longest), sorted(longest, reverse=True))


@pytest.mark.parametrize("multiple", [1, 8, 64])
@pytest.mark.parametrize("seed", range(3))
def test_waste_is_that_of_counting_padding(seed, multiple, tiny_tokenizer):
    rows = random_rows(seed, 50, "input_ids")
    order = epoch_order(50, 8, seed=seed)
    lengths = np.array([len(row["input_ids"]) for row in rows])
    masks = [PaddingCollator(tiny_tokenizer, multiple)([rows[number] for number in part])["attention_mask"] for part in order]
    padding, tokens = sum(int((mask == 0).sum()) for mask in masks), sum(mask.numel() for mask in masks)
    assert padding_waste(lengths, order, multiple) == pytest.approx(padding / tokens)
    assert padding_waste(np.zeros(0, dtype=int), []) == padding_waste(np.array([3, 3]), [np.array([0, 1])]) == 0.0


def draws() -> list[float]:
    dropped = torch.nn.functional.dropout(torch.ones(64), 0.5)
    return [random.random(), np.random.rand(), torch.rand(()).item(), *dropped.tolist()]


def test_the_same_seed_gives_the_same_draws_and_random_states_are_kept() -> None:
    for seed in [1, 42, 2**32 - 1, 2**32 + 5, 2**63 - 1]:
        seed_all(seed)
        first = draws()
        draws()
        seed_all(seed)
        assert draws() == first
        torch.manual_seed(seed)  # all that a loop written by hand may know
        assert torch.nn.functional.dropout(torch.ones(64), 0.5).tolist() == first[3:]
        seed_all(seed - 1)
        assert all(mine != theirs for mine, theirs in zip(draws()[:3], first[:3], strict=True))
    for seed in [None, 5]:
        seed_all(1)
        expected = draws()
        seed_all(1)
        with random_states_kept(torch.device("cpu"), seed):
            inside = draws()
        assert draws() == expected
        assert (inside == expected) is (seed is None)
        with random_states_kept(seed=seed):
            assert (draws() == inside) is (seed is not None)


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


def test_padding_of_what_a_tokenizer_gives_and_to_a_fixed_width_is_that_of_transformers(tokenizer):
    for tensors in ["np", "pt"]:
        texts = ["the film is good", "a story was bad"]
        columns = tokenizer(texts, return_tensors=tensors)
        assert same(PaddingCollator(tokenizer)(columns), tokenizer(texts, return_tensors="pt"))
        rows = [tokenizer(text) for text in [*texts, "very good"]]
        assert same(PaddingCollator(tokenizer)(rows), DataCollatorWithPadding(tokenizer)(rows))
    for multiple in [None, 8]:
        theirs = DataCollatorWithPadding(tokenizer, padding="max_length", max_length=48, pad_to_multiple_of=multiple)
        rows = random_rows(0, 5, "input_ids token_type_ids", LABELS["label"])
        assert same(collator_of(theirs, None, 4)(rows), theirs(copy.deepcopy(rows)))


def test_only_a_collator_that_pads_otherwise_is_kept_and_what_cannot_be_padded_is_refused(tokenizer, refused):
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
    tokenizer.pad_token = "[MASK]"
    rows = [{"input_ids": [5, 6, 7]}, {"input_ids": [8]}]
    assert PaddingCollator(tokenizer)(rows)["input_ids"].tolist() == [[5, 6, 7], [8, 4, 4]]
    with refused("a batch cannot contain text", "remove these columns first: dataset.remove_columns([…])", SettingsError):
        PaddingCollator(tokenizer)([{"input_ids": [1], "text": "a", "idx": 3}])
    with pytest.raises(SettingsError, match="the rows have different lengths of parts, and nothing pads them"):
        PaddingCollator(tokenizer)([{"input_ids": [1], "parts": [1]}, {"input_ids": [1], "parts": [1, 2]}])
    tokenizer.pad_token = None
    remedy = "set one: tokenizer.pad_token = tokenizer.eos_token"
    with refused("the tokenizer has no padding token", remedy, ModelError):
        PaddingCollator(tokenizer)


def test_rows_of_one_length_are_stacked_as_transformers_does() -> None:
    rows = [{"input_ids": [1, 2], "text": "a", "label": 0}, {"input_ids": np.array([3, 4]), "text": "b", "label": 1}]
    batch = stacked(rows)
    assert {name: value.tolist() for name, value in batch.items()} == {"input_ids": [[1, 2], [3, 4]], "labels": [0, 1]}
    batch = stacked([SimpleNamespace(input_ids=torch.tensor([1, 2]), labels=0.5)])
    assert batch["labels"].dtype == torch.float32
    with pytest.raises(SettingsError, match="different lengths of input_ids"):
        stacked([{"input_ids": [1]}, {"input_ids": [1, 2]}])
    for kind, made in {"lists": list, "arrays": np.array, "tensors": torch.tensor, "a file": list}.items():
        rows = [{name: made(cell) if isinstance(cell, list) else cell for name, cell in row.items()} for row in ROWS]
        wanted = default_data_collator(rows)
        batch = next(Batches(Dataset.from_list(rows) if kind == "a file" else rows, stacked, 5).epoch())
        assert same({**batch.inputs, "labels": batch.labels}, wanted)


ROWS = [{"input_ids": [place, 0], "attention_mask": [1, 0], "label": place % 2, "text": "a"} for place in range(5)]


@pytest.mark.parametrize("label", ["none", "labels", "label", "scores", "multi-hot"])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("seed", [None, 5])
def test_an_epoch_is_the_collated_rows_of_its_order(seed, grouped, label, tokenizer):
    rows = random_rows(1, 45, "input_ids token_type_ids", LABELS[label])
    if label == "scores":  # as they are stored: a score has 32 bits
        rows = [{**row, "label": float(np.float32(row["label"]))} for row in rows]
    collate = PaddingCollator(tokenizer)
    batches = Batches(Dataset.from_list(rows), collate, 8, seed=seed, group_by_length=grouped)
    lengths = np.array([len(row["input_ids"]) for row in rows])
    for epoch in (0, 3):
        order = epoch_order(45, 8, seed=seed, epoch=epoch, lengths=lengths if grouped else None)
        assert listed(batches.order(epoch)) == listed(order)
        found = list(batches.epoch(epoch))
        assert len(found) == len(batches) == 6
        for batch, numbers in zip(found, order, strict=True):
            wanted = collate([rows[number] for number in numbers])
            labels = {} if batch.labels is None else {"labels": batch.labels}
            assert same({**batch.inputs, **labels}, wanted)
            assert ("labels" in wanted) == (label != "none")
            assert (batch.numbers.tolist(), batch.size) == (numbers.tolist(), len(numbers))


def test_skipping_gives_the_tail(tokenizer):
    data = Dataset.from_list(random_rows(2, 45, "input_ids", LABELS["labels"]))
    batches = Batches(data, PaddingCollator(tokenizer), 8, seed=1)
    for skip in [0, 1, 4, 6, 9]:
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
    data, collate = Dataset.from_list(random_rows(3, size, "input_ids", LABELS["labels"])), PaddingCollator(tokenizer)
    options = {"seed": 4, "group_by_length": grouped}
    whole = list(Batches(data, collate, 8, **options).epoch(1))
    ranks = [{"rank": rank, "num_processes": num_processes} for rank in range(num_processes)]
    shares = [list(Batches(data, collate, 8, **options, **rank).epoch(1)) for rank in ranks]
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


def test_the_number_of_batches_is_known_before_and_whole_ones_are_dealt_to_the_processes(tokenizer):
    for drop_last in [False, True]:
        for size, batch_size in SIZES[1:]:
            data = Dataset.from_dict({"input_ids": [[1]] * size})
            batches = Batches(data, PaddingCollator(tokenizer), batch_size, drop_last=drop_last)
            number = size // batch_size if drop_last else -(-size // batch_size)
            assert len(batches) == len(batches.order()) == len(list(batches.epoch())) == number
    batches = Batches(Dataset.from_list(random_rows(7, 45, "input_ids")), PaddingCollator(tokenizer), 8)
    order = batches.order()
    for num_processes in [1, 2, 3]:
        for rank, share in enumerate([[*batches.whole(rank, num_processes)] for rank in range(num_processes)]):
            assert [batch.numbers.tolist() for batch in share] == listed(order[rank::num_processes])
            assert [batch.size for batch in share] == [len(numbers) for numbers in order[rank::num_processes]]


def test_rows_and_collators_of_any_kind_and_selected_and_formatted_data_sets(tokenizer):
    rows = random_rows(6, 30, "input_ids token_type_ids", LABELS["label"])
    ours, theirs = PaddingCollator(tokenizer), DataCollatorWithPadding(tokenizer)
    for grouped in [False, True]:
        wanted = list(Batches(Dataset.from_list(rows), ours, 4, seed=2, group_by_length=grouped).epoch())
        for data, collate in ((rows, ours), (rows, theirs), (Dataset.from_list(rows), theirs)):
            found = list(Batches(data, collate, 4, seed=2, group_by_length=grouped).epoch())
            for one, other in zip(found, wanted, strict=True):
                assert same({**one.inputs, "labels": one.labels}, {**other.inputs, "labels": other.labels})
                assert one.numbers.tolist() == other.numbers.tolist()
    rows = random_rows(5, 30, "input_ids token_type_ids", LABELS["labels"])
    chosen = [7, 3, 29, 3]
    collate = PaddingCollator(tokenizer)
    for data in (Dataset.from_list(rows).select(chosen), Dataset.from_list(rows).select(chosen).with_format("torch")):
        (batch,) = Batches(data, collate, 4).epoch()
        assert same({**batch.inputs, "labels": batch.labels}, collate([rows[number] for number in chosen]))
