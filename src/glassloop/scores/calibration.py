"""Whether probabilities match observed frequencies: reliability, temperature, thresholds, and what they gain on other rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from glassloop.runs.record import COST, F1, PRECISION, Gain, Target
from glassloop.scores.comparisons import share_interval
from glassloop.scores.intervals import ScoredRows, t_interval
from glassloop.scores.metrics import Array, probabilities
from glassloop.settings.training import CLASSES, SEVERAL

BINS = 15
MOST_POINTS = 200  # of a curve
LOWEST, HIGHEST = 0.01, 100.0  # temperatures
LEAST_SURE, MOST_SURE = 0.02, 50.0  # a temperature outside is not determined by the rows


@dataclass(frozen=True)
class Bin:
    """Answers with similar confidence: how many, their mean confidence, and the share that is right."""

    low: float
    high: float
    number: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Reliability:
    """The bins that hold answers, and the expected calibration error: the mean gap, weighted by their numbers."""

    bins: tuple[Bin, ...]
    error: float


def confidences(rows: ScoredRows, temperature: float | Array = 1.0) -> tuple[Array, Array]:
    """Return the confidence of each answer and whether it is right. Several labels are one answer each.

    Args:
        rows: The predictions of a classifier.
        temperature: What the logits are divided by first; or one temperature of each row (rows x 1).
    """
    likely = probabilities(rows.logits / temperature, rows.task)
    if rows.task == CLASSES:
        return likely[np.arange(len(rows)), rows.predictions], rows.right
    chosen = np.where(rows.predictions == 1, likely, 1 - likely)
    return chosen.ravel(), (rows.predictions == rows.references).ravel()


def reliability(confidence: Array, right: Array, bins: int = BINS) -> Reliability:
    """Return the reliability of answers in bins of equal width.

    Args:
        confidence: The probability of each answer.
        right: Whether each answer is right.
        bins: Number of bins between 0 and 1.
    """
    place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    number = np.bincount(place, minlength=bins)
    sums = [np.bincount(place, weights=values, minlength=bins) for values in (confidence, right.astype(np.float64))]
    found = tuple(
        Bin(one / bins, (one + 1) / bins, int(number[one]), sums[0][one] / number[one], sums[1][one] / number[one])
        for one in range(bins)
        if number[one]
    )
    error = sum(part.number * abs(part.accuracy - part.confidence) for part in found) / max(len(confidence), 1)
    return Reliability(found, float(error))


def negative_log_likelihood(rows: ScoredRows, temperature: float = 1.0) -> float:
    """Return the mean loss of a classifier's rows with logits divided by a temperature, without class weights."""
    return float(row_losses(rows, temperature).mean())


def row_losses(rows: ScoredRows, temperature: float | Array = 1.0) -> Array:
    """Return the loss of each row of a classifier with logits divided by a temperature, or by one of each row (rows x 1)."""
    logits = rows.logits / temperature
    if rows.task == SEVERAL:
        return np.asarray(np.logaddexp(0, np.where(rows.references == 1, -logits, logits)).mean(axis=1))
    top = logits.max(axis=1)
    total = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
    return np.asarray(total - logits[np.arange(len(rows)), rows.references])


def fitted_temperature(rows: ScoredRows) -> float:
    """Return the temperature that minimises the loss on these rows (Guo et al. 2017).

    The loss is convex in the inverse of the temperature, so its slope is halved down to 0. The result is between 0.01 and
    100; a border means that the rows give no finite optimum, such as rows without errors.
    """
    wanted = rows.references if rows.task == SEVERAL else np.eye(rows.logits.shape[1])[rows.references]
    pull = float((wanted * rows.logits).sum())

    def slope(log_inverse: float) -> float:
        likely = probabilities(rows.logits * np.exp(log_inverse), rows.task)
        return float((likely * rows.logits).sum()) - pull

    low, high = -np.log(HIGHEST), -np.log(LOWEST)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return float(np.exp(-(low + high) / 2))


def determined_temperature(rows: ScoredRows) -> float:
    """Return the fitted temperature, or 1 if the rows do not determine one, such as rows without errors."""
    found = fitted_temperature(rows)
    return found if LEAST_SURE < found < MOST_SURE else 1.0


@dataclass(frozen=True)
class ThresholdCurve:
    """Scores of one class for each threshold: rows with at least this probability are answered with the class."""

    thresholds: Array
    precision: Array
    recall: Array
    f1: Array
    answered: Array  # share of rows at or above the threshold


def threshold_curve(probability: Array, positive: Array, most_points: int = MOST_POINTS) -> ThresholdCurve:
    """Return precision, recall, F1 and the share of rows answered for each threshold.

    Args:
        probability: The probability of the class for each row.
        positive: Whether each row has the class.
        most_points: Number of thresholds to keep, spread evenly over the rows.
    """
    order = np.argsort(-probability, kind="stable")
    sorted_probability, hits = probability[order], np.cumsum(positive[order])
    last = np.flatnonzero(np.append(np.diff(sorted_probability) != 0, True))  # the last row of each threshold
    last = _thinned(last, most_points)
    answered = last + 1
    precision, recall = hits[last] / answered, hits[last] / max(int(positive.sum()), 1)
    f1 = 2 * hits[last] / (answered + max(int(positive.sum()), 1))
    return ThresholdCurve(sorted_probability[last], precision, recall, f1, answered / len(probability))


@dataclass(frozen=True)
class CoverageCurve:
    """The accuracy of the most confident answers, against the share of rows answered."""

    thresholds: Array
    answered: Array
    accuracy: Array


def coverage_curve(confidence: Array, right: Array, most_points: int = MOST_POINTS) -> CoverageCurve:
    """Return the accuracy of the rows whose confidence reaches each threshold.

    Args:
        confidence: The probability of each answer.
        right: Whether each answer is right.
        most_points: Number of thresholds to keep, spread evenly over the rows.
    """
    order = np.argsort(-confidence, kind="stable")
    ordered, hits = confidence[order], np.cumsum(right[order])
    last = _thinned(np.flatnonzero(np.append(np.diff(ordered) != 0, True)), most_points)
    return CoverageCurve(ordered[last], (last + 1) / len(confidence), hits[last] / (last + 1))


def _thinned(places: Array, most: int) -> Array:
    """Return at most this many places, evenly spread, with the first and the last."""
    if len(places) <= most:
        return places
    return np.asarray(places[np.unique(np.linspace(0, len(places) - 1, most).round().astype(np.int64))])


STEP = 1.0  # distance of a threshold above the highest, or below the lowest margin


@dataclass(frozen=True)
class Margins:
    """Rows as labels that are each given or not.

    Attributes:
        names: The labels that can have a threshold.
        values: The margin of each label: rows x labels. Its probability is the logistic function of it.
        wanted: Whether each label is true: rows x labels.
    """

    names: tuple[str, ...]
    values: Array
    wanted: Array

    def rows(self, chosen: Array) -> Margins:
        """Return some of the rows."""
        return Margins(self.names, self.values[chosen], self.wanted[chosen])


@dataclass(frozen=True)
class Limit:
    """The margin from which a label is given, the score of its target there, and whether the target's limit is reached."""

    margin: float
    score: float
    reached: bool = True


def margins_of(rows: ScoredRows, positive: str | None) -> Margins | None:
    """Return the margins of several labels, or of the positive class of two; None for more classes and for scores."""
    # Margins of logits, so that thresholds do not depend on the temperature and cross-fitted answers are the same with
    # and without one.
    if rows.task == SEVERAL:
        return Margins(rows.labels, rows.logits, rows.references == 1)
    if rows.task != CLASSES or len(rows.labels) != 2:
        return None
    place = rows.labels.index(positive) if positive in rows.labels else 1
    margin = rows.logits[:, place] - rows.logits[:, 1 - place]
    return Margins((rows.labels[place],), margin[:, None], (rows.references == place)[:, None])


def fitted_limits(rows: Margins, target: Target) -> list[Limit | None]:
    """Return the best limit of each label; None for a label that all rows or no rows have."""
    columns = zip(rows.values.T, rows.wanted.T, strict=True)
    return [best_limit(values, wanted, target) if 0 < wanted.sum() < len(wanted) else None for values, wanted in columns]


def best_limit(margin: Array, wanted: Array, target: Target) -> Limit:
    """Return the limit with the best score of a target; of equal ones, the nearest to a probability of 0.5.

    If no limit keeps the metric that the target limits, the limit with the highest value of that metric is returned.

    Args:
        margin: The margin of each row.
        wanted: Whether each row has the label.
        target: What to optimize.
    """
    # The best threshold on the rows, not one computed from calibrated probabilities: the latter lost 5 points of F1
    # where the margins of both classes differ in spread. It lies between two rows, so that rounding of logits flips no
    # answer.
    order = np.argsort(-margin, kind="stable")
    ordered, hits = margin[order], np.cumsum(wanted[order])
    last = np.flatnonzero(np.append(np.diff(ordered) != 0, True))  # the last row of each distinct margin
    values = ordered[last]
    given = np.append(0, last + 1)
    right = np.append(0, hits[last])
    middle = (values[:-1] + values[1:]) / 2
    middle = np.where(middle <= values[1:], values[:-1], middle)  # neighbors in floating point
    cuts = np.concatenate([[values[0] + STEP], middle, [values[-1] - STEP]])
    scores, allowed = scores_of(target, right, given, int(wanted.sum()))
    reached = bool(allowed.any())
    if reached:
        scores = np.where(allowed, scores, -np.inf)
    else:
        scores = np.divide(right, given, out=np.zeros(len(given)), where=given > 0)
    best = np.flatnonzero(scores == scores.max())
    place = best[np.argmin(np.abs(cuts[best]))]
    return Limit(float(cuts[place]), float(scores[place]), reached)


def scores_of(target: Target, right: Array, given: Array, true: int) -> tuple[Array, Array]:
    """Return the score of each limit, higher is better, and whether the limit keeps what the target demands."""
    precision = np.divide(right, given, out=np.zeros(len(given)), where=given > 0)
    every = np.ones(len(given), dtype=bool)
    if target.name == F1:
        return 2 * right / (given + true), every
    if target.name == COST:
        return -(target.false_positive * (given - right) + target.false_negative * (true - right)), every
    least, recall = target.least or 0.0, right / true
    return (precision, recall >= least) if target.name == PRECISION else (recall, (precision >= least) & (given > 0))


def probability_of(margin: float, temperature: float) -> float:
    """Return the threshold for probabilities that a limit of margins is, once logits are divided by a temperature."""
    return float(1 / (1 + np.exp(-np.clip(margin / temperature, -700, 700))))


def label_scores(name: str, counts: Array, given: Array, wanted: Array, target: Target) -> Array:
    """Return a score for each draw of rows: the mean over labels of F1, precision or recall, or the mean cost of a row.

    Args:
        name: "f1", "precision", "recall" or "cost".
        counts: How often each row is drawn: draws x rows.
        given: Whether each label is given: rows x labels.
        wanted: Whether each label is true: rows x labels.
        target: Its costs.
    """
    if name == COST:
        row_cost = target.false_positive * (given & ~wanted).sum(1) + target.false_negative * (~given & wanted).sum(1)
        return np.asarray(counts @ row_cost / counts.sum(axis=1))
    right, chosen, true = (counts @ part.astype(np.float64) for part in (given & wanted, given, wanted))
    over, under = {F1: (2 * right, chosen + true), PRECISION: (right, chosen)}.get(name, (right, true))
    return np.asarray(np.divide(over, under, out=np.zeros(over.shape), where=under > 0).mean(axis=1))


CHUNK = 4_000_000  # counts in memory at a time
MARGIN = 0.01  # a limit that is missed by less is met
LOSS, CALIBRATION_ERROR = "loss", "calibration error"


@dataclass(frozen=True)
class Fitted:
    """A temperature and thresholds that were fitted on all rows, and what they gain on rows they were not fitted on.

    Attributes:
        temperature: The temperature; 1 if the rows do not determine one.
        limits: The limit of each label that can have a threshold; empty without a target.
        names: These labels.
        temperature_gains: The loss and the calibration error, before and after.
        target_gains: The scores of the target; empty without one.
        target: What the thresholds are for.
    """

    temperature: float
    limits: Sequence[Limit | None]
    names: Sequence[str]
    temperature_gains: Sequence[Gain]
    target_gains: Sequence[Gain]
    target: Target | None

    @property
    def temperature_helps(self) -> bool:
        """Whether the loss of rows that were not used for fitting is lower, by more than the standard error of the change."""
        # A part must gain more than its standard error. With any positive gain, thresholds were stored in 35 to 50%
        # of the samples in which nothing could be gained; a 95% interval above 0 would refuse half of the real
        # gains.
        return exceeds(self.temperature_gains[0], lower=True)

    @property
    def thresholds_help(self) -> bool:
        """Whether the target is met better on rows that were not used for fitting, by more than the standard error.

        A metric that the target limits counts first: a gain is being closer to the limit, if it was missed by more than a
        point. A limit is met on about half of all new rows, because it is just met on the rows of the fit.
        """
        if self.target is None or not self.target_gains:
            return False
        first = self.target_gains[0]
        if len(self.target_gains) == 1:
            return exceeds(first, lower=first.name == COST)
        least, kept = self.target.least or 0.0, self.target_gains[1]
        missed = [max(0.0, least - MARGIN - value) for value in (kept.before, kept.after)]
        return missed[1] < missed[0] if missed[0] != missed[1] else exceeds(first)

    def thresholds(self, temperature: float) -> dict[str, float]:
        """Return the threshold of each label as a probability at a temperature."""
        pairs = zip(self.names, self.limits, strict=True)
        return {name: probability_of(limit.margin, temperature) for name, limit in pairs if limit is not None}


def exceeds(gain: Gain, *, lower: bool = False) -> bool:
    """Return whether a score improves by more than the standard error of the change; `lower` if less is better.

    Where nothing can be gained, half of all samples show a gain by chance, and what is then stored makes answers worse.
    """
    return (-gain.change if lower else gain.change) > gain.standard_error


def fold_numbers(rows: ScoredRows, folds: int, seed: int = 0) -> Array:
    """Return the fold of each row: equally many rows in each, and of two or more classes, equally many of each class.

    Args:
        folds: Number of folds.
        seed: Seed of the division.
    """
    shuffled = np.random.default_rng(seed).permutation(len(rows))
    order = shuffled if rows.task == SEVERAL else shuffled[np.argsort(rows.references[shuffled], kind="stable")]
    found = np.empty(len(rows), dtype=np.int64)
    found[order] = np.arange(len(rows)) % folds
    return found


def some_rows(rows: ScoredRows, chosen: Array) -> ScoredRows:
    """Return some of the rows."""
    predictions, references, logits = (part[chosen] for part in (rows.predictions, rows.references, rows.logits))
    return replace(rows, predictions=predictions, references=references, logits=logits)


def fitted_calibration(
    rows: ScoredRows, target: Target | None = None, positive: str | None = None, *, folds: int = 10, seed: int = 0
) -> Fitted:
    """Fit a temperature and thresholds on all rows, and measure their gain by cross-fitting.

    Args:
        rows: The predictions of a classifier.
        target: What thresholds are chosen for; None to fit a temperature only.
        positive: The class of two that has the threshold. Default: the second.
        folds: Number of folds.
        seed: Seed of the division into folds.
    """
    # Gains are judged on folds that were not fitted on: on the fitted rows they were 3.6 points of F1 too large with
    # 150 rows.
    place = fold_numbers(rows, folds, seed)
    margins = margins_of(rows, positive) if target else None
    temperatures = np.ones((len(rows), 1))
    limits = np.zeros((len(rows), len(margins.names) if margins else 0))
    for fold in range(folds):
        held, others = place == fold, place != fold
        temperatures[held] = determined_temperature(some_rows(rows, others))
        if margins and target:
            found = fitted_limits(margins.rows(others), target)
            limits[held] = [0.0 if limit is None else limit.margin for limit in found]
    gains = target_gains(margins, limits, target) if margins and target else []
    final = fitted_limits(margins, target) if margins and target else []
    names = margins.names if margins else ()
    return Fitted(determined_temperature(rows), final, names, temperature_gains(rows, temperatures), gains, target)


def temperature_gains(rows: ScoredRows, temperatures: Array) -> list[Gain]:
    """Return the loss, with the paired interval of its change, and the calibration error, before and after."""
    before, after = row_losses(rows), row_losses(rows, temperatures)
    change = after - before
    span = t_interval(float(change.mean()), float(change.var(ddof=1)) / len(change), len(change) - 1)
    errors = [reliability(*confidences(rows, value)).error for value in (1.0, temperatures)]
    loss = Gain(LOSS, float(before.mean()), float(after.mean()), span.low, span.high)
    return [loss, Gain(CALIBRATION_ERROR, errors[0], errors[1])]


def target_gains(margins: Margins, limits: Array, target: Target) -> list[Gain]:
    """Return the score of a target before and after, and the metric it limits, with paired jackknife intervals."""
    given = [margins.values > 0, margins.values >= limits]
    columns = np.concatenate([margins.wanted.astype(bool), *given], axis=1)
    _, first, frequencies = np.unique(
        columns, axis=0, return_index=True, return_counts=True
    )  # equal rows change a score equally
    wanted, chosen, rows = margins.wanted[first].astype(bool), [part[first] for part in given], len(columns)
    found = []
    for name in (target.name, *([target.kept] if target.kept else [])):
        whole = frequencies[None].astype(np.float64)
        before, after = (float(label_scores(name, whole, part, wanted, target)[0]) for part in chosen)
        parts = [
            label_scores(name, counts, chosen[1], wanted, target) - label_scores(name, counts, chosen[0], wanted, target)
            for counts in without_each(frequencies)
        ]
        changes = np.concatenate(parts)
        spread = frequencies @ np.square(changes - np.average(changes, weights=frequencies))
        span = t_interval(after - before, float(spread) * (rows - 1) / rows, rows - 1)
        if span.low == span.high:  # the same answers: other rows could still differ
            span = share_interval(0, 0, rows)
        found.append(Gain(name, before, after, span.low, span.high))
    return found


def without_each(frequencies: Array) -> Iterator[Array]:
    """Yield the frequencies with one row less of each kind of rows, in chunks that fit into memory: kinds x kinds."""
    number = len(frequencies)
    size = max(1, CHUNK // number)
    for start in range(0, number, size):
        places = np.arange(start, min(start + size, number))
        counts = np.repeat(frequencies[None].astype(np.float64), len(places), axis=0)
        counts[np.arange(len(places)), places] -= 1
        yield counts
