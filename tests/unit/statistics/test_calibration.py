"""Calibration: bins, expected calibration error and temperature against direct computations, and the curves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
import sklearn.metrics
from drawn_runs import drawn_rows

from glassloop.scores.calibration import (
    HIGHEST,
    LOWEST,
    confidences,
    coverage_curve,
    fitted_temperature,
    negative_log_likelihood,
    reliability,
    threshold_curve,
)
from glassloop.scores.metrics import probabilities
from glassloop.settings.fields import CLASSES, SEVERAL


@pytest.mark.parametrize("task", [CLASSES, SEVERAL])
@pytest.mark.parametrize("width", [2, 5])
def test_the_temperature_minimises_the_loss(task: str, width: int) -> None:
    rows = drawn_rows(400, 0.8, task=task, labels=[*"abcde"][:width])
    rows = replace(rows, logits=rows.logits * 7)
    wanted = scipy.optimize.minimize_scalar(
        lambda log: negative_log_likelihood(rows, np.exp(log)), bounds=(-4, 4), method="bounded", options={"xatol": 1e-9}
    )
    assert fitted_temperature(rows) == pytest.approx(np.exp(wanted.x), rel=1e-4)
    assert fitted_temperature(rows) > 2
    assert reliability(*confidences(rows, fitted_temperature(rows))).error < reliability(*confidences(rows)).error


def test_the_loss_equals_sklearn() -> None:
    rows = drawn_rows(100, labels=("a", "b", "c"))
    likely = probabilities(rows.logits / 2, CLASSES)
    assert negative_log_likelihood(rows, 2.0) == pytest.approx(sklearn.metrics.log_loss(rows.references, likely))


def test_rows_without_errors_have_no_finite_optimum() -> None:
    rows = drawn_rows(50, 100.0)
    assert fitted_temperature(rows) == pytest.approx(LOWEST, rel=0.05)
    assert fitted_temperature(replace(rows, references=1 - rows.references)) == pytest.approx(HIGHEST, rel=0.05)


def test_the_calibration_error_is_the_weighted_gap() -> None:
    confidence, right = np.array([0.55, 0.6, 0.95, 1.0]), np.array([True, False, True, True])
    found = reliability(confidence, right, bins=2)
    assert [(one.low, one.high, one.number) for one in found.bins] == [(0.5, 1.0, 4)]
    assert found.error == pytest.approx(abs(0.75 - confidence.mean()))
    found = reliability(confidence, right, bins=10)
    assert [one.number for one in found.bins] == [2, 2], "0.6 belongs to the bin that ends there"
    assert found.error == pytest.approx(0.5 * abs(0.5 - 0.575) + 0.5 * abs(1 - 0.975))


def test_true_probabilities_are_calibrated() -> None:
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0.5, 1, 100_000)
    assert reliability(confidence, generator.random(100_000) < confidence).error < 0.01


def test_several_labels_are_one_answer_each() -> None:
    rows = drawn_rows(10, task=SEVERAL, labels=("a", "b", "c"))
    confidence, right = confidences(rows)
    assert confidence.shape == right.shape == (30,)
    assert (confidence >= 0.5).all()


def test_the_threshold_curve_equals_sklearn() -> None:
    rows = drawn_rows(300, 0.8)
    likely, positive = probabilities(rows.logits, CLASSES)[:, 1].round(2), rows.references == 1  # with ties
    found = threshold_curve(likely, positive, most_points=1000)
    precision, recall, thresholds = sklearn.metrics.precision_recall_curve(positive, likely)
    np.testing.assert_allclose(found.thresholds[::-1], thresholds)
    np.testing.assert_allclose(found.precision[::-1], precision[:-1])
    np.testing.assert_allclose(found.recall[::-1], recall[:-1])
    np.testing.assert_allclose(found.f1[-1], sklearn.metrics.f1_score(positive, np.ones(300)))
    assert found.answered[-1] == 1.0


def test_the_coverage_curve_ends_with_the_accuracy() -> None:
    rows = drawn_rows(300, 1.0)
    found = coverage_curve(*confidences(rows), most_points=50)
    assert len(found.answered) <= 50
    assert found.answered[-1] == 1.0
    assert found.accuracy[-1] == pytest.approx(rows.right.mean())
    assert found.accuracy[:5].mean() > found.accuracy[-1]
    place = 20
    chosen = confidences(rows)[0] >= found.thresholds[place]
    assert found.answered[place] == pytest.approx(chosen.mean())
    assert found.accuracy[place] == pytest.approx(rows.right[chosen].mean())
