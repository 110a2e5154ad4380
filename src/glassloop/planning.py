"""From settings to the parts of a run: the plan in plain numbers, the loss, the optimizer and its schedule."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from glassloop.arguments import TrainingArguments
from glassloop.config import CLASSES, SCORE, SEVERAL
from glassloop.data.batches import KIND_REMEDY, LABEL_KEYS, Batches, labels_among
from glassloop.data.formats import arrow_rows
from glassloop.engine.losses import LossSum, balanced_weights, make_loss
from glassloop.engine.optimizer import make_optimizer, make_scheduler
from glassloop.engine.state import Plan
from glassloop.errors import DataError, SettingsError, listed, visible


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
        labels = labels_in(rows)
        if labels is None:
            raise SettingsError("class_weights is balanced, but there are no training rows with labels", "give numbers")
        counts = labels.sum(axis=0) if labels.ndim == 2 else np.bincount(labels, minlength=num_labels)
        return balanced_weights({str(label): int(count) for label, count in enumerate(counts)})
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise SettingsError(f"class_weights is {visible(text)}", "write balanced, or numbers: 1,2.5") from error
    if len(weights) != num_labels or not all(0 <= weight < math.inf for weight in weights):
        raise SettingsError(f"class_weights has {len(weights)} numbers for {num_labels} labels", "give one a label, 0 or more")
    return weights


def labels_in(rows: Any) -> np.ndarray | None:
    """Return the labels of all rows of a `Dataset` or of a list of dicts; None where they have none under a usual name."""
    if rows is None:
        return None
    table = arrow_rows(rows)
    if table is None:
        return labels_among(rows_to_columns(rows)) if isinstance(rows[0], Mapping) else None
    keys = [key for key in LABEL_KEYS if key in table.column_names]
    columns = table.select_columns(keys)[:] if keys else {}
    return labels_among({key: cells_of(columns[key].combine_chunks()) for key in keys})


def rows_to_columns(rows: Any) -> dict[str, list[Any]]:
    """Return the labels of rows that are read one by one, by their key; each row is read once."""
    found: dict[str, list[Any]] = {}
    for number in range(len(rows)):
        row = rows[number]
        for key in LABEL_KEYS:
            if key in row:
                found.setdefault(key, []).append(np.asarray(row[key]))
    return found


def cells_of(cells: Any) -> Any:
    """Return an Arrow column of numbers, or of lists of numbers, as an array."""
    return cells.to_pylist() if hasattr(cells, "offsets") else cells.to_numpy(zero_copy_only=False)


def infer_task(config: Any, batches: Batches, say: Callable[[str], None]) -> None:
    """Set multi-label classification where a row has one number for each label, as transformers does for fractions.

    Raises where the labels of the first row do not fit what the model's config says.
    """
    task, num_labels = config.problem_type, int(config.num_labels)
    if task == SEVERAL:
        return
    first = np.zeros(1, dtype=np.int64)
    labels = batches.batch(first, first).labels
    if labels is None:
        return
    if task == SCORE or num_labels == 1:
        if labels.ndim != 1:
            raise DataError(f"a row has a list of {labels.shape[1]:,} as its score", "give one number a row, not a list")
        return
    if labels.ndim == 1 and labels.is_floating_point():
        raise DataError(f"the labels are of the kind {str(labels.dtype)[6:]}, not class numbers", KIND_REMEDY)
    if labels.ndim == 2:
        problem = f"a row has {labels.shape[1]:,} numbers as its label, but"
        if task == CLASSES:
            raise DataError(f"{problem} problem_type is {task}", "give one class number a row, or set problem_type")
        if labels.shape[1] != num_labels:
            raise DataError(f"{problem} the model has {num_labels:,} labels", "load the model with as many labels")
        config.problem_type = SEVERAL
        say(f"the labels hold one number for each of {num_labels:,} labels: trained as {SEVERAL}")


def refuse_labels(rows: Any, task: str, num_labels: int, *, needed: bool) -> None:
    """Raise for a class number the model does not have: a loss would fail, on a GPU without saying where."""
    table = arrow_rows(rows)
    names = rows[0] if table is None else table.column_names
    if needed and not any(key in names for key in LABEL_KEYS):
        raise SettingsError("the training rows have no labels", f"name their column one of {listed(LABEL_KEYS)}")
    labels = labels_in(rows) if table is not None and task == CLASSES else None
    if labels is None:
        return
    if labels.dtype.kind == "f":  # a missing label makes fractions of all of them
        raise DataError(f"the labels are of the kind {labels.dtype}, not class numbers", KIND_REMEDY)
    if len(wrong := np.flatnonzero((labels < 0) | (labels >= num_labels))):
        raise DataError(
            f"row {wrong[0]:,} (from 0) has the label {labels[wrong[0]]}; the model has 0 to {num_labels - 1}",
            "fix the labels, or remove their column where there are none to compare with",
        )


def make_optimizers(
    args: TrainingArguments, model: Any, plan: Plan, given: tuple[Any, Any], make: Callable[..., Any] = make_optimizer
) -> tuple[Any, Any]:
    """The user's optimizer and schedule where given, else AdamW (as `make` makes it) and the schedule of the settings."""
    optimizer, scheduler = given
    if optimizer is None and scheduler is not None:
        raise SettingsError("optimizers holds a schedule without its optimizer", "give both, or the optimizer alone")
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise SettingsError("ReduceLROnPlateau wants a metric, which a step has not", "use another schedule")
    if optimizer is not None:
        held = {id(weight) for group in getattr(optimizer, "param_groups", ()) for weight in group["params"]}
        if not any(id(weight) in held for weight in model.parameters()):
            problem = "the optimizer holds no parameter of the model"
            raise SettingsError(problem, "make it over model.parameters() of this model")
    else:
        optimizer = make(
            model,
            args.learning_rate,
            weight_decay=args.weight_decay,
            betas=(args.adam_beta1, args.adam_beta2),
            epsilon=args.adam_epsilon,
            fused=args.optim == "adamw_torch_fused",
        )
    if scheduler is None:
        options = json.loads(args.lr_scheduler_kwargs) if args.lr_scheduler_kwargs else None
        scheduler = make_scheduler(args.lr_scheduler_type, optimizer, plan.warmup_steps, plan.max_steps, options)
    return optimizer, scheduler
