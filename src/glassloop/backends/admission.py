"""Whether a fast backend may run a model: supported, and equal to the plain model in logits and gradients of a few rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import nn

from glassloop.backends.fast.encoder_parts import HOOKS
from glassloop.backends.packed import PackedBackend
from glassloop.backends.plain import PlainBackend
from glassloop.base.errors import GlassloopError, ModelError, no_memory
from glassloop.data.batches import Batch, Batches
from glassloop.data.interfaces import Model
from glassloop.data.order import random_states_kept
from glassloop.runs.record import Difference
from glassloop.training.interfaces import Backend, RowBatches, Say, StepBackend, Tensors, TrainingUse

# Each run compares: a new release of transformers can change the computation of a family without renaming a module. Forward
# and backward of these rows cost about one step.
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
    # Per weight, relative to its own norm. The floor keeps gradients that are zero in exact arithmetic, such as the
    # biases of keys, from counting as differences.
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
        rounds_to_tf32 = backend.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
        if backend.precision != "fp32" or rounds_to_tf32:
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


def supported_backend(backend: Backend, model: Model, say: Say = lambda line: None, reason: str | None = None) -> Backend:
    """Return the backend, or the plain one if there is a `reason` against it or it does not support the model."""
    if not isinstance(backend, PackedBackend):
        return backend
    reason = reason or backend.why_not(model)
    return backend if reason is None else fall_back_to_plain(backend, reason, say)


def fall_back_to_plain(backend: Backend, reason: str, say: Say) -> PlainBackend:
    """Return the plain backend, and report why it is used."""
    say(f"backend plain instead of {backend.name}: {reason}")
    return PlainBackend(backend.device, backend.precision)


def verified_backend(
    backend: Backend,
    model: Model,
    batches: Callable[[], Batches],
    say: Say = lambda line: None,
    use: TrainingUse | None = None,
    *,
    by_name: bool = False,
) -> Backend:
    """Return the backend after comparing it with the plain model, once per model; the plain one if they differ.

    `use` None: an evaluation, for which only logits are compared. Raises `ModelError` if they differ and the user asked
    for this backend `by_name`.
    """
    if not isinstance(backend, PackedBackend) or backend.savings is not None or backend.why_not(model) is not None:
        return backend
    with random_states_kept():
        made = batches()
        reason = backend.why_not_rows(model, made, training=use is not None)
    reason = reason or why_not_verified(backend, model, made, use)
    if reason is None:
        return backend
    if by_name:
        raise ModelError(f"backend {backend.name}: {reason}", "use backend plain, or auto, which falls back to plain")
    return fall_back_to_plain(backend, reason, say)


def why_not_verified(backend: PackedBackend, model: Model, batches: Batches, use: TrainingUse | None) -> str | None:
    """Return how a backend differs from the plain model, or how it fails; None if both agree."""
    difference = backend.differences.get(model)
    if difference is None or not difference.holds or (use is not None and difference.gradients is None):
        with random_states_kept():
            sample = sample_batches(batches)
        try:
            difference = measure_difference(backend, model, sample, use)
        except GlassloopError:
            raise  # of the data, which the plain model would not take either
        except Exception as error:
            if no_memory(error):
                raise
            return f"it fails ({type(error).__name__}: {error})"
    return None if difference.holds else str(difference)


def measure_difference(backend: PackedBackend, model: Model, sample: Batches, use: TrainingUse | None) -> Difference:
    """Compare a backend with the plain model as it will be used: logits, and for a training gradients too."""
    with backend.training_context(), random_states_kept(backend.device):

        def fast() -> Figures:
            if use is None:
                with backend.evaluation_context(model):
                    return fast_figures(model, backend.adapt_batches(sample, sample.rows), backend, trains=False)
            backend.start_training(model, use)
            try:
                return fast_figures(model, backend.adapt_batches(sample, use.data_sets[0]), backend, trains=True)
            finally:
                backend.end_training()

        backend.differences[model] = compare(backend, model, sample, fast, trains=use is not None)
    return backend.differences[model]


def known_difference(backend: Backend, model: Model) -> Difference | None:
    """Return how far a model on a fast backend is from the plain one; None if that was not measured, or on plain."""
    return backend.differences.get(model) if isinstance(backend, PackedBackend) else None


State: TypeAlias = tuple[tuple[int, int], ...]
NO_STATE: State = ()


def state_of(model: Model) -> State:
    """Return what must not change while savings stay in place: modules, numbers of hooks, weights and their versions."""
    found = []
    for part in model.modules():
        values = vars(part)
        found.append((id(part), sum(len(values[hooks]) for hooks in HOOKS)))
        for weight in values["_parameters"].values():
            if weight is not None:
                found.append((weight.data_ptr(), 0 if weight.is_inference() else weight._version))
    return tuple(found)
