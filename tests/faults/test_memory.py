"""Trainings in one process, as in a k-fold loop or a notebook: what one needs is free before the next one starts."""

from __future__ import annotations

import pytest
from memory_of_trainings import memory_after_each

MEGABYTE = 1_000_000


@pytest.mark.parametrize(
    ("backend", "family"),
    [
        ("packed", "bert"),
        pytest.param("packed", "modernbert", marks=pytest.mark.exhaustive),
        pytest.param("plain", "bert", marks=pytest.mark.exhaustive),
    ],
)
def test_many_trainings_need_the_memory_of_one(backend: str, family: str) -> None:
    """One of these models has 16 MB of weights, and its training needs four times as much."""
    found = memory_after_each(7, backend, family)
    assert {each["tensors"] for each in found} == {found[0]["tensors"]}
    assert found[0]["tensors"] < MEGABYTE
    # The first rounds still load code and grow the allocator's pools. Before, each round added more than 20 MB.
    assert found[-1]["resident"] - found[3]["resident"] < 32 * MEGABYTE
