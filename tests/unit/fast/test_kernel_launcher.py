"""Launches are recorded, not run, and their kernels compiled in parallel; here with stand-ins for kernels."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from glassloop.backends.fast.kernel_launcher import KernelLauncher, compile_instead_of_running


class Kernel:
    """Record each call and its thread."""

    def __init__(self, fails: bool = False) -> None:
        self.ran: list[Any] = []
        self.warmed: list[Any] = []
        self.loaded, self.fails = 0, fails

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **options: self.ran.append((grid, args, options))

    def warmup(self, *args: Any, grid: tuple[int, ...], **options: Any) -> Any:
        if self.fails:
            raise RuntimeError("no compiler")
        self.warmed.append((grid, args, options, threading.get_ident()))
        return self

    @property
    def run(self) -> None:
        self.loaded += 1


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda number: nullcontext())


def test_a_launch_runs_its_kernel() -> None:
    launch = KernelLauncher()
    kernel = Kernel()
    launch(kernel, (3,), 1, 2, BLOCK=4)
    assert kernel.ran == [((3,), (1, 2), {"BLOCK": 4})]
    assert not kernel.warmed


def test_recorded_kernels_are_compiled_and_not_run() -> None:
    launch = KernelLauncher()
    first, second = Kernel(), Kernel()
    with compile_instead_of_running(launch):
        launch(first, (3,), 1, BLOCK=4)
        launch(second, (5, 2), "x")
        launch(first, (3,), 7, BLOCK=8)
        assert not first.warmed, "nothing is compiled before all launches are recorded"
    assert [entry[:3] for entry in first.warmed] == [((3,), (1,), {"BLOCK": 4}), ((3,), (7,), {"BLOCK": 8})]
    assert (first.loaded, second.loaded) == (2, 1)
    assert first.ran == second.ran == []
    assert threading.get_ident() not in {entry[3] for entry in first.warmed + second.warmed}
    launch(first, (1,))
    assert first.ran == [((1,), (), {})], "afterwards launches run again"


def test_a_kernel_that_does_not_compile_is_left_to_its_first_launch() -> None:
    launch = KernelLauncher()
    good, bad = Kernel(), Kernel(fails=True)
    with compile_instead_of_running(launch):
        launch(bad, (1,))
        launch(good, (1,))
    assert good.loaded == 1


def test_an_error_ends_the_recording() -> None:
    launch, kernel = KernelLauncher(), Kernel()

    def stumble() -> None:
        with compile_instead_of_running(launch):
            launch(kernel, (1,))
            raise ValueError("oh")

    with pytest.raises(ValueError, match="oh"):
        stumble()
    assert launch.recorded is None
    assert kernel.ran == kernel.warmed == []


def test_nothing_to_compile() -> None:
    launch = KernelLauncher()
    with compile_instead_of_running(launch):
        pass
