"""Turn the settings of a run into a plan: plain numbers of steps."""

from __future__ import annotations

import math

from glassloop.arguments import TrainingArguments
from glassloop.errors import SettingsError
from glassloop.run_folder.record import Plan


def make_plan(args: TrainingArguments, num_batches: int, *, has_eval: bool) -> Plan:
    """Return the plan for an epoch of `num_batches`; raise `SettingsError` if there is nothing to train or evaluate on."""
    if num_batches == 0:
        raise SettingsError("dataloader_drop_last leaves no batches", "use a smaller batch size")
    per_epoch = math.ceil(num_batches / args.gradient_accumulation_steps)
    max_steps = args.max_steps if args.max_steps > 0 else math.ceil(per_epoch * args.num_train_epochs)
    warmup = args.warmup_steps
    eval_every = {"no": 0, "steps": args.eval_steps or args.logging_steps, "epoch": per_epoch}[args.eval_strategy]
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
