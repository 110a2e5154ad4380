"""Intervals of one model's metrics over rows: Wilson for shares of rows, the bootstrap (BCa) for everything else."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from glassloop.errors import SettingsError
from glassloop.measures import LOWER_IS_BETTER
from glassloop.metric_values import CORRELATIONS, Array
from glassloop.statistics.resampling import MANY_CELLS, Cells, cells_of, draws
from glassloop.statistics.row_metrics import SHARES
from glassloop.statistics.scored import ScoredRows

LEVEL = 0.95
MOST_CELLS_FOR_BCA = 2000  # its correction needs each cell left out once, and vanishes for many rows


@dataclass(frozen=True)
class Interval:
    """An interval, the level it covers, and how it was computed: "wilson", "t", "bca", "percentile" or "normal"."""

    low: float
    high: float
    level: float = LEVEL
    method: str = "percentile"

    @property
    def half_width(self) -> float:
        """Half of the distance between both ends."""
        return (self.high - self.low) / 2

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def within_range(self, key: str) -> Interval:
        """Return the interval without values that a metric cannot have, such as an accuracy above 1."""
        least = -1.0 if key in (*CORRELATIONS, "matthews_correlation") else 0.0
        most = math.inf if key in LOWER_IS_BETTER else 1.0
        return replace(self, low=max(self.low, least), high=min(self.high, most))


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
    """Return the Wilson score interval of a proportion.

    Args:
        successes: How many of the rows are right.
        number: Number of rows, at least 1.
        level: The level of the interval.
    """
    z, share = normal_quantile(level), float(successes) / number
    middle, under = share + z * z / (2 * number), 1 + z * z / number
    spread = z * math.sqrt(share * (1 - share) / number + (z / (2 * number)) ** 2)
    low = 0.0 if successes == 0 else max(0.0, (middle - spread) / under)  # exactly, without rounding
    high = 1.0 if successes == number else min(1.0, (middle + spread) / under)
    return Interval(low, high, level, "wilson")


def t_interval(mean: float, variance: float, freedom: float, level: float = LEVEL) -> Interval:
    """Return the t interval of a mean.

    Args:
        mean: The mean.
        variance: The variance of the mean, not of single values.
        freedom: Degrees of freedom of the variance.
        level: The level of the interval.
    """
    from scipy.special import stdtrit

    reach = float(stdtrit(freedom, (1 + level) / 2)) * math.sqrt(variance) if variance else 0.0
    return Interval(mean - reach, mean + reach, level, "t")


def mean_interval(values: Iterable[float], level: float = LEVEL) -> Estimate:
    """Return the mean of independent values, such as the scores of several seeds, with its t interval."""
    found = np.asarray([*values], dtype=np.float64)
    mean = float(found.mean())
    if len(found) < 2:
        return Estimate(mean, None)
    return Estimate(mean, t_interval(mean, float(found.var(ddof=1)) / len(found), len(found) - 1, level))


def percentile(drawn: Array, level: float = LEVEL) -> Interval:
    """Return the interval between two quantiles of drawn values."""
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), level, "percentile")


def bca(drawn: Array, value: float, left_out: Array, frequencies: Array, level: float = LEVEL) -> Interval:
    """Return the bias-corrected and accelerated bootstrap interval (Efron 1987).

    Args:
        drawn: The metric of each draw.
        value: The metric of the rows as they are.
        left_out: The metric without one row of each cell.
        frequencies: Number of rows of each cell.
        level: The level of the interval.
    """
    from scipy.special import ndtr, ndtri

    below = (np.count_nonzero(drawn < value) + np.count_nonzero(drawn <= value)) / (2 * len(drawn))
    lack = np.average(left_out, weights=frequencies) - left_out
    squares = float((frequencies * lack**2).sum())
    if not 0 < below < 1 or squares <= 0:
        return percentile(drawn, level)
    bias, skew = float(ndtri(below)), float((frequencies * lack**3).sum()) / (6 * squares**1.5)
    wanted = bias + np.array([-1, 1]) * normal_quantile(level)
    low, high = np.quantile(drawn, ndtr(bias + wanted / (1 - skew * wanted)))
    return Interval(float(low), float(high), level, "bca")


def metric_estimate(
    rows: ScoredRows,
    key: str,
    positive: str | None = None,
    *,
    level: float = LEVEL,
    resamples: int | None = None,
    seed: int = 0,
) -> Estimate:
    """Return a metric of one model with its interval over rows.

    Args:
        rows: The predictions of the model.
        key: The metric.
        positive: The class that f1, precision and recall refer to.
        level: The level of the interval.
        resamples: Number of bootstrap draws. Default: 2,000, or 200 for very many rows.
        seed: Seed of the draws.
    """
    return metric_estimates(rows, [key], positive, level=level, resamples=resamples, seed=seed)[key]


def metric_estimates(
    rows: ScoredRows,
    keys: Iterable[str],
    positive: str | None = None,
    *,
    level: float = LEVEL,
    resamples: int | None = None,
    seed: int = 0,
) -> dict[str, Estimate]:
    """Return metrics of one model, each with its interval over rows. All share the same draws.

    The arguments are those of `metric_estimate`.
    """
    wanted, cells, number = [*keys], cells_of([rows]), class_number(rows, positive)
    points = {key: float(cells.points(key, number)[0]) for key in wanted}
    found = {key: Estimate(points[key], wilson(rows.right.sum(), len(rows), level)) for key in wanted if key in SHARES}
    if left := [key for key in wanted if key not in SHARES]:
        chunks = [{key: cells.values(key, counts, number)[:, 0] for key in left} for counts in draws(cells, resamples, seed)]
        for key in left:
            drawn = np.concatenate([chunk[key] for chunk in chunks])
            found[key] = Estimate(points[key], _interval(cells, key, number, drawn, points[key], level))
    return {key: found[key] for key in wanted}


def class_number(rows: ScoredRows, positive: str | None) -> int | None:
    """Return the number of a class. Raises `SettingsError` for a name that is not one of the labels."""
    if positive is None:
        return None
    if positive not in rows.labels:
        raise SettingsError(f"{positive} is not one of the labels", "name one of the labels of the run")
    return rows.labels.index(positive)


def _interval(cells: Cells, key: str, positive: int | None, drawn: Array, value: float, level: float) -> Interval:
    if float(drawn.min()) == float(drawn.max()) == 1.0:  # no errors: as many rows could still hide some
        return wilson(cells.rows, cells.rows, level)
    number = len(cells.frequencies)
    if number > MANY_CELLS:  # few draws suffice for a standard error
        reach = normal_quantile(level) * float(drawn.std(ddof=1))
        return Interval(value - reach, value + reach, level, "normal")
    if not 1 < number <= MOST_CELLS_FOR_BCA:
        return percentile(drawn, level)
    without = cells.frequencies[None].astype(np.float64) - np.eye(number)
    return bca(drawn, value, cells.values(key, without, positive)[:, 0], cells.frequencies, level)
