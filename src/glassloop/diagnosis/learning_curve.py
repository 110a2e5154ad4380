"""What more labelled rows would bring: scores of growing training sets, a fitted power law, and what it says of larger ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glassloop.base.errors import DataError, counted
from glassloop.base.output import advance, stage
from glassloop.data.examples import Examples
from glassloop.diagnosis.embeddings import sampled
from glassloop.diagnosis.rows import surveyed
from glassloop.models.linear import assigned_folds, fit_linear
from glassloop.scores.metrics import Array
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

SEEDS, FOLDS = 5, 5
SHARES = (0.0625, 0.125, 0.25, 0.5, 1.0)  # of the rows that may be trained on; each part contains the one before
LEAST_ROWS, LEAST_POINTS = 20, 3
LEAST_IN_ALL = 60
MORE = (0.25, 0.5, 1.0, 2.0)  # further rows, as a share of those there are
EXPONENTS = np.linspace(0.05, 1.5, 59)  # of the power law
FLOORS = np.linspace(0.0, 1.0, 41)  # the error that remains, as a share of the smallest one that was measured
DRAWS = 4_000
LEVEL = (0.025, 0.975)
SCORE_NAMES = {CLASSES: "accuracy", SEVERAL: "labels right", SCORE: "explained variance"}


@dataclass(frozen=True)
class Point:
    """The scores of training sets of one size: one for each seed, on rows that they do not contain."""

    rows: int
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.scores))


@dataclass(frozen=True)
class Forecast:
    """The expected score with more rows, and the gain over the present number, with 95% prediction intervals."""

    more: int
    rows: int
    score: float
    low: float
    high: float
    gain: float
    gain_low: float
    gain_high: float


@dataclass(frozen=True)
class ClassGain:
    """How the recall of a class changed when the number of rows was doubled for the last time."""

    label: str
    rows: int
    before: float
    after: float
    low: float  # of the change, over the seeds
    high: float


@dataclass(frozen=True)
class LearningCurve:
    """A learning curve of a regression on the embeddings, and what it says of more rows."""

    metric: str
    rows: int  # with which the last point was trained
    evaluated: int  # different rows that were predicted
    points: tuple[Point, ...]
    forecasts: tuple[Forecast, ...]
    classes: tuple[ClassGain, ...]

    @property
    def doubled(self) -> Forecast:
        """The forecast for about twice the rows."""
        return self.forecasts[MORE.index(1.0)]

    def sentence(self) -> str:
        """Return what twice the rows are expected to bring."""
        one = self.doubled
        return f"{counted(one.more, 'more row', 'more rows')}: {points_of(one.gain)} points ({span_of(one)})"


def points_of(gain: float) -> str:
    return f"{100 * gain:+.1f}"


def span_of(one: Forecast) -> str:
    return f"{100 * one.gain_low:.1f} to {100 * one.gain_high:.1f}"


def learning_curve(
    examples: Examples, model: str, *, max_length: int | None = None, device: str = "auto", most_rows: int | None = None
) -> LearningCurve:
    """Measure and extend the learning curve of a regression on the embeddings of all rows with labels.

    Args:
        examples: The data.
        model: The pretrained model that embeds the rows.
        max_length: Number of tokens after which a row is cut. Default: as many as the model takes.
        device: The device to embed on.
        most_rows: Rows to embed at most.

    Raises:
        DataError: There are too few different rows with labels.
    """
    sample = sampled(surveyed(examples), model, max_length, device, most_rows)
    rows = np.flatnonzero(sample.labelled)
    names = examples.labels.names if examples.labels else ()
    with stage("measuring the learning curve", SEEDS * len(SHARES)):
        return measured_curve(
            sample.features[rows], sample.targets[rows], sample.task, examples.num_labels, sample.groups[rows], names
        )


def measured_curve(
    features: Array, targets: Array, task: str, num_labels: int, groups: Array, names: Sequence[str] = ()
) -> LearningCurve:
    """Train on nested parts of the rows with several seeds, each time without one fold, which is predicted."""
    different = len(np.unique(groups))
    if different < LEAST_IN_ALL:
        problem = f"a learning curve needs at least {LEAST_IN_ALL} different rows with labels, but there are {different:,}"
        raise DataError(problem, "label more rows first")
    sizes = sizes_of(len(targets))
    right: list[list[Array]] = [[] for _ in sizes]
    held: list[Array] = []
    folds = assigned_folds(targets, task, groups, FOLDS)  # each seed predicts another fold, so that all rows are predicted
    for seed in range(SEEDS):
        random = np.random.default_rng(seed)
        held.append(np.flatnonzero(folds == seed))
        rest = random.permutation(np.flatnonzero(folds != seed))
        for place, size in enumerate(sizes):
            chosen = nested(rest, targets, task)[:size]
            fitted = fit_linear(features[chosen], targets[chosen], task, num_labels, groups[chosen])
            right[place].append(rightness(fitted.outputs(features[held[-1]]), targets[held[-1]], task))
            advance(1)
    points = tuple(
        Point(size, tuple(scores_of(part, targets, rows, task) for part, rows in zip(each, held, strict=True)))
        for size, each in zip(sizes, right, strict=True)
    )
    classes = class_gains(right[-2], right[-1], held, targets, names) if task == CLASSES else ()
    number = len(np.concatenate(held))
    more = [int(round(len(targets) * share, -1)) for share in MORE]
    forecasts = forecast(points, len(targets), more, number)
    return LearningCurve(SCORE_NAMES[task], len(targets), number, points, forecasts, tuple(classes))


def sizes_of(number: int) -> list[int]:
    """Return the sizes of the training sets, for folds that leave out one part of the rows."""
    most = number - -(-number // FOLDS)
    sizes = [int(most * share) for share in SHARES]
    return [size for size in sizes if size >= LEAST_ROWS][-len(SHARES) :] or [most]


def nested(rest: Array, targets: Array, task: str) -> Array:
    """Return rows in an order in which every beginning has the classes in about their shares."""
    if task != CLASSES:
        return rest
    order = np.empty(len(rest))
    for label in np.unique(targets[rest]):
        inside = np.flatnonzero(targets[rest] == label)
        order[inside] = (np.arange(len(inside)) + 0.5) / len(inside)
    return np.asarray(rest[np.argsort(order, kind="stable")])


def rightness(outputs: Array, targets: Array, task: str) -> Array:
    """Return how right each row is predicted: 0 or 1, the share of its labels, or the squared error."""
    if task == SCORE:
        return np.asarray(np.square(outputs[:, 0] - targets))
    if task == SEVERAL:
        return np.asarray(((outputs > 0) == targets).mean(axis=1))
    return np.asarray(outputs.argmax(axis=1) == targets, dtype=np.float64)


def scores_of(part: Array, targets: Array, rows: Array, task: str) -> float:
    mean = float(part.mean())
    return 1 - mean / max(float(targets[rows].var()), 1e-12) if task == SCORE else mean


# --- the power law -------------------------------------------------------------------------------------------------------
def forecast(points: Sequence[Point], now: int, more: Sequence[int], evaluated: int) -> tuple[Forecast, ...]:
    """Return the expected scores with more rows, by a power law: the error falls to a floor as rows to the minus c."""
    # Which floor and which exponent is hardly determined by a few points, so all that fit count, each as likely as it fits.
    sizes = np.array([point.rows for point in points], dtype=np.float64)
    errors = 1 - np.array([point.mean for point in points])
    spread = np.array([np.std(point.scores, ddof=1) if len(point.scores) > 1 else 0.0 for point in points])
    deviation = np.maximum(spread / np.sqrt([len(point.scores) for point in points]), 1e-3)
    floors, exponents = (grid.ravel() for grid in np.meshgrid(FLOORS * max(float(errors.min()), 0.0), EXPONENTS))
    basis = (sizes[None, :] / now) ** -exponents[:, None]
    weights = 1 / deviation**2
    wanted = errors[None, :] - floors[:, None]
    slopes = np.maximum((basis * wanted * weights).sum(axis=1) / (basis**2 * weights).sum(axis=1), 0.0)
    misfit = (np.square(wanted - slopes[:, None] * basis) * weights).sum(axis=1)
    scale = max(float(misfit.min()) / max(len(points) - 2, 1), 1.0)
    likely = np.exp(-(misfit - misfit.min()) / (2 * scale))
    random = np.random.default_rng(0)
    chosen = random.choice(len(likely), DRAWS, p=likely / likely.sum())
    slope_error = (scale / (basis**2 * weights).sum(axis=1)) ** 0.5
    slope = np.maximum(slopes[chosen] + slope_error[chosen] * random.normal(size=DRAWS), 0.0)
    # The error of the score itself: the rows that were predicted are a sample, too.
    usual = float(errors[-1])
    of_rows = max((max(usual * (1 - usual), 0.0) / evaluated) ** 0.5, float(deviation[-1]))
    noise = of_rows * random.normal(size=DRAWS)
    # What the same rows change between two sizes differs from seed to seed, beyond what the law can say.
    steps = np.subtract(points[-1].scores, points[-2].scores) if len(points) > 1 else np.zeros(1)
    unsteady = float(np.std(steps, ddof=1)) / len(steps) ** 0.5 if len(steps) > 1 else 0.0
    shift = unsteady * random.normal(size=DRAWS)
    found = []
    for extra in more:
        gain = slope * (1 - (1 + extra / now) ** -exponents[chosen]) + shift
        scores = 1 - floors[chosen] - slope * (1 + extra / now) ** -exponents[chosen] + noise
        ends = [*np.quantile(scores, LEVEL), *np.quantile(gain, LEVEL)]
        low, high, gain_low, gain_high = (float(end) for end in ends)
        found.append(
            Forecast(int(extra), now + int(extra), float(scores.mean()), low, high, float(gain.mean()), gain_low, gain_high)
        )
    return tuple(found)


def class_gains(
    before: Sequence[Array], after: Sequence[Array], held: Sequence[Array], targets: Array, names: Sequence[str]
) -> list[ClassGain]:
    """Return the change of the recall of each class between half of the rows and all, with those that gain most first."""
    found = []
    for label, name in enumerate(names):
        masks = [targets[rows] == label for rows in held]
        counts = np.array([mask.sum() for mask in masks])
        if counts.min() < 2:
            continue
        recalls = [np.array([one[mask].mean() for one, mask in zip(part, masks, strict=True)]) for part in (before, after)]
        changes = recalls[1] - recalls[0]
        reach = 2.776 * float(changes.std(ddof=1)) / len(changes) ** 0.5  # Student's t with four degrees of freedom
        mean = float(changes.mean())
        recall = (float(recalls[0].mean()), float(recalls[1].mean()))
        found.append(ClassGain(name, int(counts.sum()), *recall, mean - reach, mean + reach))
    return sorted(found, key=lambda one: one.before - one.after)
