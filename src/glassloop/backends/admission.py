"""Whether a fast backend may run a model: the backend must support it, and a comparison with the plain model must agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from glassloop.backends.comparison import Figures, compare, fast_figures, sample_batches
from glassloop.backends.packed import PackedBackend
from glassloop.backends.plain import PlainBackend
from glassloop.data.batches import Batches
from glassloop.engine.interfaces import Backend, Say, TrainingUse
from glassloop.errors import GlassloopError, ModelError, no_memory
from glassloop.run_folder.record import Difference
from glassloop.seeding import random_states_kept
from glassloop.speed.encoders.recognition import HOOKS
from glassloop.transformers_types import Model


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
