"""What a row costs: the losses of the three tasks and a check of a loss of the user's own, all as sums over rows."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from glassloop.arguments import TrainingArguments
from glassloop.data.row_labels import labels_in
from glassloop.errors import SettingsError, no_memory, visible

LossSum = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
LOSS_REMEDY = "return one loss a row, or their sum: reduction='none' or reduction='sum', never a mean"
OTHER_LOSS_REMEDY = (
    "give the one to train on as loss=, a function of logits and labels that returns one loss a row "
    "(the usual one: torch.nn.functional.cross_entropy with reduction='none')"
)


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


def refuse_other_loss(model: Any, batch: Any, task: str, backend: Any, say: Callable[[str], None] = lambda line: None) -> None:
    """Raise where the model's own forward returns another loss than ours for one batch: it would never be used.

    Both losses are of the logits of one forward pass, so dropout may stay: a loss with a term for training shows as well.
    """
    takes = inspect.signature(model.forward).parameters
    has_kwargs = any(taken.kind is inspect.Parameter.VAR_KEYWORD for taken in takes.values())
    if batch.labels is None or not ("labels" in takes or has_kwargs) or beyond(model, batch.inputs.get("input_ids")):
        return
    labels = batch.labels if task == "single_label_classification" else batch.labels.float()
    was_training, kind = model.training, getattr(model.config, "problem_type", None)
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    model.train()
    try:
        with torch.random.fork_rng([backend.device] if backend.device.type == "cuda" else []), torch.no_grad():
            labels = backend.move(labels)
            found = model(**backend.move(batch.inputs), labels=labels)
            theirs, logits = getattr(found, "loss", None), found.logits
            ours = make_loss(task)(logits.float(), labels) / len(labels)
    except Exception as error:
        if no_memory(error):
            raise
        say(f"the model's own loss could not be compared with Glassloop's ({type(error).__name__}: {error})")
        return
    finally:
        model.train(was_training)
        model.config.problem_type = kind  # transformers' heads write what they infer into it
        for buffer, before in buffers:
            buffer.copy_(before)
    if not isinstance(theirs, torch.Tensor) or theirs.dim() > 0:
        return
    rounding = 1e-5 if theirs.dtype == logits.dtype == torch.float32 else 2e-2
    if not torch.isclose(theirs.float(), ours, rtol=rounding, atol=rounding / 10, equal_nan=True):
        problem = f"the model's forward has a loss of its own: {theirs.item():.6g} for the first batch, Glassloop's is"
        raise SettingsError(f"{problem} {ours.item():.6g}", OTHER_LOSS_REMEDY)


def beyond(model: Any, ids: torch.Tensor | None) -> bool:
    """Whether a batch holds tokens or places the model has no vectors for: refused elsewhere, and fatal on a GPU."""
    words = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    most = getattr(model.config, "max_position_embeddings", None) or 0
    return ids is not None and bool((words is not None and ids.max() >= words.weight.shape[0]) or 0 < most < ids.shape[1])


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
