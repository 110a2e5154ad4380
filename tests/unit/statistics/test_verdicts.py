"""Verdicts: their rules, and in simulations with a known truth how often they are right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulated_seeds import simulated, true_accuracy

from glassloop.scores.comparisons import (
    BETTER,
    CLUSTERED,
    MCNEMAR,
    POWER,
    SAME,
    UNDECIDED,
    WORSE,
    ComparisonVerdict,
    Difference,
    Part,
    Spread,
    compare,
    compare_all,
    decided,
    margin_for,
    more_rows,
    more_seeds,
    seeds_to_detect,
)
from glassloop.scores.intervals import Interval


def difference(value: float, error: float, seeds: int = 5, rows_error: float = 0.001) -> Difference:
    """A difference over seeds whose variance is known."""
    spread = Spread(value, Part(error**2, seeds - 1), Part(rows_error**2, 407), seeds, 408)
    return Difference(value, spread.interval(), spread.p_value, CLUSTERED, spread, spread.p_value)


@pytest.mark.parametrize(("key", "kind"), [("accuracy", BETTER), ("mse", WORSE), ("loss", WORSE)])
def test_a_clear_difference_is_better_or_worse(key: str, kind: str) -> None:
    assert decided(difference(0.1, 0.01), key).kind == kind
    assert decided(difference(-0.1, 0.01), key).kind == {BETTER: WORSE, WORSE: BETTER}[kind]


def test_a_narrow_interval_around_zero_is_no_difference() -> None:
    found = decided(difference(0.001, 0.002), "accuracy", margin=0.01)
    assert found.kind == SAME
    assert str(found) == "no difference larger than 0.01"
    assert decided(difference(0.001, 0.002), "accuracy", margin=0.005).kind == UNDECIDED


def test_the_corrected_p_value_decides() -> None:
    clear = difference(0.1, 0.01)
    assert decided(replace(clear, corrected=0.06), "accuracy").kind == UNDECIDED


def test_an_undecided_comparison_says_how_many_seeds_would_decide() -> None:
    found = decided(difference(0.02, 0.01), "accuracy")
    deviation = 0.01 * 5**0.5
    assert found.more_seeds == (seeds_to_detect(0.02, deviation, 0.001**2) or 0) - 5
    assert str(found) == f"undecided: about {found.more_seeds} more seeds would decide"
    assert str(ComparisonVerdict(UNDECIDED, 0.01, 1)) == "undecided: about 1 more seed would decide"


def test_where_seeds_cannot_decide_rows_would() -> None:
    found = decided(difference(0.02, 0.005, rows_error=0.02), "accuracy")
    assert found.more_seeds is None
    assert found.more_rows is not None
    assert str(found) == f"undecided: about {found.more_rows:,} more rows would decide"
    nothing = difference(0.0, 0.01, rows_error=0.02)
    assert str(decided(nothing, "accuracy")) == "undecided"
    assert more_rows(nothing) is None


def test_rows_are_advised_only_if_they_would_decide() -> None:
    """Rows do not reduce the spread of seeds, and a number that nobody can collect is no advice."""
    assert more_rows(difference(0.02, 0.02, rows_error=0.02)) is None, "the seeds alone vary too much"
    assert more_rows(difference(0.06, 0.005, rows_error=0.02)) is None, "these rows are enough by this estimate"
    assert more_rows(difference(1e-9, 0.0, rows_error=0.02)) is None, "a difference of rounding needs billions of rows"
    few, many = more_rows(difference(0.03, 0.0, rows_error=0.02)), more_rows(difference(0.03, 0.006, rows_error=0.02))
    assert few is not None
    assert many is not None
    assert many > few


def test_single_models_need_rows() -> None:
    spread = Spread(0.02, None, Part(0.015**2, 407), 1, 408)
    single = Difference(0.02, Interval(-0.01, 0.05), 0.2, MCNEMAR, spread, 0.2)
    assert more_seeds(single, 0.01) is None
    assert decided(single, "accuracy").more_rows == pytest.approx(408 * (0.015 * 2.8016 / 0.02) ** 2 - 408, abs=2)


def test_errors_have_a_relative_margin() -> None:
    assert margin_for("accuracy", 0.9) == 0.01
    assert margin_for("mse", 2.0) == pytest.approx(0.1)


# --- simulations -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "spread"), [(2, 0.15), (3, 0.1), (5, 0.2), (10, 0.3)])
def test_better_is_rarely_wrong(seeds: int, spread: float) -> None:
    """Three settings that are equally good: at most 5 % of studies call one of them better, or worse."""
    generator, wrong, number = np.random.default_rng(11), 0, 700
    for _ in range(number):
        first, *others = simulated(generator, 300, seeds, (1.3, 1.3, 1.3), spread)
        found = compare_all(first, others, "accuracy")
        wrong += any(decided(one, "accuracy").kind in (BETTER, WORSE) for one in found)
    assert wrong / number <= 0.062  # 5 % and 1.5 standard errors of 700 studies


def test_no_difference_is_rarely_wrong() -> None:
    """Two settings that differ by exactly the margin: at most 5 % of studies say that they do not."""
    generator, wrong, number, spread = np.random.default_rng(12), 0, 300, 0.1
    margin = true_accuracy(1.5, spread) - true_accuracy(1.3, spread)
    for _ in range(number):
        first, second = simulated(generator, 1500, 8, (1.3, 1.5), spread)
        wrong += decided(compare(first, second, "accuracy"), "accuracy", margin).kind == SAME
    assert wrong / number <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("gain", "spread"), [(0.30, 0.25), (0.25, 0.15)])
def test_the_predicted_number_of_seeds_is_within_a_factor_of_two(gain: float, spread: float) -> None:
    """Predict from one large pilot, then count how often so many seeds, half and twice as many decide."""
    generator = np.random.default_rng(13)
    pilot = compare(*simulated(generator, 3000, 60, (1.2, 1.2 + gain), spread), "accuracy")
    assert pilot.spread.seeds is not None
    truth = true_accuracy(1.2 + gain, spread) - true_accuracy(1.2, spread)
    predicted = seeds_to_detect(truth, (pilot.spread.seeds.variance * 60) ** 0.5, pilot.spread.rows.variance)
    assert predicted is not None

    def power(seeds: int) -> float:
        found = [compare(*simulated(generator, 3000, seeds, (1.2, 1.2 + gain), spread), "accuracy") for _ in range(80)]
        return float(np.mean([decided(one, "accuracy").kind == BETTER for one in found]))

    assert power(max(2, predicted // 2)) < POWER < power(2 * predicted)
