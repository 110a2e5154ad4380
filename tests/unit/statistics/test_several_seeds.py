"""Intervals over seeds and rows: they cover as they claim, where the plain multi-bootstrap does not."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from drawn_runs import drawn_rows
from simulated_seeds import simulated, true_accuracy

from glassloop.settings import SCORE
from glassloop.statistics.resampling import cells_of, drawn_values
from glassloop.statistics.several_seeds import Part, Spread, seeds_estimate, spread_of, unpaired_spread


def test_the_variance_of_shares_equals_the_analysis_of_variance() -> None:
    """For means over rows, both parts are known in closed form: (MS_seeds + MS_rows - MS_rest) / (seeds x rows)."""
    seeds = simulated(np.random.default_rng(2), 300, 6, (1.0,), seed_spread=0.3)[0]
    cells = cells_of([*seeds.values()])
    spread = spread_of(cells.points("accuracy"), drawn_values(cells, "accuracy", resamples=20_000), 300)
    right = np.stack([rows.right for rows in seeds.values()]).astype(float)
    by_seed, by_row, mean = right.mean(axis=1, keepdims=True), right.mean(axis=0, keepdims=True), right.mean()
    square_seeds = 300 * np.square(by_seed - mean).sum() / 5
    square_rows = 6 * np.square(by_row - mean).sum() / 299
    square_rest = np.square(right - by_seed - by_row + mean).sum() / (5 * 299)
    assert spread.mean == pytest.approx(mean)
    assert spread.variance == pytest.approx((square_seeds + square_rows - square_rest) / (6 * 300), rel=0.03)


def test_without_row_variance_it_is_the_t_test() -> None:
    points = np.array([0.02, 0.01, 0.03, -0.01])
    spread = spread_of(points, np.tile(points, (10, 1)), 100)
    wanted = scipy.stats.ttest_1samp(points, 0)
    assert spread.p_value == pytest.approx(wanted.pvalue)
    assert (spread.interval().low, spread.interval().high) == pytest.approx(tuple(wanted.confidence_interval()))


def test_different_seeds_without_row_variance_are_welchs_test() -> None:
    first, second = np.array([0.8, 0.82, 0.85]), np.array([0.78, 0.7, 0.81, 0.79, 0.74])
    spread = unpaired_spread((first, np.tile(first, (9, 1))), (second, np.tile(second, (9, 1))), 100)
    wanted = scipy.stats.ttest_ind(first, second, equal_var=False)
    assert spread.p_value == pytest.approx(wanted.pvalue)
    assert spread.seeds is not None
    assert spread.seeds.freedom == pytest.approx(wanted.df)


def test_single_models_have_only_the_part_of_rows() -> None:
    rows = drawn_rows(100)
    found = seeds_estimate([rows], "accuracy")
    share = rows.right.mean()
    assert found.deviation is None
    assert found.points == (share,)
    assert found.interval.half_width == pytest.approx(1.984 * np.sqrt(share * (1 - share) / 100), rel=0.1)
    spread = unpaired_spread(*[(np.array([0.5]), np.random.default_rng(seed).normal(size=(9, 1))) for seed in (1, 2)], 10)
    assert spread.seeds is None


def test_no_spread_at_all_is_decided_at_once() -> None:
    part = Part(0.0, 4)
    assert Spread(0.1, part, part, 5, 10).p_value == 0.0
    assert Spread(0.0, part, part, 5, 10).p_value == 1.0
    assert Spread(0.1, part, part, 5, 10).interval().half_width == 0.0


def test_scores_have_intervals_too() -> None:
    seeds = [drawn_rows(80, 1.0, seed, SCORE) for seed in range(4)]
    found = seeds_estimate(seeds, "spearmanr")
    assert found.deviation == pytest.approx(np.std(found.points, ddof=1))
    assert found.mean in found.interval
    assert found.estimate.value == found.mean


def test_the_interval_reaches_zero_where_the_p_value_says_so() -> None:
    for mean in (0.001, 0.02, 0.05, 0.3):
        spread = Spread(mean, Part(0.01**2, 4), Part(0.008**2, 300), 5, 301)
        assert spread.interval(1 - spread.p_value).low == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 1.0])
def test_the_weighted_quantile_covers_for_few_seeds(seeds: int, share: float) -> None:
    """A normal mean whose variance has a part from seeds, estimated, and one from rows, known. Satterthwaite: 87 % to 95 %."""
    generator, number = np.random.default_rng(1), 2000
    means = generator.normal(size=number)
    estimated = share * generator.chisquare(seeds - 1, number) / (seeds - 1)
    spreads = [
        Spread(float(mean), Part(float(variance), seeds - 1), Part(1 - share, 1e6), seeds, 10**6)
        for mean, variance in zip(means, estimated, strict=True)
    ]
    covered = np.mean([0.0 in spread.interval() for spread in spreads])
    assert covered >= 0.93
    assert covered <= (0.97 + 0.015 if seeds < 5 else 0.975)  # few seeds: rather too wide than too narrow


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "seed_spread"), [(3, 0.15), (5, 0.05), (5, 0.4), (10, 0.15)])
def test_intervals_over_seeds_and_rows_cover_as_they_claim(seeds: int, seed_spread: float) -> None:
    generator, skill, number = np.random.default_rng(7), 1.3, 1000
    truth, covered = true_accuracy(skill, seed_spread), 0
    for _ in range(number):
        runs = simulated(generator, 300, seeds, (skill,), seed_spread)[0]
        found = seeds_estimate([*runs.values()], "accuracy", resamples=200, seed=int(generator.integers(1 << 31)))
        covered += truth in found.interval
    assert 0.93 <= covered / number <= 0.98
