"""Calibration: bins, expected calibration error and temperature against direct computations, and the curves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
import sklearn.metrics
from drawn_thresholds import drawn_binary, true_gain
from run_folders import drawn_rows

from glassloop.predict.answers import Answering
from glassloop.runs.record import Gain, Target
from glassloop.scores import calibration
from glassloop.scores.calibration import Fitted, best_limit, confidences, fitted_calibration, fitted_temperature, margins_of
from glassloop.scores.metrics import probabilities
from glassloop.scores.statistics import ScoredRows, some_rows
from glassloop.settings.training import CLASSES, SCORE, SEVERAL


@pytest.mark.parametrize("task", [CLASSES, SEVERAL])
@pytest.mark.parametrize("width", [2, 5])
def test_the_temperature_minimises_the_loss(task: str, width: int) -> None:
    rows = drawn_rows(400, 0.8, task=task, labels=[*"abcde"][:width])
    rows = replace(rows, logits=rows.logits * 7)
    wanted = scipy.optimize.minimize_scalar(
        lambda log: calibration.negative_log_likelihood(rows, np.exp(log)),
        bounds=(-4, 4),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assert fitted_temperature(rows) == pytest.approx(np.exp(wanted.x), rel=1e-4)
    assert fitted_temperature(rows) > 2
    assert (
        calibration.reliability(*confidences(rows, fitted_temperature(rows))).error
        < calibration.reliability(*confidences(rows)).error
    )


def test_the_loss_equals_sklearn_and_the_calibration_error_is_the_weighted_gap() -> None:
    rows = drawn_rows(100, labels=("a", "b", "c"))
    likely = probabilities(rows.logits / 2, CLASSES)
    assert calibration.negative_log_likelihood(rows, 2.0) == pytest.approx(sklearn.metrics.log_loss(rows.references, likely))
    rows = drawn_rows(50, 100.0)
    assert fitted_temperature(rows) == pytest.approx(calibration.LOWEST, rel=0.05)
    assert fitted_temperature(replace(rows, references=1 - rows.references)) == pytest.approx(calibration.HIGHEST, rel=0.05)
    confidence, right = np.array([0.55, 0.6, 0.95, 1.0]), np.array([True, False, True, True])
    found = calibration.reliability(confidence, right, bins=2)
    assert [one.number for one in found.bins] == [4]
    assert found.error == pytest.approx(abs(0.75 - confidence.mean()))
    found = calibration.reliability(confidence, right, bins=10)
    assert [one.number for one in found.bins] == [2, 2], "0.6 belongs to the bin that ends there"
    assert found.error == pytest.approx(0.5 * abs(0.5 - 0.575) + 0.5 * abs(1 - 0.975))
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0.5, 1, 100_000)
    assert calibration.reliability(confidence, generator.random(100_000) < confidence).error < 0.01
    rows = drawn_rows(10, task=SEVERAL, labels=("a", "b", "c"))
    confidence, right = confidences(rows)
    assert confidence.shape == right.shape == (30,)
    assert (confidence >= 0.5).all()


def test_the_threshold_and_coverage_curves() -> None:
    rows = drawn_rows(300, 0.8)
    likely, positive = probabilities(rows.logits, CLASSES)[:, 1].round(2), rows.references == 1  # with ties
    found = calibration.threshold_curve(likely, positive, most_points=1000)
    precision, recall, thresholds = sklearn.metrics.precision_recall_curve(positive, likely)
    np.testing.assert_allclose(found.thresholds[::-1], thresholds)
    np.testing.assert_allclose(found.precision[::-1], precision[:-1])
    np.testing.assert_allclose(found.recall[::-1], recall[:-1])
    np.testing.assert_allclose(found.f1[-1], sklearn.metrics.f1_score(positive, np.ones(300)))
    assert found.answered[-1] == 1.0
    rows = drawn_rows(300, 1.0)
    found = calibration.threshold_curve(*confidences(rows), most_points=50)
    assert len(found.answered) <= 50
    assert found.answered[-1] == 1.0
    assert found.precision[-1] == pytest.approx(rows.right.mean())
    assert found.precision[:5].mean() > found.precision[-1]
    place = 20
    chosen = confidences(rows)[0] >= found.thresholds[place]
    assert found.answered[place] == pytest.approx(chosen.mean())
    assert found.precision[place] == pytest.approx(rows.right[chosen].mean())


# --- Cross-fitting: the gain is that on new rows, unlike the gain on the rows of the fit, and its interval covers it.
def test_folds_are_equally_large_and_of_equal_classes() -> None:
    rows = drawn_rows(103)
    folds = calibration.fold_numbers(rows, 10)
    assert sorted(np.bincount(folds)) == [10] * 7 + [11] * 3
    shares = [np.bincount(rows.references[folds == fold], minlength=2) for fold in range(10)]
    assert np.ptp(np.array(shares), axis=0).max() <= 1
    assert np.array_equal(folds, calibration.fold_numbers(rows, 10)), "the same for the same seed"
    assert not np.array_equal(folds, calibration.fold_numbers(rows, 10, seed=1))


@pytest.mark.parametrize("task", [CLASSES, SEVERAL])
def test_each_row_is_scored_by_what_the_other_folds_give(task: str) -> None:
    rows = drawn_rows(120, 0.7, task=task, labels=("a", "b", "c"))
    rows = replace(rows, logits=rows.logits * 3)
    found = fitted_calibration(rows, folds=4)
    folds, losses = calibration.fold_numbers(rows, 4), np.empty(120)
    for fold in range(4):
        held = folds == fold
        others = some_rows(rows, ~held)
        best = scipy.optimize.minimize_scalar(
            lambda log, others=others: calibration.row_losses(others, np.exp(log)).mean(), bounds=(-3, 3), method="bounded"
        )
        losses[held] = calibration.row_losses(some_rows(rows, held), np.exp(best.x))
    assert found.temperature_gains[0].after == pytest.approx(losses.mean(), rel=1e-4)
    assert found.temperature_gains[0].before == pytest.approx(calibration.row_losses(rows).mean())
    assert found.temperature == pytest.approx(fitted_temperature(rows))
    assert found.temperature_helps


def test_without_a_target_or_errors_nothing_is_fitted_and_a_limited_metric_counts_first() -> None:
    found = fitted_calibration(drawn_rows(60))
    assert (found.limits, found.target_gains, found.thresholds_help) == ([], [], False)
    found = fitted_calibration(drawn_rows(60, 100.0), Target("f1"))
    assert (found.temperature, found.temperature_helps) == (1.0, False)
    (gain,) = calibration.target_gains(margins_of(drawn_rows(60, 100.0), None), np.zeros((60, 1)), Target("f1"))
    assert gain.change == 0
    assert (gain.low or 0) < 0 < (gain.high or 0)
    for gains, helps in [
        ([Gain("precision", 0.7, 0.8), Gain("recall", 0.95, 0.895)], True),  # a limit missed by less than a point is met
        ([Gain("precision", 0.7, 0.8), Gain("recall", 0.95, 0.85)], False),  # it was met before, and is missed now
        ([Gain("precision", 0.7, 0.6), Gain("recall", 0.5, 0.91)], True),  # it was missed before, and is met now
        ([Gain("precision", 0.7, 0.6), Gain("recall", 0.95, 0.91)], False),  # met before and now, but less precise
    ]:
        found = Fitted(1.0, [calibration.Limit(0.0, 0.5)], ["a"], [Gain("loss", 1.0, 0.9)], gains, Target("precision", 0.9))
        assert found.thresholds_help is helps


@pytest.mark.slow
def test_the_gain_is_that_on_new_rows() -> None:
    """Over many small samples the cross-fitted gain is on average the true one; the gain on the fitted rows is larger."""
    target, found = Target("f1"), []
    for number in range(80):
        rows = drawn_binary(np.random.default_rng(number), 150)
        fitted = fitted_calibration(rows, target)
        margins = margins_of(rows, None)
        (limit,) = calibration.fitted_limits(margins, target)
        margin = limit.margin if limit else 0.0
        (own,) = calibration.target_gains(margins, np.full((150, 1), margin), target)
        found.append((fitted.target_gains[0].change, own.change, true_gain(margin)))
    crossed, own, true = np.array(found).T
    error = (crossed - true).std(ddof=1) / np.sqrt(len(true))
    assert abs((crossed - true).mean()) < 3 * error
    assert (own - true).mean() > 3 * (own - true).std(ddof=1) / np.sqrt(len(true)), "the gain on the fitted rows is too large"


def test_several_labels_are_fitted_each_and_a_lower_cost_is_a_gain() -> None:
    random = np.random.default_rng(0)
    wanted = random.random((400, 2)) < 0.3
    logits = random.normal(0, 1, (400, 2)) + 2 * wanted + np.array([-3.0, 1.0])
    rows = ScoredRows(SEVERAL, ("a", "b"), (logits > 0).astype(int), wanted.astype(int), logits)
    found = fitted_calibration(rows, Target("f1"))
    assert found.thresholds_help
    assert found.thresholds(1.0)["a"] < 0.5 < found.thresholds(1.0)["b"]
    assert found.target_gains[0].change > 0.1
    assert (found.target_gains[0].low or 0) > 0
    for after, helps in ((0.5, True), (1.5, False), (0.95, False)):
        gains = [Gain("cost", 1.0, after, -0.2, 0.2)]
        assert Fitted(1.0, [], [], [Gain("loss", 1.0, 1.0)], gains, Target("cost")).thresholds_help is helps


# --- Thresholds: the best of all possible ones, for each target, against direct computations with scikit-learn.
TARGETS = [Target("f1"), Target("precision", 0.8), Target("recall", 0.7), Target("cost", None, 1.0, 4.0)]


def score_by_sklearn(target: Target, wanted: np.ndarray, given: np.ndarray) -> tuple[float, bool]:
    if target.name == "f1":
        return sklearn.metrics.f1_score(wanted, given), True
    if target.name == "cost":
        _, false_positive, false_negative, _ = sklearn.metrics.confusion_matrix(wanted, given).ravel()
        return -(false_positive * target.false_positive + false_negative * target.false_negative), True
    precision = sklearn.metrics.precision_score(wanted, given, zero_division=0)
    recall = sklearn.metrics.recall_score(wanted, given)
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


def test_which_of_several_thresholds_is_chosen() -> None:
    found = best_limit(np.array([-3.0, -2.0, 1.0, 2.0]), np.array([False, False, True, True]), Target("f1"))
    assert found == calibration.Limit(-0.5, 1.0)
    found = best_limit(np.array([0.0, 0.0, 1.0]), np.array([True, False, False]), Target("cost", None, 0.0, 1.0))
    assert found.margin == -1.0, "a step below the lowest"
    found = best_limit(np.array([3.0, 2.0, 1.0]), np.array([False, True, True]), Target("recall", 0.9))
    assert not found.reached
    assert found.score == pytest.approx(2 / 3)
    low, high = 1.0, np.nextafter(1.0, 2.0)
    found = best_limit(np.array([low, high]), np.array([False, True]), Target("f1"))
    assert low < found.margin <= high


def test_the_margins_and_scores_of_labels() -> None:
    rows = drawn_rows(80, task=SEVERAL, labels=("a", "b", "c"))
    references = rows.references.copy()
    references[:, 0], references[:, 2] = 0, 1
    found = calibration.fitted_limits(margins_of(replace(rows, references=references), None), Target("f1"))
    assert [limit is None for limit in found] == [True, False, True]
    rows = drawn_rows(30)
    first, second = margins_of(rows, rows.labels[0]), margins_of(rows, None)
    assert (first.names, second.names) == ((rows.labels[0],), (rows.labels[1],))
    assert np.array_equal(first.values, -second.values)
    assert np.array_equal(first.wanted, ~second.wanted)
    assert margins_of(drawn_rows(30, labels=("a", "b", "c")), None) is None
    given, wanted = np.array([[True], [False], [True]]), np.array([[False], [True], [True]])
    assert calibration.label_scores("cost", np.ones((1, 3)), given, wanted, Target("cost", None, 1.0, 5.0)) == pytest.approx(
        [2.0]
    )
    random = np.random.default_rng(1)
    given, wanted = random.random((60, 3)) < 0.5, random.random((60, 3)) < 0.4
    for name in ["f1", "precision", "recall"]:
        score = getattr(sklearn.metrics, f"{name}_score")
        found = calibration.label_scores(name, np.ones((1, 60)), given, wanted, Target("f1"))
        assert found == pytest.approx([score(wanted, given, average="macro")])
        twice = np.where(np.arange(60) < 30, 2.0, 0.0)[None]
        found = calibration.label_scores(name, twice, given, wanted, Target("f1"))
        assert found == pytest.approx([score(wanted[:30], given[:30], average="macro")])


@pytest.mark.parametrize("task", [CLASSES, SEVERAL])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_the_predictor_gives_the_labels_that_the_limits_give(task: str, temperature: float) -> None:
    rows = drawn_rows(200, 0.5, task=task, labels=("a", "b"))
    margins = margins_of(rows, "a")
    limits = [limit for limit in calibration.fitted_limits(margins, Target("f1")) if limit]
    thresholds = {
        name: calibration.probability_of(limit.margin, temperature) for name, limit in zip(margins.names, limits, strict=True)
    }
    chosen = np.array(Answering(task, rows.labels, temperature, thresholds).choices(rows.logits))
    given = margins.values >= [limit.margin for limit in limits]
    assert np.array_equal(chosen == 1 if task == SEVERAL else (chosen == 0)[:, None], given)


# --- the temperature that every run gets
def surer(rows: ScoredRows, factor: float) -> ScoredRows:
    return replace(rows, logits=rows.logits * factor)


def test_the_usual_temperature_rises_with_what_cannot_be_learned_and_with_the_steps() -> None:
    targets, level = np.array([0, 1] * 10), np.log(2)

    def skill(loss: float) -> float:
        return calibration.skill_of(np.append(np.full(19, loss), np.nan), targets, CLASSES, 2)

    assert [skill(loss * level) for loss in (1.5, 1.0, 0.7, 0.0)] == pytest.approx([0, 0, 0.3, 1])
    assert calibration.skill_of(np.full(20, np.nan), targets, CLASSES, 2) == 1.0, "nothing was held out"
    assert calibration.skill_of(np.zeros(3), np.ones(3), SCORE, 1) == 1.0, "nothing is to be learned"

    def usual(skill: float, trained: float = 1.0, towers: bool = False) -> float:
        return calibration.expected_temperature(skill, CLASSES, towers=towers, trained=trained)

    assert usual(0.0) == pytest.approx(np.exp(0.6))
    assert usual(0.0) > usual(0.3) > usual(1.0)
    assert usual(0.0, trained=0.0) == 1.0
    assert 1.0 < usual(0.0, trained=0.5) < usual(0.0) == usual(0.0, trained=7.0)
    assert usual(0.0, towers=True) < usual(0.0)
    smaller = [
        calibration.expected_temperature(0.3, CLASSES, towers=False, trained=part, share=0.4) for part in (0.0, 0.5, 1.0)
    ]
    assert smaller[0] == pytest.approx(0.4), "its outputs are those of the regression, 0.4 times as far from the center"
    assert smaller[0] < smaller[1] < smaller[2] == usual(0.3)


@pytest.mark.parametrize("task", [CLASSES, SEVERAL])
def test_many_rows_outweigh_the_usual_temperature_and_few_do_not(task: str) -> None:
    rows = surer(drawn_rows(3000, 0.8, task=task, labels=[*"abc"]), 7)
    best = fitted_temperature(rows)
    assert best > 3
    temperature, of_rows = calibration.shrunk_temperatures(rows, 1.4)
    assert temperature == pytest.approx(best, rel=0.05)
    assert of_rows.shape == (3000, 1)
    assert np.abs(of_rows / temperature - 1).max() < 0.1
    few, _ = calibration.shrunk_temperatures(calibration.some_rows(rows, np.arange(4)), 1.4)
    assert 1.2 < few < best
    always_right = drawn_rows(60, 50.0, task=task, labels=[*"abc"])
    assert calibration.shrunk_temperatures(always_right, 1.4)[0] == pytest.approx(1.4, rel=0.03), "without errors, not zero"


def test_the_temperature_of_a_row_does_not_depend_on_its_label() -> None:
    rows = drawn_rows(30, 0.8, labels=("a", "b"))
    _, before = calibration.shrunk_temperatures(rows)
    folds = calibration.fold_numbers(rows, calibration.FITTED_FOLDS)
    wrong = replace(rows, logits=rows.logits.copy())
    wrong.logits[folds == 3] *= -50.0
    temperature, after = calibration.shrunk_temperatures(wrong)
    assert np.array_equal(before[folds == 3], after[folds == 3])
    assert (after[folds != 3] > before[folds != 3]).all()
    assert temperature > calibration.shrunk_temperatures(rows)[0]


@pytest.mark.parametrize("task", [CLASSES, SEVERAL])
@pytest.mark.parametrize("number", [1, 2, 7])
def test_a_row_a_class_and_probabilities_of_zero(task: str, number: int) -> None:
    rows = drawn_rows(number, 2.0, task=task, labels=("a", "b", "c"))
    same = np.zeros_like(rows.references)
    sure = np.where(np.arange(3) == 0, 800.0, -800.0) * np.ones((number, 1))  # exp of it overflows
    prior = calibration.prior_outputs(same, task, 3)
    for logits, hit in ((rows.logits, None), (sure, True), (-sure, False)):
        found = calibration.probability_record(replace(rows, references=same, logits=logits), prior, 1.4)
        scores = {name: score.value for name, score in found.after.items()}
        assert found.rows == number
        assert calibration.TRIED[0] <= found.temperature <= calibration.TRIED[-1]
        assert np.isfinite([*scores.values(), *found.before.values()]).all()
        if hit is not None and task == CLASSES:
            assert scores["brier"] == pytest.approx(0.0 if hit else 1.5, abs=1e-6)
        assert (found.after["log_loss"].low is None) == (number == 1), "one row has no interval"


def test_the_frequencies_of_classes_without_rows_are_no_zeros() -> None:
    assert calibration.prior_outputs(np.array([2, 2, 2]), CLASSES, 4) == pytest.approx(np.log([1 / 7, 1 / 7, 4 / 7, 1 / 7]))
    assert calibration.prior_outputs(np.zeros(0, dtype=np.int64), CLASSES, 2) == pytest.approx(np.log([0.5, 0.5]))
    labels = calibration.prior_outputs(np.array([[1, 0], [1, 0]]), SEVERAL, 2)
    assert labels == pytest.approx(np.log([3.0, 1 / 3]))
    thousand = calibration.prior_outputs(np.arange(1000).repeat(2), CLASSES, 1000)
    assert thousand == pytest.approx(np.full(1000, -np.log(1000)))
