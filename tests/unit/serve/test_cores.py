"""Threads of parallel operations on cores of their own: set before torch is loaded, and only if nobody has chosen."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from glassloop.serve.batching import BINDING, CHOICES, bind_threads

needs_affinity = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not bind threads to cores")


@pytest.fixture(autouse=True)
def _nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CHOICES:
        monkeypatch.delenv(name, raising=False)


@needs_affinity
def test_nothing_is_set_after_torch_has_read_the_variables_or_somebody_has_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", sys)
    assert bind_threads() == set()
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert bind_threads() == set()
    assert BINDING not in os.environ


@needs_affinity
@pytest.mark.slow
def test_threads_have_cores_of_their_own_and_a_freed_one_has_all() -> None:
    code = """
import os
from concurrent.futures import ThreadPoolExecutor
from glassloop.serve.batching import bind_threads, free_thread

cores = bind_threads()
import torch

before = {*os.listdir("/proc/self/task")}
torch.zeros(40_000_000).add_(1)
workers = [int(name) for name in {*os.listdir("/proc/self/task")} - before]
bound = [os.sched_getaffinity(thread) for thread in (0, *workers)]
with ThreadPoolExecutor(1, "requests", free_thread, (cores,)) as pool:
    free = pool.submit(os.sched_getaffinity, 0).result()
print(free == cores, all(len(places) == 1 for places in bound), len({*map(min, bound)}) == len(cores))
"""
    environment = {name: value for name, value in os.environ.items() if name not in CHOICES}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.split() == ["True"] * 3, done.stderr
