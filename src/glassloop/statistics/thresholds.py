"""Choose the threshold of each label for a target, and score the labels that thresholds give.

A threshold is found on margins, the logit of a label against its absence, so that it does not depend on the temperature.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glassloop.metric_values import Array
from glassloop.run_folder.calibration_json import COST, F1, PRECISION, Target
from glassloop.settings import CLASSES, SEVERAL
from glassloop.statistics.scored import ScoredRows

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
