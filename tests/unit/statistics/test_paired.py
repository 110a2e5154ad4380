"""Differences on the same rows: equal to SciPy and statsmodels, and rarely wrong where there is no difference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from drawn_runs import drawn_rows
from simulated_seeds import simulated, true_accuracy
from statsmodels.stats.contingency_tables import mcnemar as reference_mcnemar
from statsmodels.stats.multitest import multipletests

from glassloop.base.errors import SettingsError
from glassloop.scores.comparisons import (
    CLUSTERED,
    JACKKNIFE,
    MCNEMAR,
    agreeing,
    compare,
    compare_all,
    discordant,
    holm,
    mcnemar,
    share_interval,
)
from glassloop.scores.intervals import Interval
from glassloop.settings.fields import SCORE


@pytest.mark.parametrize(("lost", "won"), [(0, 0), (0, 1), (3, 12), (12, 3), (40, 60), (7, 7), (0, 500)])
def test_mcnemar_equals_statsmodels(lost: int, won: int) -> None:
    wanted = reference_mcnemar([[10, lost], [won, 10]], exact=True).pvalue if lost + won else 1.0
    assert mcnemar(lost, won) == pytest.approx(min(1.0, wanted))


def test_holm_equals_statsmodels() -> None:
    generator = np.random.default_rng(0)
    for number in (1, 2, 5, 30):
        drawn = generator.random(number) ** 3
        assert holm(drawn.tolist()) == pytest.approx(multipletests(drawn, method="holm")[1].tolist())


def test_two_single_models_are_compared_by_mcnemar() -> None:
    first, second = drawn_rows(300, 0.8, 1), drawn_rows(300, 1.5, 2)
    found = compare({1: first}, {2: second}, "accuracy")
    assert found.method == MCNEMAR
    assert found.p_value == mcnemar(*discordant(first, second))
    assert found.value == pytest.approx(second.right.mean() - first.right.mean())
    assert found.value in found.interval
    assert found.corrected == found.p_value


def test_other_metrics_are_compared_by_the_paired_jackknife() -> None:
    first, second = drawn_rows(300, 1.0, 1, SCORE), drawn_rows(300, 1.1, 1, SCORE)
    found = compare({1: first}, {1: second}, "mse")
    errors = np.square(second.predictions - second.references) - np.square(first.predictions - first.references)
    wanted = scipy.stats.ttest_1samp(errors, 0)
    assert found.method == JACKKNIFE
    assert found.value == pytest.approx(errors.mean())
    assert found.p_value == pytest.approx(wanted.pvalue, rel=0.05)
    assert found.interval.half_width == pytest.approx(1.968 * scipy.stats.sem(errors), rel=0.04)


def test_equal_seeds_are_paired_whatever_their_order() -> None:
    first = {seed: drawn_rows(200, 1.0, seed) for seed in (1, 2, 3)}
    second = {seed: drawn_rows(200, 1.2, seed + 10) for seed in (3, 2, 1)}
    found = compare(first, second, "accuracy")
    differences = [second[seed].right.mean() - first[seed].right.mean() for seed in first]
    assert found.method == CLUSTERED
    assert found.value == pytest.approx(np.mean(differences))
    assert found.spread.seeds is not None
    assert found.spread.seeds.variance == pytest.approx(np.var(differences, ddof=1) / 3)
    other = compare(first, {seed + 5: rows for seed, rows in second.items()}, "accuracy")
    assert other.value == pytest.approx(found.value)
    assert other.p_value != found.p_value


def test_one_seed_against_several_has_an_interval() -> None:
    found = compare({1: drawn_rows(200, 1.0)}, {seed: drawn_rows(200, 1.0, seed) for seed in (5, 6, 7)}, "f1", "equivalent")
    assert found.method == CLUSTERED
    assert found.interval.half_width > 0


def test_other_rows_are_refused() -> None:
    rows = drawn_rows(50)
    for other in (drawn_rows(49), drawn_rows(50, data_seed=1), replace(rows, labels=("equivalent", "different"))):
        with pytest.raises(SettingsError, match="the models were evaluated on different rows"):
            compare({1: rows}, {1: other}, "accuracy")


def test_few_rows_that_differ_prove_little() -> None:
    """Two models that differ on four rows favor one of them by chance once in eight times."""
    first = drawn_rows(100, 100.0)
    second = replace(first, predictions=np.where(np.arange(100) < 4, 1 - first.references, first.references))
    assert compare({1: first}, {1: second}, "f1_macro").p_value > 0.09


def test_several_comparisons_have_corrected_p_values_and_intervals() -> None:
    first, others = {1: drawn_rows(200, 1.0)}, [{1: drawn_rows(200, skill, 2)} for skill in (1.0, 1.2, 2.0)]
    single, together = [compare(first, other, "f1_macro") for other in others], compare_all(first, others, "f1_macro")
    assert [one.p_value for one in together] == [one.p_value for one in single]
    assert [one.corrected for one in together] == holm([one.p_value for one in single])
    assert {one.comparisons for one in together} == {3}
    for one, alone in zip(together, single, strict=True):
        assert one.interval.level == pytest.approx(1 - 0.05 / 3)
        assert one.interval.half_width > alone.interval.half_width
    assert compare_all(first, others[:1], "f1_macro") == single[:1]


def test_an_interval_excludes_zero_exactly_if_the_test_finds_a_difference() -> None:
    interval = Interval(-0.01, 0.05)
    assert agreeing(interval, 0.02, True) == Interval(0.0, 0.05)
    assert agreeing(interval, 0.02, False) == interval
    assert agreeing(Interval(0.01, 0.05), 0.02, False) == Interval(0.0, 0.05)
    assert agreeing(Interval(-0.05, 0.01), -0.02, True) == Interval(-0.05, 0.0)


@pytest.mark.parametrize("key", ["accuracy", "f1_macro"])
@pytest.mark.parametrize("seeds", [1, 3])
def test_intervals_and_verdicts_agree(key: str, seeds: int) -> None:
    decided = 0
    for start in range(0, 120, 4):
        sides = [{seed: drawn_rows(80, skill, start * 9 + place * 40 + seed) for seed in range(seeds)}
                 for place, skill in enumerate((0.9, 0.9, 1.3, 1.8))]  # fmt: skip
        for one in compare_all(sides[0], sides[1:], key):
            assert one.value in one.interval
            found = one.corrected < 0.05
            assert found == (not one.interval.low < 0 < one.interval.high) or (not found and 0.0 in one.interval)
            decided += one.corrected < 0.05
    assert 5 < decided < 85


def test_no_discordant_row_is_no_certainty() -> None:
    interval = share_interval(0, 0, 100)
    assert interval.low == pytest.approx(-interval.high)
    assert interval.high > 0.02
    assert share_interval(0, 3, 3) == Interval(share_interval(0, 3, 3).low, 1.0, 0.95, "bonett-price")


def test_equal_answers_are_no_certainty() -> None:
    rows = drawn_rows(50)
    found = compare({1: rows}, {2: rows}, "f1", "equivalent")
    assert (found.value, found.p_value) == (0.0, 1.0)
    assert found.interval == share_interval(0, 0, 50)
    several = compare({1: rows, 2: rows}, {1: rows, 2: rows}, "accuracy")
    assert several.interval == share_interval(0, 0, 50)


def test_the_interval_of_two_fixed_models_covers_as_it_claims() -> None:
    generator, covered, number = np.random.default_rng(3), 0, 1000
    truth = true_accuracy(1.5, 0.0) - true_accuracy(1.2, 0.0)
    for _ in range(number):
        (first,), (second,) = (side.values() for side in simulated(generator, 250, 1, (1.2, 1.5), 0.0))
        covered += truth in share_interval(*discordant(first, second), 250)
    assert 0.93 <= covered / number <= 0.97


@pytest.mark.parametrize("rows", [30, 250])
def test_the_paired_jackknife_of_f1_covers_and_is_rarely_wrong(rows: int) -> None:
    generator, covered, wrong, number = np.random.default_rng(4), 0, 0, 1000
    for _ in range(number):
        first, second = simulated(generator, rows, 1, (1.2, 1.2), 0.0)
        found = compare(first, second, "f1", "b")
        covered += 0.0 in found.interval
        wrong += found.p_value < 0.05
    assert covered / number >= 0.94
    assert wrong / number <= 0.06  # 5 % and 1.5 standard errors of 1,000 comparisons
