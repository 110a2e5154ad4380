"""The metrics of resampled rows: each is a function of how often every row was drawn.

`metric_of_counts(...)(counts)` equals the metric of `measures.py` on rows repeated `counts` times, for many draws at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np

from glassloop.metric_values import AVERAGED, CORRELATIONS, Array, one_of
from glassloop.settings import CLASSES, SCORE

# Takes the counts of draws x rows and returns one value per draw.
CountsMetric: TypeAlias = Callable[[Array], Array]
OF_CLASSES = ("accuracy", *AVERAGED, "f1_macro", "matthews_correlation")
OF_LABELS = ("exact_match", "accuracy", "f1_micro", "f1_macro", "f1_samples")
OF_SCORES = (*CORRELATIONS, "mse")
SHARES = ("accuracy", "exact_match")  # shares of rows that are right, whose intervals need no draws


def metric_of_counts(key: str, task: str, predictions: Array, references: Array, positive: int | None = None) -> CountsMetric:
    """Return the function from counts of rows to a metric.

    Args:
        key: The metric, one that `measures.py` computes.
        task: The task.
        predictions: Class numbers, rows of 0 and 1, or scores.
        references: The true values in the same form.
        positive: The class number that f1, precision and recall refer to; 1 if it is not given.

    Raises:
        SettingsError: If the task has no such metric.
    """
    known = OF_CLASSES if task == CLASSES else OF_SCORES if task == SCORE else OF_LABELS
    one_of(key, known, f"metric of {task}")
    if key in SHARES:
        equal = predictions == references
        return partial(_mean, values=(equal.all(axis=1) if equal.ndim == 2 else equal).astype(np.float64))
    if task == SCORE:
        if key == "mse":
            return partial(_mean, values=np.square(predictions - references))
        correlate = _spearman if key.startswith("spearman") else _pearson
        return partial(correlate, first=predictions.astype(np.float64), second=references.astype(np.float64))
    if task == CLASSES:
        if key in AVERAGED:
            chosen = 1 if positive is None else positive
            return partial(_of_one_class, key=key, given=predictions == chosen, wanted=references == chosen)
        compute = _macro_f1 if key == "f1_macro" else _matthews
        return partial(compute, predictions=predictions, references=references)
    given, wanted = predictions.astype(np.float64), references.astype(np.float64)
    hits, total = given * wanted, given + wanted
    if key == "f1_samples":
        return partial(_mean, values=_ratio(2 * hits.sum(axis=1), total.sum(axis=1)))
    if key == "f1_micro":
        return partial(_f1_of_sums, hits=hits.sum(axis=1, keepdims=True), total=total.sum(axis=1, keepdims=True))
    return partial(_f1_of_sums, hits=hits, total=total)


def _ratio(over: Array, under: Array) -> Array:
    """Return a quotient, and 0 where there is nothing to count."""
    return np.asarray(np.divide(over, under, out=np.zeros(np.shape(over)), where=under > 0))


def _mean(counts: Array, values: Array) -> Array:
    return np.asarray(counts @ values / counts.sum(axis=1))


def _of_one_class(counts: Array, key: str, given: Array, wanted: Array) -> Array:
    hits, predicted, true = (counts @ rows.astype(np.float64) for rows in (given & wanted, given, wanted))
    return _ratio(*{"precision": (hits, predicted), "recall": (hits, true)}.get(key, (2 * hits, predicted + true)))


def _f1_of_sums(counts: Array, hits: Array, total: Array) -> Array:
    return np.asarray(_ratio(2 * (counts @ hits), counts @ total).mean(axis=1))


def _sums_by_class(counts: Array, classes: Array, chosen: Array | None = None) -> tuple[Array, Array]:
    """Return the class numbers that occur, and the counts of their rows: draws x classes."""
    rows = np.argsort(classes, kind="stable")
    if chosen is not None:
        rows = rows[chosen[rows]]
    if not len(rows):
        return np.empty(0, dtype=np.int64), np.zeros((len(counts), 0))
    found, starts = np.unique(classes[rows], return_index=True)
    return found, np.add.reduceat(counts[:, rows], starts, axis=1)


def _class_sums(counts: Array, predictions: Array, references: Array) -> tuple[Array, Array, Array]:
    """Return how many rows of each class are right, predicted and true: three arrays of draws x classes."""
    classes = np.unique([predictions, references])
    parts = (predictions, predictions == references), (predictions, None), (references, None)
    sums = []
    for numbers, chosen in parts:
        filled = np.zeros((len(counts), len(classes)))
        found, values = _sums_by_class(counts, numbers, chosen)
        filled[:, np.searchsorted(classes, found)] = values
        sums.append(filled)
    return sums[0], sums[1], sums[2]


def _macro_f1(counts: Array, predictions: Array, references: Array) -> Array:
    """Return the mean F1 of the classes that a draw contains, as scikit-learn does."""
    hits, predicted, true = _class_sums(counts, predictions, references)
    present = (predicted + true > 0).sum(axis=1)
    return np.asarray(_ratio(2 * hits, predicted + true).sum(axis=1) / np.maximum(present, 1))


def _matthews(counts: Array, predictions: Array, references: Array) -> Array:
    hits, predicted, true = _class_sums(counts, predictions, references)
    total = counts.sum(axis=1, dtype=np.float64)
    covariance = hits.sum(axis=1) * total - (predicted * true).sum(axis=1)
    spread = [total**2 - np.square(sums).sum(axis=1) for sums in (predicted, true)]
    return _ratio(covariance, np.sqrt(np.maximum(spread[0] * spread[1], 0.0)))


def _pearson(counts: Array, first: Array, second: Array) -> Array:
    first, second = first - first.mean(), second - second.mean()
    total, (a, b, aa, bb, ab) = (
        counts.sum(axis=1),
        (counts @ np.stack([first, second, first**2, second**2, first * second], axis=1)).T,
    )
    spread = np.maximum((aa - a * a / total) * (bb - b * b / total), 0.0)
    return _ratio(ab - a * b / total, np.sqrt(spread))


def _spearman(counts: Array, first: Array, second: Array) -> Array:
    counts = np.asarray(counts, dtype=np.float64)
    a, b = _ranks(counts, first), _ranks(counts, second)
    total = counts.sum(axis=1)
    middle = ((total + 1) / 2)[:, None]
    a, b = a - middle, b - middle
    sums = [np.einsum("ij,ij,ij->i", counts, one, other) for one, other in ((a, b), (a, a), (b, b))]
    return _ratio(sums[0], np.sqrt(np.maximum(sums[1] * sums[2], 0.0)))


def _ranks(counts: Array, values: Array) -> Array:
    """Return the mean rank of each row among the drawn rows: draws x rows."""
    found, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    drawn = np.add.reduceat(counts[:, order], np.searchsorted(group[order], np.arange(len(found))), axis=1)
    return np.asarray((np.cumsum(drawn, axis=1) - drawn / 2 + 0.5)[:, group])
