"""The order of rows: every row once, a pure function of seed and epoch, and less padding with grouping by length."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from encoded_rows import SIZES, random_rows

from glassloop.base.errors import SettingsError
from glassloop.data.batches import PaddingCollator, epoch_order, padding_waste, seed_all
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


@pytest.mark.parametrize("grouped", [False, True])
def test_seed_and_epoch_both_matter_and_cannot_be_exchanged(grouped):
    lengths = skewed(200) if grouped else None
    orders = {
        (seed, epoch): listed(epoch_order(200, 8, seed=seed, epoch=epoch, lengths=lengths))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len({str(order) for order in orders.values()}) == 9  # (0, 1) and (1, 0) among them


def test_a_shuffled_order_is_one_permutation_cut_into_batches():
    order = np.random.default_rng((42, 3)).permutation(7).tolist()
    assert listed(epoch_order(7, 3, seed=42, epoch=3)) == [order[:3], order[3:6], order[6:]]


def test_making_an_order_leaves_the_random_state_of_everyone_else_alone():
    before, torch_before = np.random.get_state()[1].copy(), torch.get_rng_state()
    epoch_order(100, 8, seed=1, lengths=skewed(100))
    assert (np.random.get_state()[1] == before).all()
    assert torch.equal(torch.get_rng_state(), torch_before)


def test_without_a_seed_the_order_is_that_of_the_data(refused):
    assert listed(epoch_order(7, 3, seed=None, epoch=5)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert listed(epoch_order(5, 2, seed=None, lengths=np.array([3, 9, 3, 1, 9]))) == [[1, 4], [0, 2], [3]]
    for batch_size in (0, -1):
        with refused(f"the batch size is {batch_size}", "use a whole number of 1 or more", SettingsError):
            epoch_order(10, batch_size, seed=0)


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


@pytest.mark.parametrize("seed", [1, 42, 2**32 - 1, 2**32 + 5, 2**63 - 1])
def test_the_same_seed_gives_the_same_draws(seed: int) -> None:
    seed_all(seed)
    first = draws()
    draws()
    seed_all(seed)
    assert draws() == first
    torch.manual_seed(seed)  # all that a loop written by hand may know
    assert torch.nn.functional.dropout(torch.ones(64), 0.5).tolist() == first[3:]
    seed_all(seed - 1)
    assert all(mine != theirs for mine, theirs in zip(draws()[:3], first[:3], strict=True))


@pytest.mark.parametrize("seed", [None, 5])
def test_random_states_are_kept(seed: int | None) -> None:
    seed_all(1)
    expected = draws()
    seed_all(1)
    with random_states_kept(torch.device("cpu"), seed):
        inside = draws()
    assert draws() == expected
    assert (inside == expected) is (seed is None)
    with random_states_kept(seed=seed):
        assert (draws() == inside) is (seed is not None)
