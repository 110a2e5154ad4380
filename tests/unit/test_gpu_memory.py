"""How many runs a GPU has memory for."""

from __future__ import annotations

import os

import pytest

from glassloop.backends import machine as gpu_memory
from glassloop.backends.machine import memory_need, runs_at_once, runs_on_gpus

GIB = 2**30


@pytest.mark.parametrize(
    ("free", "cores", "found"),
    [(139 * GIB, 16, 8), (139 * GIB, 4, 4), (20 * GIB, 16, 3), (1 * GIB, 16, 1), (None, 16, 1)],
    ids=["at most eight", "at most the cores", "what fits", "one is always tried", "nobody knows"],
)
def test_as_many_runs_as_a_gpu_has_room_for(monkeypatch, free: int | None, cores: int, found: int) -> None:
    """Free memory is asked for in another process; a tenth of it is left alone."""
    answer = f"print({free})" if free is not None else "raise SystemExit(1)"
    monkeypatch.setattr(gpu_memory, "FREE_MEMORY", answer)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert runs_at_once("cuda", 5 * GIB) == found


@pytest.mark.parametrize(
    ("free", "cores", "found"),
    [
        ((139, 20, 1), 16, [5, 3, 0]),
        ((1, 4, 3), 16, [0, 1, 0]),
        ((139,), 16, [5, 0, 0]),
        ((), 16, [1, 0, 0]),
        ((139, 139, 139), 2, [1, 1, 1]),
    ],
    ids=["each for itself", "one is tried where most is free", "of one GPU known", "nobody knows", "few cores"],
)
def test_each_gpu_gets_the_runs_that_fit(monkeypatch, free: tuple[int, ...], cores: int, found: list[int]) -> None:
    monkeypatch.setattr(gpu_memory, "FREE_MEMORY", f"print(*{[one * GIB for one in free]})")
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert runs_on_gpus(3, 5 * GIB) == found


def test_one_run_at_a_time_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "FREE_MEMORY", f"print({139 * GIB})")
    assert [runs_at_once("cpu", 1.0), runs_at_once("mps", 1.0)] == [1, 1]


@pytest.mark.parametrize(
    ("num_parameters", "layers", "hidden", "heads"),
    [(22_700_000, 6, 384, 12), (110_000_000, 12, 768, 12), (335_000_000, 24, 1024, 16)],
)
def test_the_need_of_a_run_is_not_too_small(num_parameters: int, layers: int, hidden: int, heads: int) -> None:
    """Activations of a layer in fp32 without fused attention: tokens x (68 hidden + 10 heads length) bytes."""
    length, rows = 512, 16
    activations = rows * length * layers * (68 * hidden + 10 * heads * length)
    least = 16 * num_parameters + activations
    assert least < memory_need(num_parameters, rows * length) < 4 * least + 3 * GIB
