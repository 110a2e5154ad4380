"""Whether probabilities match observed frequencies: reliability, temperature, thresholds, and what they gain on other rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from glassloop.runs.record import COST, F1, PRECISION, Gain, MetricRecord, ProbabilityRecord, Target
from glassloop.scores.metrics import Array, probabilities
from glassloop.scores.statistics import ScoredRows, share_interval, some_rows, t_interval
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

BINS = 15
MOST_POINTS = 200  # of a curve
LOWEST, HIGHEST = 0.01, 100.0  # temperatures
LEAST_SURE, MOST_SURE = 0.02, 50.0  # a temperature outside is not determined by the rows
STEP = 1.0  # distance of a threshold above the highest, or below the lowest margin
CHUNK = 4_000_000  # counts in memory at a time
MARGIN = 0.01  # a limit that is missed by less is met
LOSS, CALIBRATION_ERROR = "loss", "calibration error"


# --- reliability and temperature -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Bin:
    """Answers with similar confidence: how many, their mean confidence, and the share that is right."""

    number: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Reliability:
    """The bins that hold answers, and the expected calibration error: the mean gap, weighted by their numbers."""

    bins: tuple[Bin, ...]
    error: float


def confidences(rows: ScoredRows, temperature: float | Array = 1.0) -> tuple[Array, Array]:
    """Return the confidence of each answer at a temperature, or one of each row, and whether it is right."""
    likely = probabilities(rows.logits / temperature, rows.task)
    if rows.task == CLASSES:
        return likely[np.arange(len(rows)), rows.predictions], rows.right
    chosen = np.where(rows.predictions == 1, likely, 1 - likely)
    return chosen.ravel(), (rows.predictions == rows.references).ravel()


def reliability(confidence: Array, right: Array, bins: int = BINS) -> Reliability:
    """Return the reliability of answers in bins of equal width between 0 and 1."""
    place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    number = np.bincount(place, minlength=bins)
    sums = [np.bincount(place, weights=values, minlength=bins) for values in (confidence, right.astype(np.float64))]
    filled = tuple(
        Bin(int(number[one]), sums[0][one] / number[one], sums[1][one] / number[one]) for one in range(bins) if number[one]
    )
    error = sum(part.number * abs(part.accuracy - part.confidence) for part in filled) / max(len(confidence), 1)
    return Reliability(filled, float(error))


def negative_log_likelihood(rows: ScoredRows, temperature: float = 1.0) -> float:
    return float(row_losses(rows, temperature).mean())


def row_losses(rows: ScoredRows, temperature: float | Array = 1.0) -> Array:
    """Return the loss of each row, without class weights, at a temperature, or one of each row (rows x 1)."""
    return output_losses(rows.logits / temperature, rows.references, rows.task)


def output_losses(outputs: Array, targets: Array, task: str, class_weights: Array | None = None) -> Array:
    """Return the loss of each row: cross entropy, its mean over labels, or the squared error."""
    if task == SCORE:
        return np.asarray(np.square(outputs[:, 0] - targets))
    if task == SEVERAL:
        losses = np.logaddexp(0, np.where(targets == 1, -outputs, outputs))
        return np.asarray((losses if class_weights is None else losses * class_weights).mean(axis=1))
    top = outputs.max(axis=1)
    losses = top + np.log(np.exp(outputs - top[:, None]).sum(axis=1)) - outputs[np.arange(len(outputs)), targets]
    return np.asarray(losses if class_weights is None else losses * class_weights[targets])


def prior_outputs(targets: Array, task: str, num_outputs: int, class_weights: Array | None = None) -> Array:
    """Return the outputs that predict the frequencies of the targets, with one more row of each class, or their mean."""
    if task == SCORE:
        return np.array([targets.mean()])
    if task == SEVERAL:
        shares = (targets.sum(axis=0) + 1) / (len(targets) + 2)
        return np.asarray(np.log(shares / (1 - shares)))
    counts = np.bincount(targets, None if class_weights is None else class_weights[targets], num_outputs) + 1.0
    return np.asarray(np.log(counts / counts.sum()))


def fitted_temperature(rows: ScoredRows) -> float:
    """Return the temperature that minimises the loss on these rows (Guo et al. 2017); a border if none does."""
    wanted = rows.references if rows.task == SEVERAL else np.eye(rows.logits.shape[1])[rows.references]
    pull = float((wanted * rows.logits).sum())
    # The loss is convex in the inverse of the temperature: bisect its slope.
    low, high = -np.log(HIGHEST), -np.log(LOWEST)
    for _ in range(60):
        middle = (low + high) / 2
        likely = probabilities(rows.logits * np.exp(middle), rows.task)
        slope = float((likely * rows.logits).sum()) - pull
        low, high = (low, middle) if slope > 0 else (middle, high)
    return float(np.exp(-(low + high) / 2))


def determined_temperature(rows: ScoredRows) -> float:
    """Return the fitted temperature, or 1 if the rows do not determine one, such as rows without errors."""
    fitted = fitted_temperature(rows)
    return fitted if LEAST_SURE < fitted < MOST_SURE else 1.0


# --- the temperature that every run gets ---------------------------------------------------------------------------------
LOG_LOSS, BRIER, EXPECTED_ERROR = "log_loss", "brier", "calibration_error"
PROBABILITY_TITLES = {LOG_LOSS: "log loss", BRIER: "Brier score", EXPECTED_ERROR: "calibration error"}
TRIED = np.exp(np.linspace(np.log(0.2), np.log(12.0), 165))  # temperatures, 2.5 % apart
# Few rows hardly determine a temperature, so it stays near the usual one: log-normal, with this standard deviation
# (docs/log.md, "Temperatures"). A few hundred rows outweigh it.
PRIOR_DEVIATION = 0.3
DEVIATION_OF_REGRESSIONS = 0.15  # whose penalty was chosen by the log loss of rows that they were not fitted to
USUAL_TEMPERATURE = 1.4  # of a fine-tuned model whose head did not start from a regression
# One that did learns its training rows by heart where there is little to learn, so the worse the regression is on rows that it
# was not fitted to, the higher the temperature: its logarithm at no skill, and how much perfect skill takes off.
OF_TEXTS, OF_TOWERS, OF_SEVERAL = (0.6, 0.6), (0.35, 0.2), (0.15, 0.0)
MOST_FITTED = 5_000  # rows; more do not change a single number
FITTED_FOLDS = 10


def skill_of(held_out: Array, targets: Array, task: str, num_outputs: int) -> float:
    """Return how much of the loss of the class frequencies a model takes away on rows that it was not fitted to.

    It is 1 for a model without errors and 0 for one that knows nothing. `held_out` are its losses; NaN for rows without one.
    """
    prior = np.broadcast_to(prior_outputs(targets, task, num_outputs), (len(targets), num_outputs))
    level, reached = float(output_losses(prior, targets, task).mean()), held_out[~np.isnan(held_out)]
    return min(max(1 - float(reached.mean()) / level, 0.0), 1.0) if len(reached) and level > 0 else 1.0


def expected_temperature(skill: float, task: str, *, towers: bool, trained: float, share: float = 1.0) -> float:
    """Return the usual temperature of a model whose head started from a regression with this skill.

    `trained` is how far it was trained: the share of its steps in those of the default rule. Before its first step, a head with
    a `share` of the weights of the regression is less sure than that by this factor.
    """
    first, less = OF_SEVERAL if task == SEVERAL else OF_TOWERS if towers else OF_TEXTS
    part = min(trained, 1.0)
    return float(np.exp((first - less * skill) * part) * share ** (1 - part))


def shrunk_temperatures(rows: ScoredRows, usual: float = 1.0) -> tuple[float, Array]:
    """Return the temperature of all rows, and for each row (rows x 1) one that was fitted without it, near the `usual` one."""
    place = fold_numbers(rows, min(FITTED_FOLDS, len(rows)))
    used = np.arange(len(rows))
    if len(rows) > MOST_FITTED:
        used = np.sort(np.random.default_rng(0).choice(len(rows), MOST_FITTED, replace=False))
    sample = some_rows(rows, used)
    losses = np.stack([row_losses(sample, float(temperature)) for temperature in TRIED], axis=1) * loss_unit(rows)
    deviation = DEVIATION_OF_REGRESSIONS if usual == 1.0 else PRIOR_DEVIATION
    pull = np.square(np.log(TRIED / usual) / deviation) / 2
    total = losses.sum(axis=0)
    of_fold = [TRIED[np.argmin(total - losses[place[used] == fold].sum(axis=0) + pull)] for fold in range(place.max() + 1)]
    return float(TRIED[np.argmin(total + pull)]), np.asarray(of_fold)[place][:, None]


def loss_unit(rows: ScoredRows) -> int:
    """Return how many labels the loss of a row is the mean of."""
    return rows.logits.shape[1] if rows.task == SEVERAL else 1


def row_briers(rows: ScoredRows, temperature: float | Array = 1.0) -> Array:
    """Return the squared error of the probabilities of each row: summed over classes, or the mean of several labels."""
    likely = probabilities(rows.logits / temperature, rows.task)
    if rows.task == SEVERAL:
        return np.asarray(np.square(likely - rows.references).mean(axis=1))
    right = likely[np.arange(len(rows)), rows.references]
    return np.asarray(np.square(likely).sum(axis=1) - 2 * right + 1)


def probability_scores(rows: ScoredRows, temperature: float | Array = 1.0) -> dict[str, MetricRecord]:
    """Return log loss, Brier score and calibration error at a temperature, or one of each row (rows x 1)."""
    found = {}
    for name, values in ((LOG_LOSS, row_losses(rows, temperature)), (BRIER, row_briers(rows, temperature))):
        found[name] = MetricRecord(float(values.mean()))
        if len(rows) > 1:
            span = t_interval(float(values.mean()), float(values.var(ddof=1)) / len(values), len(values) - 1)
            found[name] = MetricRecord(float(values.mean()), max(span.low, 0.0), span.high)
    found[EXPECTED_ERROR] = MetricRecord(reliability(*confidences(rows, temperature)).error)
    return found


def probability_record(
    rows: ScoredRows, prior: Array, usual: float = 1.0, temperature: float | None = None
) -> ProbabilityRecord:
    """Return how good the probabilities of a split are; `prior` are the logits of the class frequencies in training.

    They are judged at the `temperature` of the model; without one, at a temperature that is fitted to the split, near the
    `usual` one, and for each row without it.
    """
    without: float | Array = 1.0 if temperature is None else temperature
    if temperature is None:
        temperature, without = shrunk_temperatures(rows, usual)
    before = {name: score.value for name, score in probability_scores(rows).items()}
    frequencies = replace(rows, logits=np.broadcast_to(prior, rows.logits.shape))
    level = negative_log_likelihood(frequencies)
    return ProbabilityRecord(len(rows), temperature, before, probability_scores(rows, without), level)


# --- thresholds ----------------------------------------------------------------------------------------------------------
def descending(values: Array, wanted: Array) -> tuple[Array, Array, Array]:
    """Return the distinct values from the highest, the number of rows with at least each, and how many of them are wanted."""
    order = np.argsort(-values, kind="stable")
    ordered, hits = values[order], np.cumsum(wanted[order])
    last = np.flatnonzero(np.append(np.diff(ordered) != 0, True))  # the last row of each value
    return ordered[last], last + 1, hits[last]


@dataclass(frozen=True)
class ThresholdCurve:
    """Scores of one class for each threshold: rows with at least this probability are answered with the class."""

    thresholds: Array
    precision: Array
    recall: Array
    f1: Array
    answered: Array  # share of rows at or above the threshold


def threshold_curve(probability: Array, positive: Array, most_points: int = MOST_POINTS) -> ThresholdCurve:
    """Return precision, recall, F1 and the share of rows answered for at most so many thresholds, spread evenly over rows."""
    thresholds, answered, hits = descending(probability, positive)
    if len(thresholds) > most_points:
        places = np.unique(np.linspace(0, len(thresholds) - 1, most_points).round().astype(np.int64))
        thresholds, answered, hits = thresholds[places], answered[places], hits[places]
    true = max(int(positive.sum()), 1)
    f1 = 2 * hits / (answered + true)
    return ThresholdCurve(thresholds, hits / answered, hits / true, f1, answered / len(probability))


@dataclass(frozen=True)
class Margins:
    """Rows as labels that are each given or not."""

    names: tuple[str, ...]  # the labels that can have a threshold
    values: Array  # the margin of each label: rows x labels. Its probability is the logistic function of it.
    wanted: Array  # whether each label is true: rows x labels


@dataclass(frozen=True)
class Limit:
    """The margin from which a label is given, the score of its target there, and whether the target's limit is reached."""

    margin: float
    score: float
    reached: bool = True


def margins_of(rows: ScoredRows, positive: str | None) -> Margins | None:
    """Return the margins of several labels, or of the positive class of two; None for more classes and for scores."""
    # Of logits, so that thresholds do not depend on the temperature: cross-fitted answers are the same with and without one.
    if rows.task == SEVERAL:
        return Margins(rows.labels, rows.logits, rows.references == 1)
    if rows.task != CLASSES or len(rows.labels) != 2:
        return None
    place = rows.labels.index(positive) if positive in rows.labels else 1
    margin = rows.logits[:, place] - rows.logits[:, 1 - place]
    return Margins((rows.labels[place],), margin[:, None], (rows.references == place)[:, None])


def fitted_limits(margins: Margins, target: Target) -> list[Limit | None]:
    """Return the best limit of each label; None for a label that all rows or no rows have."""
    columns = zip(margins.values.T, margins.wanted.T, strict=True)
    return [best_limit(values, wanted, target) if 0 < wanted.sum() < len(wanted) else None for values, wanted in columns]


def best_limit(margin: Array, wanted: Array, target: Target) -> Limit:
    """Return the limit of one label with the best score of a target; of equal ones, the nearest to a probability of 0.5."""
    # The best threshold on the rows, not one computed from calibrated probabilities: the latter lost 5 points of F1 where the
    # margins of both classes differ in spread. It lies between two rows, so that rounding of logits flips no answer.
    values, given, right = descending(margin, wanted)
    middle = (values[:-1] + values[1:]) / 2
    middle = np.where(middle <= values[1:], values[:-1], middle)  # neighbors in floating point
    cuts = np.concatenate([[values[0] + STEP], middle, [values[-1] - STEP]])
    given, right, true = np.append(0, given), np.append(0, right), int(wanted.sum())
    precision = np.divide(right, given, out=np.zeros(len(given)), where=given > 0)
    recall, least = right / true, target.least or 0.0
    allowed = np.ones(len(given), dtype=bool)
    if target.name == F1:
        scores = 2 * right / (given + true)
    elif target.name == COST:
        scores = -(target.false_positive * (given - right) + target.false_negative * (true - right))
    elif target.name == PRECISION:
        scores, allowed = precision, recall >= least
    else:
        scores, allowed = recall, (precision >= least) & (given > 0)
    reached = bool(allowed.any())
    scores = np.where(allowed, scores, -np.inf) if reached else precision  # the nearest to what no limit reaches
    best = np.flatnonzero(scores == scores.max())
    place = best[np.argmin(np.abs(cuts[best]))]
    return Limit(float(cuts[place]), float(scores[place]), reached)


def probability_of(margin: float, temperature: float) -> float:
    """Return the threshold for probabilities that a limit of margins is, once logits are divided by a temperature."""
    return float(1 / (1 + np.exp(-np.clip(margin / temperature, -700, 700))))


# --- fitting, and gains on other rows ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Fitted:
    """A temperature and thresholds that were fitted on all rows, and what they gain on rows they were not fitted on."""

    temperature: float  # 1 if the rows do not determine one
    limits: Sequence[Limit | None]  # of each label that can have a threshold; empty without a target
    names: Sequence[str]  # these labels
    temperature_gains: Sequence[Gain]  # the loss and the calibration error, before and after
    target_gains: Sequence[Gain]  # the scores of the target; empty without one
    target: Target | None  # what the thresholds are for

    @property
    def temperature_helps(self) -> bool:
        """Whether the loss of other rows is lower."""
        return exceeds(self.temperature_gains[0], lower=True)

    @property
    def thresholds_help(self) -> bool:
        """Whether the target is met better on rows that were not used for fitting."""
        if self.target is None or not self.target_gains:
            return False
        first = self.target_gains[0]
        if len(self.target_gains) == 1:
            return exceeds(first, lower=first.name == COST)
        # A metric that the target limits counts first: a gain is being closer to the limit, if it was missed by more than a
        # point. A limit is met on about half of all new rows, because it is just met on the rows of the fit.
        least, limited = self.target.least or 0.0, self.target_gains[1]
        before, after = (max(0.0, least - MARGIN - value) for value in (limited.before, limited.after))
        return after < before if before != after else exceeds(first)

    def thresholds(self, temperature: float) -> dict[str, float]:
        """Return the threshold of each label as a probability at a temperature."""
        pairs = zip(self.names, self.limits, strict=True)
        return {name: probability_of(limit.margin, temperature) for name, limit in pairs if limit is not None}


def exceeds(gain: Gain, *, lower: bool = False) -> bool:
    """Return whether a score improves by more than the standard error of the change; `lower` if less is better."""
    # With any positive gain, thresholds were stored in 35 to 50% of the samples in which nothing could be gained, and made
    # answers worse; a 95% interval above 0 would refuse half of the real gains.
    return (-gain.change if lower else gain.change) > gain.standard_error


def fold_numbers(rows: ScoredRows, folds: int, seed: int = 0) -> Array:
    """Return the fold of each row: equally many rows in each, and of two or more classes, equally many of each class."""
    shuffled = np.random.default_rng(seed).permutation(len(rows))
    order = shuffled if rows.task == SEVERAL else shuffled[np.argsort(rows.references[shuffled], kind="stable")]
    numbers = np.empty(len(rows), dtype=np.int64)
    numbers[order] = np.arange(len(rows)) % folds
    return numbers


def fitted_calibration(
    rows: ScoredRows, target: Target | None = None, positive: str | None = None, *, folds: int = 10, in_use: float = 1.0
) -> Fitted:
    """Fit a temperature, and thresholds for a target if there is one, on all rows, and measure their gain by cross-fitting.

    The gain of the temperature is that over the one `in_use`.
    """
    # Gains are judged on folds that were not fitted on: on the fitted rows they were 3.6 points of F1 too large with 150 rows.
    place = fold_numbers(rows, folds)
    margins = margins_of(rows, positive) if target else None
    temperatures = np.ones((len(rows), 1))
    limits = np.zeros((len(rows), len(margins.names) if margins else 0))
    for fold in range(folds):
        held, others = place == fold, place != fold
        temperatures[held] = determined_temperature(some_rows(rows, others))
        if margins and target:
            fitted = fitted_limits(Margins(margins.names, margins.values[others], margins.wanted[others]), target)
            limits[held] = [0.0 if limit is None else limit.margin for limit in fitted]
    before, after = row_losses(rows, in_use), row_losses(rows, temperatures)
    change = after - before
    span = t_interval(float(change.mean()), float(change.var(ddof=1)) / len(change), len(change) - 1)
    errors = [reliability(*confidences(rows, value)).error for value in (in_use, temperatures)]
    gains = [Gain(LOSS, float(before.mean()), float(after.mean()), span.low, span.high), Gain(CALIBRATION_ERROR, *errors)]
    temperature = determined_temperature(rows)
    if margins is None or target is None:
        return Fitted(temperature, [], (), gains, [], target)
    final, of_target = fitted_limits(margins, target), target_gains(margins, limits, target)
    return Fitted(temperature, final, margins.names, gains, of_target, target)


def target_gains(margins: Margins, limits: Array, target: Target) -> list[Gain]:
    """Return the score of a target before and after, and the metric it limits, with paired jackknife intervals."""
    given = [margins.values > 0, margins.values >= limits]
    columns = np.concatenate([margins.wanted.astype(bool), *given], axis=1)
    # Equal rows change a score equally, so each kind of rows is left out once.
    _, first, frequencies = np.unique(columns, axis=0, return_index=True, return_counts=True)
    wanted, chosen, rows = margins.wanted[first].astype(bool), [part[first] for part in given], len(columns)
    kinds = len(frequencies)
    size = max(1, CHUNK // kinds)

    def scores(name: str, counts: Array) -> list[Array]:
        return [label_scores(name, counts, part, wanted, target) for part in chosen]

    gains = []
    for name in (target.name, *([target.kept] if target.kept else [])):
        before, after = (float(score[0]) for score in scores(name, frequencies[None].astype(np.float64)))
        changes = np.empty(kinds)
        for start in range(0, kinds, size):
            places = np.arange(start, min(start + size, kinds))
            counts = np.repeat(frequencies[None].astype(np.float64), len(places), axis=0)
            counts[np.arange(len(places)), places] -= 1
            scores_before, scores_after = scores(name, counts)
            changes[places] = scores_after - scores_before
        spread = frequencies @ np.square(changes - np.average(changes, weights=frequencies))
        span = t_interval(after - before, float(spread) * (rows - 1) / rows, rows - 1)
        if span.low == span.high:  # the same answers: other rows could still differ
            span = share_interval(0, 0, rows)
        gains.append(Gain(name, before, after, span.low, span.high))
    return gains


def label_scores(name: str, counts: Array, given: Array, wanted: Array, target: Target) -> Array:
    """Return a score for each draw of rows (`counts`: draws x rows): F1, precision or recall over labels, or the mean cost."""
    if name == COST:
        row_cost = target.false_positive * (given & ~wanted).sum(1) + target.false_negative * (~given & wanted).sum(1)
        return np.asarray(counts @ row_cost / counts.sum(axis=1))
    right, chosen, true = (counts @ part.astype(np.float64) for part in (given & wanted, given, wanted))
    over, under = {F1: (2 * right, chosen + true), PRECISION: (right, chosen)}.get(name, (right, true))
    return np.asarray(np.divide(over, under, out=np.zeros(over.shape), where=under > 0).mean(axis=1))
