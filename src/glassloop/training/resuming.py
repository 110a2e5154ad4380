"""What a resumed run must share with the run that was started, so that its numbers are the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glassloop.arguments import TrainingArguments
from glassloop.engine.identity import (
    Identity,
    config_values,
    differences,
    frozen_names,
    identified,
    optimizer_values,
    schedule_values,
)
from glassloop.errors import ModelError, SettingsError
from glassloop.files import absolute_name
from glassloop.models.outputs import label_names
from glassloop.run_folder.record import RunRecord, split_changes
from glassloop.settings import data_settings
from glassloop.training.parts import TrainingParts

# Settings that change no weight: a run may be resumed with others.
FREE = ("output_dir", "overwrite_output_dir", "per_device_train_batch_size", "per_device_eval_batch_size",
        "eval_strategy", "eval_steps", "eval_on_start", "logging_steps", "save_strategy", "save_steps", "save_total_limit",
        "report_to", "run_name", "disable_tqdm", "backend", "device", "precision", "positive_label")  # fmt: skip
# Settings that do not even change what a finished run has written.
SHOWN = ("output_dir", "overwrite_output_dir", "disable_tqdm")
SAME = "give the settings and the data it was started with"


@dataclass(frozen=True)
class Request:
    """What a person asks of a run; None, False and missing settings ask for nothing."""

    data: str | None
    model: str | None
    training: Mapping[str, Any]
    data_settings: Mapping[str, Any]
    new_head: bool = False


def refuse_other_request(folder: Path, stored: RunRecord, asked: Request) -> None:
    """Raise `SettingsError` where more is asked of a finished run than it has done."""
    training = TrainingArguments(**{**stored.settings.to_dict(), **asked.training}).to_dict()
    data = asdict(data_settings({**stored.data.given(), **asked.data_settings}))
    then = {**asdict(stored.data.settings), **stored.settings.to_dict()}
    then |= {"data": stored.data.source, "model": stored.model.name, "new_head": stored.model.new_head}
    now = {**data, **training, "new_head": asked.new_head or stored.model.new_head}
    now |= {"data": absolute_name(asked.data or stored.data.source), "model": absolute_name(asked.model or stored.model.name)}
    wanted = {name: value for name, value in then.items() if name not in SHOWN}
    if changed := differences(wanted, {name: now[name] for name in wanted}):
        raise SettingsError(
            f"{folder} is finished, and was trained with different settings: {'; '.join(changed)}",
            f"train a new run, from this one's model with --model {folder}, or omit the settings",
        )


def refuse_other_run(stored: RunRecord, now: RunRecord, *, from_start: bool) -> None:
    """Raise `ModelError` where a resumed run is not the one that was started, with both values.

    `from_start`: there is no checkpoint, which would know settings, model and each training row better.
    """
    changed = split_changes(stored.data.splits, now.data.splits, stored.data.splits)
    if not from_start and split_changes(stored.data.splits, now.data.splits, ["train"]):
        return  # the checkpoint says which rows have changed, or that the model gets the same
    if from_start and stored.identity:
        changed = differences(stored.identity, json.loads(json.dumps(now.identity))) + changed
    if changed:
        raise ModelError(f"the run was started with different settings or data: {'; '.join(changed)}", SAME)


def refuse_other_model(given: str | None, stored: str) -> None:
    """Raise `ModelError` where a run would be resumed with a model of another name."""
    if given and absolute_name(given) != stored:
        raise ModelError(f"the run was started with different settings: model: {stored} then, {given} now", "omit --model")


def identity_of(parts: TrainingParts) -> Identity:
    """Return everything but the training rows that must be the same for the weights to be the same.

    The weights to start from are not part of it: a checkpoint replaces them all.
    """
    args, backend, model = parts.args, parts.backend, parts.model
    optimizer, schedule = parts.optimizers
    evaluation = {"eval_strategy": args.eval_strategy, "eval_every": parts.plan.eval_every, "metrics": parts.metrics}
    evaluation["validation"] = None  # the rows are hashed only if they are needed
    return {
        **{name: value for name, value in args.to_dict().items() if name not in FREE},
        "batch_size": args.per_device_train_batch_size * backend.processes.num_processes,
        "max_steps": parts.plan.max_steps,
        "device": backend.device.type,
        "precision": backend.precision,
        "model": f"{type(model).__name__}, {sum(weight.numel() for weight in model.parameters()):,} parameters",
        "labels": [*label_names(model.config)],
        "config": config_values(model.config),
        "frozen": frozen_names(model),
        "loss": parts.task if parts.custom_loss is None else identified(parts.custom_loss),
        "optimizer": None if optimizer is None else optimizer_values(model, optimizer),
        "schedule": None if schedule is None else schedule_values(schedule),
        # Evaluations matter where they decide which weights a training ends with.
        **(evaluation if args.load_best_model_at_end or args.early_stopping_patience else {}),
    }
