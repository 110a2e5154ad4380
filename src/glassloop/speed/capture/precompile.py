"""Kernels made ready before the first step, all at once: Triton else compiles each when it is first launched, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import torch

Launches = dict[Any, list[tuple[Any, ...]]]  # by kernel: grids, arguments and options
noted: Launches | None = None  # while a rehearsal goes on: the launches so far


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Run a Triton kernel; in a rehearsal, only note that it would be run."""
    if noted is None:
        kernel[grid](*args, **options)
    else:
        noted.setdefault(kernel, []).append((grid, args, options))


@contextmanager
def rehearsal() -> Iterator[None]:
    """What is launched inside is not run; at the end it is compiled and loaded, each kernel in a thread of its own."""
    global noted
    found: Launches = {}
    noted = found
    try:
        yield
    finally:
        noted = None
    device = torch.cuda.current_device()
    with ThreadPoolExecutor(max(len(found), 1)) as pool:
        list(pool.map(lambda kernel: ready(kernel, found[kernel], device), found))


def ready(kernel: Any, launches: list[tuple[Any, ...]], device: int) -> None:
    """Compile and load what these launches need. What fails here fails again, and is told, when it is launched."""
    with suppress(Exception), torch.cuda.device(device):
        for grid, args, options in launches:
            compiled = kernel.warmup(*args, grid=grid, **options)
            _ = compiled.run  # Triton loads it when this is asked for
