"""Simulated settings with a known truth: seeds and rows are drawn, and what a model gets right depends on both."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

from glassloop.scores.intervals import ScoredRows
from glassloop.settings.fields import CLASSES

ROWS_SPREAD, NOISE = 1.5, 0.7  # how much rows differ in difficulty, and how much a seed's answer to a row varies


def true_accuracy(skill: float, seed_spread: float) -> float:
    """Return the expected accuracy over all seeds and rows."""
    return float(ndtr(skill / np.sqrt(seed_spread**2 + ROWS_SPREAD**2 + NOISE**2)))


def simulated(
    generator: np.random.Generator, rows: int, seeds: int, skills: tuple[float, ...], seed_spread: float = 0.15
) -> list[dict[int, ScoredRows]]:
    """Return the predictions of each setting's seeds on the same rows. Two classes are equally frequent."""
    difficulty = generator.normal(size=rows) * ROWS_SPREAD
    references = generator.integers(0, 2, rows)
    found = []
    for skill in skills:
        moved = skill + generator.normal(size=(seeds, 1)) * seed_spread
        right = moved + difficulty + generator.normal(size=(seeds, rows)) * NOISE > 0
        predictions = np.where(right, references, 1 - references)
        found.append(
            {
                seed: ScoredRows(CLASSES, ("a", "b"), predictions[seed], references, np.eye(2)[predictions[seed]])
                for seed in range(seeds)
            }
        )
    return found
