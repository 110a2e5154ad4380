"""Metrics equal those of measures.py, and the change of each row equals computing the metric without it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from drawn_runs import drawn_rows

from glassloop.base.errors import SettingsError
from glassloop.scores.intervals import OF_CLASSES, OF_LABELS, OF_SCORES, balanced_rows, covariance_of, row_metric
from glassloop.scores.measures import COMPUTED
from glassloop.scores.metrics import metrics_for
from glassloop.settings.fields import CLASSES, SCORE, SEVERAL

CASES = [(CLASSES, key, width) for key in COMPUTED[CLASSES] for width in (2, 5)]
CASES += [(SEVERAL, key, 3) for key in COMPUTED[SEVERAL]] + [(SCORE, key, 1) for key in COMPUTED[SCORE]]


@pytest.mark.parametrize(("task", "key", "width"), CASES)
def test_every_change_is_that_of_the_metric_without_the_row(task: str, key: str, width: int) -> None:
    number = 40
    rows = drawn_rows(number, 0.7, task=task, labels=[*"abcde"][:width])
    if task == SCORE:
        rows.predictions.round(1, out=rows.predictions)  # with ties
    positive = None if task != CLASSES else 1 if width == 2 else 3
    metric = metrics_for(task, max(width, 1), keys=(key,), positive=positive)

    def reference(kept: np.ndarray) -> float:
        return float(metric.compute(predictions=rows.predictions[kept], references=rows.references[kept])[key])

    found = row_metric(key, task, rows.predictions, rows.references, positive)
    every = np.arange(number)
    changes = reference(every) - np.array([reference(np.delete(every, row)) for row in every])
    assert found.value == pytest.approx(reference(every), abs=1e-12)
    near = 0.03 * np.abs(changes).max() if key.startswith("spearman") else 1e-12  # ranks: of a small part of each row
    np.testing.assert_allclose(found.changes, changes, atol=near)
    assert found.bias == pytest.approx(-(number - 1) * found.changes.mean())


def test_the_variance_equals_known_formulas() -> None:
    share = drawn_rows(400)
    found = row_metric("accuracy", CLASSES, share.predictions, share.references)
    assert found.variance == pytest.approx(found.value * (1 - found.value) / 399)
    scores = drawn_rows(400, task=SCORE)
    error = row_metric("mse", SCORE, scores.predictions, scores.references)
    assert error.variance == pytest.approx(scipy.stats.sem(np.square(scores.predictions - scores.references)) ** 2)
    for key in ("pearson", "spearman"):
        correlation = row_metric(key, SCORE, scores.predictions, scores.references)
        assert correlation.variance == pytest.approx((1 - correlation.value**2) ** 2 / 400, rel=0.25)


def test_the_covariance_of_models_is_that_of_their_rows() -> None:
    models = [drawn_rows(300, 1.0, seed) for seed in range(3)]
    changes = np.stack([row_metric("accuracy", CLASSES, one.predictions, one.references).changes for one in models])
    np.testing.assert_allclose(covariance_of(changes), np.cov([one.right for one in models]) / 300)


@pytest.mark.parametrize("key", ["f1", "precision", "recall", "f1_macro", "matthews_correlation"])
def test_nothing_to_count_is_zero(key: str) -> None:
    never, always = np.zeros(4, dtype=int), np.ones(4, dtype=int)
    assert row_metric(key, CLASSES, never, always).value == 0.0


def test_a_class_counts_as_zero_without_its_only_row() -> None:
    classes = np.array([0, 0, 0, 1])
    found = row_metric("f1_macro", CLASSES, classes, classes)
    assert (found.value, found.changes.tolist()) == (1.0, [0.0, 0.0, 0.0, 0.5])


def test_a_correlation_of_equal_values_is_zero() -> None:
    for key in ("pearson", "spearmanr"):
        found = row_metric(key, SCORE, np.full(3, 0.1), np.arange(3.0))
        assert (found.value, found.changes.tolist()) == (0.0, [0.0, 0.0, 0.0])


def test_rows_count_for_a_metric_only_if_they_can_change_it() -> None:
    """1,000 rows with three of a class say as much about its F1 as these three."""
    references = np.zeros(1000, dtype=int)
    references[:3] = 1
    counted = {key: row_metric(key, CLASSES, references, references).counted for key in ("accuracy", "f1", "recall")}
    assert counted == {"accuracy": 1000, "f1": 3, "recall": 3}
    assert row_metric("f1_macro", CLASSES, references, references).counted == pytest.approx(4 / (1 / 997 + 1 / 3))
    assert row_metric("matthews_correlation", CLASSES, references, references).counted == pytest.approx(12, abs=0.1)
    assert balanced_rows(np.array([25, 25, 25, 25])) == 100


def test_every_computed_metric_is_known_and_others_are_refused() -> None:
    assert {*COMPUTED[CLASSES]} <= {*OF_CLASSES}
    assert {*COMPUTED[SEVERAL]} <= {*OF_LABELS}
    assert {*COMPUTED[SCORE]} <= {*OF_SCORES}
    with pytest.raises(SettingsError, match='"mse" is not a known metric of single_label_classification'):
        row_metric("mse", CLASSES, np.zeros(2), np.zeros(2))
