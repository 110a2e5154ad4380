"""Each metric of a model, and how much it would change without each of the rows.

The metric minus its value without a row is the change of that row. The spread of the changes is the jackknife estimate of the
metric's variance over rows, and their covariance between models is that of the models' scores. Both take one pass over the
rows, without random draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glassloop.metric_values import AVERAGED, CORRELATIONS, Array, one_of
from glassloop.settings import CLASSES, SCORE

OF_CLASSES = ("accuracy", *AVERAGED, "f1_macro", "matthews_correlation")
OF_LABELS = ("exact_match", "accuracy", "f1_micro", "f1_macro", "f1_samples")
OF_SCORES = (*CORRELATIONS, "mse")
SHARES = ("accuracy", "exact_match")  # shares of rows that are right
ROUNDING = 1e-12  # the part of a sum that rounding may leave of nothing


@dataclass(frozen=True)
class RowMetric:
    """A metric and what each row contributes to it.

    Attributes:
        value: The metric.
        changes: For each row, the metric minus the metric without this row.
        counted: The number of rows that count for the metric. F1 of one class ignores rows that neither have it nor are given
            it, and a mean over classes is as uncertain as its smallest classes make it.
        classes: The number of classes or labels that the metric is a mean over.
    """

    value: float
    changes: Array
    counted: float
    classes: int = 1

    @property
    def variance(self) -> float:
        """The jackknife estimate of the variance over rows."""
        return float(covariance_of(self.changes[None])[0, 0])

    @property
    def bias(self) -> float:
        """The jackknife estimate of the bias: how far the metric of so few rows lies above that of very many, on average."""
        return -(len(self.changes) - 1) * float(self.changes.mean())


def row_metric(key: str, task: str, predictions: Array, references: Array, positive: int | None = None) -> RowMetric:
    """Return a metric and the change that each row makes.

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
        return mean_of((equal.all(axis=1) if equal.ndim == 2 else equal).astype(np.float64))
    if task == SCORE:
        if key == "mse":
            return mean_of(np.square(predictions - references))
        correlation = spearman if key.startswith("spearman") else pearson
        return correlation(predictions.astype(np.float64), references.astype(np.float64))
    if task == CLASSES:
        if key in AVERAGED:
            chosen = 1 if positive is None else positive
            given, wanted = (part == chosen for part in (predictions, references))
            under = {"precision": given, "recall": wanted}.get(key, given.astype(np.int64) + wanted)
            return ratio_of((given & wanted) * (2 if key == "f1" else 1), under)
        return (macro_f1 if key == "f1_macro" else matthews)(predictions, references)
    if key == "f1_macro":
        return label_f1(predictions, references)
    hits, total = (predictions * references).sum(axis=1), (predictions + references).sum(axis=1)
    return mean_of(_ratio(2 * hits, total)) if key == "f1_samples" else ratio_of(2 * hits, total)


def covariance_of(changes: Array) -> Array:
    """Return the jackknife covariance of metrics from the changes of their rows.

    Args:
        changes: models x rows.
    """
    number = changes.shape[1]
    centered = changes - changes.mean(axis=1, keepdims=True)
    return np.asarray((number - 1) / number * (centered @ centered.T))


def one_row_variance(changes: Array) -> float:
    """Return the mean square of what a row contributes, weighted by the squares themselves; 0 if no row contributes anything.

    Seeds with equal scores, models that differ on a handful of rows, and errors that a few rows dominate prove less than their
    variance says, by about the contribution of a row.

    Args:
        changes: What each row contributes, in any shape.
    """
    squares = np.square(changes)
    total = float(squares.sum())
    return float(np.square(squares).sum()) / total if total else 0.0


def _ratio(over: Array, under: Array) -> Array:
    """Return a quotient, and 0 where there is nothing to count."""
    over = np.asarray(over, dtype=np.float64)
    return np.asarray(np.divide(over, under, out=np.zeros(np.broadcast(over, under).shape), where=np.asarray(under) > 0))


def mean_of(values: Array) -> RowMetric:
    """Return the mean of one value per row."""
    mean = float(values.mean())
    return RowMetric(mean, (values - mean) / max(len(values) - 1, 1), len(values))


def ratio_of(over: Array, under: Array) -> RowMetric:
    """Return the quotient of two sums over rows.

    Args:
        over: One number per row.
        under: The same for the divisor. A quotient without divisor is 0.
    """
    above, below = over.sum(), under.sum()
    quotient = float(_ratio(above, below))
    return RowMetric(quotient, quotient - _ratio(above - over, below - under), max(float(np.count_nonzero(under)), 1.0))


def balanced_rows(counts: Array) -> float:
    """Return how many rows, equally many of each class, would give a mean over classes the same variance."""
    found = counts[counts > 0]
    return float(len(found) ** 2 / (1 / found).sum()) if len(found) else 1.0


def class_counts(predictions: Array, references: Array) -> tuple[Array, Array, Array]:
    """Return how many rows of each class are right, predicted and true."""
    size = int(max(predictions.max(), references.max())) + 1
    right = references[predictions == references]
    hits, predicted, true = (np.bincount(part, minlength=size).astype(np.float64) for part in (right, predictions, references))
    return hits, predicted, true


def f1_changes(hits: Array, total: Array) -> tuple[Array, Array, Array]:
    """Return F1 of each class, and its change by a row that is right, and by one that either has or is given the class.

    Args:
        hits: Number of right rows of each class.
        total: Number of rows that have the class plus number of rows that are given it.
    """
    f1 = _ratio(2 * hits, total)
    return f1, f1 - _ratio(2 * (hits - 1), total - 2), f1 - _ratio(2 * hits, total - 1)


def macro_f1(predictions: Array, references: Array) -> RowMetric:
    """Return the mean F1 of the classes that occur, as scikit-learn does. Without its only row, a class counts as 0."""
    hits, predicted, true = class_counts(predictions, references)
    number = int((predicted + true > 0).sum())
    f1, right, wrong = f1_changes(hits, predicted + true)
    changes = np.where(predictions == references, right[references], wrong[references] + wrong[predictions])
    counted = balanced_rows(np.where(true > 0, true, predicted))
    return RowMetric(float(f1.sum() / number), changes / number, counted, number)


def label_f1(predictions: Array, references: Array) -> RowMetric:
    """Return the mean F1 of all labels, of which a row may have several."""
    both = predictions + references
    f1, right, wrong = f1_changes((both == 2).sum(axis=0), both.sum(axis=0))
    counts = np.count_nonzero(both, axis=0)
    changes = ((both == 2) @ right + (both == 1) @ wrong) / len(f1)
    return RowMetric(float(f1.mean()), changes, balanced_rows(counts), max(int(np.count_nonzero(counts)), 1))


def matthews(predictions: Array, references: Array) -> RowMetric:
    """Return Matthews' correlation of classes."""
    hits, predicted, true = class_counts(predictions, references)
    right = (predictions == references).astype(np.float64)

    def correlation(total: Array, correct: Array, both: Array, of_predicted: Array, of_true: Array) -> Array:
        spread = (total**2 - of_predicted) * (total**2 - of_true)
        return _ratio(correct * total - both, np.sqrt(np.maximum(spread, 0.0)))

    sums = float(len(right)), hits.sum(), predicted @ true, predicted @ predicted, true @ true
    value = float(correlation(*map(np.asarray, sums)))
    without = correlation(
        np.full(len(right), sums[0] - 1),
        sums[1] - right,
        sums[2] - true[predictions] - predicted[references] + right,
        sums[3] - 2 * predicted[predictions] + 1,
        sums[4] - 2 * true[references] + 1,
    )
    classes = max(int((true > 0).sum()), 2)
    spread_out = sums[0] * (1 - sums[4] / sums[0] ** 2) * classes / (classes - 1)  # all rows if classes are equally frequent
    return RowMetric(value, value - without, max(float(spread_out), 1.0))


def pearson(first: Array, second: Array) -> RowMetric:
    """Return Pearson's correlation, 0 for equal values."""
    number = len(first)
    if not np.ptp(first) or not np.ptp(second):
        return RowMetric(0.0, np.zeros(number), number)
    first, second = first - first.mean(), second - second.mean()
    squares, others, products = first @ first, second @ second, first @ second

    def correlation(product: Array, one: Array, other: Array) -> Array:
        equal = (one <= ROUNDING * squares) | (other <= ROUNDING * others)
        return _ratio(product, np.where(equal, 0.0, np.sqrt(np.abs(one * other))))

    value = float(correlation(*map(np.asarray, (products, squares, others))))
    # Without a row, each sum of squares or products of deviations loses this row's product times n / (n - 1).
    lost = number / max(number - 1, 1)
    without = correlation(products - lost * first * second, squares - lost * first**2, others - lost * second**2)
    return RowMetric(value, value - without, number)


def spearman(first: Array, second: Array) -> RowMetric:
    """Return Spearman's correlation. The changes are those of an infinitely small part of each row."""
    number, groups = len(first), [np.unique(part, return_inverse=True)[1] for part in (first, second)]
    shares = [_mean_ranks(group) / number for group in groups]
    value = pearson(*shares).value
    centered = [part - part.mean() for part in shares]
    spread = [np.sqrt(part @ part / number) for part in centered]
    if not spread[0] * spread[1]:
        return RowMetric(value, np.zeros(number), number)
    one, other = (part / scale for part, scale in zip(centered, spread, strict=True))
    own = one * other - value * (one**2 + other**2) / 2
    # A row also moves the ranks of all rows above it, in both columns.
    pulls = (other - value * one) / spread[0], (one - value * other) / spread[1]
    found = own + sum(_pull_above(group, pull) for group, pull in zip(groups, pulls, strict=True)) / number
    return RowMetric(value, (found - found.mean()) / max(number - 1, 1), number)


def _mean_ranks(group: Array) -> Array:
    """Return the rank of each row from the number of its value; equal values have the mean of their ranks."""
    sizes = np.bincount(group)
    return np.asarray((np.cumsum(sizes) - (sizes - 1) / 2)[group])


def _pull_above(group: Array, pulls: Array) -> Array:
    """Return for each row the sum of the pulls of rows with larger values, and half of those with equal ones."""
    sums = np.bincount(group, weights=pulls)
    return np.asarray((np.cumsum(sums[::-1])[::-1] - sums / 2)[group])
