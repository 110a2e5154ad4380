"""Differences between models on the same rows: McNemar's test, the paired jackknife, several seeds, and Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from glassloop.errors import SettingsError
from glassloop.statistics.intervals import LEVEL, Interval, normal_quantile, row_metrics_of
from glassloop.statistics.power import ALPHA
from glassloop.statistics.row_metrics import SHARES, one_row_variance
from glassloop.statistics.scored import ScoredRows, has_rows_right
from glassloop.statistics.several_seeds import Spread, spread_of, stacked, unpaired_spread

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
        number: Number of rows.
        level: The level of the interval.
    """
    lost, won = (only_first + 1) / (number + 2), (only_second + 1) / (number + 2)
    reach = normal_quantile(level) * math.sqrt((lost + won - (won - lost) ** 2) / (number + 2))
    return Interval(max(-1.0, won - lost - reach), min(1.0, won - lost + reach), level, "bonett-price")


def agreeing(interval: Interval, value: float, significant: bool) -> Interval:
    """Return an interval that contains 0 unless the difference is significant, as the test says. It is changed up to 0.

    Args:
        interval: The interval of the difference.
        value: The difference.
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
        key: The metric.
        positive: The class that f1, precision and recall refer to.
        level: The level of the interval.

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
        key: The metric.
        positive: The class that f1, precision and recall refer to.
        alpha: Level of the tests, and 1 minus the level of the intervals, for all comparisons together.
    """
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
