"""Differences on the same rows: equal to SciPy and statsmodels, and rarely wrong where there is no difference."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from run_folders import drawn_rows
from simulated_rows import simulated, true_accuracy
from statsmodels.stats.contingency_tables import mcnemar as reference_mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestIndPower, TTestPower

from glassloop.base.errors import SettingsError
from glassloop.scores import statistics as stats
from glassloop.scores.statistics import decided
from glassloop.settings.training import SCORE


def test_mcnemar_and_power_equal_statsmodels_and_the_noncentral_t_distribution() -> None:
    for lost, won in [(0, 0), (0, 1), (3, 12), (12, 3), (40, 60), (7, 7), (0, 500)]:
        wanted = reference_mcnemar([[10, lost], [won, 10]], exact=True).pvalue if lost + won else 1.0
        assert stats.mcnemar(lost, won) == pytest.approx(min(1.0, wanted))
    for seeds in [2, 5, 20]:
        paired = TTestPower().solve_power(nobs=seeds, alpha=0.05, power=0.8)
        both = TTestIndPower().solve_power(nobs1=seeds, alpha=0.05, power=0.8)
        assert stats.power_of_seeds(0.019 * paired, seeds, 0.019) == pytest.approx(0.8, abs=1e-4)
        assert stats.detectable_by_seeds(seeds, 0.019) == pytest.approx(0.019 * both, rel=1e-4)
    for effect, freedom in ((0.5, 3), (2.8, 10), (4.0, 200)):
        border = scipy.stats.t.ppf(0.975, freedom)
        wanted = scipy.stats.nct.sf(border, freedom, effect) + scipy.stats.nct.cdf(-border, freedom, effect)
        assert stats.power_of(effect, freedom, border) == pytest.approx(wanted, abs=1e-6)
    assert stats.power_of(0.0, math.inf, 1.96) == pytest.approx(0.05, abs=1e-4)
    assert stats.power_of(2.8016, math.inf, 1.96) == pytest.approx(0.8, abs=1e-4)
    assert stats.power_of(16.3, 1, scipy.stats.t.ppf(0.975, 1)) == pytest.approx(0.8, abs=0.003)
    assert stats.power_of(36.2, 27, 2.05) == 1.0
    assert (stats.power_of_seeds(0.0, 5, 0.0), stats.power_of_seeds(0.1, 5, 0.0)) == (0.0, 1.0)


def test_single_models_are_compared_by_mcnemar_or_the_paired_jackknife() -> None:
    first, second = drawn_rows(300, 0.8, 1), drawn_rows(300, 1.5, 2)
    found = stats.compare({1: first}, {2: second}, "accuracy")
    assert found.method == stats.MCNEMAR
    assert found.p_value == stats.mcnemar(*stats.discordant(first, second))
    assert found.value == pytest.approx(second.right.mean() - first.right.mean())
    assert found.value in found.interval
    assert found.corrected == found.p_value
    first, second = drawn_rows(300, 1.0, 1, SCORE), drawn_rows(300, 1.1, 1, SCORE)
    found = stats.compare({1: first}, {1: second}, "mse")
    errors = np.square(second.predictions - second.references) - np.square(first.predictions - first.references)
    wanted = scipy.stats.ttest_1samp(errors, 0)
    assert found.method == stats.JACKKNIFE
    assert found.value == pytest.approx(errors.mean())
    assert found.p_value == pytest.approx(wanted.pvalue, rel=0.05)
    assert found.interval.half_width == pytest.approx(1.968 * scipy.stats.sem(errors), rel=0.04)
    # Two models that differ on four rows favor one of them by chance once in eight times.
    first = drawn_rows(100, 100.0)
    second = replace(first, predictions=np.where(np.arange(100) < 4, 1 - first.references, first.references))
    assert stats.compare({1: first}, {1: second}, "f1_macro").p_value > 0.09
    rows = drawn_rows(50)
    for other in (drawn_rows(49), drawn_rows(50, data_seed=1), replace(rows, labels=("equivalent", "different"))):
        with pytest.raises(SettingsError, match="the models were evaluated on different rows"):
            stats.compare({1: rows}, {1: other}, "accuracy")


def test_equal_seeds_are_paired_whatever_their_order() -> None:
    first = {seed: drawn_rows(200, 1.0, seed) for seed in (1, 2, 3)}
    second = {seed: drawn_rows(200, 1.2, seed + 10) for seed in (3, 2, 1)}
    found = stats.compare(first, second, "accuracy")
    differences = [second[seed].right.mean() - first[seed].right.mean() for seed in first]
    assert found.method == stats.CLUSTERED
    assert found.value == pytest.approx(np.mean(differences))
    assert found.spread.seeds is not None
    assert found.spread.seeds.variance == pytest.approx(np.var(differences, ddof=1) / 3)
    other = stats.compare(first, {seed + 5: rows for seed, rows in second.items()}, "accuracy")
    assert other.value == pytest.approx(found.value)
    assert other.p_value != found.p_value
    alone = stats.compare({1: drawn_rows(200, 1.0)}, second, "f1", "equivalent")
    assert alone.method == stats.CLUSTERED
    assert alone.interval.half_width > 0, "one seed against several"


def test_several_comparisons_have_corrected_p_values_and_intervals() -> None:
    first, others = {1: drawn_rows(200, 1.0)}, [{1: drawn_rows(200, skill, 2)} for skill in (1.0, 1.2, 2.0)]
    single, together = (
        [stats.compare(first, other, "f1_macro") for other in others],
        stats.compare_all(first, others, "f1_macro"),
    )
    assert [one.p_value for one in together] == [one.p_value for one in single]
    assert [one.corrected for one in together] == stats.holm([one.p_value for one in single])
    assert {one.comparisons for one in together} == {3}
    for one, alone in zip(together, single, strict=True):
        assert one.interval.level == pytest.approx(1 - 0.05 / 3)
        assert one.interval.half_width > alone.interval.half_width
    assert stats.compare_all(first, others[:1], "f1_macro") == single[:1]
    generator = np.random.default_rng(0)
    for number in (1, 2, 5, 30):
        drawn = generator.random(number) ** 3
        assert stats.holm(drawn.tolist()) == pytest.approx(multipletests(drawn, method="holm")[1].tolist())


def test_an_interval_excludes_zero_exactly_if_the_test_finds_a_difference() -> None:
    interval = stats.Interval(-0.01, 0.05)
    assert stats.agreeing(interval, 0.02, True) == stats.Interval(0.0, 0.05)
    assert stats.agreeing(interval, 0.02, False) == interval
    assert stats.agreeing(stats.Interval(0.01, 0.05), 0.02, False) == stats.Interval(0.0, 0.05)
    assert stats.agreeing(stats.Interval(-0.05, 0.01), -0.02, True) == stats.Interval(-0.05, 0.0)
    rows, wanted = drawn_rows(50), stats.share_interval(0, 0, 50)
    assert -wanted.low == pytest.approx(wanted.high)
    assert wanted.high > 0.02
    assert stats.share_interval(0, 3, 3).high == 1.0
    found = stats.compare({1: rows}, {2: rows}, "f1", "equivalent")
    assert (found.value, found.p_value, found.interval) == (0.0, 1.0, wanted)
    assert stats.compare({1: rows, 2: rows}, {1: rows, 2: rows}, "accuracy").interval == wanted


@pytest.mark.parametrize("key", ["accuracy", "f1_macro"])
@pytest.mark.parametrize("seeds", [1, 3])
def test_intervals_and_verdicts_agree(key: str, seeds: int) -> None:
    decided = 0
    for start in range(0, 120, 4):
        sides = [{seed: drawn_rows(80, skill, start * 9 + place * 40 + seed) for seed in range(seeds)}
                 for place, skill in enumerate((0.9, 0.9, 1.3, 1.8))]  # fmt: skip
        for one in stats.compare_all(sides[0], sides[1:], key):
            assert one.value in one.interval
            found = one.corrected < 0.05
            assert found == (not one.interval.low < 0 < one.interval.high) or (not found and 0.0 in one.interval)
            decided += one.corrected < 0.05
    assert 5 < decided < 85


def test_intervals_of_two_fixed_models_cover_and_are_rarely_wrong() -> None:
    generator, covered, number = np.random.default_rng(3), 0, 1000
    truth = true_accuracy(1.5, 0.0) - true_accuracy(1.2, 0.0)
    for _ in range(number):
        (first,), (second,) = (side.values() for side in simulated(generator, 250, 1, (1.2, 1.5), 0.0))
        covered += truth in stats.share_interval(*stats.discordant(first, second), 250)
    assert 0.93 <= covered / number <= 0.97
    for rows in [30, 250]:
        generator, covered, wrong, number = np.random.default_rng(4), 0, 0, 1000
        for _ in range(number):
            first, second = simulated(generator, rows, 1, (1.2, 1.2), 0.0)
            found = stats.compare(first, second, "f1", "b")
            covered += 0.0 in found.interval
            wrong += found.p_value < 0.05
        assert covered / number >= 0.94
        assert wrong / number <= 0.06  # 5 % and 1.5 standard errors of 1,000 comparisons


# --- Power: the known figures of MRPC, statsmodels, and simulated comparisons.
def test_known_figures_of_mrpc_are_detected_in_four_of_five_simulations() -> None:
    assert stats.detectable_by_rows(408, 0.1) == pytest.approx(0.044, abs=0.0005)
    assert stats.detectable_by_rows(5, 0.1) > 0.6, "on five rows, two models must differ on most of them"
    assert stats.detectable_by_rows(1, 0.1) == 1.0
    assert stats.detectable_by_rows(5, 0.1) > stats.detectable_by_rows(10, 0.1) > stats.detectable_by_rows(50, 0.1) > 0.1
    generator, rows, discordance = np.random.default_rng(0), 1000, 0.1
    gain = stats.detectable_by_rows(rows, discordance)
    shares = [(discordance - gain) / 2, (discordance + gain) / 2, 1 - discordance]
    found = [stats.mcnemar(int(lost), int(won)) < 0.05 for lost, won, _ in generator.multinomial(rows, shares, size=2000)]
    assert 0.74 <= np.mean(found) <= 0.84  # the exact test is a little stricter than the formula
    for rows, share, wanted in [(408, 0.85, 0.034), (1725, 0.85, 0.017), (277, 0.72, 0.053)]:
        assert stats.wilson(share * rows, rows).half_width == pytest.approx(wanted, abs=0.001)
    # It lies above the border of the test by as many standard errors as the power asks for, also on few rows.
    for rows in [30, 100, 1000]:
        found, share = stats.detectable_by_rows(rows, 0.3), 0.3
        border = 1.959964 * math.sqrt(share / rows)
        assert found == pytest.approx(border + 0.841621 * math.sqrt((share - found**2) / rows), rel=1e-5)


def test_the_seeds_and_rows_that_a_difference_needs() -> None:
    assert stats.detectable_by_seeds(1, 0.01) == math.inf, "one seed detects nothing"
    assert stats.detectable_by_seeds(10_000, 0.019, row_variance=0.01**2) == pytest.approx(2.8 * 0.01, rel=0.01)
    assert stats.seeds_to_detect(0.02, 0.019, row_variance=0.01**2) is None
    assert stats.seeds_to_detect(0.0, 0.019) is None
    assert stats.seeds_for_equivalence(0.02, 0.01, 0.0, margin=0.01) is None
    assert stats.seeds_for_equivalence(0.0, 0.01, 0.004**2, margin=0.01) is None, "rows alone make the interval wider"
    few, many = (stats.seeds_for_equivalence(gap, 0.01, 0.0, margin=0.01) for gap in (0.0, 0.005))
    assert 0 < (few or 0) < (many or 0)
    assert stats.rows_to_detect(0.0, 0.1 / 408, 408) is None
    assert stats.rows_to_detect(0.0438, 0.1 / 408, 408) == pytest.approx(408, rel=0.01)
    assert stats.rows_to_detect(0.0219, 0.1 / 408, 408) == pytest.approx(4 * 408, rel=0.01)
    for difference in [0.005, 0.02, 0.1]:
        found = stats.seeds_to_detect(difference, 0.02)
        assert found is not None
        assert stats.power_of_seeds(difference, found, 0.02) >= 0.8
        assert found == 2 or stats.power_of_seeds(difference, found - 1, 0.02) < 0.8


# --- Intervals over seeds and rows: they cover as they claim, for few seeds and any ratio of both parts.
def test_the_parts_of_a_variance_equal_known_formulas() -> None:
    # For means over rows, both parts are known in closed form: (MS_seeds + MS_rows - MS_rest) / (seeds x rows).
    seeds = simulated(np.random.default_rng(2), 300, 6, (1.0,), seed_spread=0.3)[0]
    spread = stats.spread_of(*stats.stacked(stats.row_metrics_of([*seeds.values()], "accuracy")))
    right = np.stack([rows.right for rows in seeds.values()]).astype(float)
    by_seed, by_row, mean = right.mean(axis=1, keepdims=True), right.mean(axis=0, keepdims=True), right.mean()
    square_seeds = 300 * np.square(by_seed - mean).sum() / 5
    square_rows = 6 * np.square(by_row - mean).sum() / 299
    square_rest = np.square(right - by_seed - by_row + mean).sum() / (5 * 299)
    assert spread.mean == pytest.approx(mean)
    assert spread.variance == pytest.approx((square_seeds + square_rows - square_rest) / (6 * 300))
    for freedom in (1, 1.5, 2, 4, 19):
        wanted = scipy.stats.t.ppf(0.975, freedom) * 0.1
        assert stats.joint_reach(stats.Part(0.01, freedom), stats.Part(0.0, 99), 0.05) == pytest.approx(wanted)
        assert stats.joint_reach(stats.Part(0.0, freedom), stats.Part(0.01, 99), 0.05) == pytest.approx(
            scipy.stats.t.ppf(0.975, 99) * 0.1
        )
    assert stats.joint_reach(None, stats.Part(0.0, 99), 0.05) == 0.0
    many = stats.joint_reach(stats.Part(0.03, 1e6), stats.Part(0.01, 1e6), 0.05)
    assert many == pytest.approx(1.96 * 0.2, rel=1e-4), "variances add up"


def test_without_row_variance_it_is_the_t_test_or_welchs() -> None:
    points = np.array([0.02, 0.01, 0.03, -0.01])
    spread = stats.spread_of(points, np.zeros((4, 100)))
    wanted = scipy.stats.ttest_1samp(points, 0)
    assert spread.p_value == pytest.approx(wanted.pvalue)
    assert (spread.interval().low, spread.interval().high) == pytest.approx(tuple(wanted.confidence_interval()))
    first, second = np.array([0.8, 0.82, 0.85]), np.array([0.78, 0.7, 0.81, 0.79, 0.74])
    spread = stats.unpaired_spread((first, np.zeros((3, 100))), (second, np.zeros((5, 100))))
    wanted = scipy.stats.ttest_ind(first, second, equal_var=False)
    assert spread.p_value == pytest.approx(wanted.pvalue)
    assert spread.seeds is not None
    assert spread.seeds.freedom == pytest.approx(wanted.df)
    # Both sides rise and fall with the rows, the first one with an own part besides.
    generator, rows = np.random.default_rng(1), 5000
    common, own = (generator.normal(size=(1, rows)) / rows**0.5 for _ in range(2))
    first = (np.array([0.8, 0.9]), np.repeat(common + 0.1 * own, 2, axis=0))
    second = (np.array([0.7, 0.8, 0.9]), np.repeat(common, 3, axis=0))
    assert stats.unpaired_spread(first, second).rows.variance == pytest.approx(0.01, rel=0.1)


def test_single_models_and_biased_seeds() -> None:
    rows = drawn_rows(100)
    found = stats.seeds_estimate([rows], "accuracy")
    assert (found.deviation, found.points) == (None, (rows.right.mean(),))
    assert found.interval == stats.metric_estimate(rows, "accuracy").interval
    perfect = drawn_rows(50, 100.0)
    wanted = stats.metric_estimate(perfect, "accuracy").interval
    assert stats.seeds_estimate([perfect] * 3, "accuracy").interval == wanted, "equal answers of all seeds are no certainty"
    spread = stats.unpaired_spread(*[(np.array([0.5]), np.random.default_rng(seed).normal(size=(1, 9))) for seed in (1, 2)])
    assert spread.seeds is None
    # A mean over many classes with few rows each is biased for every seed.
    seeds = [drawn_rows(60, 1.0, seed, labels=[*"abcdefghijklmnopqrst"]) for seed in range(3)]
    assert stats.seeds_estimate(seeds, "f1_macro").interval is None
    assert stats.seeds_estimate(seeds, "accuracy").interval is not None


def test_the_p_value_and_the_interval_of_a_spread_agree() -> None:
    nothing = stats.Part(0.0, 4)
    assert [stats.Spread(mean, nothing, nothing, 5, 10).p_value for mean in (0.1, 0.0)] == [0.0, 1.0]
    assert stats.Spread(0.1, nothing, nothing, 5, 10).interval().half_width == 0.0
    for mean in (0.001, 0.02, 0.05, 0.3):
        spread = stats.Spread(mean, stats.Part(0.01**2, 4), stats.Part(0.008**2, 300), 5, 301)
        assert spread.interval(1 - spread.p_value).low == pytest.approx(0.0, abs=1e-9)
    # Otherwise two seeds that gain three rows each, by chance, would prove anything.
    changes = np.zeros((2, 100))
    changes[0, :3] = changes[1, 50:53] = 0.01
    spread = stats.spread_of(np.array([0.03, 0.03]), changes)
    assert stats.one_row_variance(changes) == pytest.approx(0.01**2)
    assert spread.seeds == stats.Part(pytest.approx(0.0025**2), 1)  # type: ignore[arg-type]
    assert spread.p_value == pytest.approx(scipy.stats.t.sf(0.03 / 0.0025, 1) * 2)
    assert stats.one_row_variance(np.zeros(9)) == 0.0


@pytest.mark.parametrize("seeds", [2, 3, 5, 10, 20])
@pytest.mark.parametrize("alpha", [0.05, 0.005])
def test_the_interval_covers_for_any_number_of_seeds_and_ratio_of_parts(seeds: int, alpha: float) -> None:
    """A normal mean whose variance has a part from seeds, estimated, and one from rows, known: coverage without drawing."""
    places = (np.arange(400) + 0.5) / 400
    drawn = scipy.stats.chi2.ppf(places, seeds - 1) / (seeds - 1)
    for share in (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.97, 0.99, 1.0):  # of the seeds
        reach = [stats.joint_reach(stats.Part(share * one, seeds - 1), stats.Part(1 - share, 1e6), alpha) for one in drawn]
        missed = float(np.mean(2 * scipy.stats.norm.sf(reach)))
        assert missed <= 1.06 * alpha
        assert missed >= 0.03 or alpha < 0.05


@pytest.mark.sample(3)
@pytest.mark.parametrize(("seeds", "seed_spread"), [(2, 0.15), (3, 0.15), (5, 0.05), (5, 0.4), (10, 0.15)])
def test_intervals_over_seeds_and_rows_cover_as_they_claim(seeds: int, seed_spread: float) -> None:
    generator, skill, number = np.random.default_rng(7), 1.3, 1000
    truth, covered = true_accuracy(skill, seed_spread), 0
    for _ in range(number):
        runs = simulated(generator, 300, seeds, (skill,), seed_spread)[0]
        found = stats.seeds_estimate([*runs.values()], "accuracy").interval
        covered += found is not None and truth in found
    assert 0.935 <= covered / number <= 0.975  # 95 to 97 % and two standard errors of 1,000 studies at most


# --- Verdicts: their rules, and in simulations with a known truth how often they are right.
def difference(value: float, error: float, seeds: int = 5, rows_error: float = 0.001) -> stats.Difference:
    """A difference over seeds whose variance is known."""
    spread = stats.Spread(value, stats.Part(error**2, seeds - 1), stats.Part(rows_error**2, 407), seeds, 408)
    return stats.Difference(value, spread.interval(), spread.p_value, stats.CLUSTERED, spread, spread.p_value)


def test_a_clear_difference_is_better_or_worse_and_others_say_what_would_decide() -> None:
    for key, kind in [("accuracy", stats.BETTER), ("mse", stats.WORSE), ("loss", stats.WORSE)]:
        assert decided(difference(0.1, 0.01), key).kind == kind
        assert decided(difference(-0.1, 0.01), key).kind == {stats.BETTER: stats.WORSE, stats.WORSE: stats.BETTER}[kind]
        unsure = replace(difference(0.1, 0.01), corrected=0.06)
        assert decided(unsure, key).kind == stats.UNDECIDED, "the corrected p-value decides"
    found = decided(difference(0.001, 0.002), "accuracy", margin=0.01)
    assert found.kind == stats.SAME
    assert str(found) == "no difference larger than 0.01"
    assert decided(difference(0.001, 0.002), "accuracy", margin=0.005).kind == stats.UNDECIDED
    assert (stats.margin_for("accuracy", 0.9), stats.margin_for("mse", 2.0)) == (0.01, pytest.approx(0.1)), (
        "relative for errors"
    )
    found = decided(difference(0.02, 0.01), "accuracy")
    deviation = 0.01 * 5**0.5
    assert found.more_seeds == (stats.seeds_to_detect(0.02, deviation, 0.001**2) or 0) - 5
    assert str(found) == f"undecided: about {found.more_seeds} more seeds would decide"
    assert str(stats.ComparisonVerdict(stats.UNDECIDED, 0.01, 1)) == "undecided: about 1 more seed would decide"
    found = decided(difference(0.02, 0.005, rows_error=0.02), "accuracy")
    assert found.more_seeds is None
    assert found.more_rows is not None
    assert str(found) == f"undecided: about {found.more_rows:,} more rows would decide"
    nothing = difference(0.0, 0.01, rows_error=0.02)
    assert str(decided(nothing, "accuracy")) == "undecided"
    assert stats.more_rows(nothing) is None
    # Rows do not reduce the spread of seeds, and a number that nobody can collect is no advice.
    assert stats.more_rows(difference(0.02, 0.02, rows_error=0.02)) is None, "the seeds alone vary too much"
    assert stats.more_rows(difference(0.06, 0.005, rows_error=0.02)) is None, "these rows are enough by this estimate"
    assert stats.more_rows(difference(1e-9, 0.0, rows_error=0.02)) is None, "a difference of rounding needs billions of rows"
    few, many = (stats.more_rows(difference(0.03, error, rows_error=0.02)) or 0 for error in (0.0, 0.006))
    assert 0 < few < many
    spread = stats.Spread(0.02, None, stats.Part(0.015**2, 407), 1, 408)
    single = stats.Difference(0.02, stats.Interval(-0.01, 0.05), 0.2, stats.MCNEMAR, spread, 0.2)
    assert stats.more_seeds(single, 0.01) is None
    assert decided(single, "accuracy").more_rows == pytest.approx(408 * (0.015 * 2.8016 / 0.02) ** 2 - 408, abs=2)


# --- simulations -------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize(("seeds", "spread"), [(2, 0.15), (3, 0.1), (5, 0.2), (10, 0.3)])
def test_better_is_rarely_wrong(seeds: int, spread: float) -> None:
    """Three settings that are equally good: at most 5 % of studies call one of them better, or worse."""
    generator, wrong, number = np.random.default_rng(11), 0, 700
    for _ in range(number):
        first, *others = simulated(generator, 300, seeds, (1.3, 1.3, 1.3), spread)
        found = stats.compare_all(first, others, "accuracy")
        wrong += any(decided(one, "accuracy").kind in (stats.BETTER, stats.WORSE) for one in found)
    assert wrong / number <= 0.062  # 5 % and 1.5 standard errors of 700 studies


def test_no_difference_is_rarely_wrong() -> None:
    """Two settings that differ by exactly the margin: at most 5 % of studies say that they do not."""
    generator, wrong, number, spread = np.random.default_rng(12), 0, 300, 0.1
    margin = true_accuracy(1.5, spread) - true_accuracy(1.3, spread)
    for _ in range(number):
        first, second = simulated(generator, 1500, 8, (1.3, 1.5), spread)
        wrong += decided(stats.compare(first, second, "accuracy"), "accuracy", margin).kind == stats.SAME
    assert wrong / number <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("gain", "spread"), [(0.30, 0.25), (0.25, 0.15)])
def test_the_predicted_number_of_seeds_is_within_a_factor_of_two(gain: float, spread: float) -> None:
    """Predict from one large pilot, then count how often so many seeds, half and twice as many decide."""
    generator = np.random.default_rng(13)
    pilot = stats.compare(*simulated(generator, 3000, 60, (1.2, 1.2 + gain), spread), "accuracy")
    assert pilot.spread.seeds is not None
    truth = true_accuracy(1.2 + gain, spread) - true_accuracy(1.2, spread)
    predicted = stats.seeds_to_detect(truth, (pilot.spread.seeds.variance * 60) ** 0.5, pilot.spread.rows.variance)
    assert predicted is not None

    def power(seeds: int) -> float:
        found = [stats.compare(*simulated(generator, 3000, seeds, (1.2, 1.2 + gain), spread), "accuracy") for _ in range(80)]
        return float(np.mean([decided(one, "accuracy").kind == stats.BETTER for one in found]))

    assert power(max(2, predicted // 2)) < stats.POWER < power(2 * predicted)
