"""Suspected label errors: what a model that never saw a row expects of it, and confident learning on that."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from glassloop.diagnosis.rows import Neighbors
from glassloop.models.linear import fit_linear
from glassloop.scores.metrics import Array, probabilities
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

LEAST_OF_CLASS = 5  # rows of a class, below which a model that did not see one of them cannot know it
CLOSENESS = 4  # power of the cosine with which a near row counts
DRAWS = 200  # of the bootstrap behind an interval
FAR_RESIDUAL = 3.5  # in robust standard deviations: a score this far from its prediction is suspected
NORMAL = 1.4826  # standard deviations per median absolute deviation


@dataclass(frozen=True)
class HeldOut:
    """What models that never saw a row, nor one with the same texts, expect of it."""

    rows: Array  # places in the sample: the rows with a label
    expected: Array  # probabilities of classes or labels, or scores: rows x outputs
    targets: Array
    task: str
    method: str = "frozen"

    @property
    def right(self) -> Array:
        """How right the model is about each row: 1 or 0, the share of its labels, or minus the absolute error."""
        if self.task == SCORE:
            return np.asarray(-np.abs(self.expected[:, 0] - self.targets))
        if self.task == SEVERAL:
            return np.asarray(((self.expected > 0.5) == self.targets).mean(axis=1))
        return np.asarray(self.expected.argmax(axis=1) == self.targets, dtype=np.float64)


@dataclass(frozen=True)
class Suspects:
    """Rows whose label is probably wrong, the most suspicious one first."""

    rows: Array  # places in `HeldOut`
    suggested: Array  # a class, a row of 0 and 1, or a score
    given_probability: Array  # of the given label; of scores, the distance in standard deviations
    probability: Array  # of the suggested label


@dataclass(frozen=True)
class NoiseShare:
    """The estimated share of wrong labels among the rows of a class, with its 95% confidence interval."""

    label: str
    rows: int
    share: float
    low: float
    high: float


def held_out_by_regression(features: Array, targets: Array, task: str, num_labels: int, groups: Array, rows: Array) -> HeldOut:
    """Fit a regression to embeddings in five folds, each without the rows that it predicts."""
    outputs = fit_linear(features, targets, task, num_labels, groups, all_held_out=True).held_out_outputs
    if outputs is None or not np.isfinite(outputs).all():  # all rows have the same texts
        outputs = np.zeros((len(targets), num_labels))
    return HeldOut(rows, expected_of(outputs, task), targets, task)


def with_neighbors(held: HeldOut, neighbors: Neighbors, groups: Array) -> HeldOut:
    """Return the geometric mean of what the model expects and of the labels of the nearest rows, if that predicts better."""
    # Both err, but rarely on the same rows: on public sets of single texts, fewer correct labels are suspected. The nearest
    # pairs are often about the same things, whatever their labels; then the regression is better alone.
    if held.task != CLASSES:
        return held
    size, at = held.expected.shape[1], np.full(len(groups), -1)
    at[held.rows] = np.arange(len(held.rows))
    near, cosines = at[neighbors.rows[held.rows]], neighbors.cosines[held.rows]
    usable = (near >= 0) & (groups[neighbors.rows[held.rows]] != groups[held.rows][:, None])
    weights = np.where(usable, np.clip(cosines, 0, 1) ** CLOSENESS, 0.0)
    votes = np.bincount(held.targets, minlength=size) / len(held.targets) * np.ones((len(held.rows), 1))
    rows = np.arange(len(held.rows))
    for column in range(near.shape[1]):
        votes[rows, held.targets[near[:, column]]] += weights[:, column]
    both = np.sqrt(held.expected * votes)
    both /= np.maximum(both.sum(axis=1, keepdims=True), 1e-300)
    alone, together = (int((one.argmax(axis=1) == held.targets).sum()) for one in (held.expected, both))
    return replace(held, expected=both) if together >= alone else held


def expected_of(outputs: Array, task: str) -> Array:
    return np.asarray(outputs if task == SCORE else probabilities(outputs.astype(np.float64), task))


def confident_classes(expected: Array, given: Array) -> Array:
    """Return the class of which the model is at least as sure as it is of that class on average; -1 without one."""
    size = expected.shape[1]
    limits = np.full(size, np.inf)
    for place in np.unique(given):
        limits[place] = expected[given == place, place].mean()
    above = expected >= limits - 1e-12
    return np.where(above.any(axis=1), np.where(above, expected, -1.0).argmax(axis=1), -1)


def suspects_of(held: HeldOut) -> Suspects:
    """Return the rows whose labels the model contradicts, as many as it is usually confident of."""
    if held.task == SCORE:
        residuals = held.expected[:, 0] - held.targets
        spread = NORMAL * float(np.median(np.abs(residuals - np.median(residuals)))) or float(residuals.std()) or 1.0
        far = np.abs(residuals - np.median(residuals)) / spread
        rows = np.flatnonzero(far > FAR_RESIDUAL)
        rows = rows[np.argsort(-far[rows], kind="stable")]
        return Suspects(rows, held.expected[rows, 0], far[rows], np.full(len(rows), np.nan))
    if held.task == SEVERAL:
        return suspected_sets(held)
    given, expected = held.targets, held.expected
    known = np.bincount(given, minlength=expected.shape[1])[given] >= LEAST_OF_CLASS
    answer = expected.argmax(axis=1)
    rows = np.flatnonzero(known & (answer != given) & likely_errors(expected, given))
    rows = rows[np.argsort(expected[rows, given[rows]], kind="stable")]
    return Suspects(rows, answer[rows], expected[rows, given[rows]], expected[rows, answer[rows]])


def confident_shares(expected: Array, given: Array) -> Array:
    """Return, for the rows of each given class, the share of which the model is confident that they are of each class."""
    size, confident = expected.shape[1], confident_classes(expected, given)
    counts = np.zeros((size, size))
    np.add.at(counts, (given[confident >= 0], confident[confident >= 0]), 1.0)
    counts[np.arange(size), np.arange(size)] += counts.sum(axis=1) == 0
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def likely_errors(expected: Array, given: Array) -> Array:
    """Return which rows are among the likely errors of their class, and of their class and some other one.

    How many rows these are follows from the shares of confident rows. Which ones they are follows from the probability of the
    given class, and from how much more likely the other class is (Northcutt 2021: prune by class and by noise rate).
    """
    shares = confident_shares(expected, given)
    by_class, by_other = np.zeros(len(given), dtype=bool), np.zeros(len(given), dtype=bool)
    for place in np.unique(given):
        inside = np.flatnonzero(given == place)
        numbers = np.round(shares[place] * len(inside)).astype(np.int64)
        by_class[inside[np.argsort(expected[inside, place], kind="stable")[: len(inside) - numbers[place]]]] = True
        for other in np.flatnonzero(numbers):
            if other != place:
                margins = expected[inside, place] - expected[inside, other]
                by_other[inside[np.argsort(margins, kind="stable")[: numbers[other]]]] = True
    return by_class & by_other


def suspected_sets(held: HeldOut) -> Suspects:
    """Return the rows of which at least one label is suspected to be missing or wrong; each label is a question of its own."""
    wrong = np.zeros(held.targets.shape, dtype=bool)
    for place, given in enumerate(held.targets.T):
        if min(int(given.sum()), len(given) - int(given.sum())) >= LEAST_OF_CLASS:
            both = np.stack([1 - held.expected[:, place], held.expected[:, place]], axis=1)
            wrong[:, place] = (both.argmax(axis=1) != given) & likely_errors(both, given)
    chosen = np.where(held.targets == 1, held.expected, 1 - held.expected)
    doubt = np.where(wrong, chosen, 1.0).min(axis=1)
    rows = np.flatnonzero(wrong.any(axis=1))
    rows = rows[np.argsort(doubt[rows], kind="stable")]
    suggested = np.where(wrong, 1 - held.targets, held.targets)
    return Suspects(rows, suggested[rows], doubt[rows], 1 - doubt[rows])


def noise_shares(held: HeldOut, names: tuple[str, ...]) -> list[NoiseShare]:
    """Return the estimated share of wrong labels of each class, by confident learning, with an interval by the bootstrap."""
    if held.task != CLASSES:
        return []
    size, given = len(names), held.targets
    confident = confident_classes(held.expected, given)
    counts = np.bincount(given, minlength=size)
    random, found = np.random.default_rng(0), []
    for place, name in enumerate(names):
        if counts[place] < LEAST_OF_CLASS:
            continue
        inside = confident[given == place]
        sure = inside[inside >= 0]
        wrong = int((sure != place).sum())
        share = wrong / max(len(sure), 1)
        draws = random.binomial(max(len(sure), 1), (wrong + 0.5) / (len(sure) + 1), DRAWS) / max(len(sure), 1)
        low, high = np.quantile(draws, [0.025, 0.975])
        found.append(NoiseShare(name, int(counts[place]), share, float(min(low, share)), float(max(high, share))))
    return found
