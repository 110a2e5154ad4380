"""The losses of the three tasks as sums over rows, class weights, and checks of a custom loss."""

from __future__ import annotations

import inspect
import math
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn import functional

from glassloop.base.errors import ModelError, SettingsError, no_memory, visible
from glassloop.data.batches import Batch
from glassloop.data.interfaces import Model, Rows
from glassloop.data.rows import labels_in
from glassloop.training.interfaces import LossSum, Say, StepBackend, TrainingBatch

LOSS_REMEDY = "return one loss per row, or their sum: reduction='none' or reduction='sum', never a mean"
OTHER_LOSS_REMEDY = (
    "pass the loss to train with as loss=, a function of logits and labels that returns one loss per row "
    "(such as torch.nn.functional.cross_entropy with reduction='none')"
)


@dataclass(frozen=True)
class TaskLoss:
    """The loss of a task, as a function of logits and labels. Two are equal if they compute the same.

    Args:
        task: "single_label_classification", "multi_label_classification" or "regression".
        label_smoothing: The share of each label that is spread over all labels.
        class_weights: The weight of each class.
        weights: The same as a tensor.
    """

    task: str
    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] | None = None
    weights: torch.Tensor | None = field(default=None, compare=False)

    # A sum over rows: the loop divides by the number of examples, so accumulation and several processes are no special case.
    def __call__(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if self.task == "regression":
            return functional.mse_loss(logits.squeeze(-1), labels.float(), reduction="sum")
        if self.task == "multi_label_classification":
            wanted = labels.float() * (1 - self.label_smoothing) + self.label_smoothing / 2
            costs = functional.binary_cross_entropy_with_logits(logits, wanted, weight=self.weights, reduction="sum")
            return costs / logits.shape[-1]
        return functional.cross_entropy(
            logits, labels, weight=self.weights, label_smoothing=self.label_smoothing, reduction="sum"
        )


def make_loss(
    task: str, *, label_smoothing: float = 0.0, class_weights: torch.Tensor | None = None, custom: LossSum | None = None
) -> LossSum:
    """Return a function of logits and labels that computes the sum of the rows' losses.

    Args:
        task: "single_label_classification", "multi_label_classification" or "regression".
        label_smoothing: The share of each label that is spread over all labels.
        class_weights: The weight of each class.
        custom: A loss to use instead, which returns one loss per row, or their sum.
    """
    if custom is not None:
        return lambda logits, labels: custom(logits, labels).sum()
    numbers = None if class_weights is None else tuple(class_weights.tolist())
    return TaskLoss(task, label_smoothing, numbers, class_weights)


def check_loss(loss: LossSum, model: torch.nn.Module, batch: TrainingBatch, backend: StepBackend) -> None:
    """Raise `SettingsError` if the loss of one batch is not finite, not a sum over its rows, or has no gradient."""
    # The loss of a batch must be the sum of the losses of its rows, which detects a mean.
    was_training = model.training
    model.eval()
    with torch.no_grad():
        logits = model(**backend.move(batch.inputs)).logits.float()
    model.train(was_training)
    logits, labels = logits.requires_grad_(True), backend.move(batch.labels)
    try:
        whole = loss(logits, labels)
        zero = torch.zeros((), device=logits.device)
        rows = sum((loss(logits[row : row + 1], labels[row : row + 1]) for row in range(len(labels))), zero)
    except Exception as error:
        raise SettingsError(f"the loss fails on the first batch: {type(error).__name__}: {error}", LOSS_REMEDY) from error
    if not isinstance(whole, torch.Tensor) or whole.dim() != 0 or not whole.requires_grad:
        raise SettingsError("the loss must be a single number with a gradient", LOSS_REMEDY)
    if not torch.isfinite(whole):
        raise SettingsError(f"the loss of the first batch is {whole.item()}", "check the labels and the loss function")
    if not torch.allclose(whole, rows, rtol=1e-3, atol=1e-5):
        problem = f"the loss of a batch ({whole.item():.6g}) is not the sum of its rows' losses ({rows.item():.6g})"
        raise SettingsError(problem, LOSS_REMEDY)


def other_loss(model: Model, batch: Batch, task: str, backend: StepBackend, say: Say = lambda line: None) -> str | None:
    """Return how the loss of the model's forward differs from that of Glassloop; None if they agree or it computes none."""
    # The model's own loss is compared, not used: accumulation, several processes and fast backends need a sum over
    # rows. Both come from one forward pass, so dropout stays on, and a loss with a term for training is noticed too.
    accepted = inspect.signature(model.forward).parameters
    has_kwargs = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in accepted.values())
    if batch.labels is None or not ("labels" in accepted or has_kwargs) or out_of_range(model, batch.inputs.get("input_ids")):
        return None
    labels = batch.labels if task == "single_label_classification" else batch.labels.float()
    was_training, kind = model.training, getattr(model.config, "problem_type", None)
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    encoder = getattr(model, "base_model", model)
    model.train()
    try:
        with ExitStack() as held:
            held.enter_context(torch.random.fork_rng([backend.device] if backend.device.type == "cuda" else []))
            if encoder is model or not isinstance(encoder, torch.nn.Module):
                held.enter_context(torch.enable_grad())
            else:  # record only what follows the encoder for gradients, which needs little memory
                hook = encoder.register_forward_hook(lambda *given: torch.set_grad_enabled(True) and None)
                held.callback(hook.remove)
                held.enter_context(torch.no_grad())
            labels = backend.move(labels)
            found = model(**backend.move(batch.inputs), labels=labels)
            theirs, logits = getattr(found, "loss", None), getattr(found, "logits", None)
            ours = make_loss(task)(logits.float(), labels) / len(labels) if logits is not None else None
    except Exception as error:
        if no_memory(error):
            raise
        say(f"the model's own loss could not be compared with Glassloop's ({type(error).__name__}: {error})")
        return None
    finally:
        model.train(was_training)
        model.config.problem_type = kind  # transformers' heads write the type they infer into it
        for buffer, before in buffers:
            buffer.copy_(before)
    if logits is None or ours is None:
        problem = f"{type(model).__name__} returns a {type(found).__name__} without logits"
        raise ModelError(problem, "return transformers.modeling_outputs.SequenceClassifierOutput(logits=…) from forward")
    if not isinstance(theirs, torch.Tensor):
        return None
    rounding = 1e-5 if theirs.dtype == logits.dtype == torch.float32 else 2e-2
    theirs = theirs.float().mean()  # some return one loss per row
    problem = f"the model's forward computes its own loss: {theirs.item():.6g} for the first batch, while Glassloop's is"
    if not torch.isclose(theirs, ours, rtol=rounding, atol=rounding / 10, equal_nan=True):
        return f"{problem} {ours.item():.6g}"
    # Logits of a new head may all be close to zero, where class weights or smoothing change only the gradients of a loss.
    if theirs.requires_grad and logits.requires_grad:
        (given,) = torch.autograd.grad(theirs, logits, retain_graph=True, allow_unused=True)
        if given is not None:  # None: the loss was computed before the logits were changed
            (wanted,) = torch.autograd.grad(ours, logits)
            if (given - wanted).abs().max() > 10 * rounding * wanted.abs().max():
                return f"{problem} {ours.item():.6g}, and their gradients differ"
    return None


def out_of_range(model: Model, ids: torch.Tensor | None) -> bool:
    """Return whether a batch holds tokens or positions that the model does not have."""
    # Other checks raise an error for these; on a GPU a forward pass with them would end the process.
    if ids is None:
        return False
    words = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    most = getattr(model.config, "max_position_embeddings", None) or 0
    return bool((words is not None and ids.max() >= words.weight.shape[0]) or 0 < most < ids.shape[1])


def class_weights_of(text: str | None, num_labels: int, rows: Rows | None) -> list[float] | None:
    """Return the weight of each class: balanced over the training rows, or the given numbers; None if there are none."""
    if not text:
        return None
    if text == "balanced":  # all classes weigh the same, and a row weighs 1 on average
        labels = labels_in(rows)
        if labels is None:
            raise SettingsError("class_weights is balanced, but there are no training rows with labels", "use numbers")
        if labels.ndim == 1 and labels.dtype.kind == "f":
            raise SettingsError("class_weights is balanced, but the labels are scores", "omit class_weights")
        sums = labels.sum(axis=0) if labels.ndim == 2 else np.bincount(labels, minlength=num_labels)
        counts = [int(number) for number in sums]
        if 0 in counts:
            problem = f"class_weights is balanced, but no training row has the label {counts.index(0)}"
            raise SettingsError(problem, "use numbers")
        return [sum(counts) / (len(counts) * count) for count in counts]
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise SettingsError(f"class_weights is {visible(text)}", "use balanced, or numbers such as 1,2.5") from error
    if len(weights) != num_labels or not all(0 <= weight < math.inf for weight in weights):
        problem = f"class_weights has {len(weights)} numbers for {num_labels} labels"
        raise SettingsError(problem, "set one number per label, 0 or more")
    return weights
