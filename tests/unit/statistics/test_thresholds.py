"""Thresholds: the best of all possible ones, for each target, against direct computations with scikit-learn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import sklearn.metrics
from drawn_runs import drawn_rows

from glassloop.predict.answers import Answering
from glassloop.runs.calibration import Target
from glassloop.scores.calibration import Limit, best_limit, fitted_limits, label_scores, margins_of, probability_of
from glassloop.settings.fields import CLASSES, SEVERAL

TARGETS = [Target("f1"), Target("precision", 0.8), Target("recall", 0.7), Target("cost", None, 1.0, 4.0)]


def score_by_sklearn(target: Target, wanted: np.ndarray, given: np.ndarray) -> tuple[float, bool]:
    precision = sklearn.metrics.precision_score(wanted, given, zero_division=0)
    recall = sklearn.metrics.recall_score(wanted, given)
    if target.name == "f1":
        return sklearn.metrics.f1_score(wanted, given), True
    if target.name == "cost":
        _, false_positive, false_negative, _ = sklearn.metrics.confusion_matrix(wanted, given).ravel()
        return -(false_positive * target.false_positive + false_negative * target.false_negative), True
    return (precision, recall >= target.least) if target.name == "precision" else (recall, precision >= target.least)


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("ties", [False, True])
def test_no_other_threshold_is_better(target: Target, ties: bool) -> None:
    random = np.random.default_rng(5)
    wanted = random.random(40) < 0.3
    margin = random.normal(0, 1, 40) + 1.4 * wanted
    margin = np.round(margin, 1) if ties else margin
    found = best_limit(margin, wanted, target)
    value, allowed = score_by_sklearn(target, wanted, margin >= found.margin)
    assert allowed
    assert found.score == pytest.approx(value)
    for other in np.concatenate([margin, margin + 1e-9, [margin.min() - 1, margin.max() + 1]]):
        score, kept = score_by_sklearn(target, wanted, margin >= other)
        assert not kept or score <= value + 1e-12


def test_of_equal_thresholds_the_nearest_to_one_half_is_chosen() -> None:
    found = best_limit(np.array([-3.0, -2.0, 1.0, 2.0]), np.array([False, False, True, True]), Target("f1"))
    assert found == Limit(-0.5, 1.0)
    found = best_limit(np.array([0.0, 0.0, 1.0]), np.array([True, False, False]), Target("cost", None, 0.0, 1.0))
    assert found.margin == -1.0, "a step below the lowest"


def test_a_limit_that_cannot_be_kept_says_what_can() -> None:
    found = best_limit(np.array([3.0, 2.0, 1.0]), np.array([False, True, True]), Target("recall", 0.9))
    assert not found.reached
    assert found.score == pytest.approx(2 / 3)


def test_neighbours_in_floating_point_are_told_apart() -> None:
    low, high = 1.0, np.nextafter(1.0, 2.0)
    found = best_limit(np.array([low, high]), np.array([False, True]), Target("f1"))
    assert low < found.margin <= high


def test_labels_that_all_or_no_rows_have_get_no_limit() -> None:
    rows = drawn_rows(80, task=SEVERAL, labels=("a", "b", "c"))
    references = rows.references.copy()
    references[:, 0], references[:, 2] = 0, 1
    margins = margins_of(replace(rows, references=references), None)
    assert margins is not None
    found = fitted_limits(margins, Target("f1"))
    assert [limit is None for limit in found] == [True, False, True]


def test_two_classes_have_one_margin_and_more_have_none() -> None:
    rows = drawn_rows(30)
    first, second = margins_of(rows, rows.labels[0]), margins_of(rows, None)
    assert first is not None
    assert second is not None
    assert (first.names, second.names) == ((rows.labels[0],), (rows.labels[1],))
    assert np.array_equal(first.values, -second.values)
    assert np.array_equal(first.wanted, ~second.wanted)
    assert margins_of(drawn_rows(30, labels=("a", "b", "c")), None) is None


@pytest.mark.parametrize("task", [CLASSES, SEVERAL])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_the_predictor_gives_the_labels_that_the_limits_give(task: str, temperature: float) -> None:
    rows = drawn_rows(200, 0.5, task=task, labels=("a", "b"))
    margins = margins_of(rows, "a")
    assert margins is not None
    limits = [limit for limit in fitted_limits(margins, Target("f1")) if limit]
    thresholds = {name: probability_of(limit.margin, temperature) for name, limit in zip(margins.names, limits, strict=True)}
    chosen = np.array(Answering(task, rows.labels, temperature, thresholds).choices(rows.logits))
    given = margins.values >= [limit.margin for limit in limits]
    assert np.array_equal(chosen == 1 if task == SEVERAL else (chosen == 0)[:, None], given)


@pytest.mark.parametrize("name", ["f1", "precision", "recall"])
def test_scores_of_labels_equal_sklearn(name: str) -> None:
    random = np.random.default_rng(1)
    given, wanted = random.random((60, 3)) < 0.5, random.random((60, 3)) < 0.4
    score = {
        "f1": sklearn.metrics.f1_score,
        "precision": sklearn.metrics.precision_score,
        "recall": sklearn.metrics.recall_score,
    }
    counts = np.ones((1, 60))
    found = label_scores(name, counts, given, wanted, Target("f1"))
    assert found == pytest.approx([score[name](wanted, given, average="macro")])
    twice = np.zeros((1, 60))
    twice[0, :30] = 2
    assert label_scores(name, twice, given, wanted, Target("f1")) == pytest.approx(
        [score[name](wanted[:30], given[:30], average="macro")]
    )


def test_the_cost_of_rows() -> None:
    given, wanted = np.array([[True], [False], [True]]), np.array([[False], [True], [True]])
    assert label_scores("cost", np.ones((1, 3)), given, wanted, Target("cost", None, 1.0, 5.0)) == pytest.approx([2.0])
