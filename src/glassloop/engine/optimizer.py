"""AdamW with the usual exclusions from weight decay, and the schedule of its learning rate."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from glassloop.arguments import TrainingArguments
from glassloop.errors import SettingsError
from glassloop.run_folder.record import Plan


class AdamW(torch.optim.AdamW):
    """torch's AdamW with the defaults of the old `transformers.AdamW` (no weight decay), fused where torch offers it."""

    def __init__(self, params: Any, lr: float = 1e-3, weight_decay: float = 0.0, **options: Any) -> None:
        for old in ("correct_bias", "no_deprecation_warning"):
            if options.pop(old, True) is False:
                raise SettingsError(f"AdamW has no {old}=False any more", "leave it away: the bias is always corrected")
        super().__init__(params, lr=lr, weight_decay=weight_decay, **options)


def decay_groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """The parameters in two groups: with weight decay, and without it (biases and normalisation weights)."""
    norms = {f"{name}.weight" for name, module in model.named_modules() if "norm" in type(module).__name__.lower()}
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    spared = {name for name, _ in named if name in norms or name.endswith("bias")}
    groups = [
        {"params": [parameter for name, parameter in named if name not in spared], "weight_decay": weight_decay},
        {"params": [parameter for name, parameter in named if name in spared], "weight_decay": 0.0},
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
) -> torch.optim.Optimizer:
    """AdamW over all trainable parameters of `model`."""
    groups = decay_groups(model, weight_decay)
    if not groups:
        raise SettingsError("the model has no parameter to train", "unfreeze some: parameter.requires_grad_(True)")
    device = groups[0]["params"][0].device.type
    offered = fused and device in ("cpu", "cuda", "mps")
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, eps=epsilon, fused=offered or None)


def make_scheduler(
    name: str, optimizer: torch.optim.Optimizer, warmup_steps: int, max_steps: int, options: dict[str, Any] | None = None
) -> Any:
    """The learning rate's schedule by its usual name."""
    from transformers import get_scheduler

    try:
        return get_scheduler(name, optimizer, warmup_steps, max_steps, scheduler_specific_kwargs=options or {})
    except (TypeError, ValueError) as error:
        raise SettingsError(f"lr_scheduler_type {name}: {error}", "check lr_scheduler_kwargs") from error


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
