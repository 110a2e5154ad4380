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


@dataclass(frozen=True)
class Part:
    """One part of the variance of a mean, and its degrees of freedom."""

    variance: float
    freedom: float


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and what its variance consists of.

    Attributes:
        mean: The mean over seeds, or a difference of two means.
        seeds: The part that more seeds would reduce; None for single models.
        rows: The part that more rows would reduce.
        num_seeds: Number of seeds, of the smaller side for a difference.
        num_rows: Number of rows.
    """

    mean: float
    seeds: Part | None
    rows: Part
    num_seeds: int
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
    """Return half the width of the interval of a mean whose variance has a part from seeds and one from rows.

    With many seeds, the squares of both half-widths add up. The t quantile of few seeds is so large that the sum would cover
    too much. The exponent is therefore larger for them, 3 with three seeds. With two seeds only the larger half-width counts,
    and that of the seeds is discounted where rows vary more. A 95 % interval then covers 94.7 to 97 % for any ratio of both.

    Args:
        seeds: The part of the seeds, if there are several.
        rows: The part of the rows.
        alpha: 1 minus the level of the interval.
    """
    # Satterthwaite's degrees of freedom cover only 87 to 93% with two or three seeds, the fiducial interval up to
    # 98.8%. This exponent covers 94.7 to 97% by numerical integration, for any ratio of both parts.
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
    """Return the mean over seeds with both parts of its variance. Equal scores count as half a row apart.

    Args:
        points: The metric of each seed, or a difference that is paired by seed.
        changes: What each row contributes to them: seeds x rows.
    """
    # Equal seeds share the order of the rows, dropout and the new head. Pairing costs degrees of freedom if the scores
    # are not correlated, but the test is right in both cases.
    number, mean, num_rows = len(points), float(np.mean(points)), changes.shape[1]
    covariance = covariance_of(changes)
    if number == 1:
        return Spread(mean, None, Part(float(covariance[0, 0]), max(num_rows - 1, 1)), 1, num_rows)
    shared = (covariance.sum() - np.trace(covariance)) / (number * (number - 1))
    seeds = Part(max(float(np.var(points, ddof=1)) / number, one_row_variance(changes) / (2 * number) ** 2), number - 1)
    return Spread(mean, seeds, Part(max(float(shared), 0.0), max(num_rows - 1, 1)), number, num_rows)


def unpaired_spread(first: tuple[Array, Array], second: tuple[Array, Array]) -> Spread:
    """Return the spread of a difference of two means over different seeds on the same rows.

    Args:
        first: The metric of each seed and what each row contributes (seeds x rows), of the side that is subtracted from.
        second: The same for the side that is subtracted.
    """
    one, other, num_rows = spread_of(*first), spread_of(*second), first[1].shape[1]
    cross = covariance_of(np.concatenate([first[1], second[1]]))[: len(first[0]), len(first[0]) :]
    rows = Part(max(one.rows.variance + other.rows.variance - 2 * float(cross.mean()), 0.0), max(num_rows - 1, 1))
    mean, fewest = one.mean - other.mean, min(one.num_seeds, other.num_seeds)
    found = [part for part in (one.seeds, other.seeds) if part]
    if not found:
        return Spread(mean, None, rows, fewest, num_rows)
    total = sum(part.variance for part in found)
    under = sum(part.variance**2 / part.freedom for part in found)
    freedom = total**2 / under if under else sum(part.freedom for part in found)
    return Spread(mean, Part(total, freedom), rows, fewest, num_rows)


@dataclass(frozen=True)
class SeedsEstimate:
    """A metric over several seeds: the value of each, their mean and standard deviation, and the interval of the mean.

    The interval is None if there are too few rows for one.
    """

    points: tuple[float, ...]
    mean: float
    deviation: float | None
    interval: Interval | None


def seeds_estimate(
    seeds: Sequence[ScoredRows], key: str, positive: str | None = None, *, level: float = LEVEL
) -> SeedsEstimate:
    """Return the mean of a metric over seeds with its interval over seeds and rows; over rows only for a single seed.

    Args:
        seeds: The predictions of each seed on the same rows.
    """
    metrics = row_metrics_of(seeds, key, positive)
    points, changes = stacked(metrics)
    spread = spread_of(points, changes)
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


ALPHA, POWER = 0.05, 0.80
MOST_SEEDS = 10_000
MANY_DEGREES = 10_000  # of freedom: a normal distribution
NO_WRONG_SIDE = 5.0  # standard errors beyond which an estimate never has the wrong sign
USUAL_DISCORDANCE = 0.10  # share of rows that only one of two similar models gets right


def detectable_by_rows(
    rows: int, discordance: float = USUAL_DISCORDANCE, alpha: float = ALPHA, power: float | None = POWER
) -> float:
    """Return the smallest difference in accuracy between two fixed models that McNemar's test detects.

    Args:
        discordance: Share of rows that exactly one of the two gets right; larger if the difference itself is.
        power: Probability of detecting it; None for the smallest difference that is significant when it is observed.
    """
    from scipy.special import ndtri

    reach = normal_quantile(1 - alpha) * math.sqrt(discordance / rows)
    if power is None:
        return reach
    # The null hypothesis has the variance d/n, the alternative (d - difference^2)/n: solve for the difference.
    a, b, d = normal_quantile(1 - alpha), float(ndtri(power)), discordance
    under = rows + b * b
    while True:
        found = (a * math.sqrt(d * rows) + math.sqrt(max(a * a * d * rows - under * d * (a * a - b * b), 0.0))) / under
        if found <= d * 1.001 or d >= 1:
            return min(found, 1.0)
        d = min(found, 1.0)  # few rows detect only a difference that needs more discordant rows


def power_of(effect: float, freedom: float, border: float) -> float:
    """Return the probability that a two-sided t test finds a difference.

    Args:
        effect: The true difference divided by the standard error of its estimate.
        freedom: Degrees of freedom of the standard error.
        border: The t value from which a difference is significant.
    """
    from scipy.special import nctdtr, ndtr

    if freedom > MANY_DEGREES:
        return float(ndtr(effect - border) + ndtr(-effect - border))
    above = float(nctdtr(freedom, effect, border))
    if math.isnan(above):  # SciPy, for effects above 30
        return 1.0
    return 1 - above + (float(nctdtr(freedom, effect, -border)) if effect < NO_WRONG_SIDE else 0.0)


def power_of_seeds(
    difference: float, seeds: int, deviation: float, row_variance: float = 0.0, *, paired: bool = True, alpha: float = ALPHA
) -> float:
    """Return the probability of detecting a difference between two settings with `seeds` seeds each.

    Args:
        difference: The true difference.
        seeds: Number of seeds of each setting, at least 2.
        deviation: Standard deviation over seeds of the differences, or of one setting if not paired.
        row_variance: The part of the variance that more seeds do not reduce.
        paired: Whether the settings are compared seed by seed.
    """
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
    """Return the smallest difference between two settings that is detected with `seeds` seeds each.

    Args:
        seeds: Number of seeds of each setting; one detects nothing.
        deviation: Standard deviation over seeds of one setting, or, if paired, of the differences.
        row_variance: The part of the variance that more seeds do not reduce.
        paired: Whether the settings are compared seed by seed.
    """
    if seeds < 2:
        return math.inf
    low, high = 0.0, deviation + math.sqrt(row_variance)
    while high and power_of_seeds(high, seeds, deviation, row_variance, paired=paired, alpha=alpha) < POWER:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        enough = power_of_seeds(middle, seeds, deviation, row_variance, paired=paired, alpha=alpha) >= POWER
        low, high = (low, middle) if enough else (middle, high)
    return high


def seeds_to_detect(
    difference: float, deviation: float, row_variance: float = 0.0, *, paired: bool = True, alpha: float = ALPHA
) -> int | None:
    """Return the number of seeds of each setting that detects a difference with 80 % power; None if no number does.

    Args:
        difference: The true difference.
        deviation: Standard deviation over seeds of the differences, or of one setting if not paired.
        row_variance: The part of the variance that more seeds do not reduce.
        paired: Whether the settings are compared seed by seed.
    """
    return _smallest(
        lambda seeds: power_of_seeds(difference, seeds, deviation, row_variance, paired=paired, alpha=alpha) >= POWER
    )


def seeds_for_equivalence(
    difference: float, deviation: float, row_variance: float, margin: float, *, paired: bool = True, alpha: float = ALPHA
) -> int | None:
    """Return the number of seeds that shows, with 80 % power, that a difference is within `margin`; None if none does.

    Args:
        difference: The true difference, smaller than `margin`.
        deviation: Standard deviation over seeds of the differences, or of one setting if not paired.
        row_variance: The part of the variance that more seeds do not reduce.
        margin: The largest difference that does not matter.
        paired: Whether the settings are compared seed by seed.
        alpha: 1 minus the level of the interval that must lie within the margin.
    """
    room = margin - abs(difference)
    if room <= 0:
        return None
    # Both ends must stay inside: with a difference near 0 each end needs half of the remaining 20 %.
    power = POWER if abs(difference) > margin / 4 else (1 + POWER) / 2
    return _smallest(lambda seeds: power_of_seeds(room, seeds, deviation, row_variance, paired=paired, alpha=alpha) >= power)


def _smallest(enough: Callable[[int], bool]) -> int | None:
    """Return the smallest number from 2 on for which `enough` is true, or None."""
    high = 2
    while not enough(high):
        high *= 2
        if high > MOST_SEEDS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if middle >= 2 and enough(middle) else (middle, high)
    return high


def rows_to_detect(
    difference: float, row_variance: float, rows: int, alpha: float = ALPHA, seed_variance: float = 0.0
) -> int | None:
    """Return the number of rows on which this difference would be significant with 80 % power; None if no number is enough.

    Args:
        difference: The true difference.
        row_variance: The variance of the difference on `rows` rows.
        rows: Number of rows of that variance.
        seed_variance: The part of the variance that more rows do not reduce.
    """
    from scipy.special import ndtri

    allowed = (difference / (normal_quantile(1 - alpha) + float(ndtri(POWER)))) ** 2 - seed_variance
    return math.ceil(rows * row_variance / allowed) if allowed > 0 else None


MCNEMAR, JACKKNIFE, CLUSTERED = "exact McNemar test", "paired jackknife", "seeds and rows"


@dataclass(frozen=True)
class Difference:
    """The metric of one side minus that of the first, with its interval and p-value.

    Attributes:
        value: The difference.
        interval: Its interval. It contains 0 unless the difference is significant.
        p_value: The two-sided p-value of no difference, not corrected.
        method: The test: "exact McNemar test", "paired jackknife" or "seeds and rows".
        spread: What its variance consists of.
        corrected: The p-value corrected for the number of comparisons (Holm); equal to `p_value` for a single one.
        comparisons: The number of comparisons that the interval and `corrected` are corrected for.
    """

    value: float
    interval: Interval
    p_value: float
    method: str
    spread: Spread
    corrected: float
    comparisons: int = 1


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the p-value of McNemar's exact test.

    Args:
        only_first: Number of rows that only the first model gets right.
        only_second: Number of rows that only the second model gets right.
    """
    from scipy.special import bdtr

    total = only_first + only_second
    return min(1.0, 2 * float(bdtr(min(only_first, only_second), total, 0.5))) if total else 1.0


def share_interval(only_first: int, only_second: int, number: int, level: float = LEVEL) -> Interval:
    """Return the interval of the second share minus the first on the same rows (Bonett and Price 2012).

    Args:
        only_first: Number of rows that only the first model gets right.
        only_second: Number of rows that only the second model gets right.
    """
    lost, won = (only_first + 1) / (number + 2), (only_second + 1) / (number + 2)
    reach = normal_quantile(level) * math.sqrt((lost + won - (won - lost) ** 2) / (number + 2))
    return Interval(max(-1.0, won - lost - reach), min(1.0, won - lost + reach), level, "bonett-price")


def agreeing(interval: Interval, value: float, significant: bool) -> Interval:
    """Return an interval that contains 0 unless the difference is significant, as the test says. It is changed up to 0.

    Args:
        significant: Whether the test finds a difference.
    """
    low, high = (min(interval.low, value), max(interval.high, value))
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
    """Return a metric of the second side minus that of the first, on the same rows.

    Two single models are compared by McNemar's exact test, or by the paired jackknife for a metric that is not a share of
    rows. With several seeds on a side, the interval and the test cover seeds and rows; equal seeds are paired.

    Args:
        first: The predictions of each seed of the first side.
        second: The predictions of each seed of the second side.

    Raises:
        SettingsError: If the two sides have different labels for their rows.
    """
    models = [*first.values(), *second.values()]
    refuse_other_rows(models)
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


def discordant(first: ScoredRows, second: ScoredRows) -> tuple[int, int]:
    """Return how many rows only the first model gets right, and how many only the second."""
    return int((first.right & ~second.right).sum()), int((~first.right & second.right).sum())


def refuse_other_rows(models: Sequence[ScoredRows]) -> None:
    """Raise `SettingsError` unless all models were evaluated on rows with the same labels in the same order."""
    for model in models[1:]:
        same = model.task == models[0].task and model.labels == models[0].labels
        if not same or not np.array_equal(model.references, models[0].references):
            raise SettingsError("the models were evaluated on different rows", "compare models on the same rows")


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979), in the order given."""
    found = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(found, kind="stable")
    raised = np.maximum.accumulate(found[order] * (len(found) - np.arange(len(found))))
    corrected = np.empty(len(found))
    corrected[order] = np.minimum(raised, 1.0)
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

    Args:
        first: The predictions of each seed of the first side.
        others: The same for each of the other sides.
        alpha: Level of the tests, and 1 minus the level of the intervals, for all comparisons together.
    """
    # P-values are corrected by Holm's method, intervals by Bonferroni's: the intervals that belong to Holm's have no
    # upper end for decided comparisons.
    level = 1 - alpha / max(len(others), 1)
    found = [compare(first, other, key, positive, level=level) for other in others]
    adjusted = holm([difference.p_value for difference in found])
    return [
        replace(
            difference,
            corrected=value,
            comparisons=len(found),
            interval=agreeing(difference.interval, difference.value, value < alpha),
        )
        for difference, value in zip(found, adjusted, strict=True)
    ]


BETTER, WORSE, SAME, UNDECIDED = "better", "worse", "no difference", "undecided"
MARGIN = 0.01  # one point of accuracy, F1 or correlation
RELATIVE_MARGIN = 0.05  # of the mean squared error or the loss, which have no fixed scale
MOST_USEFUL = 1000  # more seeds than this, or this many times the rows, are no advice


@dataclass(frozen=True)
class ComparisonVerdict:
    """What a comparison shows.

    Attributes:
        kind: "better", "worse", "no difference" or "undecided".
        margin: The largest difference that does not matter.
        more_seeds: If undecided: about how many more seeds of each setting would decide, if any number would.
        more_rows: If undecided and seeds do not help: about how many more rows would decide.
    """

    kind: str
    margin: float
    more_seeds: int | None = None
    more_rows: int | None = None

    def __str__(self) -> str:
        if self.kind == SAME:
            return f"no difference larger than {self.margin:.3g}"
        if self.kind != UNDECIDED:
            return self.kind
        if self.more_seeds is not None:
            return f"undecided: about {counted(self.more_seeds, 'more seed', 'more seeds')} would decide"
        if self.more_rows is not None:
            return f"undecided: about {counted(self.more_rows, 'more row', 'more rows')} would decide"
        return "undecided"


def margin_for(key: str, value: float) -> float:
    """Return the largest difference of a metric that does not matter by default: one point, or 5 % of an error."""
    return abs(value) * RELATIVE_MARGIN if key in LOWER_IS_BETTER else MARGIN


def decided(difference: Difference, key: str, margin: float = MARGIN, alpha: float = ALPHA) -> ComparisonVerdict:
    """Return the verdict on a difference.

    It is better or worse if the corrected p-value is below `alpha`, and no difference if the whole interval lies within the
    margin. Otherwise it is undecided. Both are corrected for the number of comparisons.

    Args:
        difference: The difference, with its corrected interval and p-value.
        key: The metric; of the loss and the mean squared error, less is better.
        margin: The largest difference that does not matter, in units of the metric.
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
    spread = difference.spread
    if difference.method != CLUSTERED or spread.seeds is None:
        return None
    deviation = math.sqrt(spread.seeds.variance * spread.num_seeds)  # of one seed's difference
    candidates = [
        seeds_to_detect(difference.value, deviation, spread.rows.variance, alpha=alpha),
        seeds_for_equivalence(difference.value, deviation, spread.rows.variance, margin, alpha=1 - difference.interval.level),
    ]
    found = [number for number in candidates if number is not None and number <= MOST_USEFUL]
    return max(1, min(found) - spread.num_seeds) if found else None


def more_rows(difference: Difference, alpha: float = ALPHA) -> int | None:
    """Return how many more rows would decide if the observed difference and spread are the true ones; None if none would."""
    spread = difference.spread
    of_seeds = spread.seeds.variance if spread.seeds else 0.0
    needed = rows_to_detect(difference.value, spread.rows.variance, spread.num_rows, alpha, of_seeds)
    return needed - spread.num_rows if needed and spread.num_rows < needed <= MOST_USEFUL * spread.num_rows else None
