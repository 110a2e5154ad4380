"""The parts of one training, as the Trainer hands them down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from glassloop.arguments import TrainingArguments
from glassloop.data.batches import Batches
from glassloop.data.interfaces import Rows
from glassloop.engine.callbacks import Callback
from glassloop.engine.interfaces import Backend, LossSum, LRScheduler, Optimizer, Say, Tensors, TrainingBatch, TrainingUse
from glassloop.engine.state import State
from glassloop.run_folder.record import Plan
from glassloop.transformers_types import Model

BatchLoss = Callable[[torch.nn.Module, TrainingBatch], torch.Tensor]
BatchStep = Callable[[torch.nn.Module, TrainingBatch, int], torch.Tensor]
Optimizers = tuple[Optimizer | None, LRScheduler | None]


class ModelWriter(Protocol):
    """Writes the model of a checkpoint or the final model to a folder, with other `weights` if given."""

    def __call__(self, folder: Path, weights: Tensors | None = None) -> None: ...


@dataclass(frozen=True)
class TrainingParts:
    """Everything one training needs. The Trainer checks and builds it; results come back through `state` and return values."""

    model: Model
    args: TrainingArguments
    backend: Backend
    use: TrainingUse
    plan: Plan
    state: State
    folder: Path
    in_run: bool  # a run holds the lock of the folder, and gets the final model

    batches: Batches  # of the training rows, padded
    train_rows: Rows
    eval_rows: Rows | None
    eval_batches: Callable[[], Batches]

    task: str
    loss_sum: LossSum
    custom_loss: LossSum | None
    optimizers: Optimizers  # of the user
    on_gradients: Callable[[torch.nn.Module], None] | None

    evaluate: Callable[[], dict[str, float] | None]  # returns None if a signal interrupts it
    metrics: str  # names what an evaluation computes
    metric_title: Callable[[str], str]
    write_model: ModelWriter
    callbacks: Sequence[Callback]
    say: Say
    say_once: Say
    quiet: bool  # no progress bar

    batch_loss: BatchLoss | None = None  # replaces the forward pass and the loss of a batch
    batch_step: BatchStep | None = None  # replaces the backward pass of a batch, too
    loss_compared: bool = False  # the loss of the model was compared with Glassloop's
    before_update: Callable[[list[TrainingBatch]], None] | None = None  # called between clipping and the update of the weights
    after_update: Callable[[], None] | None = None  # called after it, before gradients are cleared
    asked_only: bool = False  # callbacks ask for every log entry, evaluation and checkpoint
    loss_name: str | None = None  # what that loss is, so that a resumed run uses the same
    saves_in_background: bool = True  # False: code of the user writes the model of a checkpoint, or reads the checkpoint
    started: Callable[[Optimizer, LRScheduler], None] = lambda optimizer, scheduler: None  # called before the first step
