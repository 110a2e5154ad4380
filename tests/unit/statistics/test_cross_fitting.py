"""Cross-fitting: the gain is that on new rows, unlike the gain on the rows of the fit, and its interval covers it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
from drawn_runs import drawn_rows
from drawn_thresholds import drawn_binary, true_gain

from glassloop.runs.calibration import Gain, Target
from glassloop.scores.calibration import (
    Fitted,
    Limit,
    fitted_calibration,
    fitted_limits,
    fitted_temperature,
    fold_numbers,
    margins_of,
    row_losses,
    some_rows,
    target_gains,
)
from glassloop.scores.intervals import ScoredRows
from glassloop.settings.fields import CLASSES, SEVERAL


def test_folds_are_equally_large_and_of_equal_classes() -> None:
    rows = drawn_rows(103)
    folds = fold_numbers(rows, 10)
    assert sorted(np.bincount(folds)) == [10] * 7 + [11] * 3
    shares = [np.bincount(rows.references[folds == fold], minlength=2) for fold in range(10)]
    assert np.ptp(np.array(shares), axis=0).max() <= 1
    assert np.array_equal(folds, fold_numbers(rows, 10)), "the same for the same seed"
    assert not np.array_equal(folds, fold_numbers(rows, 10, seed=1))


@pytest.mark.parametrize("task", [CLASSES, SEVERAL])
def test_each_row_is_scored_by_what_the_other_folds_give(task: str) -> None:
    rows = drawn_rows(120, 0.7, task=task, labels=("a", "b", "c"))
    rows = replace(rows, logits=rows.logits * 3)
    found = fitted_calibration(rows, folds=4)
    folds, losses = fold_numbers(rows, 4), np.empty(120)
    for fold in range(4):
        held = folds == fold
        others = some_rows(rows, ~held)
        best = scipy.optimize.minimize_scalar(
            lambda log, others=others: row_losses(others, np.exp(log)).mean(), bounds=(-3, 3), method="bounded"
        )
        losses[held] = row_losses(some_rows(rows, held), np.exp(best.x))
    assert found.temperature_gains[0].after == pytest.approx(losses.mean(), rel=1e-4)
    assert found.temperature_gains[0].before == pytest.approx(row_losses(rows).mean())
    assert found.temperature == pytest.approx(fitted_temperature(rows))
    assert found.temperature_helps


def test_without_a_target_there_are_no_thresholds() -> None:
    found = fitted_calibration(drawn_rows(60))
    assert (found.limits, found.target_gains, found.thresholds_help) == ([], [], False)


def test_rows_without_errors_determine_no_temperature() -> None:
    found = fitted_calibration(drawn_rows(60, 100.0), Target("f1"))
    assert found.temperature == 1.0
    assert not found.temperature_helps


def test_answers_that_do_not_change_still_have_an_interval() -> None:
    rows = drawn_rows(60, 100.0)
    margins = margins_of(rows, None)
    assert margins is not None
    (gain,) = target_gains(margins, np.zeros((60, 1)), Target("f1"))
    assert gain.change == 0
    assert gain.low is not None
    assert gain.low < 0 < (gain.high or 0)


@pytest.mark.parametrize(
    ("gains", "helps"),
    [
        ([Gain("precision", 0.7, 0.8), Gain("recall", 0.95, 0.895)], True),  # a limit missed by less than a point is met
        ([Gain("precision", 0.7, 0.8), Gain("recall", 0.95, 0.85)], False),  # it was met before, and is missed now
        ([Gain("precision", 0.7, 0.6), Gain("recall", 0.5, 0.91)], True),  # it was missed before, and is met now
        ([Gain("precision", 0.7, 0.6), Gain("recall", 0.95, 0.91)], False),  # met before and now, but less precise
    ],
)
def test_a_metric_that_is_limited_counts_first(gains: list[Gain], helps: bool) -> None:
    target = Target("precision", 0.9)
    found = Fitted(1.0, [Limit(0.0, 0.5)], ["a"], [Gain("loss", 1.0, 0.9)], gains, target)
    assert found.thresholds_help is helps


def test_a_lower_cost_is_a_gain_if_it_exceeds_the_standard_error() -> None:
    for after, helps in ((0.5, True), (1.5, False), (0.95, False)):
        gains = [Gain("cost", 1.0, after, -0.2, 0.2)]
        assert Fitted(1.0, [], [], [Gain("loss", 1.0, 1.0)], gains, Target("cost")).thresholds_help is helps


@pytest.mark.slow
def test_the_gain_is_that_on_new_rows() -> None:
    """Over many small samples the cross-fitted gain is on average the true one; the gain on the fitted rows is larger."""
    target, found = Target("f1"), []
    for number in range(150):
        rows = drawn_binary(np.random.default_rng(number), 150)
        fitted = fitted_calibration(rows, target)
        margins = margins_of(rows, None)
        limits = fitted_limits(margins, target) if margins else []
        own = target_gains(margins, np.full((150, 1), limits[0].margin if limits[0] else 0.0), target)[0] if margins else None
        found.append(
            (fitted.target_gains[0].change, own.change if own else 0.0, true_gain(limits[0].margin if limits[0] else 0.0))
        )
    crossed, own, true = np.array(found).T
    error = (crossed - true).std(ddof=1) / np.sqrt(len(true))
    assert abs((crossed - true).mean()) < 3 * error
    assert (own - true).mean() > 3 * (own - true).std(ddof=1) / np.sqrt(len(true)), "the gain on the fitted rows is too large"


def test_several_labels_are_fitted_each() -> None:
    random = np.random.default_rng(0)
    wanted = random.random((400, 2)) < 0.3
    logits = random.normal(0, 1, (400, 2)) + 2 * wanted + np.array([-3.0, 1.0])
    rows = ScoredRows(SEVERAL, ("a", "b"), (logits > 0).astype(int), wanted.astype(int), logits)
    found = fitted_calibration(rows, Target("f1"))
    assert found.thresholds_help
    assert found.thresholds(1.0)["a"] < 0.5 < found.thresholds(1.0)["b"]
    assert found.target_gains[0].change > 0.1
    assert (found.target_gains[0].low or 0) > 0
