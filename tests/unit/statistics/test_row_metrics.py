"""Metrics of counts equal the metrics of measures.py on rows that are repeated so often."""

from __future__ import annotations

import numpy as np
import pytest
from drawn_runs import drawn_rows

from glassloop.errors import SettingsError
from glassloop.measures import COMPUTED
from glassloop.metrics import metrics_for
from glassloop.settings import CLASSES, SCORE, SEVERAL
from glassloop.statistics.row_metrics import OF_CLASSES, OF_LABELS, OF_SCORES, metric_of_counts

CASES = [(CLASSES, key, width) for key in COMPUTED[CLASSES] for width in (2, 5)]
CASES += [(SEVERAL, key, 3) for key in COMPUTED[SEVERAL]] + [(SCORE, key, 1) for key in COMPUTED[SCORE]]


@pytest.mark.parametrize(("task", "key", "width"), CASES)
def test_counts_of_rows_give_the_metric_of_repeated_rows(task: str, key: str, width: int) -> None:
    rows = drawn_rows(40, 0.7, task=task, labels=[*"abcde"][:width])
    if task == SCORE:
        rows.predictions.round(1, out=rows.predictions)  # with ties
    counts = np.random.default_rng(1).multinomial(40, np.full(40, 1 / 40), size=20)
    found = metric_of_counts(key, task, rows.predictions, rows.references, 1 if width == 2 else 3)(counts)
    positive = None if task != CLASSES else 1 if width == 2 else 3
    for count, value in zip(counts, found, strict=True):
        drawn = np.repeat(np.arange(40), count)
        metric = metrics_for(task, max(width, 1), keys=(key,), positive=positive)
        wanted = metric.compute(predictions=rows.predictions[drawn], references=rows.references[drawn])[key]
        assert value == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("key", ["f1", "precision", "recall", "f1_macro", "matthews_correlation"])
def test_nothing_to_count_is_zero(key: str) -> None:
    never, always = np.zeros(4, dtype=int), np.array([1, 1, 0, 0])
    found = metric_of_counts(key, CLASSES, never, always)(np.array([[1.0, 1, 0, 0]]))
    assert found.tolist() == [0.0]


def test_a_correlation_of_equal_values_is_zero() -> None:
    for key in ("pearson", "spearmanr"):
        assert metric_of_counts(key, SCORE, np.ones(3), np.arange(3.0))(np.ones((1, 3))).tolist() == [0.0]


def test_every_computed_metric_is_known_and_others_are_refused() -> None:
    assert {*COMPUTED[CLASSES]} <= {*OF_CLASSES}
    assert {*COMPUTED[SEVERAL]} <= {*OF_LABELS}
    assert {*COMPUTED[SCORE]} <= {*OF_SCORES}
    with pytest.raises(SettingsError, match='"mse" is not a known metric of single_label_classification'):
        metric_of_counts("mse", CLASSES, np.zeros(2), np.zeros(2))
