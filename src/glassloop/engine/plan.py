"""Turn the settings of a run into a plan: plain numbers of steps."""

from __future__ import annotations

import math

from glassloop.arguments import TrainingArguments
from glassloop.errors import SettingsError
from glassloop.run_folder.record import Plan

DEFAULT_LOGGING_STEPS, DEFAULT_EVAL_STEPS = 10, 500


def make_plan(args: TrainingArguments, num_batches: int, *, has_eval: bool) -> Plan:
    """Return the plan for an epoch of `num_batches`; raise `SettingsError` if there is nothing to train or evaluate on."""
    if num_batches == 0:
        raise SettingsError("dataloader_drop_last leaves no batches", "use a smaller batch size")
    per_epoch = math.ceil(num_batches / args.gradient_accumulation_steps)
    max_steps = args.max_steps if args.max_steps > 0 else math.ceil(per_epoch * args.num_train_epochs)
    eval_steps = args.eval_steps or args.logging_steps or DEFAULT_EVAL_STEPS
    eval_every = steps_between(args.eval_strategy, eval_steps, per_epoch, max_steps)
    if eval_every and not has_eval:
        raise SettingsError(f"eval_strategy is {args.eval_strategy}, but there is no eval_dataset", "pass an eval_dataset")
    best = args.metric_for_best_model or "loss"
    best = best if best.startswith("eval_") else f"eval_{best}"
    greater = args.greater_is_better if args.greater_is_better is not None else not best.endswith("loss")
    return Plan(
        max_steps=max_steps,
        steps_per_epoch=per_epoch,
        batches_per_epoch=num_batches,
        accumulate=args.gradient_accumulation_steps,
        warmup_steps=warmup_steps_of(args.warmup_steps, max_steps),
        log_every=steps_between(args.logging_strategy, args.logging_steps or DEFAULT_LOGGING_STEPS, per_epoch, max_steps),
        log_first=args.logging_first_step,
        eval_every=eval_every,
        eval_from=math.ceil(args.eval_delay * (per_epoch if args.eval_strategy == "epoch" else 1)),
        save_every=steps_between(args.save_strategy, args.save_steps, per_epoch, max_steps),
        eval_on_start=args.eval_on_start,
        best_metric=best,
        needs_best=bool(
            args.metric_for_best_model
            or args.load_best_model_at_end
            or args.early_stopping_patience
            or args.save_strategy == "best"
        ),
        greater_is_better=greater,
        patience=args.early_stopping_patience,
        least_gain=args.early_stopping_threshold,
    )


def warmup_steps_of(given: float, max_steps: int) -> int:
    """Return the number of warm-up steps. A number below 1 is a fraction of all steps."""
    return math.ceil(given * max_steps) if given < 1 else int(given)


def steps_between(strategy: str, steps: float, per_epoch: int, max_steps: int) -> int:
    """Return the number of steps between two events, 0 for never. A number below 1 is a fraction of all steps."""
    number = math.ceil(steps * max_steps) if steps < 1 else int(steps)
    return {"no": 0, "best": 0, "steps": number, "epoch": per_epoch}[strategy]
