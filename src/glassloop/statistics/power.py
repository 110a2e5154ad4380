"""What a comparison can detect: from the rows alone, and from the spread of seeds; and how many seeds or rows would decide.

A difference is detectable if a two-sided test at 5 % finds it with a probability of 80 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from glassloop.statistics.intervals import normal_quantile
from glassloop.statistics.several_seeds import Part, joint_reach

ALPHA, POWER = 0.05, 0.80
MOST_SEEDS = 10_000
MANY_DEGREES = 10_000  # of freedom: a normal distribution
NO_WRONG_SIDE = 5.0  # standard errors beyond which an estimate never has the wrong sign
USUAL_DISCORDANCE = 0.10  # share of rows that only one of two similar models gets right


def row_reach(share: float, rows: int, level: float = 1 - ALPHA) -> float:
    """Return half the width of the Wilson interval of a share of `rows` rows.

    Args:
        share: The expected accuracy.
        rows: Number of rows.
        level: The level of the interval.
    """
    z = normal_quantile(level)
    return z * math.sqrt(share * (1 - share) / rows + (z / (2 * rows)) ** 2) / (1 + z * z / rows)


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
        alpha: Level of the test.
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
        alpha: Level of the test.
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
        alpha: Level of the test.
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
        alpha: Level of the test.
        seed_variance: The part of the variance that more rows do not reduce.
    """
    from scipy.special import ndtri

    allowed = (difference / (normal_quantile(1 - alpha) + float(ndtri(POWER)))) ** 2 - seed_variance
    return math.ceil(rows * row_variance / allowed) if allowed > 0 else None
