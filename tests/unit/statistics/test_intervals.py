"""Intervals equal those of SciPy and statsmodels, and cover as they claim."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from drawn_runs import drawn_rows
from simulated_seeds import simulated, true_accuracy
from statsmodels.stats.proportion import proportion_confint

from glassloop.errors import SettingsError
from glassloop.settings import CLASSES, SCORE, SEVERAL
from glassloop.statistics.intervals import (
    Interval,
    class_number,
    mean_interval,
    metric_estimate,
    metric_estimates,
    normal_quantile,
    percentile,
    wilson,
)


@pytest.mark.parametrize("number", [1, 7, 408, 100_000])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_wilson_equals_statsmodels(number: int, share: float, level: float) -> None:
    successes = round(share * number)
    found = wilson(successes, number, level)
    assert (found.low, found.high) == pytest.approx(proportion_confint(successes, number, 1 - level, "wilson"), abs=1e-12)
    assert 0 <= found.low <= successes / number <= found.high <= 1
    assert found.level == level


def test_the_half_width_on_mrpc_is_known() -> None:
    assert wilson(round(0.85 * 408), 408).half_width == pytest.approx(0.034, abs=0.001)


def test_the_mean_of_seeds_has_the_t_interval() -> None:
    values = [0.81, 0.84, 0.79, 0.86, 0.83]
    found = mean_interval(values)
    wanted = scipy.stats.t.interval(0.95, 4, np.mean(values), scipy.stats.sem(values))
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx(wanted)
    assert mean_interval([0.5]).interval is None


@pytest.mark.parametrize(
    ("task", "key"), [(CLASSES, "matthews_correlation"), (CLASSES, "f1"), (SCORE, "pearson"), (SCORE, "mse")]
)
def test_the_bootstrap_equals_scipy(task: str, key: str) -> None:
    """Both draw at random, so they agree up to the noise of 9,999 draws."""
    rows = drawn_rows(120, 1.0, task=task)
    found = metric_estimate(rows, key, "equivalent" if key == "f1" else None, resamples=9999)

    def metric(predictions: np.ndarray, references: np.ndarray) -> float:
        if key in ("f1", "matthews_correlation"):
            hits, given, wanted = (predictions & references).sum(), predictions.sum(), references.sum()
            number = len(references)
            if key == "f1":
                return float(2 * hits / (given + wanted))
            under = np.sqrt(float(given * (number - given)) * float(wanted * (number - wanted)))
            return float((number * hits - given * wanted) / under) if under else 0.0
        if key == "mse":
            return float(np.square(predictions - references).mean())
        return float(np.corrcoef(predictions, references)[0, 1])

    pair = (rows.predictions, rows.references)
    wanted = scipy.stats.bootstrap(
        pair, metric, paired=True, vectorized=False, n_resamples=9999, method="BCa", rng=np.random.default_rng(3)
    ).confidence_interval
    assert found.value == pytest.approx(metric(*pair))
    width = wanted.high - wanted.low
    assert found.interval is not None
    assert found.interval.method == "bca"
    assert found.interval.low == pytest.approx(wanted.low, abs=0.04 * width)
    assert found.interval.high == pytest.approx(wanted.high, abs=0.04 * width)


def test_several_metrics_share_their_draws_and_keep_their_order() -> None:
    rows = drawn_rows(100)
    found = metric_estimates(rows, ("f1_macro", "accuracy", "f1"), "equivalent")
    assert [*found] == ["f1_macro", "accuracy", "f1"]
    assert found["f1"] == metric_estimate(rows, "f1", "equivalent")
    assert found["accuracy"].interval == wilson(rows.right.sum(), 100)


def test_no_error_is_no_certainty() -> None:
    perfect = drawn_rows(50, 100.0)
    found = metric_estimate(perfect, "f1", "equivalent")
    assert found.value == 1.0
    assert found.interval == wilson(50, 50)


def test_very_many_rows_of_many_classes_or_scores_have_an_interval() -> None:
    found = metric_estimate(drawn_rows(20_500, task=SCORE), "pearson", resamples=100)
    assert found.interval is not None
    assert found.interval.method == "normal"
    share = (1 - found.value**2) / np.sqrt(20_500)  # the standard error of a correlation
    assert found.interval.half_width == pytest.approx(1.96 * share, rel=0.25)


def test_rows_without_spread_have_a_percentile_interval() -> None:
    rows = drawn_rows(6, task=SEVERAL, labels=("a", "b"))
    assert metric_estimate(rows, "f1_macro").interval is not None
    found = percentile(np.arange(101.0))
    assert (found.low, found.high) == pytest.approx((2.5, 97.5))
    assert 0.5 in Interval(0.4, 0.6)
    assert 0.7 not in Interval(0.4, 0.6)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(SettingsError, match="level=95 is not between 0 and 1"):
        normal_quantile(95)
    with pytest.raises(SettingsError, match="maybe is not one of the labels"):
        class_number(drawn_rows(3), "maybe")


@pytest.mark.parametrize(("number", "share"), [(100, 0.8), (408, 0.85), (408, 0.95), (1725, 0.9)])
def test_wilson_covers_as_it_claims(number: int, share: float) -> None:
    """Exactly, from the binomial distribution."""
    likely = scipy.stats.binom.pmf(np.arange(number + 1), number, share)
    covered = sum(likely[successes] for successes in range(number + 1) if share in wilson(successes, number))
    assert 0.93 <= covered <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("key", ["f1", "matthews_correlation"])
def test_intervals_over_rows_cover_as_they_claim(key: str) -> None:
    """A fixed model: only rows are drawn. The truth follows from the accuracy, as both classes are alike."""
    generator, skill, covered, number = np.random.default_rng(5), 1.2, 0, 1500
    accuracy = true_accuracy(skill, 0.0)
    truth = {"f1": accuracy, "matthews_correlation": 2 * accuracy - 1}[key]
    for _ in range(number):
        rows = simulated(generator, 200, 1, (skill,), seed_spread=0.0)[0][0]
        interval = metric_estimate(rows, key, "b", resamples=400, seed=int(generator.integers(1 << 31))).interval
        covered += interval is not None and truth in interval
    assert 0.93 <= covered / number <= 0.97


@pytest.mark.parametrize(
    ("key", "low", "high"),
    [("accuracy", 0.0, 1.0), ("pearson", -1.0, 1.0), ("matthews_correlation", -1.0, 1.0), ("mse", 0.0, 3.0)],
)
def test_an_interval_has_no_values_that_its_metric_cannot_have(key: str, low: float, high: float) -> None:
    found = Interval(-3.0, 3.0, method="t").within_range(key)
    assert (found.low, found.high, found.method) == (low, high, "t")
