"""Fit a temperature and thresholds, and measure what they gain on rows that were not used to fit them.

The rows are divided into folds. Each fold is answered with what the other folds give, so every row is scored once, by a
calibration that has not seen it. The gain is that of a calibration fitted on slightly fewer rows than the final one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from glassloop.metric_values import Array
from glassloop.run_folder.calibration_json import COST, Gain, Target
from glassloop.settings import SEVERAL
from glassloop.statistics.calibration import confidences, determined_temperature, reliability, row_losses
from glassloop.statistics.intervals import t_interval
from glassloop.statistics.paired import share_interval
from glassloop.statistics.scored import ScoredRows
from glassloop.statistics.thresholds import Limit, Margins, fitted_limits, label_scores, margins_of, probability_of

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
        rows: The rows.
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
