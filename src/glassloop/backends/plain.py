"""How a step is run: the few verbs the loop needs, said in plain torch and said to Accelerate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from glassloop.engine.optimizer import make_optimizer

AUTOCAST_KINDS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class PlainBackend:
    """One process, one device, plain PyTorch."""

    name = "plain"
    rank = 0
    num_processes = 1
    watched = False  # whether somebody may look at weights between steps

    def __init__(self, device: str | torch.device = "cpu", precision: str = "fp32") -> None:
        self.device, self.precision = torch.device(device), precision
        self.kind = AUTOCAST_KINDS[precision]
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")

    def prepare(self, model: Any, optimizer: Any, scheduler: Any) -> tuple[Any, Any, Any]:
        return model, optimizer, scheduler

    def unwrap(self, model: Any) -> Any:
        return model

    def move(self, data: Any) -> Any:
        """Tensors on the device of this process."""
        if isinstance(data, dict):
            return {name: self.move(value) for name, value in data.items()}
        return data.to(self.device, non_blocking=True)

    @contextmanager
    def forward(self, model: Any, is_last: bool = True) -> Iterator[None]:
        """The precision of a forward pass. `is_last`: gradients are complete after its backward pass."""
        with torch.autocast(self.device.type, self.kind, enabled=self.kind is not None):
            yield

    def backward(self, loss: torch.Tensor) -> None:
        scaled: Any = self.scaler.scale(loss)
        scaled.backward()

    def unscale(self, optimizer: Any) -> None:
        if self.scaler.is_enabled():
            self.scaler.unscale_(optimizer)

    def clip(self, model: Any, max_norm: float) -> torch.Tensor:
        """Scale gradients down to `max_norm` (0: never); return the norm they had."""
        parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters])
        if max_norm > 0:
            torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        # fp16's scaler tries larger scales until gradients overflow, then leaves that step out: no sign of divergence.
        return torch.where(norm.isfinite(), norm, 0.0) if self.precision == "fp16" else norm

    def step(self, optimizer: Any) -> None:
        if self.scaler.is_enabled():
            self.scaler.step(optimizer)
            self.scaler.update()
        else:
            optimizer.step()

    def saved_names(self, model: Any, data_sets: Sequence[Any], weight_decay: float) -> list[str]:
        """The savings of a training, in words."""
        return []

    def stage(self) -> Any:
        """Where a training runs."""
        return nullcontext()

    def runner(
        self, step: Callable[..., torch.Tensor], optimizer: Any, scheduler: Any, say: Callable[[str], None]
    ) -> Callable[[list[Any]], torch.Tensor]:
        """How a step is run: here, as it is written."""
        return partial(step, scheduler=scheduler)

    def open(self, model: Any, data_sets: Sequence[Any], weight_decay: float, *, shown: bool, adds: bool) -> Callable[..., Any]:
        """Make ready for a training; returns what makes its optimizer. `shown`: gradients are looked at, `adds`: added up."""
        return make_optimizer

    def equipped(self, model: Any) -> Any:
        """What a pass over a split needs."""
        return nullcontext()

    def batches(self, batches: Any, rows: Any) -> Any:
        """Batches as this backend takes them."""
        return batches

    def settle(self) -> None:
        """Bring the module's weights up to date, where they are trained elsewhere."""

    def reload(self) -> None:
        """Take the module's weights, which were just loaded."""

    def optimizer_state(self, optimizer: Any) -> Any:
        """What the optimizer keeps of each parameter, where it has to be gathered from all processes."""
        return None

    def close(self) -> None:
        """After a training."""

    def gather_figures(self, figures: torch.Tensor) -> torch.Tensor:
        """Losses and norms of some steps, over all processes."""
        return figures

    def gather_objects(self, rows: list[Any]) -> list[Any]:
        """The lists of all processes, one after the other."""
        return rows

    def agree(self, signal: int) -> int:
        """The signal that any process was asked to stop by; all act on it after the same step."""
        return signal

    def wait(self) -> None:
        """Wait until all processes are here."""

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Let the main process do something first, so that the others find it in the cache."""
        yield

    @property
    def is_main(self) -> bool:
        return self.rank == 0
