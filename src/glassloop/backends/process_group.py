"""The processes that train together: one alone, or several that Accelerate connects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from glassloop.engine.interfaces import ObjectT, ProcessGroup

if TYPE_CHECKING:
    from accelerate import Accelerator


class SingleProcess:
    """A single process, which never waits."""

    rank = 0
    num_processes = 1
    is_main = True

    def agree(self, signal: int) -> int:
        """Return the signal that this process received."""
        return signal

    def wait(self) -> None:
        """Return at once."""

    def gather_figures(self, figures: torch.Tensor) -> torch.Tensor:
        """Return the losses and norms of some steps as they are."""
        return figures

    def gather_objects(self, objects: list[ObjectT]) -> list[ObjectT]:
        """Return the list as it is."""
        return objects

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Run the block."""
        yield


class AccelerateProcesses:
    """Several processes that an `accelerate.Accelerator` connects."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.rank: int = accelerator.process_index
        self.num_processes: int = accelerator.num_processes
        self.is_main = self.rank == 0

    def agree(self, signal: int) -> int:
        """Return the signal that any process received, so that all stop after the same step; 0 if there is none."""
        return int(self.accelerator.gather(torch.tensor([signal], device=self.accelerator.device)).max().item())

    def wait(self) -> None:
        """Wait until all processes reach this point."""
        if self.accelerator.device.type == "cpu":
            torch.distributed.barrier()  # on a machine with a GPU, Accelerate's own barrier needs one GPU per process
        else:
            self.accelerator.wait_for_everyone()

    def gather_figures(self, figures: torch.Tensor) -> torch.Tensor:
        """Return losses, summed over all processes, and norms, which are the same in all of them."""
        losses = self.accelerator.reduce(figures[:, 0].contiguous(), reduction="sum")
        return torch.stack([losses, figures[:, 1]], dim=1)

    def gather_objects(self, objects: list[ObjectT]) -> list[ObjectT]:
        """Return the lists of all processes, joined in the order of their ranks."""
        from accelerate.utils import gather_object

        return list(gather_object(objects))

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Run the block in the main process first, so that the others find its result in the cache."""
        if not self.is_main:
            self.wait()
        yield
        if self.is_main:
            self.wait()


def process_group(accelerator: Accelerator) -> ProcessGroup:
    """Return the processes of an accelerator."""
    return AccelerateProcesses(accelerator) if accelerator.num_processes > 1 else SingleProcess()
