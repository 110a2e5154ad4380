"""The backend that uses an `accelerate.Accelerator`: several processes, and the mixed precision of its config."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch

from glassloop.backends.plain import PlainBackend, process_group
from glassloop.training.interfaces import LRScheduler, Optimizer

if TYPE_CHECKING:
    from accelerate import Accelerator


class AccelerateBackend(PlainBackend):
    """Run each part of a step through an `accelerate.Accelerator`.

    Args:
        accelerator: The accelerator. Its device, processes and mixed precision are used.
    """

    name = "accelerate"

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator, self.device = accelerator, accelerator.device
        self.precision = {"no": "fp32"}.get(accelerator.mixed_precision, accelerator.mixed_precision)
        self.processes = process_group(accelerator)
        self.scaler = getattr(accelerator, "scaler", None) or torch.amp.GradScaler("cpu", enabled=False)

    def prepare(
        self, model: torch.nn.Module, optimizer: Optimizer, scheduler: LRScheduler
    ) -> tuple[torch.nn.Module, Optimizer, LRScheduler]:
        """Wrap model and optimizer. The schedule stays as it is: Accelerate's would advance once per process."""
        model, optimizer = self.accelerator.prepare(model, optimizer)
        return model, optimizer, scheduler

    def unwrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the user's model behind a wrapped one."""
        unwrapped: torch.nn.Module = self.accelerator.unwrap_model(model)
        return unwrapped

    @contextmanager
    def forward(self, model: torch.nn.Module, is_last: bool = True) -> Iterator[None]:
        """Run a forward pass with autocast. Processes exchange gradients after the last backward pass of a step only."""
        with nullcontext() if is_last else self.accelerator.no_sync(model), self.accelerator.autocast():
            yield

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of a loss."""
        # Processes average their gradients, but the loss is already divided by the examples of all of them.
        self.accelerator.backward(loss * self.processes.num_processes)

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide gradients by the factor that fp16 multiplied losses with."""
        self.accelerator.unscale_gradients(optimizer)

    def clip(self, model: torch.nn.Module, max_norm: float) -> torch.Tensor:
        """Scale gradients down to `max_norm`, and return the norm they had."""
        if self.accelerator.distributed_type.name in ("NO", "MULTI_CPU", "MULTI_GPU"):
            return super().clip(model, max_norm)
        norm = self.accelerator.clip_grad_norm_(model.parameters(), max_norm or float("inf"))
        return torch.as_tensor(norm, device=self.device)

    def step(self, optimizer: Optimizer) -> None:
        """Update the weights."""
        optimizer.step()
