"""Intervals over seeds and rows: they cover as they claim, for few seeds and any ratio of both parts."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from drawn_runs import drawn_rows
from simulated_seeds import simulated, true_accuracy

from glassloop.scores.comparisons import (
    Part,
    Spread,
    joint_reach,
    seeds_estimate,
    spread_of,
    stacked,
    unpaired_spread,
)
from glassloop.scores.intervals import metric_estimate, one_row_variance, row_metrics_of
from glassloop.settings.fields import SCORE


def test_the_variance_of_shares_equals_the_analysis_of_variance() -> None:
    """For means over rows, both parts are known in closed form: (MS_seeds + MS_rows - MS_rest) / (seeds x rows)."""
    seeds = simulated(np.random.default_rng(2), 300, 6, (1.0,), seed_spread=0.3)[0]
    spread = spread_of(*stacked(row_metrics_of([*seeds.values()], "accuracy")))
    right = np.stack([rows.right for rows in seeds.values()]).astype(float)
    by_seed, by_row, mean = right.mean(axis=1, keepdims=True), right.mean(axis=0, keepdims=True), right.mean()
    square_seeds = 300 * np.square(by_seed - mean).sum() / 5
    square_rows = 6 * np.square(by_row - mean).sum() / 299
    square_rest = np.square(right - by_seed - by_row + mean).sum() / (5 * 299)
    assert spread.mean == pytest.approx(mean)
    assert spread.variance == pytest.approx((square_seeds + square_rows - square_rest) / (6 * 300))


def test_without_row_variance_it_is_the_t_test() -> None:
    points = np.array([0.02, 0.01, 0.03, -0.01])
    spread = spread_of(points, np.zeros((4, 100)))
    wanted = scipy.stats.ttest_1samp(points, 0)
    assert spread.p_value == pytest.approx(wanted.pvalue)
    assert (spread.interval().low, spread.interval().high) == pytest.approx(tuple(wanted.confidence_interval()))


def test_different_seeds_without_row_variance_are_welchs_test() -> None:
    first, second = np.array([0.8, 0.82, 0.85]), np.array([0.78, 0.7, 0.81, 0.79, 0.74])
    spread = unpaired_spread((first, np.zeros((3, 100))), (second, np.zeros((5, 100))))
    wanted = scipy.stats.ttest_ind(first, second, equal_var=False)
    assert spread.p_value == pytest.approx(wanted.pvalue)
    assert spread.seeds is not None
    assert spread.seeds.freedom == pytest.approx(wanted.df)


def test_rows_that_both_sides_share_cancel_out() -> None:
    """Both sides rise and fall with the rows, the first one with an own part besides."""
    generator, rows = np.random.default_rng(1), 5000
    common, own = (generator.normal(size=(1, rows)) / rows**0.5 for _ in range(2))
    first = (np.array([0.8, 0.9]), np.repeat(common + 0.1 * own, 2, axis=0))
    second = (np.array([0.7, 0.8, 0.9]), np.repeat(common, 3, axis=0))
    assert unpaired_spread(first, second).rows.variance == pytest.approx(0.01, rel=0.1)


def test_single_models_have_only_the_part_of_rows() -> None:
    rows = drawn_rows(100)
    found = seeds_estimate([rows], "accuracy")
    assert (found.deviation, found.points) == (None, (rows.right.mean(),))
    assert found.interval == metric_estimate(rows, "accuracy").interval
    spread = unpaired_spread(*[(np.array([0.5]), np.random.default_rng(seed).normal(size=(1, 9))) for seed in (1, 2)])
    assert spread.seeds is None


def test_equal_answers_of_all_seeds_are_no_certainty() -> None:
    perfect = drawn_rows(50, 100.0)
    assert seeds_estimate([perfect] * 3, "accuracy").interval == metric_estimate(perfect, "accuracy").interval


def test_seeds_have_no_interval_where_one_of_them_has_none() -> None:
    """A mean over many classes with few rows each is biased for every seed."""
    seeds = [drawn_rows(60, 1.0, seed, labels=[*"abcdefghijklmnopqrst"]) for seed in range(3)]
    assert seeds_estimate(seeds, "f1_macro").interval is None
    assert seeds_estimate(seeds, "accuracy").interval is not None


def test_no_spread_at_all_is_decided_at_once() -> None:
    part = Part(0.0, 4)
    assert Spread(0.1, part, part, 5, 10).p_value == 0.0
    assert Spread(0.0, part, part, 5, 10).p_value == 1.0
    assert Spread(0.1, part, part, 5, 10).interval().half_width == 0.0


def test_scores_have_intervals_too() -> None:
    seeds = [drawn_rows(80, 1.0, seed, SCORE) for seed in range(4)]
    found = seeds_estimate(seeds, "spearmanr")
    assert found.deviation == pytest.approx(np.std(found.points, ddof=1))
    assert found.interval is not None
    assert found.mean in found.interval
    assert found.estimate.value == found.mean


def test_the_interval_reaches_zero_where_the_p_value_says_so() -> None:
    for mean in (0.001, 0.02, 0.05, 0.3):
        spread = Spread(mean, Part(0.01**2, 4), Part(0.008**2, 300), 5, 301)
        assert spread.interval(1 - spread.p_value).low == pytest.approx(0.0, abs=1e-9)


def test_equal_scores_of_two_seeds_count_as_half_a_row_apart() -> None:
    """Otherwise two seeds that gain three rows each, by chance, would prove anything."""
    changes = np.zeros((2, 100))
    changes[0, :3] = changes[1, 50:53] = 0.01
    spread = spread_of(np.array([0.03, 0.03]), changes)
    assert one_row_variance(changes) == pytest.approx(0.01**2)
    assert spread.seeds == Part(pytest.approx(0.0025**2), 1)  # type: ignore[arg-type]
    assert spread.p_value == pytest.approx(scipy.stats.t.sf(0.03 / 0.0025, 1) * 2)
    assert one_row_variance(np.zeros(9)) == 0.0


def test_both_parts_alone_have_their_t_intervals() -> None:
    for freedom in (1, 1.5, 2, 4, 19):
        wanted = scipy.stats.t.ppf(0.975, freedom) * 0.1
        assert joint_reach(Part(0.01, freedom), Part(0.0, 99), 0.05) == pytest.approx(wanted)
        assert joint_reach(Part(0.0, freedom), Part(0.01, 99), 0.05) == pytest.approx(scipy.stats.t.ppf(0.975, 99) * 0.1)
    assert joint_reach(None, Part(0.0, 99), 0.05) == 0.0
    many = joint_reach(Part(0.03, 1e6), Part(0.01, 1e6), 0.05)
    assert many == pytest.approx(1.96 * 0.2, rel=1e-4), "variances add up"


@pytest.mark.parametrize("seeds", [2, 3, 5, 10, 20])
@pytest.mark.parametrize("alpha", [0.05, 0.005])
def test_the_interval_covers_for_any_number_of_seeds_and_ratio_of_parts(seeds: int, alpha: float) -> None:
    """A normal mean whose variance has a part from seeds, estimated, and one from rows, known: coverage without drawing."""
    places = (np.arange(400) + 0.5) / 400
    drawn = scipy.stats.chi2.ppf(places, seeds - 1) / (seeds - 1)
    for share in (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.97, 0.99, 1.0):  # of the seeds
        reach = [joint_reach(Part(share * one, seeds - 1), Part(1 - share, 1e6), alpha) for one in drawn]
        missed = float(np.mean(2 * scipy.stats.norm.sf(reach)))
        assert missed <= 1.06 * alpha
        assert missed >= 0.03 or alpha < 0.05


@pytest.mark.parametrize(("seeds", "seed_spread"), [(2, 0.15), (3, 0.15), (5, 0.05), (5, 0.4), (10, 0.15)])
def test_intervals_over_seeds_and_rows_cover_as_they_claim(seeds: int, seed_spread: float) -> None:
    generator, skill, number = np.random.default_rng(7), 1.3, 1000
    truth, covered = true_accuracy(skill, seed_spread), 0
    for _ in range(number):
        runs = simulated(generator, 300, seeds, (skill,), seed_spread)[0]
        found = seeds_estimate([*runs.values()], "accuracy").interval
        covered += found is not None and truth in found
    assert 0.935 <= covered / number <= 0.975  # 95 to 97 % and two standard errors of 1,000 studies at most
