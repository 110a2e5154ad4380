"""Intervals over seeds and rows: both vary, and few seeds say little about their spread.

The seeds that were trained are a sample, and so are the rows. The variance of the mean has a part for each: that of the seeds'
scores divided by their number, and the covariance that two different seeds share over rows (Sellam et al. 2022). Each part
alone has a t interval. `joint_reach` combines their half-widths such that the interval of both covers 95 to 97 %, for any
number of seeds and any ratio of the parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glassloop.metric_values import Array
from glassloop.statistics.intervals import LEVEL, Estimate, Interval, is_biased, metric_interval, row_metrics_of, too_few_rows
from glassloop.statistics.row_metrics import RowMetric, covariance_of, one_row_variance
from glassloop.statistics.scored import ScoredRows


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

    @property
    def estimate(self) -> Estimate:
        """The mean with its interval."""
        return Estimate(self.mean, self.interval)


def seeds_estimate(
    seeds: Sequence[ScoredRows], key: str, positive: str | None = None, *, level: float = LEVEL
) -> SeedsEstimate:
    """Return the mean of a metric over seeds with its interval over seeds and rows; over rows only for a single seed.

    Args:
        seeds: The predictions of each seed on the same rows.
        key: The metric.
        positive: The class that f1, precision and recall refer to.
        level: The level of the interval.
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
