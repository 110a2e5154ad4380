"""What a resumed run must share with the run that was started, so that its numbers are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glassloop.engine.identity import (
    Identity,
    config_values,
    frozen_names,
    identified,
    optimizer_values,
    schedule_values,
)
from glassloop.engine.state import Plan
from glassloop.modeling import label_names

if TYPE_CHECKING:
    from glassloop.trainer import Trainer

# Settings that change no weight: a run may be resumed with others.
FREE = ("output_dir", "per_device_train_batch_size", "per_device_eval_batch_size", "eval_strategy", "eval_steps",
        "eval_on_start", "logging_steps", "save_strategy", "save_steps", "save_total_limit", "report_to", "run_name",
        "disable_tqdm", "backend", "device", "precision")  # fmt: skip


def identity_of(trainer: Trainer, plan: Plan) -> Identity:
    """Return everything but the training rows that must be the same for the weights to be the same.

    The weights to start from are not part of it: a checkpoint replaces them all.
    """
    args, backend, model = trainer.args, trainer.backend, trainer.model
    optimizer, schedule = trainer.optimizers
    return {
        **{name: value for name, value in args.to_dict().items() if name not in FREE},
        "batch_size": args.per_device_train_batch_size * backend.num_processes,
        "max_steps": plan.max_steps,
        "device": backend.device.type,
        "precision": backend.precision,
        "model": f"{type(model).__name__}, {sum(weight.numel() for weight in model.parameters()):,} parameters",
        "labels": [*label_names(model.config)],
        "config": config_values(model.config),
        "frozen": frozen_names(model),
        "loss": trainer.task if trainer.custom_loss is None else identified(trainer.custom_loss),
        "optimizer": None if optimizer is None else optimizer_values(model, optimizer),
        "schedule": None if schedule is None else schedule_values(schedule),
        **(evaluation_values(trainer, plan) if args.load_best_model_at_end or args.early_stopping_patience else {}),
    }


def evaluation_values(trainer: Trainer, plan: Plan) -> Identity:
    """What evaluations depend on, where they decide which weights a training ends with. Their rows are hashed later."""
    own = trainer.compute_metrics
    metrics = None if own is None else identified(own)
    return {"eval_strategy": trainer.args.eval_strategy, "eval_every": plan.eval_every, "metrics": metrics, "validation": None}
