"""Confident learning: which labels are suspected, beside an independent implementation, and how many of each class."""

from __future__ import annotations

import numpy as np
import pytest

from glassloop.diagnosis.labels import (
    HeldOut,
    confident_classes,
    confident_shares,
    likely_errors,
    noise_shares,
    suspects_of,
    with_neighbors,
)
from glassloop.diagnosis.rows import Neighbors
from glassloop.models.linear import fit_linear
from glassloop.scores.metrics import Array
from glassloop.settings.training import CLASSES, SCORE, SEVERAL


def simulated(number: int, classes: int, rate: float, seed: int) -> tuple[Array, Array, Array]:
    """Probabilities of a decent model, the given labels, and which of them were flipped."""
    drawn = np.random.default_rng(seed)
    true = drawn.integers(classes, size=number)
    outputs = drawn.normal(size=(number, classes)) + 2.5 * np.eye(classes)[true]
    expected = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    flipped = drawn.random(number) < rate
    given = np.where(flipped, (true + drawn.integers(1, classes, size=number)) % classes, true)
    return expected, given, flipped


@pytest.mark.parametrize(("classes", "rate"), [(2, 0.1), (3, 0.05), (5, 0.2)])
def test_the_suspects_are_those_of_cleanlab(classes: int, rate: float) -> None:
    filters = pytest.importorskip("cleanlab.filter", reason="cleanlab >= 2.9 is not installed")
    expected, given, _ = simulated(600, classes, rate, seed=classes)
    theirs = filters.find_label_issues(given, expected, filter_by="both", n_jobs=1)
    ours = np.zeros(600, dtype=bool)
    ours[suspects_of(HeldOut(np.arange(600), expected, given, CLASSES)).rows] = True
    # Both round the numbers of errors, in another order.
    assert (ours != theirs).sum() <= 2 * classes
    assert (ours & theirs).sum() >= 0.9 * max(ours.sum(), theirs.sum())


def test_a_class_is_confident_above_its_mean_probability() -> None:
    expected = np.array([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.4, 0.6], [0.45, 0.55]])
    given = np.array([0, 0, 1, 1, 0])
    # The means are (0.9 + 0.7 + 0.45) / 3 and (0.8 + 0.6) / 2.
    assert confident_classes(expected, given).tolist() == [0, 0, 1, -1, -1]
    assert confident_shares(expected, given).tolist() == [[1, 0], [0, 1]]
    assert not likely_errors(expected, given).any()


@pytest.mark.parametrize("rate", [0.02, 0.1])
def test_flipped_labels_come_first_and_the_estimated_share_is_about_right(rate: float) -> None:
    expected, given, flipped = simulated(4000, 4, rate, seed=1)
    held = HeldOut(np.arange(4000), expected, given, CLASSES)
    found = suspects_of(held)
    assert flipped[found.rows[: flipped.sum() // 2]].mean() > 0.8
    assert (np.diff(found.given_probability) >= 0).all()
    assert (found.probability > found.given_probability).all()
    shares = noise_shares(held, ("a", "b", "c", "d"))
    mean = np.mean([one.share for one in shares])
    assert rate - 0.02 < mean < rate + 0.06
    assert all(one.low <= one.share <= one.high for one in shares)
    assert all(one.high - one.low < 0.1 for one in shares)


def test_labels_of_a_model_that_is_always_right_are_not_suspected() -> None:
    given = np.arange(60) % 3
    expected = np.eye(3)[given] * 0.9 + 0.1 / 3
    assert not len(suspects_of(HeldOut(np.arange(60), expected, given, CLASSES)).rows)
    rare = given.copy()
    rare[:4] = 3  # of a class with four rows, models that did not see one know nothing
    expected = np.concatenate([expected, np.full((60, 1), 0.001)], axis=1)
    assert not len(suspects_of(HeldOut(np.arange(60), expected, rare, CLASSES)).rows)


def test_each_label_of_several_is_a_question_of_its_own() -> None:
    given = np.stack([np.arange(80) % 2, np.arange(80) % 4 == 0], axis=1).astype(np.int64)
    expected = given * 0.8 + 0.1
    given[7] = 1 - given[7]
    found = suspects_of(HeldOut(np.arange(80), expected, given, SEVERAL))
    assert found.rows.tolist() == [7]
    assert found.suggested[0].tolist() == (1 - given[7]).tolist()


def test_a_score_far_from_its_prediction_is_suspected() -> None:
    drawn = np.random.default_rng(0)
    scores = drawn.normal(size=100)
    expected = (scores + drawn.normal(size=100) * 0.1)[:, None]
    scores[31] += 3
    found = suspects_of(HeldOut(np.arange(100), expected, scores, SCORE))
    assert found.rows[0] == 31
    assert found.given_probability[0] > 10
    assert len(found.rows) < 5


def test_neighbors_count_only_if_they_predict_as_well_and_never_with_the_same_texts() -> None:
    expected, given, _ = simulated(200, 2, 0.0, seed=3)
    held = HeldOut(np.arange(200), expected, given, CLASSES)
    same = np.stack([np.flatnonzero((given == given[row]) & (np.arange(200) != row))[:5] for row in range(200)])
    near = Neighbors(same, np.full(same.shape, 0.9), np.zeros(same.shape, dtype=bool))
    better = with_neighbors(held, near, np.arange(200)).expected
    assert better[np.arange(200), given].mean() > expected[np.arange(200), given].mean()
    equal = with_neighbors(held, near, np.zeros(200, dtype=np.int64)).expected  # all rows have the same texts
    assert (equal.argmax(axis=1) == given).mean() <= (better.argmax(axis=1) == given).mean()
    wrong = Neighbors(same[np.argsort(given, kind="stable")[::-1]], near.cosines, near.swapped)
    assert with_neighbors(held, wrong, np.arange(200)).expected is held.expected


def test_held_out_outputs_come_from_models_that_did_not_see_the_row_or_its_texts() -> None:
    """Random labels of random rows can only be known by a model that has seen the row, or the same texts."""
    drawn = np.random.default_rng(5)
    features, targets = drawn.normal(size=(60, 200)).astype(np.float32), drawn.integers(2, size=60)
    features[30:], targets[30:] = features[:30], targets[:30]
    apart, together = (
        fit_linear(features, targets, CLASSES, 2, groups, all_held_out=True).held_out_outputs
        for groups in (np.arange(60), np.arange(60) % 30)
    )
    assert apart is not None
    assert together is not None
    assert np.isfinite(together).all()
    assert (together.argmax(axis=1) == targets).mean() < 0.75
    assert (apart.argmax(axis=1) == targets).mean() > (together.argmax(axis=1) == targets).mean() + 0.1
    assert fit_linear(features, targets, CLASSES, 2).held_out_outputs is None
