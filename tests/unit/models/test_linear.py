"""Linear models on embeddings, against scikit-learn, and on rows that have little to say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression, Ridge

from glassloop.base.errors import DataError
from glassloop.models import linear
from glassloop.models.linear import (
    FOLDS,
    SQUARED_LENGTH,
    STRENGTHS,
    LinearModel,
    assigned_folds,
    fit_linear,
    lowest_point,
)
from glassloop.scores.calibration import output_losses, prior_outputs
from glassloop.scores.metrics import Array
from glassloop.settings.training import CLASSES, SCORE, SEVERAL


def drawn(rows: int, classes: int = 2, width: int = 8, apart: float = 1.0, seed: int = 0) -> tuple[Array, Array]:
    """Draw features whose first numbers say, with noise, which class a row has."""
    source = np.random.default_rng(seed)
    targets = np.arange(rows) % classes
    features = source.normal(size=(rows, width)) + apart * source.normal(size=(classes, width))[targets]
    return features.astype(np.float32), targets


def standardized(features: Array) -> Array:
    around = features.astype(np.float64) - features.mean(axis=0, dtype=np.float64)
    return around * (SQUARED_LENGTH / np.square(around).sum(axis=1).mean()) ** 0.5


def right(model: LinearModel, features: Array, targets: Array) -> float:
    return float((model.outputs(features).argmax(axis=1) == targets).mean())


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("width", [8, 300], ids=["more rows", "more features"])
def test_classes_are_fitted_as_scikit_learn_fits_them(classes: int, width: int) -> None:
    features, targets = drawn(200, classes, width)
    model = fit_linear(features, targets, CLASSES, classes)
    assert model.weights.shape == (width, classes)
    assert model.strength in STRENGTHS
    scaled = standardized(features)
    theirs = LogisticRegression(C=model.strength, max_iter=5000, tol=1e-8).fit(scaled, targets)

    def cost(weights: Array, bias: Array) -> float:  # with the penalty of the bias, which theirs does not have
        losses = output_losses(scaled @ weights + bias, targets, CLASSES)
        apart = bias - prior_outputs(targets, CLASSES, classes)
        return float(losses.sum() + np.square(weights).sum() / (2 * model.strength) + np.square(apart).sum() / 2)

    solution = np.linalg.lstsq(scaled, (model.outputs(features) - model.outputs(features).mean(axis=0)), rcond=None)[0]
    bias = model.outputs(features.mean(axis=0, dtype=np.float64)[None])[0]
    signs = np.array([-0.5, 0.5]) if classes == 2 else 1.0
    reached, usual = cost(solution, bias), cost(theirs.coef_.T * signs, theirs.intercept_ * signs)
    assert reached <= usual * 1.001, "it minimizes what it says"
    agree = (model.outputs(features).argmax(axis=1) == theirs.predict(scaled)).mean()
    assert agree > 0.95


def test_scores_are_fitted_as_scikit_learn_fits_them() -> None:
    features, _ = drawn(120, width=20)
    targets = features @ np.arange(20.0) + np.random.default_rng(1).normal(size=120)
    model = fit_linear(features, targets, SCORE, 1)
    theirs = Ridge(alpha=1 / model.strength).fit(standardized(features), targets)
    assert model.outputs(features)[:, 0] == pytest.approx(theirs.predict(standardized(features)), rel=1e-3, abs=1e-3)
    assert model.held_out.mean() < 0.1 * targets.var()


@pytest.mark.parametrize("seed", [1, 3])
def test_scores_of_few_distinct_texts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many rows that fp32 is used: what rounding adds to their squares must not exceed the smallest penalty."""
    source = np.random.default_rng(seed)
    groups = np.arange(30_000) % 20
    features, targets = source.normal(size=(20, 384)).astype(np.float32)[groups], source.normal(size=20)[groups]
    model = fit_linear(features, targets, SCORE, 1, groups)
    monkeypatch.setattr(linear, "LARGE", 1e9)
    exact = fit_linear(features, targets, SCORE, 1, groups)
    assert model.strength == exact.strength
    assert np.allclose(model.held_out, exact.held_out, rtol=1e-3)


def test_several_labels_are_fitted_each() -> None:
    features, targets = drawn(200, width=6, apart=2.0)
    several = np.stack([targets, 1 - targets, np.zeros(200, dtype=np.int64), np.ones(200, dtype=np.int64)], axis=1)
    model = fit_linear(features, several, SEVERAL, 4)
    outputs = model.outputs(features)
    assert np.allclose(outputs[:, 0], -outputs[:, 1], atol=1e-2)
    assert (outputs[:, 2] < -2).all(), "no row has it"
    assert (outputs[:, 3] > 2).all(), "every row has it"
    assert ((outputs[:, 0] > 0) == targets).mean() > 0.9


def test_rows_are_held_out_by_a_model_that_has_not_seen_them() -> None:
    """Labels at random, more features than rows: a model knows its own rows by heart, and nothing of those held out."""
    source = np.random.default_rng(4)
    features, targets = source.normal(size=(100, 200)).astype(np.float32), source.integers(0, 2, 100)
    model = fit_linear(features, targets, CLASSES, 2)
    assert right(model, features, targets) > 0.8
    assert 0.2 < float((model.held_out < np.log(2)).mean()) < 0.75
    assert np.isfinite(model.held_out).all()


def test_equal_texts_are_held_out_together_or_they_would_give_their_labels_away() -> None:
    source = np.random.default_rng(5)
    once, labels = source.normal(size=(50, 100)).astype(np.float32), source.integers(0, 2, 50)
    features, targets, groups = np.repeat(once, 4, axis=0), np.repeat(labels, 4), np.repeat(np.arange(50), 4)
    folds = assigned_folds(targets, CLASSES, groups)
    assert all(len({*folds[groups == group]}) == 1 for group in range(50))
    assert sorted(np.bincount(folds[::4], minlength=FOLDS)) == [10] * FOLDS
    leaky, honest = (fit_linear(features, targets, CLASSES, 2, known) for known in (None, groups))
    hits = [float((model.held_out < np.log(2)).mean()) for model in (leaky, honest)]
    assert hits[0] > 0.95
    assert hits[1] < 0.8
    assert honest.strength < leaky.strength, "what rows know by heart asks for no penalty"


def test_each_fold_has_as_many_rows_of_each_class() -> None:
    targets = np.array([0] * 50 + [1] * 10 + [2] * 5)
    folds = assigned_folds(targets, CLASSES)
    for label, most in ((0, 10), (1, 2), (2, 1)):
        assert [*np.bincount(folds[targets == label], minlength=FOLDS)] == [most] * FOLDS
    assert np.array_equal(folds, assigned_folds(targets, CLASSES)), "always the same"


# --- rows that have little to say
@pytest.mark.parametrize("task", [CLASSES, SEVERAL, SCORE])
def test_equal_embeddings_give_the_frequencies(task: str) -> None:
    features = np.full((40, 12), 0.3, dtype=np.float32)
    classes = np.array([0] * 30 + [1] * 10)
    targets = {CLASSES: classes, SEVERAL: np.stack([classes, 1 - classes], axis=1), SCORE: classes * 2.5}[task]
    width = 1 if task == SCORE else 2
    model = fit_linear(features, targets, task, width)
    assert np.allclose(model.weights, 0)
    wanted = prior_outputs(targets, task, width)
    assert np.allclose(model.outputs(features)[0], wanted, atol=0.06)
    assert np.allclose(model.outputs(features * 100), model.outputs(features)), "other embeddings say as little"
    assert np.isfinite(model.held_out).all()


@pytest.mark.parametrize("per_class", [1, 2])
def test_two_rows_of_each_class_and_fewer(per_class: int) -> None:
    """Folds without a row of some class, or without any row."""
    features, targets = drawn(3 * per_class, 3, apart=5.0)
    model = fit_linear(features, targets, CLASSES, 3)
    assert model.outputs(features).shape == (3 * per_class, 3)
    assert np.isfinite(model.outputs(features)).all()
    assert np.isfinite(model.held_out).all()
    if per_class == 2:
        assert right(model, features, targets) == 1.0
    assert output_losses(model.outputs(features), targets, CLASSES).mean() <= np.log(3) + 1e-6


def test_rows_of_a_single_class_and_a_single_row() -> None:
    features, _ = drawn(20)
    for number in (20, 1):
        model = fit_linear(features[:number], np.ones(number, dtype=np.int64), CLASSES, 3)
        outputs = model.outputs(features)
        assert np.isfinite(outputs).all()
        assert (outputs.argmax(axis=1) == 1).all()
        assert np.isnan(model.held_out).all() == (number == 1), "a single row cannot be held out"


def test_rows_of_one_text_cannot_be_held_out() -> None:
    features, targets = np.ones((6, 4), dtype=np.float32), np.arange(6) % 2
    model = fit_linear(features, targets, CLASSES, 2, np.zeros(6, dtype=np.int64))
    assert np.isnan(model.held_out).all()
    assert np.isfinite(model.outputs(features)).all()


def test_a_thousand_classes_of_two_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many outputs that one fold is held out."""
    monkeypatch.setattr(linear, "VERY_LARGE", 1e7)
    features, targets = drawn(2_000, 1_000, width=16, apart=6.0)
    model = fit_linear(features, targets, CLASSES, 1_000)
    assert model.weights.shape == (16, 1_000)
    assert right(model, features, targets) > 0.9
    assert np.isfinite(model.held_out).sum() == 400, "one fold is enough to choose the strength"
    assert np.nanmean(model.held_out) < 0.5 * np.log(1_000), "from the other row of the class"


@pytest.mark.parametrize("weights", [[1.0, 4.0], [3.0, 12.0]])
def test_a_class_that_weighs_four_times_counts_like_rows_that_are_there_four_times(weights: list[float]) -> None:
    features, targets = drawn(100, apart=0.3)
    often = np.concatenate([np.flatnonzero(targets == 0), np.repeat(np.flatnonzero(targets == 1), 4)])
    model = fit_linear(features, targets, CLASSES, 2, class_weights=weights)
    plain, repeated = fit_linear(features, targets, CLASSES, 2), fit_linear(features[often], targets[often], CLASSES, 2, often)
    shares = [(found.outputs(features).argmax(axis=1) == 1).mean() for found in (plain, repeated, model)]
    assert shares[2] == pytest.approx(shares[1], abs=0.06)
    assert shares[2] > shares[0] + 0.2


def test_balanced_classes_predict_the_rare_one_and_labels_have_weights_of_their_own() -> None:
    features, targets = drawn(220, apart=0.5)
    kept = np.flatnonzero((targets == 0) | (np.arange(220) % 20 == 1))
    features, targets = features[kept], targets[kept]
    balanced = [len(targets) / (2 * (targets == label).sum()) for label in (0, 1)]
    plain, weighted = (fit_linear(features, targets, CLASSES, 2, class_weights=weights) for weights in (None, balanced))
    found = [float((model.outputs(features)[targets == 1].argmax(axis=1) == 1).mean()) for model in (plain, weighted)]
    assert found[0] < 0.5 < found[1]
    equal = fit_linear(np.ones_like(features), targets, CLASSES, 2, class_weights=balanced).outputs(features)
    assert np.allclose(equal, np.log(0.5), atol=1e-3), "which of both it is says the embedding alone"
    several = np.stack([targets, 1 - targets], axis=1)
    plain, weighted = (fit_linear(features, several, SEVERAL, 2, class_weights=weights) for weights in (None, [1.0, 0.0]))
    assert np.abs(weighted.weights[:, 1]).max() < 1e-3, "a label without weight pulls at nothing"
    assert np.abs(weighted.weights[:, 0]).max() > 0.1 * np.abs(plain.weights[:, 0]).max()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_embedding_that_is_not_finite_is_refused_with_its_row(value: float) -> None:
    features, targets = drawn(2_000)
    features[1_233, 3] = features[1_500, 0] = value
    with pytest.raises(DataError) as caught:
        fit_linear(features, targets, CLASSES, 2)
    assert caught.value.problem == "the embedding of row 1,234 is not finite"
    assert "precision fp32" in caught.value.remedy


def test_the_lowest_point_is_as_low_as_that_of_scipy_in_as_many_steps() -> None:
    """Losses that are steep in some directions, flat in others, far from a parabola, or rounded to fp32."""
    for seed in range(20):
        source = np.random.default_rng(seed)
        matrix = source.normal(size=(40, 12)) * 10 ** source.uniform(-0.7, 0.7, 12)
        wanted = source.normal(size=40)
        calls = 0

        def loss_and_slope(
            point: Array, matrix: Array = matrix, wanted: Array = wanted, seed: int = seed
        ) -> tuple[float, Array]:
            nonlocal calls
            calls += 1
            apart = matrix @ point - wanted
            loss = float(np.logaddexp(apart, -apart).sum() + point @ point)
            loss = float(np.float32(loss)) if seed % 4 == 0 else loss
            return loss, matrix.T @ np.tanh(apart) + 2 * point

        start = source.normal(size=12)
        options = {"maxiter": 100, "maxcor": 10, "ftol": 1e-6, "gtol": 1e-3}
        reference = minimize(loss_and_slope, start, jac=True, method="L-BFGS-B", options=options)
        calls = 0
        found = loss_and_slope(lowest_point(loss_and_slope, start))[0]
        assert found <= reference.fun * (1 + 1e-4)
        assert calls <= 2 * reference.nfev + 10
    assert np.array_equal(lowest_point(lambda point: (0.0, np.zeros(3)), np.ones(3)), np.ones(3))
    stuck = lowest_point(lambda point: (float(np.abs(point).sum() > 0), np.ones(3)), np.zeros(3))
    assert np.array_equal(stuck, np.zeros(3)), "no step lowers this loss"
