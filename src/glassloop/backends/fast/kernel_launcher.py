"""Compile all Triton kernels of a step in parallel before the first step, instead of one by one as they are launched."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import NamedTuple, Protocol

import torch


class CompiledKernel(Protocol):
    """A Triton kernel after compilation."""

    @property
    def run(self) -> object:
        """Load the kernel onto the device and return its launcher."""


class KernelLaunch(Protocol):
    """A Triton kernel with its grid."""

    def __call__(self, *args: object, **options: object) -> object: ...


class Kernel(Protocol):
    """A function decorated with `triton.jit`."""

    def __getitem__(self, grid: tuple[int, ...], /) -> KernelLaunch: ...

    def warmup(self, *args: object, grid: tuple[int, ...], **options: object) -> CompiledKernel: ...


class Launch(NamedTuple):
    """A recorded launch of a kernel."""

    grid: tuple[int, ...]
    args: tuple[object, ...]
    options: dict[str, object]


class KernelLauncher:
    """Launch Triton kernels; while `recorded` is set, record launches instead of running them."""

    def __init__(self) -> None:
        self.recorded: dict[Kernel, list[Launch]] | None = None

    def __call__(self, kernel: Kernel, grid: tuple[int, ...], *args: object, **options: object) -> None:
        """Run a kernel, or record the launch."""
        if self.recorded is None:
            kernel[grid](*args, **options)
        else:
            self.recorded.setdefault(kernel, []).append(Launch(grid, args, options))


@contextmanager
def compile_instead_of_running(*launchers: KernelLauncher) -> Iterator[None]:
    """Record every launch inside the block, then compile and load those kernels, each in its own thread."""
    recorded: dict[Kernel, list[Launch]] = {}
    for launcher in launchers:
        launcher.recorded = recorded
    try:
        yield
    finally:
        for launcher in launchers:
            launcher.recorded = None
    device = torch.cuda.current_device()
    with ThreadPoolExecutor(max(len(recorded), 1)) as pool:
        list(pool.map(lambda kernel: compile_kernel(kernel, recorded[kernel], device), recorded))


def compile_kernel(kernel: Kernel, launches: list[Launch], device: int) -> None:
    """Compile and load a kernel for these launches; an error is raised later, when the kernel is launched."""
    with suppress(Exception), torch.cuda.device(device):
        for launch in launches:
            compiled = kernel.warmup(*launch.args, grid=launch.grid, **launch.options)
            _ = compiled.run  # reading this attribute loads the kernel
