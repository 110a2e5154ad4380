"""Intervals over seeds and rows: the multi-bootstrap (Sellam et al. 2022), corrected for few seeds.

The seeds that were trained are a sample, and so are the rows. The variance of the mean has a part for each: that of the seeds'
scores divided by their number, and the covariance that two different seeds share when rows are drawn. Drawing few seeds with
replacement, as the plain multi-bootstrap does, underestimates the first part. Here each part has its own t quantile, and the
interval uses their mean, weighted by the parts (Cochran and Cox 1950), which covers at least as often as it claims.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glassloop.metric_values import Array
from glassloop.statistics.intervals import LEVEL, Estimate, Interval, class_number
from glassloop.statistics.resampling import cells_of, drawn_values
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

    @property
    def parts(self) -> list[Part]:
        """The parts that are not 0."""
        return [part for part in (self.seeds, self.rows) if part and part.variance > 0]

    def interval(self, level: float = LEVEL) -> Interval:
        """Return the t interval of the mean."""
        reach = weighted_quantile(self.parts, level) * math.sqrt(self.variance)
        return Interval(self.mean - reach, self.mean + reach, level, "t")

    @property
    def p_value(self) -> float:
        """The two-sided p-value of the mean being 0: 1 minus the level of the interval that just reaches 0."""
        if self.variance <= 0:
            return 1.0 if self.mean == 0 else 0.0
        wanted = abs(self.mean) / math.sqrt(self.variance)
        low, high = -300.0, 0.0  # of the logarithm
        for _ in range(60):
            middle = (low + high) / 2
            inside = weighted_quantile(self.parts, 1 - math.exp(middle), math.exp(middle)) > wanted
            low, high = (middle, high) if inside else (low, middle)
        return math.exp(high)


def weighted_quantile(parts: Sequence[Part], level: float, rest: float | None = None) -> float:
    """Return the mean of the t quantiles of several parts of a variance, weighted by the parts; 0 without parts.

    Args:
        parts: The parts of the variance.
        level: The level of the two-sided interval.
        rest: 1 minus the level, if it is too small to be computed from it.
    """
    from scipy.special import stdtrit

    tail = (1 - level if rest is None else rest) / 2
    total = sum(part.variance for part in parts)
    return sum(-float(stdtrit(part.freedom, tail)) * part.variance / total for part in parts) if total else 0.0


def spread_of(points: Array, drawn: Array, num_rows: int) -> Spread:
    """Return the mean over seeds with both parts of its variance.

    Args:
        points: The metric of each seed, or a difference that is paired by seed.
        drawn: The same for rows drawn with replacement: draws x seeds.
        num_rows: Number of rows.
    """
    number, mean = len(points), float(np.mean(points))
    covariance = np.atleast_2d(np.cov(drawn, rowvar=False))
    if number == 1:
        return Spread(mean, None, Part(float(covariance[0, 0]), max(num_rows - 1, 1)), 1, num_rows)
    shared = (covariance.sum() - np.trace(covariance)) / (number * (number - 1))
    seeds = Part(float(np.var(points, ddof=1)) / number, number - 1)
    return Spread(mean, seeds, Part(max(float(shared), 0.0), max(num_rows - 1, 1)), number, num_rows)


def unpaired_spread(first: tuple[Array, Array], second: tuple[Array, Array], num_rows: int) -> Spread:
    """Return the spread of a difference of two means over different seeds on the same rows.

    Args:
        first: The metric of each seed, and for drawn rows (draws x seeds), of the side that is subtracted from.
        second: The same for the side that is subtracted.
        num_rows: Number of rows.
    """
    one, other = spread_of(*first, num_rows), spread_of(*second, num_rows)
    drawn = np.concatenate([first[1], second[1]], axis=1)
    cross = np.cov(drawn, rowvar=False)[: len(first[0]), len(first[0]) :]
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
    """A metric over several seeds: the value of each, their mean and standard deviation, and the interval of the mean."""

    points: tuple[float, ...]
    mean: float
    deviation: float | None
    interval: Interval

    @property
    def estimate(self) -> Estimate:
        """The mean with its interval."""
        return Estimate(self.mean, self.interval)


def seeds_estimate(
    seeds: Sequence[ScoredRows],
    key: str,
    positive: str | None = None,
    *,
    level: float = LEVEL,
    resamples: int | None = None,
    seed: int = 0,
) -> SeedsEstimate:
    """Return the mean of a metric over seeds with its interval over seeds and rows.

    Args:
        seeds: The predictions of each seed on the same rows.
        key: The metric.
        positive: The class that f1, precision and recall refer to.
        level: The level of the interval.
        resamples: Number of bootstrap draws.
        seed: Seed of the draws.
    """
    cells, number = cells_of(seeds), class_number(seeds[0], positive)
    points = cells.points(key, number)
    drawn = drawn_values(cells, key, number, resamples=resamples, seed=seed)
    spread = spread_of(points, drawn, cells.rows)
    deviation = float(np.std(points, ddof=1)) if len(points) > 1 else None
    return SeedsEstimate(tuple(map(float, points)), spread.mean, deviation, spread.interval(level).within_range(key))
