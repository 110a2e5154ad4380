"""The backend that hands each verb to an `accelerate.Accelerator`: several processes, and the precision of its config."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from glassloop.backends.plain import PlainBackend


class AccelerateBackend(PlainBackend):
    """The same verbs, handed to an `accelerate.Accelerator`: several processes, mixed precision of its config."""

    name = "accelerate"

    def __init__(self, accelerator: Any) -> None:
        self.accelerator, self.device = accelerator, accelerator.device
        self.precision = {"no": "fp32"}.get(accelerator.mixed_precision, accelerator.mixed_precision)
        self.rank, self.num_processes = accelerator.process_index, accelerator.num_processes
        self.scaler = getattr(accelerator, "scaler", None) or torch.amp.GradScaler("cpu", enabled=False)

    def prepare(self, model: Any, optimizer: Any, scheduler: Any) -> tuple[Any, Any, Any]:
        # The schedule counts our steps, not Accelerate's: it would step once a process.
        model, optimizer = self.accelerator.prepare(model, optimizer)
        return model, optimizer, scheduler

    def unwrap(self, model: Any) -> Any:
        return self.accelerator.unwrap_model(model)

    @contextmanager
    def forward(self, model: Any, is_last: bool = True) -> Iterator[None]:
        with nullcontext() if is_last else self.accelerator.no_sync(model), self.accelerator.autocast():
            yield

    def backward(self, loss: torch.Tensor) -> None:
        # Processes average their gradients; the loss is already divided by the examples of all of them.
        self.accelerator.backward(loss * self.num_processes)

    def unscale(self, optimizer: Any) -> None:
        self.accelerator.unscale_gradients(optimizer)

    def clip(self, model: Any, max_norm: float) -> torch.Tensor:
        if self.accelerator.distributed_type.name in ("NO", "MULTI_CPU", "MULTI_GPU"):
            return super().clip(model, max_norm)
        norm = self.accelerator.clip_grad_norm_(model.parameters(), max_norm or float("inf"))
        return torch.as_tensor(norm, device=self.device)

    def step(self, optimizer: Any) -> None:
        optimizer.step()

    def gather_figures(self, figures: torch.Tensor) -> torch.Tensor:
        if self.num_processes == 1:
            return figures
        losses = self.accelerator.reduce(figures[:, 0].contiguous(), reduction="sum")
        return torch.stack([losses, figures[:, 1]], dim=1)

    def gather_objects(self, rows: list[Any]) -> list[Any]:
        from accelerate.utils import gather_object

        return list(gather_object(rows)) if self.num_processes > 1 else rows

    def agree(self, signal: int) -> int:
        if self.num_processes == 1:
            return signal
        return int(self.accelerator.gather(torch.tensor([signal], device=self.device)).max().item())

    def wait(self) -> None:
        if self.num_processes > 1 and self.device.type == "cpu":
            torch.distributed.barrier()  # Accelerate's own asks for a GPU a process wherever there is one GPU
        elif self.num_processes > 1:
            self.accelerator.wait_for_everyone()

    @contextmanager
    def main_first(self) -> Iterator[None]:
        if not self.is_main:
            self.wait()
        yield
        if self.is_main:
            self.wait()
