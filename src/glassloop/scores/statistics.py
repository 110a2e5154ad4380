"""Predictions as arrays, metrics with their intervals over rows and seeds, differences between models, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from glassloop.base.errors import ModelError, SettingsError, counted, shortened
from glassloop.base.records import Json
from glassloop.runs.record import RESTORE, RunRecord, predictions_name, read_predictions
from glassloop.scores.metrics import (
    AVERAGED,
    COMPUTED,
    CORRELATIONS,
    LOWER_IS_BETTER,
    Array,
    class_counts,
    decide,
    mean_ranks,
    one_of,
    ratio,
    rows_right,
)
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

LARGEST = float(np.finfo(np.float32).max)
ROW_METRICS = {**COMPUTED, SEVERAL: (*COMPUTED[SEVERAL], "accuracy")}  # by task
SHARES = ("accuracy", "exact_match")  # shares of rows that are right
SMALLEST_SHARE = 1e-12  # the part of a sum that rounding may leave of nothing
LEVEL = 0.95
NO_INTERVAL = "too few rows"  # shown instead of an interval
# With fewer rows per class, or a bias of more standard errors, intervals covered less than 93 % in simulations (docs/log.md).
# Correcting the value for its estimated bias instead covers only 50 to 90 % for stratified rows.
LEAST_ROWS = 8
MOST_BIAS = 0.5
ROUNDING = 1e-9
ALPHA, POWER = 0.05, 0.80
MOST_SEEDS = 10_000
MANY_DEGREES = 10_000  # of freedom: a normal distribution
NO_WRONG_SIDE = 5.0  # standard errors beyond which an estimate never has the wrong sign
USUAL_DISCORDANCE = 0.10  # share of rows that only one of two similar models gets right
MCNEMAR, JACKKNIFE, CLUSTERED = "exact McNemar test", "paired jackknife", "seeds and rows"
BETTER, WORSE, SAME, UNDECIDED = "better", "worse", "no difference", "undecided"
MARGIN = 0.01  # one point of accuracy, F1 or correlation
RELATIVE_MARGIN = 0.05  # of the mean squared error or the loss, which have no fixed scale
MOST_USEFUL = 1000  # more seeds than this, or this many times the rows, are no advice


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
        return rows_right(self.predictions, self.references)


Seeds = Mapping[int, ScoredRows]  # the predictions of each seed


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
    """Return a number, or lists of numbers, as an array; None for texts, and for numbers that are not those of a model."""
    try:  # beyond fp32, differences and squares of numbers are no longer finite
        array = np.asarray(value)
        is_of_model = array.dtype.kind in "iuf" and bool((np.abs(array.astype(np.float64)) <= LARGEST).all())
    except (TypeError, ValueError, OverflowError):
        return None
    return np.asarray(array, dtype=np.float64) if is_of_model else None


def scored_rows(entries: Sequence[Mapping[str, Json]], task: str, labels: Sequence[str] | None, path: Path) -> ScoredRows:
    """Return the lines of a predictions file as arrays. Raise `ModelError` if a row has no logits, or no label of `labels`."""
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


def some_rows(rows: ScoredRows, chosen: Array) -> ScoredRows:
    """Return the rows with these numbers."""
    predictions, references, logits = (part[chosen] for part in (rows.predictions, rows.references, rows.logits))
    return replace(rows, predictions=predictions, references=references, logits=logits)


def scored_split(folder: Path, record: RunRecord, split: str) -> ScoredRows:
    """Return the stored predictions of a run for a split. Raises `SettingsError` or `ModelError` if there are none."""
    path = folder / predictions_name(split)
    return scored_rows(read_predictions(folder, split), record.data.task, record.data.labels, path)


# --- metrics and what each row contributes to them -----------------------------------------------------------------------
@dataclass(frozen=True)
class RowMetric:
    """A metric and what each row contributes to it."""

    value: float
    changes: Array  # for each row, the metric minus the metric without this row
    # Rows that count: F1 ignores those that neither have the class nor are given it; a mean over classes is as uncertain as
    # its smallest classes make it.
    counted: float
    classes: int = 1  # the number of classes or labels that the metric is a mean over

    @property
    def variance(self) -> float:
        return float(covariance_of(self.changes[None])[0, 0])

    @property
    def bias(self) -> float:
        """The jackknife estimate of the bias: how far the metric of so few rows lies above that of very many, on average."""
        return -(len(self.changes) - 1) * float(self.changes.mean())


def row_metric(key: str, task: str, predictions: Array, references: Array, positive: int | None = None) -> RowMetric:
    """Return a metric and the change that each row makes. f1, precision and recall are those of class `positive`, or of 1."""
    one_of(key, ROW_METRICS[task], f"metric of {task}")
    if key in SHARES:
        return mean_of(rows_right(predictions, references).astype(np.float64))
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
    both = predictions + references
    if key == "f1_macro":  # the mean of all labels, of which a row may have several
        f1, right, wrong = f1_changes((both == 2).sum(axis=0), both.sum(axis=0))
        counts = np.count_nonzero(both, axis=0)
        changes = ((both == 2) @ right + (both == 1) @ wrong) / len(f1)
        return RowMetric(float(f1.mean()), changes, balanced_rows(counts), max(int(np.count_nonzero(counts)), 1))
    hits, total = (both == 2).sum(axis=1), both.sum(axis=1)
    return mean_of(ratio(2 * hits, total)) if key == "f1_samples" else ratio_of(2 * hits, total)


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
    """Return the mean square of what a row contributes, weighted by the squares themselves; 0 if no row contributes."""
    # Equal seeds, models that differ on few rows, and errors of a few rows prove less than their variance says, by about this.
    squares = np.square(changes)
    total = float(squares.sum())
    return float(np.square(squares).sum()) / total if total else 0.0


def mean_of(values: Array) -> RowMetric:
    mean = float(values.mean())
    return RowMetric(mean, (values - mean) / max(len(values) - 1, 1), len(values))


def ratio_of(over: Array, under: Array) -> RowMetric:
    """Return the quotient of two sums over rows, 0 without a divisor."""
    above, below = over.sum(), under.sum()
    quotient = float(ratio(above, below))
    return RowMetric(quotient, quotient - ratio(above - over, below - under), max(float(np.count_nonzero(under)), 1.0))


def balanced_rows(counts: Array) -> float:
    """Return how many rows, equally many of each class, would give a mean over classes the same variance."""
    positive = counts[counts > 0]
    return float(len(positive) ** 2 / (1 / positive).sum()) if len(positive) else 1.0


def f1_changes(hits: Array, total: Array) -> tuple[Array, Array, Array]:
    """Return F1 of each class, and its change by a row that is right, and by one that either has or is given the class."""
    f1 = ratio(2 * hits, total)  # `total`: the rows that have the class plus those that are given it
    return f1, f1 - ratio(2 * (hits - 1), total - 2), f1 - ratio(2 * hits, total - 1)


def macro_f1(predictions: Array, references: Array) -> RowMetric:
    """Return the mean F1 of the classes that occur, as scikit-learn does. Without its only row, a class counts as 0."""
    hits, predicted, true = class_counts(predictions, references)
    number = int((predicted + true > 0).sum())
    f1, right, wrong = f1_changes(hits, predicted + true)
    changes = np.where(predictions == references, right[references], wrong[references] + wrong[predictions])
    counted = balanced_rows(np.where(true > 0, true, predicted))
    return RowMetric(float(f1.sum() / number), changes / number, counted, number)


def matthews(predictions: Array, references: Array) -> RowMetric:
    hits, predicted, true = class_counts(predictions, references)
    right = (predictions == references).astype(np.float64)

    def correlation(total: Array, correct: Array, both: Array, of_predicted: Array, of_true: Array) -> Array:
        spread = (total**2 - of_predicted) * (total**2 - of_true)
        return ratio(correct * total - both, np.sqrt(np.maximum(spread, 0.0)))

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
        return ratio(product, np.where(equal, 0.0, np.sqrt(np.abs(one * other))))

    value = float(correlation(*map(np.asarray, (products, squares, others))))
    # Without a row, each sum of squares or products of deviations loses this row's product times n / (n - 1).
    lost = number / max(number - 1, 1)
    without = correlation(products - lost * first * second, squares - lost * first**2, others - lost * second**2)
    return RowMetric(value, value - without, number)


def spearman(first: Array, second: Array) -> RowMetric:
    """Return Spearman's correlation. The changes are those of an infinitely small part of each row."""

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
    """A value, or a mean over several with their standard deviation, and its interval."""

    value: float
    interval: Interval | None  # None if there are too few values or rows for one
    points: tuple[float, ...] = ()  # what it is the mean of, such as the value of each seed
    deviation: float | None = None  # None for fewer than two


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


def mean_interval(values: Iterable[float]) -> Estimate:
    """Return the mean of independent values, such as the scores of several seeds, with its t interval."""
    points = np.asarray([*values], dtype=np.float64)
    mean = float(points.mean())
    if len(points) < 2:
        return Estimate(mean, None)
    return Estimate(mean, t_interval(mean, float(points.var(ddof=1)) / len(points), len(points) - 1))


def metric_interval(metric: RowMetric, key: str, level: float = LEVEL) -> Interval | None:
    """Return the interval of a metric over rows; None if there are too few rows for one."""
    # The jackknife, not the bootstrap: draws miss whole classes if there are few rows of each, which shifts macro F1 (0.354 to
    # 0.378 was seen for a value of 0.390). Leaving out each row once has a closed form, needs no seed and takes milliseconds.
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
    """Return whether fewer than 8 rows count for a metric, or per class on (harmonic) average; a share of rows needs none."""
    return key not in SHARES and metric.counted / metric.classes < LEAST_ROWS


def is_biased(bias: float, variance: float) -> bool:
    """Return whether few rows, as of many classes, shift a metric so much that no interval around it covers as it claims."""
    return abs(bias) > max(MOST_BIAS * math.sqrt(variance), ROUNDING)


def metric_estimate(rows: ScoredRows, key: str, positive: str | None = None) -> Estimate:
    """Return a metric of one model with its interval over rows."""
    return seeds_estimate([rows], key, positive)


# --- a mean over seeds, and what its variance consists of ----------------------------------------------------------------
@dataclass(frozen=True)
class Part:
    """One part of the variance of a mean, and its degrees of freedom."""

    variance: float
    freedom: float


@dataclass(frozen=True)
class Spread:
    """A mean over seeds, or a difference of two means, and what its variance consists of."""

    mean: float
    seeds: Part | None  # the part that more seeds would reduce; None for single models
    rows: Part  # the part that more rows would reduce
    num_seeds: int  # of the smaller side for a difference
    num_rows: int

    @property
    def variance(self) -> float:
        return self.rows.variance + (self.seeds.variance if self.seeds else 0.0)

    def interval(self, level: float = LEVEL) -> Interval:
        reach = joint_reach(self.seeds, self.rows, 1 - level)
        return Interval(self.mean - reach, self.mean + reach, level, "t")

    @property
    def p_value(self) -> float:
        """The two-sided p-value of the mean being 0: 1 minus the level of the interval that just reaches 0."""
        if self.variance <= 0:
            return 1.0 if self.mean == 0 else 0.0
        low, high = -300.0, 0.0  # of the logarithm
        for _ in range(45):
            middle = (low + high) / 2
            inside = joint_reach(self.seeds, self.rows, math.exp(middle)) > abs(self.mean)
            low, high = (middle, high) if inside else (low, middle)
        return math.exp(high)


def joint_reach(seeds: Part | None, rows: Part, alpha: float) -> float:
    """Return half the width of the interval, with level 1 - alpha, of a mean that varies over seeds and over rows."""
    # With many seeds, the squares of both half-widths add up. The t quantile of few seeds is so large that the sum would cover
    # too much, so their exponent is larger: 3 with three seeds. With two, only the larger half-width counts, and that of the
    # seeds is discounted where rows vary more. By numerical integration, a 95% interval covers 94.7 to 97% for any ratio of
    # both parts; Satterthwaite's degrees of freedom only 87 to 93% with two or three seeds, the fiducial interval up to 98.8%.
    from scipy.special import stdtrit

    def reach(part: Part) -> float:
        return -float(stdtrit(part.freedom, alpha / 2)) * math.sqrt(part.variance) if part.variance > 0 else 0.0

    of_rows = reach(rows)
    if seeds is None or not (of_seeds := reach(seeds)):
        return of_rows
    of_seeds /= math.sqrt(1 + 2 * max(2 - seeds.freedom, 0.0) * (of_rows / of_seeds) ** 2)
    larger, smaller = max(of_seeds, of_rows), min(of_seeds, of_rows)
    if seeds.freedom <= 1:
        return larger
    exponent = 2 + 1 / (seeds.freedom - 1)
    return larger * math.exp(math.log1p((smaller / larger) ** exponent) / exponent)


def spread_of(points: Array, changes: Array) -> Spread:
    """Return the mean over seeds of a metric, or of differences paired by seed; `changes` are those of rows: seeds x rows."""
    # Equal seeds share the order of the rows, dropout and the new head. Pairing costs degrees of freedom if scores are not
    # correlated, but the test is right in both cases.
    number, mean, num_rows = len(points), float(np.mean(points)), changes.shape[1]
    covariance = covariance_of(changes)
    freedom = max(num_rows - 1, 1)
    if number == 1:
        return Spread(mean, None, Part(float(covariance[0, 0]), freedom), 1, num_rows)
    # Equal scores count as half a row apart.
    shared = (covariance.sum() - np.trace(covariance)) / (number * (number - 1))
    seeds = Part(max(float(np.var(points, ddof=1)) / number, one_row_variance(changes) / (2 * number) ** 2), number - 1)
    return Spread(mean, seeds, Part(max(float(shared), 0.0), freedom), number, num_rows)


def unpaired_spread(first: tuple[Array, Array], second: tuple[Array, Array]) -> Spread:
    """Return the spread of the first mean minus the second, over other seeds on the same rows, from points and changes."""
    one, other, num_rows = spread_of(*first), spread_of(*second), first[1].shape[1]
    cross = covariance_of(np.concatenate([first[1], second[1]]))[: len(first[0]), len(first[0]) :]
    rows = Part(max(one.rows.variance + other.rows.variance - 2 * float(cross.mean()), 0.0), max(num_rows - 1, 1))
    seeds = None
    if parts := [part for part in (one.seeds, other.seeds) if part]:  # Welch's degrees of freedom
        total = sum(part.variance for part in parts)
        under = sum(part.variance**2 / part.freedom for part in parts)
        seeds = Part(total, total**2 / under if under else sum(part.freedom for part in parts))
    return Spread(one.mean - other.mean, seeds, rows, min(one.num_seeds, other.num_seeds), num_rows)


def seeds_estimate(seeds: Sequence[ScoredRows], key: str, positive: str | None = None) -> Estimate:
    """Return the mean of a metric over seeds with its interval over seeds and rows; over rows only for a single seed."""
    metrics = row_metrics_of(seeds, key, positive)
    points, changes = stacked(metrics)
    spread = spread_of(points, changes)
    if spread.seeds is None or not spread.variance:  # one seed, or the same answers from all of them
        interval = metric_interval(metrics[0], key)
    else:
        bias = float(np.mean([metric.bias for metric in metrics]))
        few = any(too_few_rows(metric, key) for metric in metrics)
        interval = None if few or is_biased(bias, spread.variance) else spread.interval().within_range(key)
    deviation = float(np.std(points, ddof=1)) if len(points) > 1 else None
    return Estimate(spread.mean, interval, tuple(map(float, points)), deviation)


def stacked(metrics: Sequence[RowMetric]) -> tuple[Array, Array]:
    """Return the values of several models' metrics, and the changes of their rows: models x rows."""
    return np.array([metric.value for metric in metrics]), np.stack([metric.changes for metric in metrics])


# --- power ---------------------------------------------------------------------------------------------------------------
def detectable_by_rows(rows: int, discordance: float = USUAL_DISCORDANCE) -> float:
    """Return the smallest difference in accuracy between two fixed models that McNemar's test detects with 80 % power."""
    # `discordance` is the share of rows that exactly one gets right.
    from scipy.special import ndtri

    a, d = normal_quantile(1 - ALPHA), discordance
    # The null hypothesis has the variance d/n, the alternative (d - difference^2)/n: solve for the difference.
    b = float(ndtri(POWER))
    under = rows + b * b
    while True:
        difference = (a * math.sqrt(d * rows) + math.sqrt(max(a * a * d * rows - under * d * (a * a - b * b), 0.0))) / under
        if difference <= d * 1.001 or d >= 1:
            return min(difference, 1.0)
        d = min(difference, 1.0)  # few rows detect only a difference that needs more discordant rows


def power_of(effect: float, freedom: float, border: float) -> float:
    """Return the probability that a t value, with a mean of `effect` standard errors, lies beyond `border` on either side."""
    from scipy.special import nctdtr, ndtr

    if freedom > MANY_DEGREES:
        return float(ndtr(effect - border) + ndtr(-effect - border))
    above = float(nctdtr(freedom, effect, border))
    if math.isnan(above):  # SciPy, for effects above 30
        return 1.0
    return 1 - above + (float(nctdtr(freedom, effect, -border)) if effect < NO_WRONG_SIDE else 0.0)


# In the functions below, `deviation` is the standard deviation over seeds of the differences, or of one setting if the settings
# are not compared seed by seed. `row_variance` is the part of the variance that more seeds do not reduce.


def power_of_seeds(
    difference: float, seeds: int, deviation: float, row_variance: float = 0.0, *, paired: bool = True, alpha: float = ALPHA
) -> float:
    """Return the probability of detecting a difference between two settings with `seeds` seeds each, at least 2."""
    sides = 1 if paired else 2
    part = Part(deviation**2 * sides / seeds, (seeds - 1) * sides)
    total = part.variance + row_variance
    if not total:
        return 1.0 if difference else 0.0
    freedom = part.freedom * (total / part.variance) ** 2 if part.variance else math.inf
    border = joint_reach(part, Part(row_variance, math.inf), alpha) / math.sqrt(total)
    return power_of(abs(difference) / math.sqrt(total), freedom, border)


def detectable_by_seeds(seeds: int, deviation: float, row_variance: float = 0.0, *, alpha: float = ALPHA) -> float:
    """Return the smallest difference between two settings that is detected with `seeds` seeds each; one detects nothing."""
    if seeds < 2:
        return math.inf

    def is_detected(difference: float) -> bool:
        return power_of_seeds(difference, seeds, deviation, row_variance, paired=False, alpha=alpha) >= POWER

    low, high = 0.0, deviation + math.sqrt(row_variance)
    while high and not is_detected(high):
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if is_detected(middle) else (middle, high)
    return high


def seeds_to_detect(
    difference: float, deviation: float, row_variance: float = 0.0, *, alpha: float = ALPHA, power: float = POWER
) -> int | None:
    """Return the number of seeds of each setting, from 2 on, that detects a difference; None if no number does."""

    def is_enough(seeds: int) -> bool:
        return power_of_seeds(difference, seeds, deviation, row_variance, alpha=alpha) >= power

    high = 2
    while not is_enough(high):
        high *= 2
        if high > MOST_SEEDS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def seeds_for_equivalence(
    difference: float, deviation: float, row_variance: float, margin: float, *, alpha: float = ALPHA
) -> int | None:
    """Return the number of seeds whose interval, of level 1 - alpha, lies within `margin` with 80 % power; None if none."""
    room = margin - abs(difference)
    # Both ends must stay inside: with a difference near 0 each end needs half of the remaining 20 %.
    power = POWER if abs(difference) > margin / 4 else (1 + POWER) / 2
    return seeds_to_detect(room, deviation, row_variance, alpha=alpha, power=power) if room > 0 else None


def rows_to_detect(
    difference: float, row_variance: float, rows: int, alpha: float = ALPHA, seed_variance: float = 0.0
) -> int | None:
    """Return the number of rows that detect a difference, whose variance on `rows` rows is `row_variance`; None if none do."""
    from scipy.special import ndtri

    allowed = (difference / (normal_quantile(1 - alpha) + float(ndtri(POWER)))) ** 2 - seed_variance
    return math.ceil(rows * row_variance / allowed) if allowed > 0 else None


# --- tests ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Difference:
    """The metric of one side minus that of the first, with its interval and p-value."""

    value: float
    interval: Interval  # It contains 0 unless the difference is significant.
    p_value: float  # the two-sided p-value of no difference, not corrected
    method: str  # the test: "exact McNemar test", "paired jackknife" or "seeds and rows"
    spread: Spread  # what its variance consists of
    corrected: float  # the p-value corrected for the number of comparisons (Holm); equal to `p_value` for a single one
    comparisons: int = 1  # the number of comparisons that the interval and `corrected` are corrected for


def discordant(first: ScoredRows, second: ScoredRows) -> tuple[int, int]:
    """Return how many rows only the first model gets right, and how many only the second."""
    return int((first.right & ~second.right).sum()), int((~first.right & second.right).sum())


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the p-value of McNemar's exact test from the numbers of rows that only one of two models gets right."""
    from scipy.special import bdtr

    total = only_first + only_second
    return min(1.0, 2 * float(bdtr(min(only_first, only_second), total, 0.5))) if total else 1.0


def share_interval(only_first: int, only_second: int, number: int, level: float = LEVEL) -> Interval:
    """Return the interval of the second share minus the first on the same rows (Bonett and Price 2012)."""
    lost, won = (only_first + 1) / (number + 2), (only_second + 1) / (number + 2)
    reach = normal_quantile(level) * math.sqrt((lost + won - (won - lost) ** 2) / (number + 2))
    return Interval(max(-1.0, won - lost - reach), min(1.0, won - lost + reach), level, "bonett-price")


def agreeing(interval: Interval, value: float, significant: bool) -> Interval:
    """Return an interval that contains 0 unless the difference is significant, as the test says. It is changed up to 0."""
    low, high = min(interval.low, value), max(interval.high, value)
    if not significant:
        return replace(interval, low=min(low, 0.0), high=max(high, 0.0))
    return replace(interval, low=max(low, 0.0), high=high) if value > 0 else replace(interval, low=low, high=min(high, 0.0))


def compare(first: Seeds, second: Seeds, key: str, positive: str | None = None, *, level: float = LEVEL) -> Difference:
    """Return a metric of the second side minus that of the first, on the same rows."""
    # Two single models are compared by McNemar's exact test, or by the paired jackknife for a metric that is not a share of
    # rows. With several seeds on a side, the interval and the test cover seeds and rows; equal seeds are paired.
    models = [*first.values(), *second.values()]
    for model in models[1:]:
        same = model.task == models[0].task and model.labels == models[0].labels
        if not same or not np.array_equal(model.references, models[0].references):
            raise SettingsError("the models were evaluated on different rows", "compare models on the same rows")
    points, changes = stacked(row_metrics_of(models, key, positive))
    cut, rows = len(first), len(models[0])
    if {*first} == {*second} or len(first) == len(second) == 1:
        places = [cut + [*second].index(name) for name in first] if {*first} == {*second} else [1]
        paired = changes[places] - changes[:cut]
        spread = spread_of(points[places] - points[:cut], paired)
        if spread.seeds is None:  # as if one more row favored each side
            variance = spread.rows.variance + 2 * one_row_variance(paired)
            spread = replace(spread, rows=replace(spread.rows, variance=variance))
    else:
        spread = unpaired_spread((points[cut:], changes[cut:]), (points[:cut], changes[:cut]))
    if spread.seeds is None and key in SHARES:
        lost, won = discordant(*models)
        p_value = mcnemar(lost, won)
        interval = agreeing(share_interval(lost, won, rows, level), spread.mean, p_value < 1 - level)
        return Difference(spread.mean, interval, p_value, MCNEMAR, spread, p_value)
    interval, p_value = spread.interval(level), spread.p_value
    if not interval.half_width and models[0].task != SCORE:  # the same answers: other rows could still differ
        interval = agreeing(share_interval(0, 0, rows, level), spread.mean, p_value < 1 - level)
    return Difference(spread.mean, interval, p_value, JACKKNIFE if spread.seeds is None else CLUSTERED, spread, p_value)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979), in the order given."""
    raw = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(raw, kind="stable")
    corrected = np.empty(len(raw))
    corrected[order] = np.minimum(np.maximum.accumulate(raw[order] * (len(raw) - np.arange(len(raw)))), 1.0)
    return [float(value) for value in corrected]


def compare_all(first: Seeds, others: Sequence[Seeds], key: str, positive: str | None = None) -> list[Difference]:
    """Return the difference of each other side from the first, corrected for their number."""
    # The intervals that belong to Holm's method have no upper end for decided comparisons, so they are Bonferroni's. Where
    # Holm's correction finds a difference that these leave open, the interval ends at 0, so that both agree.
    level = 1 - ALPHA / max(len(others), 1)
    differences = [compare(first, other, key, positive, level=level) for other in others]
    adjusted = holm([one.p_value for one in differences])
    return [
        replace(one, corrected=p_value, comparisons=len(others), interval=agreeing(one.interval, one.value, p_value < ALPHA))
        for one, p_value in zip(differences, adjusted, strict=True)
    ]


# --- the verdict ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ComparisonVerdict:
    """What a comparison shows."""

    kind: str  # "better", "worse", "no difference" or "undecided"
    margin: float  # the largest difference that does not matter
    more_seeds: int | None = None  # if undecided: about how many more seeds of each setting would decide, if any number would
    more_rows: int | None = None  # if undecided and seeds do not help: about how many more rows would decide

    def __str__(self) -> str:
        if self.kind == SAME:
            return f"no difference larger than {self.margin:.3g}"
        for number, what in ((self.more_seeds, "more seed"), (self.more_rows, "more row")):
            if number is not None:
                return f"undecided: about {counted(number, what, f'{what}s')} would decide"
        return self.kind


def margin_for(key: str, value: float) -> float:
    """Return the largest difference of a metric that does not matter by default: one point, or 5 % of an error."""
    return abs(value) * RELATIVE_MARGIN if key in LOWER_IS_BETTER else MARGIN


def decided(difference: Difference, key: str, margin: float = MARGIN) -> ComparisonVerdict:
    """Return the verdict on a difference, whose interval and p-value are corrected for the number of comparisons."""
    # A p-value above 0.05 is no evidence of equality; an interval within the margin is.
    if difference.corrected < ALPHA:
        improved = (difference.value > 0) != (key in LOWER_IS_BETTER)
        return ComparisonVerdict(BETTER if improved else WORSE, margin)
    if -margin <= difference.interval.low and difference.interval.high <= margin:
        return ComparisonVerdict(SAME, margin)
    strictness = max(ALPHA * difference.p_value / difference.corrected, ALPHA / 100) if difference.corrected else ALPHA
    seeds = more_seeds(difference, margin, strictness)
    return ComparisonVerdict(UNDECIDED, margin, seeds, more_rows(difference, strictness) if seeds is None else None)


def more_seeds(difference: Difference, margin: float, alpha: float = ALPHA) -> int | None:
    """Return how many more seeds would decide if the observed difference and spread are the true ones; None if none would."""
    spread, of_rows = difference.spread, difference.spread.rows.variance
    if spread.seeds is None:
        return None
    deviation = math.sqrt(spread.seeds.variance * spread.num_seeds)  # of one seed's difference
    candidates = (
        seeds_to_detect(difference.value, deviation, of_rows, alpha=alpha),
        seeds_for_equivalence(difference.value, deviation, of_rows, margin, alpha=1 - difference.interval.level),
    )
    useful = [number for number in candidates if number is not None and number <= MOST_USEFUL]
    return max(1, min(useful) - spread.num_seeds) if useful else None


def more_rows(difference: Difference, alpha: float = ALPHA) -> int | None:
    """Return how many more rows would decide if the observed difference and spread are the true ones; None if none would."""
    spread, rows = difference.spread, difference.spread.num_rows
    needed = rows_to_detect(difference.value, spread.rows.variance, rows, alpha, spread.seeds.variance if spread.seeds else 0.0)
    return needed - rows if needed and rows < needed <= MOST_USEFUL * rows else None
