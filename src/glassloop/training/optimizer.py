"""The plan of a run, AdamW and other optimizers with the usual exclusions from weight decay, and learning rate schedules."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from glassloop.base.errors import SettingsError, visible
from glassloop.runs.record import Plan
from glassloop.settings.training import FROZEN, TrainingArguments
from glassloop.training.interfaces import LRScheduler, Optimizer, OptimizerFactory

DEFAULT_LOGGING_STEPS, DEFAULT_EVAL_STEPS = 10, 500
WORDS: dict[str, bool] = {"true": True, "false": False, "yes": True, "no": False}


def make_plan(args: TrainingArguments, num_batches: int, *, has_eval: bool) -> Plan:
    if num_batches == 0:
        raise SettingsError("dataloader_drop_last leaves no batches", "use a smaller batch size")
    per_epoch = math.ceil(num_batches / args.gradient_accumulation_steps)
    max_steps = args.max_steps if args.max_steps > 0 else math.ceil(per_epoch * args.num_train_epochs)
    max_steps = 0 if args.method == FROZEN else max_steps  # its head is complete before the first step

    def every(strategy: str, steps: float) -> int:
        """Return the number of steps between two events, 0 for never."""
        return {"no": 0, "best": 0, "steps": whole_steps(steps, max_steps), "epoch": per_epoch}[strategy]

    eval_every = every(args.eval_strategy, args.eval_steps or args.logging_steps or DEFAULT_EVAL_STEPS)
    if eval_every and not has_eval:
        raise SettingsError(f"eval_strategy is {args.eval_strategy}, but there is no eval_dataset", "pass an eval_dataset")
    best = f"eval_{(args.metric_for_best_model or 'loss').removeprefix('eval_')}"
    chooses = args.load_best_model_at_end or args.early_stopping_patience or args.save_strategy == "best"
    return Plan(
        max_steps=max_steps,
        steps_per_epoch=per_epoch,
        batches_per_epoch=num_batches,
        accumulate=args.gradient_accumulation_steps,
        warmup_steps=whole_steps(args.warmup_steps, max_steps),
        log_every=every(args.logging_strategy, args.logging_steps or DEFAULT_LOGGING_STEPS),
        log_first=args.logging_first_step,
        eval_every=eval_every,
        eval_from=math.ceil(args.eval_delay * (per_epoch if args.eval_strategy == "epoch" else 1)),
        save_every=every(args.save_strategy, args.save_steps),
        eval_on_start=args.eval_on_start,
        best_metric=best,
        needs_best=bool(args.metric_for_best_model or chooses),
        greater_is_better=args.greater_is_better if args.greater_is_better is not None else not best.endswith("loss"),
        patience=args.early_stopping_patience,
        least_gain=args.early_stopping_threshold,
    )


def whole_steps(steps: float, max_steps: int) -> int:
    """Return a number of steps as a whole number. One below 1 is a fraction of all steps."""
    return math.ceil(steps * max_steps) if steps < 1 else int(steps)


class AdamW(torch.optim.AdamW):
    """torch's AdamW with the defaults of the former `transformers.AdamW`: no weight decay.

    Args:
        params: The parameters to train, or groups of them.
        lr: The learning rate.
        weight_decay: The weight decay of groups that do not set their own.
        betas: The decay rates of the running averages of gradients and of their squares.
        eps: Added to the denominator.
        fused: Use torch's fused kernels. Default: torch decides.
        correct_bias: An argument of the former `transformers.AdamW`; only True is accepted.
        no_deprecation_warning: An argument of the former `transformers.AdamW`; only True is accepted.
        **flags: amsgrad, maximize, foreach, capturable or differentiable, as torch's AdamW takes them.

    Raises:
        SettingsError: `correct_bias` or `no_deprecation_warning` is False.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        fused: bool | None = None,
        correct_bias: bool = True,
        no_deprecation_warning: bool = True,
        **flags: bool,
    ) -> None:
        for name, value in (("correct_bias", correct_bias), ("no_deprecation_warning", no_deprecation_warning)):
            if value is False:
                raise SettingsError(f"AdamW no longer has {name}=False", "omit it: the bias is always corrected")
        super().__init__(params, lr, betas, eps, weight_decay, fused=fused, **flags)


def unwrap_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return the torch optimizer behind one that Accelerate has wrapped."""
    return getattr(optimizer, "optimizer", optimizer)


def decay_groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the trainable parameters in two groups: with weight decay, and without it (biases and normalization weights)."""
    norms = {f"{name}.weight" for name, module in model.named_modules() if "norm" in type(module).__name__.lower()}
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not named:
        raise SettingsError("all parameters of the model are frozen", "unfreeze some: parameter.requires_grad_(True)")
    no_decay = {name for name, _ in named if name in norms or name.endswith("bias")}
    groups = [
        {"params": [parameter for name, parameter in named if name not in no_decay], "weight_decay": weight_decay},
        {"params": [parameter for name, parameter in named if name in no_decay], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def make_optimizer(
    model: torch.nn.Module,
    learning_rate: float,
    *,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    fused: bool = True,
) -> Optimizer:
    """Return AdamW over all trainable parameters of a model.

    Args:
        model: The model to train.
        learning_rate: The learning rate of the first step, which a schedule changes.
        weight_decay: The weight decay. Biases and normalization weights have none.
        betas: The decay rates of the running averages of gradients and of their squares.
        epsilon: Added to the denominator.
        fused: Use torch's fused kernels on devices that have them.

    Raises:
        SettingsError: All parameters are frozen.
    """
    groups = decay_groups(model, weight_decay)
    offered = fused and groups[0]["params"][0].device.type in ("cpu", "cuda", "mps")
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, eps=epsilon, fused=offered or None)


def make_scheduler(
    name: str, optimizer: Optimizer, warmup_steps: int, max_steps: int, options: Mapping[str, object] | None = None
) -> LRScheduler:
    """Return a learning rate schedule of transformers. The linear one does not import transformers' trainer.

    Args:
        name: Its name, such as "linear" or "cosine".
        optimizer: The optimizer whose learning rate it changes.
        warmup_steps: The number of steps until the learning rate reaches its full value.
        max_steps: The number of steps of the training.
        options: Further arguments of the schedule.

    Raises:
        SettingsError: There is no such schedule, or it does not take these options.
    """
    if name == "linear" and not options:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, partial(linear_share, warmup_steps, max_steps))
    from transformers import get_scheduler

    try:
        specific = dict(options or {})
        scheduler: LRScheduler = get_scheduler(name, optimizer, warmup_steps, max_steps, scheduler_specific_kwargs=specific)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"lr_scheduler_type {name}: {error}", "check lr_scheduler_kwargs") from error
    return scheduler


def linear_share(warmup_steps: int, max_steps: int, step: int) -> float:
    """Return the share of the full learning rate at a step: it rises during the warm-up, then falls to zero."""
    if step < warmup_steps:
        return step / max(1, warmup_steps)
    return max(0.0, (max_steps - step) / max(1, max_steps - warmup_steps))


def optimizer_options(text: str | None) -> dict[str, float | bool | str]:
    """Return the extra settings of an optimizer in `momentum=0.9,nesterov=true`; raise `SettingsError` for another form."""
    options: dict[str, float | bool | str] = {}
    for part in filter(None, (text or "").replace(" ", "").split(",")):
        name, equals, value = part.partition("=")
        if not (name.isidentifier() and equals):
            raise SettingsError(f"optim_args is {visible(text)}, not like momentum=0.9,nesterov=true", "write name=value")
        try:
            options[name] = WORDS[value.lower()] if value.lower() in WORDS else float(value)
        except ValueError:
            options[name] = value
    return options


def optimizer_of(
    model: torch.nn.Module, weight_decay: float, kind: type[Optimizer], options: Mapping[str, object]
) -> Optimizer:
    """Return an optimizer of a class, with weight decay for all parameters but biases and normalization weights."""
    groups = decay_groups(model, weight_decay)
    try:
        return kind(groups, **options)  # type: ignore[arg-type]  # the class checks its own arguments
    except (TypeError, ValueError) as error:
        raise SettingsError(f"the optimizer {kind.__name__} cannot be made: {error}", "check optim and optim_args") from error


def optimizer_for(args: TrainingArguments, model: torch.nn.Module, make: OptimizerFactory = make_optimizer) -> Optimizer:
    if args.optim.startswith("adamw"):
        if args.optim_args:
            raise SettingsError(f"optim_args has no effect on {args.optim}", "set adam_beta1, adam_beta2 and adam_epsilon")
        return make(
            model,
            args.learning_rate,
            weight_decay=args.weight_decay,
            betas=(args.adam_beta1, args.adam_beta2),
            epsilon=args.adam_epsilon,
            fused=args.optim == "adamw_torch_fused",
        )
    options = {"lr": args.learning_rate, **optimizer_options(args.optim_args)}
    if args.optim == "adafactor":
        from transformers import Adafactor

        return optimizer_of(model, args.weight_decay, Adafactor, {"scale_parameter": False, "relative_step": False, **options})
    kinds = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "rmsprop": torch.optim.RMSprop}
    return optimizer_of(model, args.weight_decay, kinds[args.optim], options)


def scheduler_for(args: TrainingArguments, optimizer: Optimizer, warmup_steps: int, max_steps: int) -> LRScheduler:
    options = json.loads(vars(args)["lr_scheduler_kwargs"] or "{}")
    return make_scheduler(args.lr_scheduler_type, optimizer, warmup_steps, max_steps, options)


def make_optimizers(
    args: TrainingArguments,
    model: torch.nn.Module,
    plan: Plan,
    given: tuple[Optimizer | None, LRScheduler | None],
    make: OptimizerFactory = make_optimizer,
) -> tuple[Optimizer, LRScheduler]:
    """Return the user's optimizer and schedule if given, else those of the settings. `make` makes AdamW."""
    optimizer, scheduler = given
    if optimizer is None and scheduler is not None:
        raise SettingsError("optimizers contains a schedule but no optimizer", "pass both, or only the optimizer")
    if scheduler is not None and "metrics" in inspect.signature(scheduler.step).parameters:
        name = type(scheduler).__name__
        raise SettingsError(f"{name} needs a metric, but schedules here advance every step", "use another schedule")
    if optimizer is None:
        optimizer = optimizer_for(args, model, make)
    else:
        members = {id(weight) for group in getattr(optimizer, "param_groups", ()) for weight in group["params"]}
        if not any(id(weight) in members for weight in model.parameters()):
            problem = "the optimizer contains no parameter of the model"
            raise SettingsError(problem, "create it from model.parameters() of this model")
    return optimizer, scheduler or scheduler_for(args, optimizer, plan.warmup_steps, plan.max_steps)
