"""The predictions of one model as arrays, each metric with the influence of every row, and its interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from glassloop.base.errors import ModelError, SettingsError, shortened
from glassloop.base.records import Json
from glassloop.runs.record import RESTORE, RunRecord, predictions_name, read_predictions
from glassloop.scores.metrics import AVERAGED, COMPUTED, CORRELATIONS, LOWER_IS_BETTER, Array, decide, one_of
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

LARGEST = float(np.finfo(np.float32).max)
ROW_METRICS = {**COMPUTED, SEVERAL: (*COMPUTED[SEVERAL], "accuracy")}  # by task
SHARES = ("accuracy", "exact_match")  # shares of rows that are right
SMALLEST_SHARE = 1e-12  # the part of a sum that rounding may leave of nothing
LEVEL = 0.95
NO_INTERVAL = "too few rows"  # shown instead of an interval
# From a simulation (docs/log.md). Correcting the value for its estimated bias instead covers only 50 to 90% for stratified
# rows.
LEAST_ROWS = 8  # per class: with fewer rows, or with a bias of more standard errors,
MOST_BIAS = 0.5  # intervals covered less than 93 % in simulations (docs/log.md)
ROUNDING = 1e-9


# --- predictions as arrays -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScoredRows:
    """Predictions and labels of one model on the rows of a split."""

    task: str  # single_label_classification, multi_label_classification or regression
    labels: tuple[str, ...]  # the label names; empty for regression
    predictions: Array  # A class number per row, a row of 0 and 1 per row, or a score per row
    references: Array  # the true labels in the same form
    logits: Array  # the outputs of the model, one line per row

    def __len__(self) -> int:
        return len(self.references)

    @property
    def right(self) -> Array:
        """Whether each row is predicted correctly. Of several labels, all must be right."""
        equal = self.predictions == self.references
        return np.asarray(equal.all(axis=1) if equal.ndim == 2 else equal)


def stored_logits(entries: Sequence[Mapping[str, Json]], width: int, path: Path) -> Array:
    """Return the logits of the lines of a file, one line per row. Raise `ModelError` if one is not `width` finite numbers."""
    logits = numbers_of([entry.get("logits") for entry in entries])
    if logits is not None and logits.shape in ((len(entries), width), (len(entries),) * (width == 1)) and len(entries):
        return logits.reshape(len(entries), width)
    for number, entry in enumerate(entries, 1):
        alone = numbers_of(entry.get("logits"))
        if alone is None or alone.size != width or alone.ndim > 1:
            raise ModelError(f"{path}, line {number:,}: logits are not {width:,} finite numbers of a model", RESTORE)
    raise ModelError(f"{path}: there are no rows", RESTORE)


def numbers_of(value: object) -> Array | None:
    """Return a number, or lists of numbers, as an array; None for texts, and for numbers that are not those of a model.

    Beyond fp32, differences and squares of numbers are no longer finite.
    """
    try:
        array = np.asarray(value)
        is_of_model = array.dtype.kind in "iuf" and bool((np.abs(array.astype(np.float64)) <= LARGEST).all())
    except (TypeError, ValueError, OverflowError):
        return None
    return np.asarray(array, dtype=np.float64) if is_of_model else None


def scored_rows(entries: Sequence[Mapping[str, Json]], task: str, labels: Sequence[str] | None, path: Path) -> ScoredRows:
    """Return the lines of a predictions file as arrays. `labels` are the label names of the run; None for regression.

    Raises:
        ModelError: If a row has no label or logits, or a label that is not one of `labels`.
    """
    names = tuple(labels or ())
    numbers = {name: number for number, name in enumerate(names)}
    logits = stored_logits(entries, 1 if task == SCORE else len(names), path)
    references: Array
    try:
        cells = [entry["label"] for entry in entries]
        if task == SCORE:
            scores = numbers_of(cells)
            if scores is None or scores.ndim != 1:
                raise ValueError("a label is not a number")
            references = scores
        elif task == CLASSES:
            references = np.asarray([numbers[label] for label in cells], dtype=np.int64)  # type: ignore[index]
        else:
            references = np.zeros(logits.shape, dtype=np.int64)
            for row, several in enumerate(cells):
                references[row, [numbers[label] for label in several]] = 1  # type: ignore[index, union-attr]
    except (LookupError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {shortened(str(error))}"
        raise ModelError(f"{path}: the predictions do not fit the run's labels: {reason}", RESTORE) from error
    return ScoredRows(task, names, decide(logits, task), references, logits)


def scored_split(folder: Path, record: RunRecord, split: str) -> ScoredRows:
    """Return the stored predictions of a run for a split. Raises `SettingsError` or `ModelError` if there are none."""
    path = folder / predictions_name(split)
    return scored_rows(read_predictions(folder, split), record.data.task, record.data.labels, path)


def has_rows_right(task: str) -> bool:
    """Return whether a row of this task is either right or wrong."""
    return task != SCORE


# --- metrics and what each row contributes to them -----------------------------------------------------------------------


@dataclass(frozen=True)
class RowMetric:
    """A metric and what each row contributes to it."""

    value: float  # the metric
    changes: Array  # for each row, the metric minus the metric without this row
    # the number of rows that count for the metric. F1 of one class ignores rows that neither have it nor are given it, and a
    # mean over classes is as uncertain as its smallest classes make it.
    counted: float
    classes: int = 1  # the number of classes or labels that the metric is a mean over

    @property
    def variance(self) -> float:
        """The jackknife estimate of the variance over rows."""
        return float(covariance_of(self.changes[None])[0, 0])

    @property
    def bias(self) -> float:
        """The jackknife estimate of the bias: how far the metric of so few rows lies above that of very many, on average."""
        return -(len(self.changes) - 1) * float(self.changes.mean())


def row_metric(key: str, task: str, predictions: Array, references: Array, positive: int | None = None) -> RowMetric:
    """Return a metric and the change that each row makes. f1, precision and recall are those of class `positive`, or of 1."""
    one_of(key, ROW_METRICS[task], f"metric of {task}")
    if key in SHARES:
        equal = predictions == references
        return mean_of((equal.all(axis=1) if equal.ndim == 2 else equal).astype(np.float64))
    if key == "mse":
        return mean_of(np.square(predictions - references))
    if task == SCORE:
        correlation = spearman if key.startswith("spearman") else pearson
        return correlation(predictions.astype(np.float64), references.astype(np.float64))
    if key in AVERAGED:
        chosen = 1 if positive is None else positive
        given, wanted = (part == chosen for part in (predictions, references))
        under = {"precision": given, "recall": wanted}.get(key, given.astype(np.int64) + wanted)
        return ratio_of((given & wanted) * (2 if key == "f1" else 1), under)
    if task == CLASSES:
        return (macro_f1 if key == "f1_macro" else matthews)(predictions, references)
    if key == "f1_macro":
        return label_f1(predictions, references)
    hits, total = (predictions * references).sum(axis=1), (predictions + references).sum(axis=1)
    return mean_of(_ratio(2 * hits, total)) if key == "f1_samples" else ratio_of(2 * hits, total)


def row_metrics_of(models: Sequence[ScoredRows], key: str, positive: str | None = None) -> list[RowMetric]:
    """Return a metric of several models with the changes of their rows."""
    labels = models[0].labels
    if positive is not None and positive not in labels:
        raise SettingsError(f"{positive} is not one of the labels", "name one of the labels of the run")
    number = None if positive is None else labels.index(positive)
    return [row_metric(key, model.task, model.predictions, model.references, number) for model in models]


def covariance_of(changes: Array) -> Array:
    """Return the jackknife covariance of metrics from the changes of their rows (models x rows)."""
    number = changes.shape[1]
    centered = changes - changes.mean(axis=1, keepdims=True)
    return np.asarray((number - 1) / number * (centered @ centered.T))


def one_row_variance(changes: Array) -> float:
    """Return the mean square of what a row contributes, weighted by the squares themselves; 0 if no row contributes anything.

    Seeds with equal scores, models that differ on a handful of rows, and errors that a few rows dominate prove less than their
    variance says, by about the contribution of a row.
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
    """Return the quotient of two sums over rows, 0 without a divisor."""
    above, below = over.sum(), under.sum()
    quotient = float(_ratio(above, below))
    return RowMetric(quotient, quotient - _ratio(above - over, below - under), max(float(np.count_nonzero(under)), 1.0))


def balanced_rows(counts: Array) -> float:
    """Return how many rows, equally many of each class, would give a mean over classes the same variance."""
    positive = counts[counts > 0]
    return float(len(positive) ** 2 / (1 / positive).sum()) if len(positive) else 1.0


def class_counts(predictions: Array, references: Array, size: int = 0) -> tuple[Array, Array, Array]:
    """Return how many rows of each class are right, predicted and true. There are at least `size` classes."""
    if predictions.ndim == 2:
        return (predictions * references).sum(axis=0), predictions.sum(axis=0), references.sum(axis=0)
    # One number per row: a row of 0 and 1 for each of thousands of classes would need much memory.
    size = max(size, int(predictions.max()) + 1, int(references.max()) + 1)
    right = references[predictions == references]
    hits, predicted, true = (np.bincount(part, minlength=size) for part in (right, predictions, references))
    return hits, predicted, true


def f1_changes(hits: Array, total: Array) -> tuple[Array, Array, Array]:
    """Return F1 of each class, and its change by a row that is right, and by one that either has or is given the class.

    `total` is the number of rows that have the class plus the number of rows that are given it.
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
        equal = (one <= SMALLEST_SHARE * squares) | (other <= SMALLEST_SHARE * others)
        return _ratio(product, np.where(equal, 0.0, np.sqrt(np.abs(one * other))))

    value = float(correlation(*map(np.asarray, (products, squares, others))))
    # Without a row, each sum of squares or products of deviations loses this row's product times n / (n - 1).
    lost = number / max(number - 1, 1)
    without = correlation(products - lost * first * second, squares - lost * first**2, others - lost * second**2)
    return RowMetric(value, value - without, number)


def spearman(first: Array, second: Array) -> RowMetric:
    """Return Spearman's correlation. The changes are those of an infinitely small part of each row."""

    def mean_ranks(group: Array) -> Array:  # equal values have the mean of their ranks
        sizes = np.bincount(group)
        return np.asarray((np.cumsum(sizes) - (sizes - 1) / 2)[group])

    def pull_above(group: Array, pulls: Array) -> Array:  # of rows with larger values, and half of that of equal ones
        sums = np.bincount(group, weights=pulls)
        return np.asarray((np.cumsum(sums[::-1])[::-1] - sums / 2)[group])

    number, groups = len(first), [np.unique(part, return_inverse=True)[1] for part in (first, second)]
    shares = [mean_ranks(group) / number for group in groups]
    value = pearson(*shares).value
    centered = [part - part.mean() for part in shares]
    spread = [np.sqrt(part @ part / number) for part in centered]
    if not spread[0] * spread[1]:
        return RowMetric(value, np.zeros(number), number)
    one, other = (part / scale for part, scale in zip(centered, spread, strict=True))
    # A row also moves the ranks of all rows above it, in both columns.
    pulls = (other - value * one) / spread[0], (one - value * other) / spread[1]
    moved = sum(pull_above(group, pull) for group, pull in zip(groups, pulls, strict=True)) / number
    changes = one * other - value * (one**2 + other**2) / 2 + moved
    return RowMetric(value, (changes - changes.mean()) / max(number - 1, 1), number)


# --- intervals -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interval:
    """An interval, the level it covers, and how it was computed: "wilson", "t", "fisher" or "bonett-price"."""

    low: float
    high: float
    level: float = LEVEL
    method: str = "t"

    @property
    def half_width(self) -> float:
        """Half of the distance between both ends."""
        return (self.high - self.low) / 2

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def within_range(self, key: str) -> Interval:
        """Return the interval without values that a metric cannot have, such as an accuracy above 1."""
        least, most = range_of(key)
        return replace(self, low=max(self.low, least), high=min(self.high, most))


def range_of(key: str) -> tuple[float, float]:
    """Return the smallest and the largest value that a metric can have."""
    least = -1.0 if key in (*CORRELATIONS, "matthews_correlation") else 0.0
    return least, math.inf if key in LOWER_IS_BETTER else 1.0


@dataclass(frozen=True)
class Estimate:
    """A value and its interval; None if there are too few values for one."""

    value: float
    interval: Interval | None


def normal_quantile(level: float) -> float:
    """Return the z of a two-sided interval: 1.96 for 0.95."""
    from scipy.special import ndtri

    if not 0 < level < 1:
        raise SettingsError(f"level={level} is not between 0 and 1", "use 0.95")
    return float(ndtri((1 + level) / 2))


def wilson(successes: float, number: float, level: float = LEVEL) -> Interval:
    """Return the Wilson score interval of a proportion."""
    z, share = normal_quantile(level), float(successes) / number
    middle, under = share + z * z / (2 * number), 1 + z * z / number
    spread = z * math.sqrt(share * (1 - share) / number + (z / (2 * number)) ** 2)
    low = 0.0 if successes == 0 else max(0.0, (middle - spread) / under)  # exactly, without rounding
    high = 1.0 if successes == number else min(1.0, (middle + spread) / under)
    return Interval(low, high, level, "wilson")


def t_interval(mean: float, variance: float, freedom: float, level: float = LEVEL) -> Interval:
    """Return the t interval of a mean. `variance` is that of the mean, not of single values."""
    from scipy.special import stdtrit

    reach = float(stdtrit(freedom, (1 + level) / 2)) * math.sqrt(variance) if variance else 0.0
    return Interval(mean - reach, mean + reach, level, "t")


def mean_interval(values: Iterable[float], level: float = LEVEL) -> Estimate:
    """Return the mean of independent values, such as the scores of several seeds, with its t interval."""
    points = np.asarray([*values], dtype=np.float64)
    mean = float(points.mean())
    if len(points) < 2:
        return Estimate(mean, None)
    return Estimate(mean, t_interval(mean, float(points.var(ddof=1)) / len(points), len(points) - 1, level))


def metric_interval(metric: RowMetric, key: str, level: float = LEVEL) -> Interval | None:
    """Return the interval of a metric over rows; None if there are too few rows for one."""
    # The jackknife, not the bootstrap: draws of rows miss whole classes if there are few rows of each, which shifts
    # macro F1 (an interval of 0.354 to 0.378 was seen for a value of 0.390). Leaving out each row once has a closed
    # form, needs no seed and takes milliseconds.
    rows, value, variance = len(metric.changes), metric.value, metric.variance
    if too_few_rows(metric, key) or is_biased(metric.bias, variance) or (key in COMPUTED[SCORE] and not variance):
        return None
    if key in LOWER_IS_BETTER:
        reach = t_interval(0.0, (variance + one_row_variance(metric.changes)) / value**2, rows - 1, level).high
        return Interval(value * math.exp(-reach), value * math.exp(reach), level, "t")
    if key in CORRELATIONS:
        if abs(value) > 1 - ROUNDING:
            return None
        reach = normal_quantile(level) * math.sqrt(variance) / (1 - value**2)
        return Interval(math.tanh(math.atanh(value) - reach), math.tanh(math.atanh(value) + reach), level, "fisher")
    # As many rows as a share would need for this variance; without one, as many as count.
    least, most = range_of(key)
    share, width = (value - least) / (most - least), most - least
    of_share = variance / width**2 * (rows - 1) / rows if rows > 1 else 0.0  # that of a share, not corrected
    number = share * (1 - share) / of_share if of_share > 0 and 0 < share < 1 else metric.counted
    interval = wilson(share * number, number, level)
    return replace(interval, low=least + width * interval.low, high=least + width * interval.high)


def too_few_rows(metric: RowMetric, key: str) -> bool:
    """Return whether too few rows count for a metric: fewer than 8, or, for a mean over classes, fewer than 8 per class.

    Shares of rows have an interval for any number of rows. The mean over classes is the harmonic one.
    """
    return key not in SHARES and metric.counted / metric.classes < LEAST_ROWS


def is_biased(bias: float, variance: float) -> bool:
    """Return whether so few rows shift a metric by so much that no interval around it covers as it claims.

    This happens to a mean over many classes with few rows each.
    """
    return abs(bias) > max(MOST_BIAS * math.sqrt(variance), ROUNDING)


def metric_estimate(rows: ScoredRows, key: str, positive: str | None = None, *, level: float = LEVEL) -> Estimate:
    """Return a metric of one model with its interval over rows."""
    metric = row_metrics_of([rows], key, positive)[0]
    return Estimate(metric.value, metric_interval(metric, key, level))
