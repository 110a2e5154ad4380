"""The parts of one training, as the Trainer hands them down, and what a resumed run must share with the first one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch

from glassloop.base.errors import ResumeError, SettingsError
from glassloop.base.files import absolute_name
from glassloop.data.batches import Batches
from glassloop.data.interfaces import Model, Rows
from glassloop.models.interface import config_of, label_names
from glassloop.runs.record import Difference, Plan, RunRecord, split_changes
from glassloop.scores.metrics import Measures
from glassloop.settings.file import GivenSettings
from glassloop.settings.training import TrainingArguments, data_settings, training_arguments
from glassloop.training.callbacks import Callback
from glassloop.training.identity import (
    Identity,
    config_values,
    differences,
    frozen_names,
    identified,
    optimizer_values,
    schedule_values,
    weightless_parts,
)
from glassloop.training.interfaces import Backend, LossSum, LRScheduler, Optimizer, Say, Tensors, TrainingBatch, TrainingUse
from glassloop.training.state import State

BatchLoss = Callable[[torch.nn.Module, TrainingBatch], torch.Tensor]


BatchStep = Callable[[torch.nn.Module, TrainingBatch, int], torch.Tensor]


Optimizers = tuple[Optimizer | None, LRScheduler | None]


class ModelWriter(Protocol):
    """Writes the model of a checkpoint or the final model to a folder, with other `weights` if given."""

    def __call__(self, folder: Path, weights: Tensors | None = None) -> None: ...


@dataclass(frozen=True)
class ScriptParts:
    """The parts of a training that a script for transformers may replace."""

    callbacks: Sequence[Callback]
    optimizers: Optimizers  # of the user
    write_model: ModelWriter
    quiet: bool = False  # no progress bar
    batch_loss: BatchLoss | None = None  # replaces the forward pass and the loss of a batch
    batch_step: BatchStep | None = None  # replaces the backward pass of a batch, too
    loss_compared: bool = False  # the loss of the model was compared with Glassloop's
    loss_name: str | None = None  # what that loss is, so that a resumed run uses the same
    before_update: Callable[[list[TrainingBatch]], None] | None = None  # called between clipping and the update of the weights
    after_update: Callable[[], None] | None = None  # called after it, before gradients are cleared
    asked_only: bool = False  # callbacks ask for every log entry, evaluation and checkpoint
    saves_in_background: bool = True  # False: code of the user writes the model of a checkpoint, or reads the checkpoint
    started: Callable[[Optimizer, LRScheduler], None] | None = None  # called before the first step


@dataclass(frozen=True)
class TrainingParts:
    """Everything one training needs. The Trainer checks and builds it; results come back through `state` and return values."""

    model: Model
    args: TrainingArguments
    backend: Backend
    difference: Difference | None  # of a fast backend from the plain one
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
    class_weights: Sequence[float] | None
    on_gradients: Callable[[torch.nn.Module], None] | None

    evaluate: Callable[[], dict[str, float] | None]  # returns None if a signal interrupts it
    measures: Callable[[], Measures | None]  # of an evaluation; None: those of `compute_metrics`
    compute_metrics: Callable[..., dict[str, float]] | None
    say: Say
    say_once: Say
    script: ScriptParts

    def metric_title(self, key: str) -> str:
        """Return the name to show for a metric."""
        measures = self.measures()
        return measures.title(key) if measures else key


# Settings that do not change any weight: a run may be resumed with other values.
FREE = ("output_dir", "overwrite_output_dir", "per_device_train_batch_size", "per_device_eval_batch_size",
        "eval_strategy", "eval_steps", "eval_delay", "eval_on_start", "logging_strategy", "logging_steps", "logging_first_step",
        "logging_dir", "save_strategy", "save_steps", "save_total_limit",
        "report_to", "run_name", "disable_tqdm", "backend", "device", "precision", "positive_label")  # fmt: skip


# Settings that do not change anything in the folder of a finished run.
NOT_STORED = ("output_dir", "overwrite_output_dir", "disable_tqdm")


SAME = "use the settings and the data it was started with"


def refuse_other_request(folder: Path, stored: RunRecord, given: GivenSettings) -> None:
    """Raise `SettingsError` if a finished run was trained with other settings than those given."""
    training = training_arguments({**stored.settings.to_dict(), **given.training}).to_dict()
    data = asdict(data_settings({**stored.data.given(), **given.data}).with_absolute_paths())
    then = {**asdict(stored.data.settings), **stored.settings.to_dict()}
    then |= {"data": stored.data.source, "model": stored.model.name, "new_head": stored.model.new_head}
    now = {**data, **training, "new_head": given.new_head or stored.model.new_head}
    now |= {"data": absolute_name(given.source or stored.data.source), "model": absolute_name(given.model or stored.model.name)}
    wanted = {name: value for name, value in then.items() if name not in NOT_STORED}
    if changed := differences(wanted, {name: now[name] for name in wanted}):
        raise SettingsError(
            f"{folder} is finished and was trained with different settings: {'; '.join(changed)}",
            f"omit these settings, or train a new run; --model {folder} starts from the model of this one",
        )


def refuse_other_run(stored: RunRecord, now: RunRecord, *, from_start: bool) -> None:
    """Raise `ResumeError` with old and new values if a run would be resumed with other settings or data.

    Args:
        stored: The record of the run that was started.
        now: The record of the run that would resume it.
        from_start: No checkpoint is used, which would compare settings, model and each training row by itself.
    """
    changed = split_changes(stored.data.splits, now.data.splits, stored.data.splits)
    if not from_start and split_changes(stored.data.splits, now.data.splits, ["train"]):
        return  # the checkpoint names the rows that have changed, if the model gets other rows
    if from_start and stored.identity:
        changed = differences(stored.identity, json.loads(json.dumps(now.identity))) + changed
    if changed:
        raise ResumeError(f"the run was started with different settings or data: {'; '.join(changed)}", SAME)


def refuse_other_model(given: str | None, stored: str) -> None:
    """Raise `ResumeError` if a run would be resumed with a model of another name."""
    if given and absolute_name(given) != stored:
        raise ResumeError(f"the run was started with different settings: model: {stored} then, {given} now", "omit --model")


def identity_of(parts: TrainingParts) -> Identity:
    """Return everything but the training rows that must be the same for the weights to be the same.

    The weights to start from are not part of it: a checkpoint replaces them all.
    """
    args, backend, model = parts.args, parts.backend, parts.model
    optimizer, schedule = parts.script.optimizers
    evaluation: Identity = {}
    if args.load_best_model_at_end or args.early_stopping_patience:  # evaluations decide which weights a training ends with
        measures = parts.measures()
        metrics = ", ".join(map(measures.title, measures.keys)) if measures else identified(parts.compute_metrics)
        evaluation = {"eval_strategy": args.eval_strategy, "eval_every": parts.plan.eval_every, "metrics": metrics}
        evaluation["validation"] = None  # the rows are hashed only if they are needed
    return {
        **{name: value for name, value in args.to_dict().items() if name not in FREE},
        "batch_size": args.per_device_train_batch_size * backend.processes.num_processes,
        "max_steps": parts.plan.max_steps,
        "device": backend.device.type,
        "precision": backend.precision,
        "model": f"{type(model).__name__}, {sum(weight.numel() for weight in model.parameters()):,} parameters",
        "labels": [*label_names(config_of(model))],
        "config": config_values(config_of(model)),
        "parts without weights": weightless_parts(model),
        "frozen": frozen_names(model),
        "on_gradients": None if parts.on_gradients is None else identified(parts.on_gradients),
        "loss": parts.script.loss_name or (parts.task if parts.custom_loss is None else identified(parts.custom_loss)),
        "optimizer": None if optimizer is None else optimizer_values(model, optimizer),
        "schedule": None if schedule is None else schedule_values(schedule),
        # Only rows that are not shuffled: earlier checkpoints have no entry for the order.
        **({"order": "sequential"} if isinstance(parts.batches, Batches) and parts.batches.seed is None else {}),
        **evaluation,
    }
