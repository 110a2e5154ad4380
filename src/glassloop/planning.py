"""From settings to the parts of a run: the plan in plain numbers, the loss, the optimizer and its schedule."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import torch

from glassloop.arguments import TrainingArguments
from glassloop.data.batches import LABEL_KEYS
from glassloop.engine.losses import LossSum, balanced_weights, make_loss
from glassloop.engine.optimizer import make_optimizer, make_scheduler
from glassloop.engine.state import Plan
from glassloop.errors import SettingsError, visible


def make_plan(args: TrainingArguments, num_batches: int, *, has_eval: bool) -> Plan:
    """Everything "auto", every ratio and every epoch as plain numbers, for an epoch of `num_batches`."""
    if num_batches == 0:
        raise SettingsError("dataloader_drop_last leaves no batch at all", "use a smaller batch size")
    per_epoch = math.ceil(num_batches / args.gradient_accumulation_steps)
    max_steps = args.max_steps if args.max_steps > 0 else math.ceil(per_epoch * args.num_train_epochs)
    warmup = args.warmup_steps
    eval_every = {"no": 0, "steps": args.eval_steps or args.logging_steps, "epoch": per_epoch}[args.eval_strategy]
    if eval_every and not has_eval:
        raise SettingsError(f"eval_strategy is {args.eval_strategy}, but there is no eval_dataset", "give one")
    best = args.metric_for_best_model or "loss"
    best = best if best.startswith("eval_") else f"eval_{best}"
    greater = args.greater_is_better if args.greater_is_better is not None else not best.endswith("loss")
    return Plan(
        max_steps=max_steps,
        steps_per_epoch=per_epoch,
        batches_per_epoch=num_batches,
        accumulate=args.gradient_accumulation_steps,
        warmup_steps=math.ceil(warmup * max_steps) if warmup < 1 else int(warmup),
        log_every=args.logging_steps,
        eval_every=eval_every,
        save_every={"no": 0, "steps": args.save_steps, "epoch": per_epoch}[args.save_strategy],
        eval_on_start=args.eval_on_start,
        best_metric=best,
        greater_is_better=greater,
        patience=args.early_stopping_patience,
        least_gain=args.early_stopping_threshold,
    )


def loss_of(
    args: TrainingArguments, task: str, weights: list[float] | None, custom: LossSum | None, device: torch.device
) -> LossSum:
    """The sum of the rows' losses, as the settings say."""
    if task == "regression" and (args.class_weights or args.label_smoothing_factor):
        raise SettingsError("class_weights and label_smoothing_factor have no meaning for scores", "leave them away")
    tensor = torch.tensor(weights, device=device) if weights else None
    return make_loss(task, label_smoothing=args.label_smoothing_factor, class_weights=tensor, custom=custom)


def class_weights_of(text: str | None, num_labels: int, rows: Any) -> list[float] | None:
    """The weight of each class: none, balanced over the training rows, or the numbers given."""
    if not text:
        return None
    if text == "balanced":
        key = next(key for key in LABEL_KEYS if key in rows.column_names)
        labels = np.asarray(rows.with_format("numpy")[key])
        counts = labels.sum(axis=0) if labels.ndim == 2 else np.bincount(labels, minlength=num_labels)
        return balanced_weights({str(label): int(count) for label, count in enumerate(counts)})
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise SettingsError(f"class_weights is {visible(text)}", "write balanced, or numbers: 1,2.5") from error
    if len(weights) != num_labels or min(weights) < 0:
        raise SettingsError(f"class_weights has {len(weights)} numbers for {num_labels} labels", "give one a label, 0 or more")
    return weights


def make_optimizers(args: TrainingArguments, model: Any, plan: Plan, given: tuple[Any, Any]) -> tuple[Any, Any]:
    """The user's optimizer and schedule where given, else AdamW and the schedule of the settings."""
    optimizer, scheduler = given
    if optimizer is None:
        optimizer = make_optimizer(
            model,
            args.learning_rate,
            weight_decay=args.weight_decay,
            betas=(args.adam_beta1, args.adam_beta2),
            epsilon=args.adam_epsilon,
            fused=args.optim == "adamw_torch_fused",
        )
    if scheduler is None:
        try:
            options = json.loads(args.lr_scheduler_kwargs) if args.lr_scheduler_kwargs else None
        except ValueError as error:
            raise SettingsError(f"lr_scheduler_kwargs is not JSON: {error}", 'write {"num_cycles": 2}') from error
        scheduler = make_scheduler(args.lr_scheduler_type, optimizer, plan.warmup_steps, plan.max_steps, options)
    return optimizer, scheduler
