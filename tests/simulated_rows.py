"""Simulated validation rows with a known truth: of one model, of two, and of several seeds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.special import ndtr

from glassloop.scores.statistics import ScoredRows
from glassloop.settings.training import CLASSES

RECALL_SPREAD, CONFUSION = 8.0, 0.5  # classes differ in their recall, and most errors go to a few other classes


@dataclass(frozen=True)
class Population:
    """How frequent each pair of true and predicted class is: classes x classes."""

    shares: np.ndarray

    def truth(self, key: str) -> float:
        """Return a metric of infinitely many rows. F1 is that of the last class."""
        hits, true, given = np.diag(self.shares), self.shares.sum(axis=1), self.shares.sum(axis=0)
        f1 = 2 * hits / (true + given)
        spread = (1 - given @ given) * (1 - true @ true)
        found = {"accuracy": hits.sum(), "f1": f1[-1], "f1_macro": f1.mean()}
        found["matthews_correlation"] = (hits.sum() - given @ true) / np.sqrt(spread)
        return float(found[key])

    def rows(self, generator: np.random.Generator, number: int) -> ScoredRows:
        """Return so many rows, drawn independently."""
        size = len(self.shares)
        counts = generator.multinomial(number, self.shares.ravel())
        references, predictions = np.divmod(np.repeat(np.arange(size * size), counts), size)
        names = tuple(f"class {place}" for place in range(size))
        return ScoredRows(CLASSES, names, predictions, references, np.zeros((number, 0)))


def population(generator: np.random.Generator, classes: int, accuracy: float, *, skewed: bool = False) -> Population:
    """Return classes that are equally frequent, or skewed (1, 1/2, 1/3, ...), with an expected accuracy."""
    frequency = 1 / np.arange(1, classes + 1) if skewed else np.ones(classes)
    recall = np.clip(generator.beta(accuracy * RECALL_SPREAD, (1 - accuracy) * RECALL_SPREAD, size=classes), 0.02, 0.995)
    shares = np.empty((classes, classes))
    for place in range(classes):
        others = generator.dirichlet(np.full(classes - 1, CONFUSION)) * (1 - recall[place])
        shares[place] = np.insert(others, place, recall[place])
    return Population(shares * (frequency / frequency.sum())[:, None])


SHARED = 0.6  # of the answers of two models are the same


def two_models(
    generator: np.random.Generator, first: Population, second: Population, number: int
) -> tuple[ScoredRows, ScoredRows, Population]:
    """Return the rows of two models on the same rows, and the population of the second, which often answers like the first."""
    rows = first.rows(generator, number)
    given = second.shares / second.shares.sum(axis=1, keepdims=True)
    border = np.cumsum(given, axis=1)[rows.references]
    own = np.minimum((border < generator.random((number, 1))).sum(axis=1), len(given) - 1)
    predictions = np.where(generator.random(number) < SHARED, rows.predictions, own)
    frequency = first.shares.sum(axis=1, keepdims=True)
    mixed = Population(SHARED * first.shares + (1 - SHARED) * given * frequency)
    return rows, replace(rows, predictions=predictions), mixed


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
        logits = np.eye(2)[predictions]
        rows_of = partial(ScoredRows, CLASSES, ("a", "b"))
        found.append({seed: rows_of(predictions[seed], references, logits[seed]) for seed in range(seeds)})
    return found
