"""Power: the known figures of MRPC, statsmodels, and simulated comparisons."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from statsmodels.stats.power import TTestIndPower, TTestPower

from glassloop.scores.comparisons import (
    detectable_by_rows,
    detectable_by_seeds,
    mcnemar,
    power_of,
    power_of_seeds,
    row_reach,
    rows_to_detect,
    seeds_for_equivalence,
    seeds_to_detect,
)
from glassloop.scores.intervals import wilson


@pytest.mark.parametrize(("rows", "share", "wanted"), [(408, 0.85, 0.034), (1725, 0.85, 0.017), (277, 0.72, 0.053)])
def test_the_half_width_on_known_data(rows: int, share: float, wanted: float) -> None:
    assert row_reach(share, rows) == pytest.approx(wanted, abs=0.001)
    assert row_reach(share, rows) == pytest.approx(wilson(share * rows, rows).half_width)


def test_mcnemar_on_mrpc() -> None:
    assert detectable_by_rows(408, 0.1, power=None) == pytest.approx(0.031, abs=0.0005)
    assert detectable_by_rows(408, 0.1) == pytest.approx(0.044, abs=0.0005)
    assert detectable_by_rows(5, 0.1) > 0.6, "on five rows, two models must differ on most of them"
    assert detectable_by_rows(1, 0.1) == 1.0
    assert detectable_by_rows(5, 0.1) > detectable_by_rows(10, 0.1) > detectable_by_rows(50, 0.1) > 0.1


def test_the_detectable_difference_is_detected_in_four_of_five_simulations() -> None:
    generator, rows, discordance = np.random.default_rng(0), 1000, 0.1
    gain = detectable_by_rows(rows, discordance)
    shares = [(discordance - gain) / 2, (discordance + gain) / 2, 1 - discordance]
    found = [mcnemar(int(lost), int(won)) < 0.05 for lost, won, _ in generator.multinomial(rows, shares, size=2000)]
    assert 0.74 <= np.mean(found) <= 0.84  # the exact test is a little stricter than the formula


@pytest.mark.parametrize("seeds", [2, 5, 20])
def test_seeds_equal_statsmodels(seeds: int) -> None:
    paired = TTestPower().solve_power(nobs=seeds, alpha=0.05, power=0.8)
    both = TTestIndPower().solve_power(nobs1=seeds, alpha=0.05, power=0.8)
    assert detectable_by_seeds(seeds, 0.019, paired=True) == pytest.approx(0.019 * paired, rel=1e-4)
    assert detectable_by_seeds(seeds, 0.019) == pytest.approx(0.019 * both, rel=1e-4)


def test_power_equals_the_noncentral_t_distribution() -> None:
    for effect, freedom in ((0.5, 3), (2.8, 10), (4.0, 200)):
        border = scipy.stats.t.ppf(0.975, freedom)
        wanted = scipy.stats.nct.sf(border, freedom, effect) + scipy.stats.nct.cdf(-border, freedom, effect)
        assert power_of(effect, freedom, border) == pytest.approx(wanted, abs=1e-6)
    assert power_of(0.0, math.inf, 1.96) == pytest.approx(0.05, abs=1e-4)
    assert power_of(2.8016, math.inf, 1.96) == pytest.approx(0.8, abs=1e-4)


def test_power_is_a_number_where_scipy_gives_none() -> None:
    assert power_of(16.3, 1, scipy.stats.t.ppf(0.975, 1)) == pytest.approx(0.8, abs=0.003)
    assert power_of(36.2, 27, 2.05) == 1.0
    assert power_of_seeds(0.0, 5, 0.0) == 0.0
    assert power_of_seeds(0.1, 5, 0.0) == 1.0


def test_one_seed_detects_nothing() -> None:
    assert detectable_by_seeds(1, 0.01) == math.inf


def test_rows_limit_what_seeds_can_detect() -> None:
    assert detectable_by_seeds(10_000, 0.019, row_variance=0.01**2) == pytest.approx(2.8 * 0.01, rel=0.01)
    assert seeds_to_detect(0.02, 0.019, row_variance=0.01**2) is None
    assert seeds_to_detect(0.0, 0.019) is None


@pytest.mark.parametrize("difference", [0.005, 0.02, 0.1])
def test_the_number_of_seeds_is_the_first_that_detects(difference: float) -> None:
    found = seeds_to_detect(difference, 0.02)
    assert found is not None
    assert detectable_by_seeds(found, 0.02, paired=True) <= difference
    assert found == 2 or detectable_by_seeds(found - 1, 0.02, paired=True) > difference


def test_equivalence_needs_a_difference_within_the_margin() -> None:
    assert seeds_for_equivalence(0.02, 0.01, 0.0, margin=0.01) is None
    assert seeds_for_equivalence(0.0, 0.01, 0.004**2, margin=0.01) is None, "rows alone make the interval wider"
    few, many = (seeds_for_equivalence(gap, 0.01, 0.0, margin=0.01) for gap in (0.0, 0.005))
    assert few is not None
    assert many is not None
    assert few < many


def test_rows_for_a_difference() -> None:
    assert rows_to_detect(0.0, 0.1 / 408, 408) is None
    assert rows_to_detect(0.0438, 0.1 / 408, 408) == pytest.approx(408, rel=0.01)
    assert rows_to_detect(0.0219, 0.1 / 408, 408) == pytest.approx(4 * 408, rel=0.01)
