"""Trainings in one process, as in a k-fold loop or a notebook: what one needs is free before the next one starts."""

from __future__ import annotations

import pytest
from memory_of_trainings import grown, memory_after_each

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
    assert_nothing_is_left(found)
    assert {each["tensors"] for each in found} == {found[0]["tensors"]}
    assert found[0]["tensors"] < MEGABYTE
    # The first rounds still load code and grow the allocator's pools. Before, each round added more than 20 MB.
    assert found[-1]["resident"] - found[3]["resident"] < 32 * MEGABYTE


def assert_nothing_is_left(found: list[dict[str, int]]) -> None:
    """Once all code is loaded, every training leaves as many objects, threads and open files as the one before."""
    for name in ("objects", "threads", "files"):
        assert found[-1][name] == found[2][name], name


@pytest.mark.exhaustive
def test_a_hundred_short_trainings_leak_nothing() -> None:
    found = memory_after_each(100, "packed", "bert")
    assert_nothing_is_left(found)
    assert found[-1]["tensors"] == found[0]["tensors"]
    assert found[-1]["resident"] - found[3]["resident"] < 8 * MEGABYTE


def test_what_a_training_leaves_behind_is_noticed() -> None:
    """Objects, tensors, threads, open files and memory: the counts of the tests above see each of them."""
    assert grown(memory_after_each(4, "packed", "bert", leaks=True)) >= {"objects", "tensors", "threads", "files", "resident"}
