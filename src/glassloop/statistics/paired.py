"""Differences between models on the same rows: McNemar's test, the paired bootstrap, several seeds, and Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from glassloop.errors import SettingsError
from glassloop.metric_values import Array
from glassloop.statistics.intervals import LEVEL, Interval, class_number, normal_quantile, percentile
from glassloop.statistics.resampling import cells_of, drawn_values
from glassloop.statistics.row_metrics import SHARES
from glassloop.statistics.scored import ScoredRows, has_rows_right
from glassloop.statistics.several_seeds import Spread, spread_of, unpaired_spread

MCNEMAR, BOOTSTRAP, CLUSTERED = "exact McNemar test", "paired bootstrap", "seeds and rows"


@dataclass(frozen=True)
class Difference:
    """The metric of one side minus that of the first, with its interval and p-value.

    Attributes:
        value: The difference.
        interval: Its interval, not corrected for the number of comparisons.
        p_value: The two-sided p-value of no difference, not corrected.
        method: The test: "exact McNemar test", "paired bootstrap" or "seeds and rows".
        spread: What its variance consists of.
        corrected: The p-value corrected for the number of comparisons (Holm); equal to `p_value` for a single one.
    """

    value: float
    interval: Interval
    p_value: float
    method: str
    spread: Spread
    corrected: float


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


def bootstrap_p_value(drawn: Array) -> float:
    """Return the two-sided p-value of a difference being 0, from its values for drawn rows."""
    low, high = (np.count_nonzero(side) + 1 for side in (drawn <= 0, drawn >= 0))
    return min(1.0, 2 * min(low, high) / (len(drawn) + 1))


def compare(
    first: Mapping[int, ScoredRows],
    second: Mapping[int, ScoredRows],
    key: str,
    positive: str | None = None,
    *,
    level: float = LEVEL,
    resamples: int | None = None,
    seed: int = 0,
) -> Difference:
    """Return a metric of the second side minus that of the first, on the same rows.

    Two single models are compared by McNemar's exact test, or by the paired bootstrap for a metric that is not a share of
    rows. With several seeds on a side, the interval and the test cover seeds and rows; equal seeds are paired.

    Args:
        first: The predictions of each seed of the first side.
        second: The predictions of each seed of the second side.
        key: The metric.
        positive: The class that f1, precision and recall refer to.
        level: The level of the interval.
        resamples: Number of bootstrap draws.
        seed: Seed of the draws.

    Raises:
        SettingsError: If the two sides have different labels for their rows.
    """
    models = [*first.values(), *second.values()]
    refuse_other_rows(models)
    cells, number = cells_of(models), class_number(models[0], positive)
    points = cells.points(key, number)
    drawn = drawn_values(cells, key, number, resamples=resamples, seed=seed)
    cut, rows = len(first), cells.rows
    if {*first} == {*second} or len(first) == len(second) == 1:
        places = [cut + [*second].index(name) for name in first] if {*first} == {*second} else [1]
        spread = spread_of(points[places] - points[:cut], drawn[:, places] - drawn[:, :cut], rows)
    else:
        spread = unpaired_spread((points[cut:], drawn[:, cut:]), (points[:cut], drawn[:, :cut]), rows)
    if spread.seeds is not None:
        return Difference(spread.mean, spread.interval(level), spread.p_value, CLUSTERED, spread, spread.p_value)
    if key in SHARES:
        lost, won = discordant(*models)
        p_value = mcnemar(lost, won)
        return Difference(spread.mean, share_interval(lost, won, rows, level), p_value, MCNEMAR, spread, p_value)
    differences = drawn[:, 1] - drawn[:, 0]
    p_value = bootstrap_p_value(differences)
    interval = percentile(differences, level)
    if interval.low == interval.high and has_rows_right(models[0].task):  # the same answers: other rows could still differ
        interval = share_interval(0, 0, rows, level)
    return Difference(spread.mean, interval, p_value, BOOTSTRAP, spread, p_value)


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


def corrected(differences: Sequence[Difference]) -> list[Difference]:
    """Return differences with their p-values corrected for their number (Holm)."""
    adjusted = holm([difference.p_value for difference in differences])
    return [replace(difference, corrected=value) for difference, value in zip(differences, adjusted, strict=True)]
