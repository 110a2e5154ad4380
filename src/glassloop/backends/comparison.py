"""Compare logits and gradients of a fast backend with those of the plain model, on a few rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from glassloop.backends.packed import PackedBackend
from glassloop.backends.plain import PlainBackend
from glassloop.data.batches import Batch, Batches
from glassloop.engine.interfaces import Backend, RowBatches, StepBackend, Tensors
from glassloop.run_folder.record import Difference

COMPARED_ROWS = 4  # enough for padding, several lengths and both parts of a pair; few enough to take almost no time
CANDIDATE_ROWS = 16  # the compared rows are chosen by length from these, which are spread over the data
ALLOWED = {"fp32": (1e-4, 1e-3), "bf16": (1e-2, 3e-2)}  # relative differences of logits and of gradients, at least
ALLOWED_BY_PADDING = 1e-5  # relative difference of logits between two widths of padding in fp32
TIMES_ROUNDING = 4.0  # in bf16, allow this many times the plain model's own distance from fp32
SMALL = 1e-2  # gradients far below their typical size are rounding errors: those of key biases are zero in exact arithmetic


class Figures(NamedTuple):
    """Logits of the compared rows, and the gradient of each weight by its name (none if only logits are compared)."""

    logits: torch.Tensor
    gradients: Tensors
    widened: Batch | None = None  # the batch, if it was padded further than the user's batches


def sample_batches(batches: Batches) -> Batches:
    """Return a few rows of a data set, read once, as two batches: in one order, and in the reverse order."""
    places = np.unique(np.linspace(0, len(batches.rows) - 1, CANDIDATE_ROWS).astype(int))
    rows = batches.read(places)
    by_length = sorted(range(len(rows)), key=lambda place: len(rows[place]["input_ids"]))
    chosen = [rows[by_length[place]] for place in np.unique(np.linspace(0, len(rows) - 1, COMPARED_ROWS).astype(int))]
    return Batches([*chosen, *reversed(chosen)], batches.collate, len(chosen))


def trial_loss(logits: torch.Tensor) -> torch.Tensor:
    """Return a loss that weights every logit differently, so that an error in any weight changes the gradients."""
    return (logits * torch.linspace(-1.0, 2.0, logits.numel(), device=logits.device).view_as(logits)).mean()


def plain_figures(model: nn.Module, batch: Batch, backend: StepBackend, *, trains: bool) -> Figures:
    """Return what the unmodified model computes for a padded batch."""
    with torch.set_grad_enabled(trains), backend.forward(model):
        logits = model(**backend.move(batch.inputs)).logits.float()
    if not trains:
        return Figures(logits, {})
    names, weights = zip(*((name, weight) for name, weight in model.named_parameters() if weight.requires_grad), strict=True)
    found = torch.autograd.grad(trial_loss(logits), weights, allow_unused=True)
    return Figures(logits.detach(), {name: value for name, value in zip(names, found, strict=True) if value is not None})


def fast_figures(model: nn.Module, batches: RowBatches, backend: PackedBackend, *, trains: bool) -> Figures:
    """Return what the backend computes for the first batch. Captured steps are captured with the second one and replayed."""
    first, second = batches.epoch()
    widened = None if "packed" in first.inputs else first
    if not trains:
        with torch.inference_mode(), backend.forward(model):
            return Figures(model(**backend.move(first.inputs)).logits.float(), {}, widened)
    storage = backend.storage

    def step(group: list[Batch]) -> torch.Tensor:
        with backend.forward(model):
            logits: torch.Tensor = model(**backend.move(group[0].inputs)).logits.float()
        backend.backward(trial_loss(logits))
        storage.zero_missing_gradients()
        storage.clear_gradients()
        return logits.detach()

    logits = backend.trial_step(step, [first], [second])
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    return Figures(logits, {name: storage.full_gradient(weight) for name, weight in named}, widened)


def distance(found: Figures, wanted: Figures) -> tuple[float, float]:
    """Return the largest relative difference of a logit and of a weight's gradient."""
    logits = (found.logits - wanted.logits).abs().max() / wanted.logits.abs().max().clamp(min=1e-6)
    if not (wanted.gradients and found.gradients):
        return float(logits), 0.0
    zero = torch.zeros((), device=wanted.logits.device)
    pairs = [
        (wanted.gradients.get(name, zero), found.gradients.get(name, zero)) for name in {**wanted.gradients, **found.gradients}
    ]
    norms = torch.stack(torch._foreach_norm([value for value, _ in pairs]))
    apart = torch.stack(torch._foreach_norm([value - other for value, other in pairs]))
    sizes = torch.tensor([float(max(value.numel(), other.numel())) for value, other in pairs], device=zero.device)
    typical = norms.norm() / sizes.sum().sqrt()
    shares = apart / (norms + SMALL * typical * sizes.sqrt() + 1e-30)
    return float(logits), float(shares.max())


def compare(backend: Backend, model: nn.Module, sample: Batches, fast: Callable[[], Figures], *, trains: bool) -> Difference:
    """Compare what `fast` computes for a sample with the plain model. Weights, gradients and random states do not change."""
    was_training, gradients = model.training, {weight: weight.grad for weight in model.parameters()}
    model.eval()
    model.zero_grad(set_to_none=True)  # else gradients that are already there would be added
    try:
        found = fast()  # first: it raises a clear error for tokens that the model does not know
        batch = next(iter(sample.epoch()))
        wanted = plain_figures(model, batch, PlainBackend(backend.device, "fp32"), trains=trains)
        shares, allowed = distance(found, wanted), ALLOWED["fp32"]
        if found.widened is not None:  # padding must not change logits; the rounding of bf16 would hide that it does
            share = distance(plain_figures(model, found.widened, PlainBackend(backend.device, "fp32"), trains=False), wanted)[0]
            if not share <= ALLOWED_BY_PADDING:
                return Difference(len(batch.numbers), share, None, ALLOWED_BY_PADDING, None)
        if backend.precision != "fp32" or uses_tf32(backend.device):
            allowed = ALLOWED["bf16"]
            if not all(share <= most for share, most in zip(shares, allowed, strict=True)):
                rounded = plain_figures(model, batch, PlainBackend(backend.device, backend.precision), trains=trains)
                rounding = distance(rounded, wanted)
                allowed = (max(allowed[0], TIMES_ROUNDING * rounding[0]), max(allowed[1], TIMES_ROUNDING * rounding[1]))
    finally:
        model.train(was_training)
        for weight, gradient in gradients.items():
            weight.grad = gradient
    if not trains:
        return Difference(len(batch.numbers), shares[0], None, allowed[0], None)
    return Difference(len(batch.numbers), *shares, *allowed)


def uses_tf32(device: torch.device) -> bool:
    """Return whether fp32 matrix multiplications may round their inputs to TF32."""
    return device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
