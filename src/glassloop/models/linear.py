"""Linear models on fixed features: logistic and ridge regression, whose strength is chosen by cross-validation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch.nn import functional

from glassloop.base.errors import DataError
from glassloop.scores.baselines import prior_outputs, row_losses
from glassloop.scores.metrics import Array
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

FOLDS = 5
# Inverse penalties of features whose mean squared length is SQUARED_LENGTH. Lower ones come first: each solution starts
# from the one before.
STRENGTHS = tuple(10 ** (place * 2 / 3) for place in range(-5, 5))
SQUARED_LENGTH = 20.0
WORSE_IN_A_ROW = 2  # strengths with a higher loss than the best one, after which higher ones are not tried
# Products of rows, features and outputs, beyond which fp32 is used, and beyond which one fold chooses the strength.
LARGE, VERY_LARGE = 1e7, 1e8
MOST_ROWS = 200_000  # more rows hardly change a linear model of a few hundred features
MOST_ITERATIONS, TOLERANCE, CORRECTIONS = 100, 1e-6, 10
SMALLEST = 1e-9  # principal axes with less than this share of the largest are rounding errors


@dataclass(frozen=True)
class LinearModel:
    """A linear model, and what it predicts for its own rows if they are held out."""

    weights: Array  # features x outputs
    bias: Array
    strength: float  # the chosen inverse penalty
    held_out: Array  # the outputs for each row by a model that was fitted without its fold; NaN if no fold held it out

    def outputs(self, features: Array) -> Array:
        """Return logits, or a score, of each row."""
        return np.asarray(features @ self.weights + self.bias)


def fit_linear(
    features: Array, targets: Array, task: str, num_outputs: int, groups: Array | None = None, *, all_folds: bool = False
) -> LinearModel:
    """Fit classes, several labels (0 and 1) or scores to features.

    Args:
        features: One row of numbers per example.
        targets: A class number per row, a row of 0 and 1 per row, or a score per row.
        task: What the targets are.
        num_outputs: The number of classes or labels; 1 for scores.
        groups: Rows with equal numbers, such as those with the same text, are always held out together.
        all_folds: Hold out every row once, even if there are so many that one fold is enough to choose the strength.

    Raises:
        DataError: A feature is not finite.
    """
    if not (sound := np.isfinite(features).all(axis=1)).all():
        problem = f"the embedding of row {int(np.argmin(sound)) + 1:,} is not finite"
        raise DataError(problem, "use precision fp32; if that does not help, the weights of the model are damaged")
    rows = np.arange(len(features))
    if len(rows) > MOST_ROWS:
        rows = np.sort(np.random.default_rng(0).choice(len(features), MOST_ROWS, replace=False))
    center = features[rows].mean(axis=0, dtype=np.float64)
    length = float(np.sqrt(np.square(features[rows] - center).sum(axis=1, dtype=np.float64).mean()))
    factor = SQUARED_LENGTH**0.5 / length if length > 0 else 0.0
    size = len(rows) * min(features.shape) * num_outputs
    fit = partial(solutions, task=task, num_outputs=num_outputs, dtype=torch.float32 if size > LARGE else torch.float64)
    scaled = (features - center) * factor
    folds = assigned_folds(targets, task, groups)
    used = [fold for fold in range(FOLDS) if (folds == fold).any() and (folds != fold).any()]
    used = used if all_folds or size <= VERY_LARGE else used[:1]
    paths = [fit(scaled[rows][folds[rows] != fold], targets[rows][folds[rows] != fold]) for fold in used]
    best, place, worse = np.inf, 0, 0
    found = np.full((len(features), num_outputs), np.nan)
    for number in range(len(STRENGTHS)):
        outputs = np.full_like(found, np.nan)
        for fold, path in zip(used, paths, strict=True):
            weights, bias = next(path)
            outputs[folds == fold] = scaled[folds == fold] @ weights + bias
        held = ~np.isnan(outputs[:, 0])
        loss = float(row_losses(outputs[held], targets[held], task).mean()) if held.any() else 0.0
        if loss < best:
            best, place, found, worse = loss, number, outputs, 0
        elif (worse := worse + 1) >= WORSE_IN_A_ROW:
            break
    path = fit(scaled[rows], targets[rows])
    for _ in range(place):
        next(path)
    weights, bias = next(path)
    return LinearModel(weights * factor, bias - (center * factor) @ weights, STRENGTHS[place], found)


def solutions(
    features: Array, targets: Array, *, task: str, num_outputs: int, dtype: torch.dtype
) -> Iterator[tuple[Array, Array]]:
    """Yield weights and bias for one strength after the other."""
    # Along the principal axes the penalized problem is nearly diagonal: a handful of iterations solve it.
    center = features.mean(axis=0)
    matrix = torch.from_numpy(features - center).to(dtype)
    gram = (matrix.T @ matrix if len(features) > features.shape[1] else matrix @ matrix.T).double()
    squares, vectors = torch.linalg.eigh(gram)
    kept = squares > SMALLEST * squares.max().clamp(min=1e-30)
    squares, vectors = squares[kept], vectors[:, kept].to(dtype)
    axes = vectors if len(features) > features.shape[1] else matrix.T @ vectors / squares.sqrt().to(dtype)
    rotated, back = matrix @ axes, axes.double().numpy()
    start = prior_outputs(targets, task, num_outputs)
    if task == SCORE:
        pull = (rotated.T @ torch.from_numpy(targets - start).to(dtype)).double().numpy()
        for strength in STRENGTHS:
            weights = back @ (pull / (squares.numpy() + 1 / strength))
            yield weights[:, None], start - center @ weights
        return
    curvature = squares.numpy() * (0.25 if task == SEVERAL else max(0.5 / num_outputs, 0.05))
    solution = np.concatenate([np.zeros((rotated.shape[1], num_outputs)), start[None]])
    for strength in STRENGTHS:
        solution = minimized(rotated, targets, task, strength, solution, start, curvature)
        weights = back @ solution[:-1]
        yield weights, solution[-1] - center @ weights


def minimized(
    features: torch.Tensor, targets: Array, task: str, strength: float, first: Array, prior: Array, curvature: Array
) -> Array:
    """Return weights, and below them the bias, that minimize the sum of the losses plus the penalty."""
    from scipy.optimize import minimize

    # The bias has a penalty, too: it is as if each class had one row more, so that a class without rows stays finite.
    spread = np.append((curvature + 1 / strength) ** -0.5, (len(features) / (4 * max(len(prior), 2)) + 1) ** -0.5)[:, None]
    wanted = torch.from_numpy(targets)
    marks = wanted.to(features.dtype) if task == SEVERAL else None

    def loss_and_slope(values: Array) -> tuple[float, Array]:
        solution = values.reshape(first.shape) * spread
        weights, bias = torch.from_numpy(solution[:-1]).to(features.dtype), torch.from_numpy(solution[-1]).to(features.dtype)
        outputs = torch.addmm(bias, features, weights)
        if marks is not None:
            loss = functional.binary_cross_entropy_with_logits(outputs, marks, reduction="sum")
            pull = torch.sigmoid(outputs) - marks
        else:
            loss = functional.cross_entropy(outputs, wanted, reduction="sum")
            pull = torch.softmax(outputs, 1)
            pull[torch.arange(len(pull)), wanted] -= 1
        slope = np.concatenate([(features.T @ pull).double().numpy(), pull.sum(0, keepdim=True).double().numpy()])
        apart = solution[-1] - prior
        slope[:-1] += solution[:-1] / strength
        slope[-1] += apart
        penalty = float(np.square(solution[:-1]).sum()) / (2 * strength) + float(np.square(apart).sum()) / 2
        return float(loss) + penalty, (slope * spread).ravel()

    options = {"maxiter": MOST_ITERATIONS, "maxcor": CORRECTIONS, "ftol": TOLERANCE, "gtol": 1e-3}
    found = minimize(loss_and_slope, (first / spread).ravel(), jac=True, method="L-BFGS-B", options=options)
    return np.asarray(found.x.reshape(first.shape) * spread)


def assigned_folds(targets: Array, task: str, groups: Array | None = None, folds: int = FOLDS, seed: int = 0) -> Array:
    """Return the fold of each row: equally many rows of each class in each fold, and equal texts in the same one."""
    _, firsts, members = np.unique(
        np.arange(len(targets)) if groups is None else groups, return_index=True, return_inverse=True
    )
    order = np.random.default_rng(seed).permutation(len(firsts))
    if task == CLASSES:
        order = order[np.argsort(targets[firsts][order], kind="stable")]
    numbers = np.empty(len(firsts), dtype=np.int64)
    numbers[order] = np.arange(len(firsts)) % folds
    return np.asarray(numbers[members])
