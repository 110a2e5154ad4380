"""Whether a fast backend may run a model: what it recognises, then what a comparison with the plain model measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from glassloop.backends.comparison import Figures, compare, fast_figures, sample_of
from glassloop.backends.packed import PackedBackend
from glassloop.backends.plain import PlainBackend
from glassloop.data.batches import Batches
from glassloop.errors import ModelError
from glassloop.run_folder.record import Difference
from glassloop.seeding import random_states_kept


@dataclass(frozen=True)
class TrainingUse:
    """How a model is going to be trained, as far as it changes what a fast backend does."""

    data_sets: Sequence[Any]
    weight_decay: float
    shown: bool  # on_gradients looks at gradients
    adds: bool  # gradients of several batches are added up


def usable(
    backend: PlainBackend, model: Any, say: Callable[[str], None] = lambda line: None, reason: str | None = None
) -> PlainBackend:
    """Return the backend, or the plain one with a line where there is a reason against it."""
    if not isinstance(backend, PackedBackend):
        return backend
    reason = reason or backend.why_not(model)
    return backend if reason is None else plain_instead(backend, reason, say)


def plain_instead(backend: PlainBackend, reason: str, say: Callable[[str], None]) -> PlainBackend:
    say(f"backend plain instead of {backend.name}: {reason}")
    return PlainBackend(backend.device, backend.precision)


def proven(
    backend: PlainBackend,
    model: Any,
    batches: Callable[[], Batches],
    say: Callable[[str], None] = lambda line: None,
    use: TrainingUse | None = None,
    *,
    by_name: bool = False,
) -> PlainBackend:
    """Return the backend after its comparison with the plain model, made once a model; the plain one where they differ.

    `use` None: an evaluation, of which only logits are compared. Raises `ModelError` where they differ and the user asked
    for this backend `by_name`.
    """
    if not isinstance(backend, PackedBackend) or backend.savings is not None or backend.why_not(model) is not None:
        return backend
    proof = backend.proofs.get(model)
    if proof is None or not proof.holds or (use is not None and proof.gradients is None):
        proof = prove(backend, model, batches, use)
    if proof.holds:
        return backend
    difference = f"{proof} ({proof.allowed})"
    if by_name:
        raise ModelError(f"backend {backend.name}: {difference}", "use backend plain, or auto, which falls back to plain")
    return plain_instead(backend, difference, say)


def prove(backend: PackedBackend, model: Any, batches: Callable[[], Batches], use: TrainingUse | None) -> Difference:
    """Compare a backend with the plain model as it will be used: logits, and for a training gradients too."""
    with backend.stage(), random_states_kept(backend.device):
        sample = sample_of(batches())

        def fast() -> Figures:
            if use is None:
                with backend.equipped(model):
                    return fast_figures(model, backend.batches(sample, sample.rows), backend, trains=False)
            backend.open(model, use.data_sets, use.weight_decay, shown=use.shown, adds=use.adds)
            try:
                return fast_figures(model, backend.batches(sample, use.data_sets[0]), backend, trains=True)
            finally:
                backend.close()

        backend.proofs[model] = compare(backend, model, sample, fast, trains=use is not None)
    return backend.proofs[model]


def proof_of(backend: PlainBackend, model: Any) -> Difference | None:
    """Return what was measured of a model on a fast backend; None where nothing was, or on plain."""
    return backend.proofs.get(model) if isinstance(backend, PackedBackend) else None
