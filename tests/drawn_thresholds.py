"""Rows of two classes whose best threshold is not a half, and what a threshold truly gains on them."""

from __future__ import annotations

from functools import cache

import numpy as np

from glassloop.scores.metrics import Array
from glassloop.scores.statistics import ScoredRows
from glassloop.settings.training import CLASSES

SHARE, SIGNAL, SHIFT = 0.3, 1.5, -0.2


def drawn_binary(random: np.random.Generator, number: int) -> ScoredRows:
    """Return rows whose margin is normal around a place that depends on the class; logits are too large by half."""
    wanted = (random.random(number) < SHARE).astype(np.int64)
    margin = 1.5 * (random.normal(0, 1, number) + SIGNAL * wanted - SIGNAL / 2 + SHIFT)
    logits = np.stack([-margin / 2, margin / 2], axis=1)
    return ScoredRows(CLASSES, ("no", "yes"), logits.argmax(1), wanted, logits)


@cache
def population() -> tuple[Array, Array]:
    """Return margins and classes of very many rows."""
    rows = drawn_binary(np.random.default_rng(10**6), 400_000)
    return rows.logits[:, 1] - rows.logits[:, 0], rows.references == 1


def f1_at(limit: float) -> float:
    """Return the true F1 of a limit of margins."""
    margin, wanted = population()
    given = margin >= limit
    return float(2 * (given & wanted).sum() / (given.sum() + wanted.sum()))


def true_gain(limit: float) -> float:
    """Return what a limit of margins gains over a probability of a half."""
    return f1_at(limit) - f1_at(0.0)
