"""One seed for everything random: the same draws from Python, NumPy and torch, whatever was drawn before."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from glassloop.data.seeding import random_states_kept, seed_all


def draws() -> list[float]:
    dropped = torch.nn.functional.dropout(torch.ones(64), 0.5)
    return [random.random(), np.random.rand(), torch.rand(()).item(), *dropped.tolist()]


@pytest.mark.parametrize("seed", [0, 42, 2**32 - 1, 2**32 + 5, 2**63 - 1])
def test_the_same_seed_gives_the_same_draws(seed: int) -> None:
    seed_all(seed)
    first = draws()
    draws()
    seed_all(seed)
    assert draws() == first


def test_another_seed_gives_other_draws_everywhere() -> None:
    seed_all(1)
    one = draws()
    seed_all(2)
    other = draws()
    assert all(mine != theirs for mine, theirs in zip(one[:3], other[:3], strict=True))
    assert one[3:] != other[3:]


def test_the_seed_is_torchs_own() -> None:
    """So that a loop written by hand, which knows torch.manual_seed alone, drops the same."""
    seed_all(42)
    ours = torch.rand(8)
    torch.manual_seed(42)
    assert torch.equal(torch.rand(8), ours)


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
