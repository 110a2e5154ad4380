"""The backend of plain PyTorch: one process, one device. The other backends change parts of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch

from glassloop.data.batches import Batches
from glassloop.training.interfaces import (
    LRScheduler,
    ObjectT,
    Optimizer,
    OptimizerFactory,
    OptimizerState,
    ProcessGroup,
    RowBatches,
    Say,
    StepFunction,
    TrainingUse,
)
from glassloop.training.optimizer import make_optimizer

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
        self.processes: ProcessGroup = SingleProcess()
        self.autocast_dtype = AUTOCAST_DTYPES[precision]
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")

    # The verbs of a step

    @contextmanager
    def forward(self, model: torch.nn.Module, is_last: bool = True) -> Iterator[None]:
        """Run a forward pass in the precision of this backend."""
        with torch.autocast(self.device.type, self.autocast_dtype, enabled=self.autocast_dtype is not None):
            yield

    @overload
    def move(self, data: dict[str, ValueT]) -> dict[str, ValueT]: ...
    @overload
    def move(self, data: DataT) -> DataT: ...
    def move(self, data: object) -> object:
        """Return a tensor, or all tensors in a dict, on the device of this process."""
        if isinstance(data, dict):
            return {name: self.move(value) for name, value in data.items()}
        return data.to(self.device, non_blocking=True) if hasattr(data, "to") else data

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of a loss."""
        scaled: Any = self.scaler.scale(loss)
        scaled.backward()

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide gradients by the factor that fp16 multiplied losses with."""
        if self.scaler.is_enabled():
            self.scaler.unscale_(optimizer)

    def clip(self, model: torch.nn.Module, max_norm: float) -> torch.Tensor:
        """Scale gradients down to `max_norm`, and return the norm they had."""
        parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm([weight.grad for weight in parameters if weight.grad is not None])
        if max_norm > 0:
            torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        # fp16's scaler raises its factor until gradients overflow, and skips that step: this is not divergence.
        return torch.where(norm.isfinite(), norm, 0.0) if self.precision == "fp16" else norm

    def step(self, optimizer: Optimizer) -> None:
        """Update the weights."""
        if self.scaler.is_enabled():
            self.scaler.step(optimizer)
            self.scaler.update()
        else:
            optimizer.step()

    # The lifecycle of a training

    def describe_savings(self, model: torch.nn.Module, use: TrainingUse) -> list[str]:
        """Return a short description of each saving that a training uses."""
        return []

    def training_context(self) -> AbstractContextManager[None]:
        """Return the context that all work of a training runs in."""
        return nullcontext()

    def start_training(self, model: torch.nn.Module, use: TrainingUse) -> OptimizerFactory:
        """Put the savings of a training in place, and return what makes its optimizer."""
        return make_optimizer

    def prepare(
        self, model: torch.nn.Module, optimizer: Optimizer, scheduler: LRScheduler
    ) -> tuple[torch.nn.Module, Optimizer, LRScheduler]:
        """Return model, optimizer and schedule as the steps use them."""
        return model, optimizer, scheduler

    def unwrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the user's model behind a prepared one."""
        return model

    def adapt_batches(self, batches: Batches, rows: object) -> RowBatches:
        """Return batches in the form this backend trains on."""
        return batches

    def wrap_step(
        self, step: Callable[..., torch.Tensor], optimizer: Optimizer, scheduler: LRScheduler, say: Say
    ) -> StepFunction:
        """Return the function that runs one step."""
        return partial(step, scheduler=scheduler)

    def evaluation_context(self, model: torch.nn.Module) -> AbstractContextManager[None]:
        """Return the context that a pass over a split runs in."""
        return nullcontext()

    def sync_to_model(self) -> None:
        """Copy trained weights into the model, if they are stored elsewhere during training."""

    def sync_from_model(self) -> None:
        """Take over weights that were just loaded into the model."""

    def gather_optimizer_state(self, optimizer: Optimizer) -> OptimizerState | None:
        """Return the optimizer's state gathered from all processes; None if the optimizer holds all of it."""
        return None

    def end_training(self) -> None:
        """Remove the savings from the model, which keeps its trained weights."""
