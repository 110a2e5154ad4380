"""Linear models on embeddings: logistic and ridge regression, whose strength is chosen on held-out rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn needs it, too
from torch.nn import functional

from glassloop.base.errors import DataError
from glassloop.scores.calibration import output_losses, prior_outputs
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
# Of L-BFGS: it ends if the loss falls by less than this share, or if no slope is steeper than FLAT.
MOST_ITERATIONS, TOLERANCE, FLAT, CORRECTIONS = 100, 1e-6, 1e-3, 10
MOST_TRIALS, ENOUGH = (
    20,
    1e-4,
)  # lengths of a step that are tried, until the loss falls by this share of what the slope promises
ROUNDING = 1e-5  # of the length of features: those that differ by less are equal but for the rounding of an encoder in fp32
SMALLEST = 1e-9  # principal axes with less than this share of the largest are rounding errors
ROWS_AT_ONCE = 10_000  # rows that are copied to fp64 at a time


@dataclass(frozen=True)
class LinearModel:
    """A linear model, and how well it predicts its own rows if they are held out."""

    weights: Array  # features x outputs
    bias: Array
    strength: float  # the chosen inverse penalty
    held_out: Array  # the loss of each row for a model that was fitted without its fold; NaN if no fold held it out
    held_out_outputs: Array | None = None  # what that model gives each row, if it was asked for

    def outputs(self, features: Array) -> Array:
        """Return logits, or a score, of each row."""
        return np.asarray(features @ self.weights + self.bias)


def fit_linear(
    features: Array, targets: Array, task: str, num_outputs: int, groups: Array | None = None,
    class_weights: Sequence[float] | None = None, *, all_held_out: bool = False,
) -> LinearModel:  # fmt: skip
    """Fit classes, several labels (0 and 1) or scores to features.

    Args:
        features: One row of numbers per example.
        targets: A class number per row, a row of 0 and 1 per row, or a score per row.
        task: What the targets are.
        num_outputs: The number of classes or labels; 1 for scores.
        groups: Rows with equal numbers, such as those with the same text, are always held out together.
        class_weights: The weight of each class or label in the loss; None if all count the same.
        all_held_out: Keep the held-out outputs, and let every fold hold out its rows, also of a large problem.

    Raises:
        DataError: A feature is not finite.
    """
    rows = np.arange(len(features))
    refuse_infinite(features, rows)
    if len(rows) > MOST_ROWS:
        rows = np.sort(np.random.default_rng(0).choice(len(features), MOST_ROWS, replace=False))
    size = len(rows) * min(features.shape) * num_outputs
    dtype = torch.float32 if size > LARGE else torch.float64
    folds = assigned_folds(targets, task, groups)
    used = [fold for fold in range(FOLDS) if (folds == fold).any() and (folds[rows] != fold).any()]
    used = used if size <= VERY_LARGE or all_held_out else used[:1]
    weights_of_classes = None if class_weights is None else mean_one(class_weights, targets, task)
    # numpy, scipy and torch each have threads that wait in empty loops, so together they are up to a hundred times slower
    # than one thread. Small problems are solved in one thread, large ones in those of torch.
    with threadpool_limits(1, "blas" if size > LARGE else None):
        scaled, center, factor = scaled_features(torch.from_numpy(features), rows, dtype)
        data = rotated(scaled[rows])
        fit = partial(solutions, data, targets[rows], task=task, num_outputs=num_outputs, class_weights=weights_of_classes)
        paths = [fit(folds[rows] != fold) for fold in used]
        best, place, worse = np.inf, 0, 0
        found = np.full(len(features), np.nan)
        kept = np.zeros((len(features) if all_held_out else 0, num_outputs), dtype=np.float32)
        held = np.isin(folds, used)
        for number in range(len(STRENGTHS)):
            losses, given = np.full_like(found, np.nan), np.full_like(kept, np.nan)
            for fold, path in zip(used, paths, strict=True):
                weights, bias = next(path)
                outputs = torch.addmm(bias.to(dtype), scaled[folds == fold], weights.to(dtype)).double().numpy()
                losses[folds == fold] = output_losses(outputs, targets[folds == fold], task, weights_of_classes)
                if all_held_out:
                    given[folds == fold] = outputs
            loss = float(losses[held].mean()) if held.any() else 0.0
            if loss < best:
                best, place, found, kept, worse = loss, number, losses, given, 0
            elif (worse := worse + 1) >= WORSE_IN_A_ROW:
                break
        weights, bias = next(islice(fit(np.ones(len(rows), dtype=bool)), place, None))
        weights = weights * factor
        held_out = kept if all_held_out else None
        return LinearModel(weights.numpy(), (bias - center @ weights).numpy(), STRENGTHS[place], found, held_out)


def mean_one(class_weights: Sequence[float], targets: Array, task: str) -> Array:
    """Return class weights times a factor with which a row, or with several labels a label, weighs 1 on average."""
    # Else twice the weights would be half the penalty.
    weights = np.asarray(class_weights, dtype=np.float64)
    mean = float((weights if task == SEVERAL else weights[targets]).mean())
    return weights / mean if mean > 0 else weights


def refuse_infinite(features: Array, numbers: Array, split: str = "") -> None:
    """Raise `DataError` with the number of the first row of a split whose features are not finite."""
    if not (sound := np.isfinite(features).all(axis=1)).all():
        problem = f"{split and f'{split}: '}the embedding of row {int(numbers[np.argmin(sound)]) + 1:,} is not finite"
        raise DataError(problem, "use precision fp32; if that does not help, the weights of the model are damaged")


def scaled_features(features: torch.Tensor, rows: Array, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return features minus the center of some rows, times a factor that makes their mean squared length `SQUARED_LENGTH`."""
    center = features[rows].mean(dim=0, dtype=torch.float64)
    around = features.to(dtype) - center.to(dtype)
    length = float(around[rows].square().sum(dim=1).mean(dtype=torch.float64)) ** 0.5
    factor = SQUARED_LENGTH**0.5 / length if length > ROUNDING * float(center.norm()) else 0.0
    return around.mul_(factor), center, factor


@dataclass(frozen=True)
class Rotated:
    """Centered features along their principal axes, where the penalized problem is nearly diagonal: few iterations solve it."""

    # All folds share the axes: the penalty does not depend on the direction, so the solutions do not either.
    features: torch.Tensor  # rows x axes
    axes: torch.Tensor  # features x axes
    squares: torch.Tensor  # along each axis

    @cached_property
    def gram(self) -> torch.Tensor:
        # In fp32 the features are rounded by more than a small penalty, so their squares are no longer those of the axes.
        return self.squares.diag() if self.features.dtype == torch.float64 else product(self.features, self.features)


def rotated(features: torch.Tensor) -> Rotated:
    many = len(features) > features.shape[1]
    squares, vectors = torch.linalg.eigh(product(features, features) if many else features.double() @ features.double().T)
    kept = squares > SMALLEST * squares.max().clamp(min=1e-30)
    squares, vectors = squares[kept], vectors[:, kept]
    axes = vectors if many else features.double().T @ vectors / squares.sqrt()
    return Rotated(features @ axes.to(features.dtype), axes, squares)


def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return left^T @ right in fp64, without a copy of all rows in fp64."""
    parts = zip(torch.split(left, ROWS_AT_ONCE), torch.split(right, ROWS_AT_ONCE), strict=True)
    total = torch.zeros(left.shape[1], right.shape[1], dtype=torch.float64)
    for some, others in parts:
        total.addmm_(some.double().T, others.double())
    return total


def solutions(
    data: Rotated, targets: Array, chosen: Array, *, task: str, num_outputs: int, class_weights: Array | None = None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield weights and bias, fitted to the `chosen` rows, for one strength after the other."""
    features, targets = data.features[chosen], targets[chosen]
    start = prior_outputs(targets, task, num_outputs, class_weights)
    if task == SCORE:
        center, others = features.mean(dim=0, dtype=torch.float64), data.features[~chosen]
        gram = data.gram - product(others, others) - len(features) * center.outer(center)
        pull = product(features, torch.from_numpy(targets - start)[:, None])
        for strength in STRENGTHS:
            factors = torch.linalg.cholesky(gram + torch.eye(len(gram), dtype=torch.float64) / strength)
            solution = torch.cholesky_solve(pull, factors)
            yield data.axes @ solution, torch.from_numpy(start) - center @ solution
        return
    curvature = data.squares.numpy() * (0.25 if task == SEVERAL else max(0.5 / num_outputs, 0.05))
    values = np.concatenate([np.zeros((features.shape[1], num_outputs)), start[None]])
    for strength in STRENGTHS:
        values = minimized(features, targets, task, strength, values, start, curvature, class_weights)
        yield data.axes @ torch.from_numpy(values[:-1]), torch.from_numpy(values[-1])


def minimized(
    features: torch.Tensor, targets: Array, task: str, strength: float, first: Array, prior: Array, curvature: Array,
    class_weights: Array | None = None,
) -> Array:  # fmt: skip
    """Return weights, and below them the bias, that minimize the sum of the losses plus the penalty."""
    # The bias has a penalty, too: it is as if each class had one row more, so that a class without rows stays finite.
    spread = np.append((curvature + 1 / strength) ** -0.5, (len(features) / (4 * max(len(prior), 2)) + 1) ** -0.5)[:, None]
    wanted = torch.from_numpy(targets)
    marks = wanted.to(features.dtype) if task == SEVERAL else None
    weights_of_classes = None if class_weights is None else torch.from_numpy(class_weights).to(features.dtype)

    def loss_and_slope(values: Array) -> tuple[float, Array]:
        solution = values.reshape(first.shape) * spread
        weights, bias = torch.from_numpy(solution[:-1]).to(features.dtype), torch.from_numpy(solution[-1]).to(features.dtype)
        outputs = torch.addmm(bias, features, weights)
        if marks is not None:
            loss = functional.binary_cross_entropy_with_logits(outputs, marks, weights_of_classes, reduction="sum")
            pull = torch.sigmoid(outputs) - marks
        else:
            loss = functional.cross_entropy(outputs, wanted, weights_of_classes, reduction="sum")
            pull = torch.softmax(outputs, 1)
            pull[torch.arange(len(pull)), wanted] -= 1
        if weights_of_classes is not None:
            pull *= weights_of_classes if marks is not None else weights_of_classes[wanted, None]
        slope = np.concatenate([(features.T @ pull).double().numpy(), pull.sum(0, keepdim=True).double().numpy()])
        apart = solution[-1] - prior
        slope[:-1] += solution[:-1] / strength
        slope[-1] += apart
        penalty = float(np.square(solution[:-1]).sum()) / (2 * strength) + float(np.square(apart).sum()) / 2
        return float(loss) + penalty, (slope * spread).ravel()

    return np.asarray(lowest_point(loss_and_slope, (first / spread).ravel()).reshape(first.shape) * spread)


# SciPy's would do as well, but importing scipy.optimize takes a quarter of a second, at the start of every run.
def lowest_point(loss_and_slope: Callable[[Array], tuple[float, Array]], point: Array) -> Array:
    """Return where a smooth convex function is lowest, by L-BFGS with backtracking; it ends like L-BFGS-B of SciPy."""
    loss, slope = loss_and_slope(point)
    moves: deque[tuple[Array, Array, float]] = deque(maxlen=CORRECTIONS)  # steps, changes of the slope, and their products
    for _ in range(MOST_ITERATIONS):
        if np.abs(slope).max() <= FLAT:
            break
        direction, shares = -slope, []
        for step, change, both in reversed(moves):
            shares.append(step @ direction / both)
            direction = direction - shares[-1] * change
        if moves:
            direction = direction * (moves[-1][2] / (moves[-1][1] @ moves[-1][1]))
        for (step, change, both), share in zip(moves, reversed(shares), strict=True):
            direction = direction + (share - change @ direction / both) * step
        descent, length = float(slope @ direction), 1.0
        for _ in range(MOST_TRIALS):
            found, new_slope = loss_and_slope(point + length * direction)
            if found <= loss + ENOUGH * length * descent:
                break
            # The lowest point of the parabola through both losses and the slope, but not too near to either end.
            lowest = -descent * length / (2 * ((found - loss) / length - descent))
            length = float(np.clip(lowest, 0.1 * length, 0.5 * length))
        else:
            break  # only rounding is left
        step, change, gain = length * direction, new_slope - slope, loss - found
        point, loss, slope = point + step, found, new_slope
        if (both := float(step @ change)) > 0:
            moves.append((step, change, both))
        if gain <= TOLERANCE * max(abs(loss + gain), abs(loss), 1.0):
            break
    return point


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
