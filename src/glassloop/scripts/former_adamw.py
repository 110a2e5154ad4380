"""The AdamW that transformers had until version 4, with its defaults and its `correct_bias`."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.optim.optimizer import ParamsT


class AdamW(torch.optim.Optimizer):
    """Adam with weight decay that is applied after the update, as transformers computed it.

    Args:
        params: The parameters to train, or groups of them.
        lr: The learning rate.
        betas: The decay rates of the running averages of gradients and of their squares.
        eps: Added to the denominator, before the correction of the bias.
        weight_decay: The weight decay of groups that do not set their own.
        correct_bias: Whether to correct the bias of the running averages. BERT's original code did not.
        no_deprecation_warning: Accepted for compatibility.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
        no_deprecation_warning: bool = False,
    ) -> None:
        for name, value, fits in (
            ("lr", lr, lr >= 0),
            ("betas", betas, all(0 <= beta < 1 for beta in betas)),
            ("eps", eps, eps >= 0),
        ):
            if not fits:
                raise ValueError(f"{name}={value} is out of range")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "correct_bias": correct_bias}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the parameters.

        Args:
            closure: Computes the loss again, and returns it.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [one for one in group["params"] if one.grad is not None]
            by_step: dict[int, list[torch.Tensor]] = {}
            for one in parameters:
                state = self.state[one]
                if not state:
                    state |= {"step": 0, "exp_avg": torch.zeros_like(one), "exp_avg_sq": torch.zeros_like(one)}
                state["step"] += 1
                by_step.setdefault(state["step"], []).append(one)
            for number, these in by_step.items():
                self._update(these, number, group["betas"], group["eps"], group["correct_bias"], group["lr"])
                if group["weight_decay"] > 0:
                    torch._foreach_mul_(these, 1 - group["lr"] * group["weight_decay"])
        return loss

    def _update(
        self,
        parameters: list[torch.Tensor],
        number: int,
        betas: tuple[float, float],
        eps: float,
        correct_bias: bool,
        rate: float,
    ) -> None:
        """Update parameters that have been updated equally often, without their weight decay."""
        beta1, beta2 = betas
        gradients = [one.grad for one in parameters if one.grad is not None]
        means = [self.state[one]["exp_avg"] for one in parameters]
        squares = [self.state[one]["exp_avg_sq"] for one in parameters]
        torch._foreach_mul_(means, beta1)
        torch._foreach_add_(means, gradients, alpha=1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
        scale = rate
        if correct_bias:
            scale = rate * math.sqrt(1 - beta2**number) / (1 - beta1**number)
        denominators = torch._foreach_sqrt(squares)
        torch._foreach_add_(denominators, eps)
        torch._foreach_addcdiv_(parameters, means, denominators, value=-scale)
