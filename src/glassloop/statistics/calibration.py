"""Whether a classifier's probabilities are true: reliability bins, expected calibration error, and the temperature.

Also which answers to trust: precision, recall and F1 at each threshold, and accuracy against the share of rows answered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glassloop.metric_values import Array
from glassloop.metrics import probabilities
from glassloop.settings import CLASSES, SEVERAL
from glassloop.statistics.scored import ScoredRows

BINS = 15
MOST_POINTS = 200  # of a curve
LOWEST, HIGHEST = 0.01, 100.0  # temperatures
LEAST_SURE, MOST_SURE = 0.02, 50.0  # a temperature outside is not determined by the rows


@dataclass(frozen=True)
class Bin:
    """Answers with similar confidence: how many, their mean confidence, and the share that is right."""

    low: float
    high: float
    number: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Reliability:
    """The bins that hold answers, and the expected calibration error: the mean gap, weighted by their numbers."""

    bins: tuple[Bin, ...]
    error: float


def confidences(rows: ScoredRows, temperature: float | Array = 1.0) -> tuple[Array, Array]:
    """Return the confidence of each answer and whether it is right. Several labels are one answer each.

    Args:
        rows: The predictions of a classifier.
        temperature: What the logits are divided by first; or one temperature of each row (rows x 1).
    """
    likely = probabilities(rows.logits / temperature, rows.task)
    if rows.task == CLASSES:
        return likely[np.arange(len(rows)), rows.predictions], rows.right
    chosen = np.where(rows.predictions == 1, likely, 1 - likely)
    return chosen.ravel(), (rows.predictions == rows.references).ravel()


def reliability(confidence: Array, right: Array, bins: int = BINS) -> Reliability:
    """Return the reliability of answers in bins of equal width.

    Args:
        confidence: The probability of each answer.
        right: Whether each answer is right.
        bins: Number of bins between 0 and 1.
    """
    place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    number = np.bincount(place, minlength=bins)
    sums = [np.bincount(place, weights=values, minlength=bins) for values in (confidence, right.astype(np.float64))]
    found = tuple(
        Bin(one / bins, (one + 1) / bins, int(number[one]), sums[0][one] / number[one], sums[1][one] / number[one])
        for one in range(bins)
        if number[one]
    )
    error = sum(part.number * abs(part.accuracy - part.confidence) for part in found) / max(len(confidence), 1)
    return Reliability(found, float(error))


def negative_log_likelihood(rows: ScoredRows, temperature: float = 1.0) -> float:
    """Return the mean loss of a classifier's rows with logits divided by a temperature, without class weights."""
    return float(row_losses(rows, temperature).mean())


def row_losses(rows: ScoredRows, temperature: float | Array = 1.0) -> Array:
    """Return the loss of each row of a classifier with logits divided by a temperature, or by one of each row (rows x 1)."""
    logits = rows.logits / temperature
    if rows.task == SEVERAL:
        return np.asarray(np.logaddexp(0, np.where(rows.references == 1, -logits, logits)).mean(axis=1))
    top = logits.max(axis=1)
    total = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
    return np.asarray(total - logits[np.arange(len(rows)), rows.references])


def fitted_temperature(rows: ScoredRows) -> float:
    """Return the temperature that minimises the loss on these rows (Guo et al. 2017).

    The loss is convex in the inverse of the temperature, so its slope is halved down to 0. The result is between 0.01 and
    100; a border means that the rows give no finite optimum, such as rows without errors.
    """
    wanted = rows.references if rows.task == SEVERAL else np.eye(rows.logits.shape[1])[rows.references]
    pull = float((wanted * rows.logits).sum())

    def slope(log_inverse: float) -> float:
        likely = probabilities(rows.logits * np.exp(log_inverse), rows.task)
        return float((likely * rows.logits).sum()) - pull

    low, high = -np.log(HIGHEST), -np.log(LOWEST)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return float(np.exp(-(low + high) / 2))


def determined_temperature(rows: ScoredRows) -> float:
    """Return the fitted temperature, or 1 if the rows do not determine one, such as rows without errors."""
    found = fitted_temperature(rows)
    return found if LEAST_SURE < found < MOST_SURE else 1.0


@dataclass(frozen=True)
class ThresholdCurve:
    """Scores of one class for each threshold: rows with at least this probability are answered with the class."""

    thresholds: Array
    precision: Array
    recall: Array
    f1: Array
    answered: Array  # share of rows at or above the threshold


def threshold_curve(probability: Array, positive: Array, most_points: int = MOST_POINTS) -> ThresholdCurve:
    """Return precision, recall, F1 and the share of rows answered for each threshold.

    Args:
        probability: The probability of the class for each row.
        positive: Whether each row has the class.
        most_points: Number of thresholds to keep, spread evenly over the rows.
    """
    order = np.argsort(-probability, kind="stable")
    sorted_probability, hits = probability[order], np.cumsum(positive[order])
    last = np.flatnonzero(np.append(np.diff(sorted_probability) != 0, True))  # the last row of each threshold
    last = _thinned(last, most_points)
    answered = last + 1
    precision, recall = hits[last] / answered, hits[last] / max(int(positive.sum()), 1)
    f1 = 2 * hits[last] / (answered + max(int(positive.sum()), 1))
    return ThresholdCurve(sorted_probability[last], precision, recall, f1, answered / len(probability))


@dataclass(frozen=True)
class CoverageCurve:
    """The accuracy of the most confident answers, against the share of rows answered."""

    thresholds: Array
    answered: Array
    accuracy: Array


def coverage_curve(confidence: Array, right: Array, most_points: int = MOST_POINTS) -> CoverageCurve:
    """Return the accuracy of the rows whose confidence reaches each threshold.

    Args:
        confidence: The probability of each answer.
        right: Whether each answer is right.
        most_points: Number of thresholds to keep, spread evenly over the rows.
    """
    order = np.argsort(-confidence, kind="stable")
    ordered, hits = confidence[order], np.cumsum(right[order])
    last = _thinned(np.flatnonzero(np.append(np.diff(ordered) != 0, True)), most_points)
    return CoverageCurve(ordered[last], (last + 1) / len(confidence), hits[last] / (last + 1))


def _thinned(places: Array, most: int) -> Array:
    """Return at most this many places, evenly spread, with the first and the last."""
    if len(places) <= most:
        return places
    return np.asarray(places[np.unique(np.linspace(0, len(places) - 1, most).round().astype(np.int64))])
