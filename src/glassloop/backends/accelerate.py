"""The backend that uses an `accelerate.Accelerator`: several processes, and the mixed precision of its config."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch

from glassloop.backends.plain import PlainBackend, SingleProcess
from glassloop.training.interfaces import LRScheduler, ObjectT, Optimizer, Prepared, ProcessGroup

if TYPE_CHECKING:
    from accelerate import Accelerator


# The process group is an object of its own, because it does not depend on how a step is executed.
class AccelerateProcesses:
    """Several processes that an `accelerate.Accelerator` connects."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.rank: int = accelerator.process_index
        self.num_processes: int = accelerator.num_processes
        self.is_main = self.rank == 0

    def agree(self, signal: int) -> int:
        return int(self.accelerator.gather(torch.tensor([signal], device=self.accelerator.device)).max().item())

    def wait(self) -> None:
        # On a machine with a GPU, Accelerate's own barrier needs one GPU per process.
        torch.distributed.barrier() if self.accelerator.device.type == "cpu" else self.accelerator.wait_for_everyone()

    def gather_figures(self, figures: torch.Tensor) -> torch.Tensor:
        # Norms are the same in all processes.
        losses = self.accelerator.reduce(figures[:, 0].contiguous(), reduction="sum")
        return torch.stack([losses, figures[:, 1]], dim=1)

    def gather_objects(self, objects: list[ObjectT]) -> list[ObjectT]:
        from accelerate.utils import gather_object

        return list(gather_object(objects))

    @contextmanager
    def main_first(self) -> Iterator[None]:
        if not self.is_main:
            self.wait()
        yield
        if self.is_main:
            self.wait()


def processes_of(accelerator: Accelerator) -> ProcessGroup:
    return AccelerateProcesses(accelerator) if accelerator.num_processes > 1 else SingleProcess()


def precision_of(accelerator: Accelerator) -> str:
    precision = str(accelerator.mixed_precision)
    return "fp32" if precision == "no" else precision


class AccelerateBackend(PlainBackend):
    """Run each part of a step through an `accelerate.Accelerator`.

    Args:
        accelerator: The accelerator. Its device, processes and mixed precision are used.
    """

    name = "accelerate"

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__(accelerator.device, precision_of(accelerator))
        self.accelerator = accelerator
        self.processes = processes_of(accelerator)
        self.scaler = getattr(accelerator, "scaler", None) or torch.amp.GradScaler("cpu", enabled=False)

    def prepare(self, model: torch.nn.Module, optimizer: Optimizer, scheduler: LRScheduler) -> Prepared:
        """Wrap `model` and `optimizer`. The `scheduler` stays as it is: Accelerate's would advance once per process."""
        model, optimizer = self.accelerator.prepare(model, optimizer)
        return model, optimizer, scheduler

    def unwrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the user's model behind a wrapped `model`."""
        unwrapped: torch.nn.Module = self.accelerator.unwrap_model(model)
        return unwrapped

    @contextmanager
    def forward(self, model: torch.nn.Module, is_last: bool = True) -> Iterator[None]:
        """Run a forward pass of `model` with autocast. Processes exchange gradients only if `is_last`: once per step."""
        with nullcontext() if is_last else self.accelerator.no_sync(model), self.accelerator.autocast():
            yield

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of the `loss` of one batch, which is divided by the examples of the whole step on all processes."""
        # Processes average their gradients, but the loss is already divided by the examples of all of them.
        self.accelerator.backward(loss * self.processes.num_processes)

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an `optimizer` by the factor that fp16 multiplied losses with."""
        self.accelerator.unscale_gradients(optimizer)

    def clip(self, model: torch.nn.Module, max_norm: float) -> torch.Tensor:
        """Scale the gradients of a `model` down to `max_norm` (0: never), and return the norm they had."""
        if self.accelerator.distributed_type.name in ("NO", "MULTI_CPU", "MULTI_GPU"):
            return super().clip(model, max_norm)
        norm = self.accelerator.clip_grad_norm_(model.parameters(), max_norm or float("inf"))
        return torch.as_tensor(norm, device=self.device)

    def step(self, optimizer: Optimizer) -> None:
        """Update the weights of an `optimizer` that `prepare` returned: it knows the scaler."""
        optimizer.step()
