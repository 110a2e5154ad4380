"""Differences between models on the same rows: tests, several seeds, what a comparison can detect, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from glassloop.base.errors import SettingsError, counted
from glassloop.scores.intervals import (
    LEVEL,
    SHARES,
    Interval,
    RowMetric,
    ScoredRows,
    covariance_of,
    has_rows_right,
    is_biased,
    metric_interval,
    normal_quantile,
    one_row_variance,
    row_metrics_of,
    too_few_rows,
)
from glassloop.scores.metrics import LOWER_IS_BETTER, Array

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
        """The variance of the mean."""
        return self.rows.variance + (self.seeds.variance if self.seeds else 0.0)

    def interval(self, level: float = LEVEL) -> Interval:
        """Return the interval of the mean."""
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
    # With many seeds, the squares of both half-widths add up. The t quantile of few seeds is so large that the sum would
    # cover too much. The exponent is therefore larger for them, 3 with three seeds. With two seeds only the larger
    # half-width counts, and that of the seeds is discounted where rows vary more. By numerical integration, a 95% interval
    # covers 94.7 to 97% for any ratio of both parts. Satterthwaite's degrees of freedom cover only 87 to 93% with two or
    # three seeds, the fiducial interval up to 98.8%.
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
    """Return the mean over seeds of a metric, or of differences that are paired by seed, with both parts of its variance.

    `changes` is what each row contributes to them: seeds x rows. Equal scores count as half a row apart.
    """
    # Equal seeds share the order of the rows, dropout and the new head. Pairing costs degrees of freedom if the scores
    # are not correlated, but the test is right in both cases.
    number, mean, num_rows = len(points), float(np.mean(points)), changes.shape[1]
    covariance = covariance_of(changes)
    freedom = max(num_rows - 1, 1)
    if number == 1:
        return Spread(mean, None, Part(float(covariance[0, 0]), freedom), 1, num_rows)
    shared = (covariance.sum() - np.trace(covariance)) / (number * (number - 1))
    seeds = Part(max(float(np.var(points, ddof=1)) / number, one_row_variance(changes) / (2 * number) ** 2), number - 1)
    return Spread(mean, seeds, Part(max(float(shared), 0.0), freedom), number, num_rows)


def unpaired_spread(first: tuple[Array, Array], second: tuple[Array, Array]) -> Spread:
    """Return the spread of the first mean minus the second, over different seeds on the same rows.

    A side is the metric of each seed and what each row contributes: seeds x rows.
    """
    one, other, num_rows = spread_of(*first), spread_of(*second), first[1].shape[1]
    cross = covariance_of(np.concatenate([first[1], second[1]]))[: len(first[0]), len(first[0]) :]
    rows = Part(max(one.rows.variance + other.rows.variance - 2 * float(cross.mean()), 0.0), max(num_rows - 1, 1))
    seeds = None
    if parts := [part for part in (one.seeds, other.seeds) if part]:  # Welch's degrees of freedom
        total = sum(part.variance for part in parts)
        under = sum(part.variance**2 / part.freedom for part in parts)
        seeds = Part(total, total**2 / under if under else sum(part.freedom for part in parts))
    return Spread(one.mean - other.mean, seeds, rows, min(one.num_seeds, other.num_seeds), num_rows)


@dataclass(frozen=True)
class SeedsEstimate:
    """A metric over several seeds: the value of each, their mean and standard deviation, and the interval of the mean."""

    points: tuple[float, ...]
    mean: float
    deviation: float | None
    interval: Interval | None  # None if there are too few rows for one


def seeds_estimate(
    seeds: Sequence[ScoredRows], key: str, positive: str | None = None, *, level: float = LEVEL
) -> SeedsEstimate:
    """Return the mean of a metric over seeds with its interval over seeds and rows; over rows only for a single seed."""
    metrics = row_metrics_of(seeds, key, positive)
    points, changes = stacked(metrics)
    spread = spread_of(points, changes)
    interval: Interval | None
    if spread.seeds is None or not spread.variance:  # one seed, or the same answers from all of them
        interval = metric_interval(metrics[0], key, level)
    else:
        bias = float(np.mean([metric.bias for metric in metrics]))
        few = any(too_few_rows(metric, key) for metric in metrics)
        interval = None if few or is_biased(bias, spread.variance) else spread.interval(level).within_range(key)
    deviation = float(np.std(points, ddof=1)) if len(points) > 1 else None
    return SeedsEstimate(tuple(map(float, points)), spread.mean, deviation, interval)


def stacked(metrics: Sequence[RowMetric]) -> tuple[Array, Array]:
    """Return the values of several models' metrics, and the changes of their rows: models x rows."""
    return np.array([metric.value for metric in metrics]), np.stack([metric.changes for metric in metrics])


# --- power ---------------------------------------------------------------------------------------------------------------


def detectable_by_rows(
    rows: int, discordance: float = USUAL_DISCORDANCE, alpha: float = ALPHA, power: float | None = POWER
) -> float:
    """Return the smallest difference in accuracy between two fixed models that McNemar's test detects.

    Args:
        rows: Number of rows.
        discordance: Share of rows that exactly one of the two gets right; larger if the difference itself is.
        alpha: Level of the test.
        power: Probability of detecting it; None for the smallest difference that is significant when it is observed.
    """
    from scipy.special import ndtri

    a, d = normal_quantile(1 - alpha), discordance
    if power is None:
        return a * math.sqrt(d / rows)
    # The null hypothesis has the variance d/n, the alternative (d - difference^2)/n: solve for the difference.
    b = float(ndtri(power))
    under = rows + b * b
    while True:
        difference = (a * math.sqrt(d * rows) + math.sqrt(max(a * a * d * rows - under * d * (a * a - b * b), 0.0))) / under
        if difference <= d * 1.001 or d >= 1:
            return min(difference, 1.0)
        d = min(difference, 1.0)  # few rows detect only a difference that needs more discordant rows


def power_of(effect: float, freedom: float, border: float) -> float:
    """Return the probability that a two-sided t test finds a difference of `effect` standard errors.

    The difference is significant from the t value `border` on.
    """
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


def detectable_by_seeds(
    seeds: int, deviation: float, row_variance: float = 0.0, *, paired: bool = False, alpha: float = ALPHA
) -> float:
    """Return the smallest difference between two settings that is detected with `seeds` seeds each; one detects nothing."""
    if seeds < 2:
        return math.inf

    def is_detected(difference: float) -> bool:
        return power_of_seeds(difference, seeds, deviation, row_variance, paired=paired, alpha=alpha) >= POWER

    low, high = 0.0, deviation + math.sqrt(row_variance)
    while high and not is_detected(high):
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if is_detected(middle) else (middle, high)
    return high


def seeds_to_detect(difference: float, deviation: float, row_variance: float = 0.0, *, alpha: float = ALPHA) -> int | None:
    """Return the number of seeds of each setting that detects a difference with 80 % power; None if no number does."""
    return _smallest(lambda seeds: power_of_seeds(difference, seeds, deviation, row_variance, alpha=alpha) >= POWER)


def seeds_for_equivalence(
    difference: float, deviation: float, row_variance: float, margin: float, *, alpha: float = ALPHA
) -> int | None:
    """Return the number of seeds that shows, with 80 % power, that a difference is within `margin`; None if none does.

    The interval that must lie within the margin has the level 1 - alpha.
    """
    room = margin - abs(difference)
    if room <= 0:
        return None
    # Both ends must stay inside: with a difference near 0 each end needs half of the remaining 20 %.
    power = POWER if abs(difference) > margin / 4 else (1 + POWER) / 2
    return _smallest(lambda seeds: power_of_seeds(room, seeds, deviation, row_variance, alpha=alpha) >= power)


def _smallest(is_enough: Callable[[int], bool]) -> int | None:
    """Return the smallest number from 2 on that is enough, or None."""
    high = 2
    while not is_enough(high):
        high *= 2
        if high > MOST_SEEDS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if middle >= 2 and is_enough(middle) else (middle, high)
    return high


def rows_to_detect(
    difference: float, row_variance: float, rows: int, alpha: float = ALPHA, seed_variance: float = 0.0
) -> int | None:
    """Return the number of rows on which this difference would be significant with 80 % power; None if no number is enough.

    `row_variance` is the variance of the difference on `rows` rows; more rows do not reduce `seed_variance`.
    """
    from scipy.special import ndtri

    allowed = (difference / (normal_quantile(1 - alpha) + float(ndtri(POWER)))) ** 2 - seed_variance
    return math.ceil(rows * row_variance / allowed) if allowed > 0 else None


# --- tests ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """The metric of one side minus that of the first, with its interval and p-value."""

    value: float  # the difference
    interval: Interval  # its interval. It contains 0 unless the difference is significant.
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


def compare(
    first: Mapping[int, ScoredRows],
    second: Mapping[int, ScoredRows],
    key: str,
    positive: str | None = None,
    *,
    level: float = LEVEL,
) -> Difference:
    """Return a metric of the second side minus that of the first, on the same rows. A side has the predictions of each seed.

    Two single models are compared by McNemar's exact test, or by the paired jackknife for a metric that is not a share of
    rows. With several seeds on a side, the interval and the test cover seeds and rows; equal seeds are paired.

    Raises:
        SettingsError: If the two sides have different labels for their rows.
    """
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
    if not interval.half_width and has_rows_right(models[0].task):  # the same answers: other rows could still differ
        interval = agreeing(share_interval(0, 0, rows, level), spread.mean, p_value < 1 - level)
    method = JACKKNIFE if spread.seeds is None else CLUSTERED
    return Difference(spread.mean, interval, p_value, method, spread, p_value)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979), in the order given."""
    raw = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(raw, kind="stable")
    corrected = np.empty(len(raw))
    corrected[order] = np.minimum(np.maximum.accumulate(raw[order] * (len(raw) - np.arange(len(raw)))), 1.0)
    return [float(value) for value in corrected]


def compare_all(
    first: Mapping[int, ScoredRows],
    others: Sequence[Mapping[int, ScoredRows]],
    key: str,
    positive: str | None = None,
    *,
    alpha: float = ALPHA,
) -> list[Difference]:
    """Return the difference of each other side from the first, corrected for their number.

    In all but `alpha` of studies, all intervals contain the true differences (Bonferroni), and no difference that is 0 has a
    corrected p-value below `alpha` (Holm). Where Holm's correction finds a difference that the wider intervals leave open, the
    interval ends at 0, so that both agree.
    """
    # The intervals that belong to Holm's method have no upper end for decided comparisons, so they are Bonferroni's.
    level = 1 - alpha / max(len(others), 1)
    differences = [compare(first, other, key, positive, level=level) for other in others]
    adjusted = holm([one.p_value for one in differences])
    return [
        replace(one, corrected=p_value, comparisons=len(others), interval=agreeing(one.interval, one.value, p_value < alpha))
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
        if self.more_seeds is not None:
            return f"undecided: about {counted(self.more_seeds, 'more seed', 'more seeds')} would decide"
        if self.more_rows is not None:
            return f"undecided: about {counted(self.more_rows, 'more row', 'more rows')} would decide"
        return self.kind


def margin_for(key: str, value: float) -> float:
    """Return the largest difference of a metric that does not matter by default: one point, or 5 % of an error."""
    return abs(value) * RELATIVE_MARGIN if key in LOWER_IS_BETTER else MARGIN


def decided(difference: Difference, key: str, margin: float = MARGIN, alpha: float = ALPHA) -> ComparisonVerdict:
    """Return the verdict on a difference, whose interval and p-value are corrected for the number of comparisons.

    It is better or worse if the corrected p-value is below `alpha`, and no difference if the whole interval lies within the
    margin. Otherwise it is undecided.
    """
    # A p-value above 0.05 is no evidence of equality; an interval within the margin is.
    if difference.corrected < alpha:
        improved = (difference.value > 0) != (key in LOWER_IS_BETTER)
        return ComparisonVerdict(BETTER if improved else WORSE, margin)
    if -margin <= difference.interval.low and difference.interval.high <= margin:
        return ComparisonVerdict(SAME, margin)
    strictness = max(alpha * difference.p_value / difference.corrected, alpha / 100) if difference.corrected else alpha
    seeds = more_seeds(difference, margin, strictness)
    rows = None if seeds is not None else more_rows(difference, strictness)
    return ComparisonVerdict(UNDECIDED, margin, seeds, rows)


def more_seeds(difference: Difference, margin: float, alpha: float = ALPHA) -> int | None:
    """Return how many more seeds would decide if the observed difference and spread are the true ones; None if none would."""
    value, spread = difference.value, difference.spread
    if spread.seeds is None:
        return None
    deviation = math.sqrt(spread.seeds.variance * spread.num_seeds)  # of one seed's difference
    level_of_equality = 1 - difference.interval.level
    candidates = [
        seeds_to_detect(value, deviation, spread.rows.variance, alpha=alpha),
        seeds_for_equivalence(value, deviation, spread.rows.variance, margin, alpha=level_of_equality),
    ]
    useful = [number for number in candidates if number is not None and number <= MOST_USEFUL]
    return max(1, min(useful) - spread.num_seeds) if useful else None


def more_rows(difference: Difference, alpha: float = ALPHA) -> int | None:
    """Return how many more rows would decide if the observed difference and spread are the true ones; None if none would."""
    spread = difference.spread
    of_seeds = spread.seeds.variance if spread.seeds else 0.0
    needed = rows_to_detect(difference.value, spread.rows.variance, spread.num_rows, alpha, of_seeds)
    return needed - spread.num_rows if needed and spread.num_rows < needed <= MOST_USEFUL * spread.num_rows else None
