"""Intervals of one model's metrics over rows, from the jackknife variance on the scale that suits each metric.

A share of rows has Wilson's interval. Every other metric between 0 and 1, such as F1, has the Wilson interval of as many rows
as would give a share the same variance; the same for Matthews' correlation between -1 and 1. Correlations have Fisher's
interval, errors a t interval of their logarithm. All contain the value and lie within the range of the metric.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from glassloop.errors import SettingsError
from glassloop.measures import LOWER_IS_BETTER
from glassloop.metric_values import CORRELATIONS
from glassloop.statistics.row_metrics import OF_SCORES, SHARES, RowMetric, one_row_variance, row_metric
from glassloop.statistics.scored import ScoredRows

LEVEL = 0.95
NO_INTERVAL = "too few rows"  # shown instead of an interval
LEAST_ROWS = 8  # per class: with fewer rows, or with a bias of more standard errors,
MOST_BIAS = 0.5  # intervals covered less than 93 % in simulations (docs/log.md)
ROUNDING = 1e-9


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


def metric_interval(found: RowMetric, key: str, level: float = LEVEL) -> Interval | None:
    """Return the interval of a metric over rows; None if there are too few rows for one.

    Args:
        found: The metric and the changes of its rows.
        key: The metric.
        level: The level of the interval.
    """
    if too_few_rows(found, key) or is_biased(found.bias, found.variance) or (key in OF_SCORES and not found.variance):
        return None
    rows, value = len(found.changes), found.value
    if key in LOWER_IS_BETTER:
        variance = found.variance + one_row_variance(found.changes)
        reach = t_interval(0.0, variance / value**2, rows - 1, level).high
        return Interval(value * math.exp(-reach), value * math.exp(reach), level, "t")
    if key in CORRELATIONS:
        if abs(value) > 1 - ROUNDING:
            return None
        reach = normal_quantile(level) * math.sqrt(found.variance) / (1 - value**2)
        return Interval(math.tanh(math.atanh(value) - reach), math.tanh(math.atanh(value) + reach), level, "fisher")
    least, most = range_of(key)
    share = (value - least) / (most - least)
    variance = found.variance / (most - least) ** 2 * (rows - 1) / rows if rows > 1 else 0.0  # that of a share, not corrected
    number = share * (1 - share) / variance if variance > 0 else found.counted
    if not 0 < share < 1:
        number = found.counted
    interval = wilson(share * number, number, level)
    return replace(interval, low=least + (most - least) * interval.low, high=least + (most - least) * interval.high)


def too_few_rows(found: RowMetric, key: str) -> bool:
    """Return whether too few rows count for a metric: fewer than 8, or, for a mean over classes, fewer than 8 per class.

    Shares of rows have an interval for any number of rows. The mean over classes is the harmonic one.
    """
    return key not in SHARES and found.counted / found.classes < LEAST_ROWS


def is_biased(bias: float, variance: float) -> bool:
    """Return whether so few rows shift a metric by so much that no interval around it covers as it claims.

    This happens to a mean over many classes with few rows each.

    Args:
        bias: The estimated bias of the metric.
        variance: Its variance.
    """
    return abs(bias) > max(MOST_BIAS * math.sqrt(variance), ROUNDING)


def metric_estimate(rows: ScoredRows, key: str, positive: str | None = None, *, level: float = LEVEL) -> Estimate:
    """Return a metric of one model with its interval over rows.

    Args:
        rows: The predictions of the model.
        key: The metric.
        positive: The class that f1, precision and recall refer to.
        level: The level of the interval.
    """
    found = row_metrics_of([rows], key, positive)[0]
    return Estimate(found.value, metric_interval(found, key, level))


def row_metrics_of(models: Sequence[ScoredRows], key: str, positive: str | None = None) -> list[RowMetric]:
    """Return a metric of several models with the changes of their rows.

    Args:
        models: The predictions of the models.
        key: The metric.
        positive: The class that f1, precision and recall refer to.
    """
    number = class_number(models[0], positive)
    return [row_metric(key, model.task, model.predictions, model.references, number) for model in models]


def class_number(rows: ScoredRows, positive: str | None) -> int | None:
    """Return the number of a class. Raises `SettingsError` for a name that is not one of the labels."""
    if positive is None:
        return None
    if positive not in rows.labels:
        raise SettingsError(f"{positive} is not one of the labels", "name one of the labels of the run")
    return rows.labels.index(positive)
