"""The check before a fast backend is used: its logits and gradients on a few rows, beside those of the plain model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from glassloop.backends.plain import PlainBackend
from glassloop.data.batches import Batch, Batches
from glassloop.run_folder.record import Difference

ROWS = 4  # enough for padding, several lengths and both sides of a pair; few enough to cost next to nothing
LOOKED_AT = 16  # the rows are chosen among so many, spread over the data, by their lengths
BASE = {"fp32": (1e-4, 1e-3), "bf16": (1e-2, 3e-2)}  # allowed shares of logits and of gradients, where rounding is smaller
PADDING = 1e-5  # allowed share of logits between two widths of padding in fp32: the same operations on more zeros
TIMES_ROUNDING = 4.0  # in bf16, the plain model's own distance from fp32 is the yardstick
SMALL = 1e-2  # gradients far below their typical size are rounding: those of key biases are zero in exact arithmetic


class Figures(NamedTuple):
    """Logits of the compared rows, and the gradient of each weight by its name (none where only logits are compared)."""

    logits: torch.Tensor
    gradients: dict[str, torch.Tensor]
    widened: Batch | None = None  # the batch, where it is padded further than its user would pad it


def sample_of(batches: Batches) -> Batches:
    """A few rows of a data set, read once, as two batches: in one order, and in the reverse."""
    places = np.unique(np.linspace(0, len(batches.rows) - 1, LOOKED_AT).astype(int))
    rows = batches.read(places)
    by_length = sorted(range(len(rows)), key=lambda place: len(rows[place]["input_ids"]))
    chosen = [rows[by_length[place]] for place in np.unique(np.linspace(0, len(rows) - 1, ROWS).astype(int))]
    return Batches([*chosen, *reversed(chosen)], batches.collate, len(chosen))


def weighed(logits: torch.Tensor) -> torch.Tensor:
    """A number that depends on every logit in its own way: its gradients show every weight that counts."""
    return (logits * torch.linspace(-1.0, 2.0, logits.numel(), device=logits.device).view_as(logits)).mean()


def plain_figures(model: nn.Module, batch: Batch, backend: PlainBackend, *, trains: bool) -> Figures:
    """What the unmodified model gives, padded as its user would pad it."""
    with torch.set_grad_enabled(trains), backend.forward(model):
        logits = model(**backend.move(batch.inputs)).logits.float()
    if not trains:
        return Figures(logits, {})
    names, weights = zip(*((name, weight) for name, weight in model.named_parameters() if weight.requires_grad), strict=True)
    found = torch.autograd.grad(weighed(logits), weights, allow_unused=True)
    return Figures(logits.detach(), {name: value for name, value in zip(names, found, strict=True) if value is not None})


def fast_figures(model: nn.Module, batches: Any, backend: Any, *, trains: bool) -> Figures:
    """What the backend gives for the first batch; captured steps are captured with the second one and replayed."""
    first, second = batches.epoch()
    widened = None if "packed" in first.inputs else first
    if not trains:
        with torch.inference_mode(), backend.forward(model):
            return Figures(model(**backend.move(first.inputs)).logits.float(), {}, widened)
    storage = backend.savings.storage

    def step(group: list[Batch]) -> torch.Tensor:
        with backend.forward(model):
            logits: torch.Tensor = model(**backend.move(group[0].inputs)).logits.float()
        backend.backward(weighed(logits))
        storage.zero_missing_gradients()
        storage.clear_gradients()
        return logits.detach()

    logits = backend.tried(step, [first], [second])
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    return Figures(logits, {name: storage.full_gradient(weight) for name, weight in named}, widened)


def distance(found: Figures, wanted: Figures) -> tuple[float, float]:
    """The largest difference of a logit and of a weight's gradient, as shares of what is wanted."""
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


def compare(backend: Any, model: nn.Module, sample: Batches, fast: Callable[[], Figures], *, trains: bool) -> Difference:
    """Compare what `fast` gives for a sample with the plain model. Weights, gradients and random states stay as they are."""
    was_training, gradients = model.training, {weight: weight.grad for weight in model.parameters()}
    model.eval()
    model.zero_grad(set_to_none=True)  # else what was left there before would be added
    try:
        found = fast()  # first: it refuses tokens the model does not know with a message of its own
        batch = next(iter(sample.epoch()))
        wanted = plain_figures(model, batch, PlainBackend(backend.device, "fp32"), trains=trains)
        shares, allowed = distance(found, wanted), BASE["fp32"]
        if found.widened is not None:  # padding must not count, which the rounding of bf16 would hide
            share = distance(plain_figures(model, found.widened, PlainBackend(backend.device, "fp32"), trains=False), wanted)[0]
            if not share <= PADDING:
                return Difference(len(batch.numbers), share, None, PADDING, None)
        if backend.precision != "fp32" or coarse_products(backend.device):
            allowed = BASE["bf16"]
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


def coarse_products(device: torch.device) -> bool:
    """Whether products of fp32 are allowed to be rounded to TF32."""
    return device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
