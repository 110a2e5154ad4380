"""The backend of plain PyTorch: one process, one device. The other backends change parts of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar, overload

import torch

from glassloop.data.batches import Batches
from glassloop.training import interfaces
from glassloop.training.interfaces import LRScheduler, Optimizer
from glassloop.training.optimizer import make_optimizer


class SingleProcess:
    """A single process, which never waits: the methods of `ProcessGroup` return what they are given."""

    rank = 0
    num_processes = 1
    is_main = True

    def agree(self, signal: int) -> int:
        return signal

    def wait(self) -> None: ...

    def gather_figures(self, figures: torch.Tensor) -> torch.Tensor:
        return figures

    def gather_objects(self, objects: list[interfaces.ObjectT]) -> list[interfaces.ObjectT]:
        return objects

    @contextmanager
    def main_first(self) -> Iterator[None]:
        yield


AUTOCAST_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
DataT = TypeVar("DataT")
ValueT = TypeVar("ValueT")


class PlainBackend:
    """One process, one device, plain PyTorch.

    Args:
        device: The device to train on, such as "cpu" or "cuda".
        precision: "fp32", "bf16" or "fp16"; the last two use autocast.

    Attributes:
        processes: The processes that train together.
        autocast_dtype: The type that autocast uses; None in fp32.
        scaler: Scales the loss in fp16.
    """

    name = "plain"

    def __init__(self, device: str | torch.device = "cpu", precision: str = "fp32") -> None:
        self.device, self.precision = torch.device(device), precision
        self.processes: interfaces.ProcessGroup = SingleProcess()
        self.autocast_dtype = AUTOCAST_DTYPES[precision]
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")

    # The verbs of a step

    @contextmanager
    def forward(self, model: torch.nn.Module, is_last: bool = True) -> Iterator[None]:
        """Run a forward pass of `model` in this precision. `is_last`: its backward pass completes the gradients of the step."""
        with torch.autocast(self.device.type, self.autocast_dtype, enabled=self.autocast_dtype is not None):
            yield

    @overload
    def move(self, data: dict[str, ValueT]) -> dict[str, ValueT]: ...
    @overload
    def move(self, data: DataT) -> DataT: ...
    def move(self, data: object) -> object:
        """Return `data` on the device: a tensor, or a dict, in which values that cannot be moved stay as they are."""
        if isinstance(data, dict):
            return {name: self.move(value) for name, value in data.items()}
        return data.to(self.device, non_blocking=True) if hasattr(data, "to") else data

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of the `loss` of one batch, which is divided by the examples of the whole step."""
        scaled: Any = self.scaler.scale(loss)
        scaled.backward()

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an `optimizer` by the factor that fp16 multiplied losses with."""
        if self.scaler.is_enabled():
            self.scaler.unscale_(optimizer)

    def clip(self, model: torch.nn.Module, max_norm: float) -> torch.Tensor:
        """Scale the gradients of a `model` down to `max_norm` (0: never), and return the norm they had."""
        parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm([weight.grad for weight in parameters if weight.grad is not None])
        if max_norm > 0:
            torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        # fp16's scaler raises its factor until gradients overflow, and skips that step: this is not divergence.
        return torch.where(norm.isfinite(), norm, 0.0) if self.precision == "fp16" else norm

    def step(self, optimizer: Optimizer) -> None:
        """Update the weights of an `optimizer`."""
        if self.scaler.is_enabled():
            self.scaler.step(optimizer)
            self.scaler.update()
        else:
            optimizer.step()

    # The lifecycle of a training

    def describe_savings(self, model: torch.nn.Module, use: interfaces.TrainingUse) -> list[str]:
        """Return a short description of each saving that the training of a `model` for this `use` has."""
        return []

    def training_context(self) -> AbstractContextManager[None]:
        """Return the context that all work of a training runs in."""
        return nullcontext()

    def start_training(self, model: torch.nn.Module, use: interfaces.TrainingUse) -> interfaces.OptimizerFactory:
        """Put the savings of training a `model` for this `use` in place, and return what makes its optimizer."""
        return make_optimizer

    def prepare(self, model: torch.nn.Module, optimizer: Optimizer, scheduler: LRScheduler) -> interfaces.Prepared:
        """Return `model`, `optimizer` and `scheduler` as the steps use them."""
        return model, optimizer, scheduler

    def unwrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the user's model behind a `model` that `prepare` returned."""
        return model

    def adapt_batches(self, batches: Batches, rows: object) -> interfaces.RowBatches:
        """Return the `batches` of a data set, its `rows`, in the form this backend trains on."""
        return batches

    def script_inputs(self, batch: interfaces.TrainingBatch) -> interfaces.Tensors:
        """Return the padded inputs of a `batch` on the device, for a user's code that calls the model with them."""
        return self.move({**batch.inputs})  # type: ignore[dict-item]  # batches consist of tensors

    def wrap_step(
        self, step: Callable[..., torch.Tensor], optimizer: Optimizer, scheduler: LRScheduler, say: interfaces.Say
    ) -> interfaces.StepFunction:
        """Return the function that runs one step with `optimizer` and `scheduler`. `say` shows a line to the user.

        `step` is `train_step` with all its arguments except the batches and the schedule.
        """
        return partial(step, scheduler=scheduler)

    def evaluation_context(self, model: torch.nn.Module) -> AbstractContextManager[None]:
        """Return the context that a pass of a `model` over a split runs in."""
        return nullcontext()

    def sync_to_model(self) -> None:
        """Copy trained weights into the model, if they are stored elsewhere during training."""

    def sync_from_model(self) -> None:
        """Take over weights that were just loaded into the model."""

    def gather_optimizer_state(self, optimizer: Optimizer) -> interfaces.OptimizerState | None:
        """Return the state of an `optimizer` gathered from all processes; None if it holds all of it."""
        return None

    def end_training(self) -> None:
        """Remove the savings from the model, which keeps its trained weights."""
