"""The verdict of a comparison: better, worse, no difference larger than a margin, or undecided and what would decide."""

from __future__ import annotations

import math
from dataclasses import dataclass

from glassloop.errors import counted
from glassloop.measures import LOWER_IS_BETTER
from glassloop.statistics.paired import CLUSTERED, Difference
from glassloop.statistics.power import ALPHA, rows_to_detect, seeds_for_equivalence, seeds_to_detect

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
        alpha: Level of the test.
    """
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
