"""What a backend offers, as Protocols: the process group, and the lifecycle of a training around the steps of loop.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch.optim import Optimizer as Optimizer
from torch.optim.lr_scheduler import LRScheduler as LRScheduler

from glassloop.data.batches import Batch, Batches
from glassloop.data.interfaces import Rows
from glassloop.training.loop import BatchSource as BatchSource
from glassloop.training.loop import Scheduler as Scheduler
from glassloop.training.loop import StepBackend as StepBackend
from glassloop.training.loop import TrainingBatch as TrainingBatch

Tensors = dict[str, torch.Tensor]
Say = Callable[[str], None]  # shows a line to the user
LossSum = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # logits, labels -> the sum of the rows' losses
StepFunction = Callable[[list[Batch]], torch.Tensor]  # a group of batches -> loss and gradient norm
OptimizerState = Mapping[torch.nn.Parameter, Mapping[str, Any]]  # what an optimizer stores for each parameter
OptimizerFactory = Callable[..., Optimizer]  # takes what `make_optimizer` takes
ObjectT = TypeVar("ObjectT")
Prepared = tuple[torch.nn.Module, Optimizer, LRScheduler]


class RowBatches(BatchSource[Batch], Protocol):
    """The batches of a data set: padded (`data.batches.Batches`) or packed (`backends.fast.packing.PackedBatches`)."""

    batch_size: int

    def __len__(self) -> int: ...
    def order(self, epoch: int = 0) -> list[np.ndarray]: ...  # which rows each batch of an epoch holds
    def epoch(self, epoch: int = 0, skip: int = 0) -> Iterator[Batch]: ...  # without the first `skip` batches
    def whole(self, rank: int = 0, num_processes: int = 1) -> Iterator[Batch]: ...  # of a pass over all rows
    def row_hashes(self) -> np.ndarray: ...  # eight bytes for each row


class ProcessGroup(Protocol):
    """The processes that train together; most often there is only one."""

    @property
    def rank(self) -> int: ...
    @property
    def num_processes(self) -> int: ...
    @property
    def is_main(self) -> bool: ...

    def agree(self, signal: int) -> int: ...  # the signal that any process received, so that all stop after the same step, or 0
    def wait(self) -> None: ...  # until all processes reach this point
    def gather_figures(self, figures: torch.Tensor) -> torch.Tensor: ...  # losses, summed over the processes, and norms
    def gather_objects(self, objects: list[ObjectT]) -> list[ObjectT]: ...  # of all processes, in the order of their ranks
    def main_first(self) -> AbstractContextManager[None]: ...  # so that the others find its result in the cache


@dataclass(frozen=True)
class TrainingUse:
    """How a model will be trained, as far as a backend has to know it before the first step."""

    data_sets: Sequence[Rows]  # the rows of training and evaluation
    weight_decay: float
    reads_gradients: bool = False  # `on_gradients` is given: gradients must be complete and in full precision
    adds_gradients: bool = False  # gradients of several batches are added up in one step
    reads_weights: bool = False  # a callback may read the model's weights after each step
    # Replaces the forward pass and the loss of a batch, as in `train_step`: code of a user calls the model.
    batch_loss: Callable[[torch.nn.Module, TrainingBatch], torch.Tensor] | None = None

    @property
    def runs_own_code(self) -> bool:
        """Whether code of the user runs within each step: gradients must be complete, and a step cannot be captured."""
        return self.reads_gradients or self.batch_loss is not None


class EvaluationBackend(StepBackend, Protocol):
    """What a pass over a split needs: the verbs of a forward pass, and the processes that share the batches."""

    @property
    def processes(self) -> ProcessGroup: ...


class Backend(EvaluationBackend, Protocol):
    """The lifecycle of a training, around the verbs of its steps. `PlainBackend` documents each method."""

    name: str
    precision: str
    scaler: torch.amp.GradScaler

    def describe_savings(self, model: torch.nn.Module, use: TrainingUse) -> list[str]: ...
    def training_context(self) -> AbstractContextManager[None]: ...
    def start_training(self, model: torch.nn.Module, use: TrainingUse) -> OptimizerFactory: ...
    def prepare(self, model: torch.nn.Module, optimizer: Optimizer, scheduler: LRScheduler) -> Prepared: ...
    def unwrap(self, model: torch.nn.Module) -> torch.nn.Module: ...
    def adapt_batches(self, batches: Batches, rows: object) -> RowBatches: ...
    def script_inputs(self, batch: TrainingBatch) -> Tensors: ...
    def wrap_step(
        self, step: Callable[..., torch.Tensor], optimizer: Optimizer, scheduler: LRScheduler, say: Say
    ) -> StepFunction: ...
    def evaluation_context(self, model: torch.nn.Module) -> AbstractContextManager[None]: ...
    def sync_to_model(self) -> None: ...
    def sync_from_model(self) -> None: ...
    def gather_optimizer_state(self, optimizer: Optimizer) -> OptimizerState | None: ...
    def end_training(self) -> None: ...
