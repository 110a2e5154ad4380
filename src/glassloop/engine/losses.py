"""What a row costs: the losses of the three tasks and a check of a loss of the user's own, all as sums over rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from glassloop.errors import SettingsError

LossSum = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
LOSS_REMEDY = "return one loss a row, or their sum: reduction='none' or reduction='sum', never a mean"


def make_loss(
    task: str, *, label_smoothing: float = 0.0, class_weights: torch.Tensor | None = None, custom: LossSum | None = None
) -> LossSum:
    """A function of logits and labels that returns the sum of the rows' losses."""
    weights = class_weights
    if custom is not None:
        return lambda logits, labels: custom(logits, labels).sum()
    if task == "regression":
        return lambda logits, labels: functional.mse_loss(logits.squeeze(-1), labels.float(), reduction="sum")
    if task == "multi_label_classification":

        def several(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            wanted = labels.float() * (1 - label_smoothing) + label_smoothing / 2
            costs = functional.binary_cross_entropy_with_logits(logits, wanted, weight=weights, reduction="sum")
            return costs / logits.shape[-1]

        return several
    return lambda logits, labels: functional.cross_entropy(
        logits, labels, weight=weights, label_smoothing=label_smoothing, reduction="sum"
    )


def balanced_weights(label_counts: dict[str, int]) -> list[float]:
    """The weight of each class such that all classes weigh the same and a row weighs 1 on average."""
    if empty := [name for name, count in label_counts.items() if count == 0]:
        raise SettingsError(f"class_weights is balanced, but no training row has the label {empty[0]}", "give numbers")
    total = sum(label_counts.values())
    return [total / (len(label_counts) * count) for count in label_counts.values()]


def check_loss(loss: LossSum, model: Any, batch: Any, backend: Any) -> None:
    """Try a loss on one batch before the run: finite, a sum over its rows, with a gradient."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        logits = model(**backend.move(batch.inputs)).logits.float()
    model.train(was_training)
    logits, labels = logits.requires_grad_(True), backend.move(batch.labels)
    try:
        whole = loss(logits, labels)
        rows = torch.as_tensor(sum(loss(logits[row : row + 1], labels[row : row + 1]) for row in range(len(labels))))
    except Exception as error:
        raise SettingsError(f"the loss fails on the first batch: {type(error).__name__}: {error}", LOSS_REMEDY) from error
    if not isinstance(whole, torch.Tensor) or whole.dim() != 0 or not whole.requires_grad:
        raise SettingsError("the loss returns no number that gradients can flow from", LOSS_REMEDY)
    if not torch.isfinite(whole):
        raise SettingsError(f"the loss of the first batch is {whole.item()}", "look at the labels and at the loss")
    if not torch.allclose(whole, rows, rtol=1e-3, atol=1e-5):
        problem = f"the loss of a batch ({whole.item():.6g}) is not the sum of its rows' losses ({rows.item():.6g})"
        raise SettingsError(problem, LOSS_REMEDY)
