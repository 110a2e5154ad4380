"""Several seeds as one model: their probabilities are averaged, from stored predictions and without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from glassloop.metric_values import Array
from glassloop.metrics import decide, probabilities
from glassloop.settings import CLASSES, SCORE
from glassloop.statistics.scored import ScoredRows

LEAST_PROBABILITY = 1e-12


def averaged_logits(logits: Sequence[Array], task: str) -> Array:
    """Return logits whose probabilities are the mean of those of several models; for scores, the mean score."""
    if task == SCORE:
        return np.asarray(np.mean(logits, axis=0))
    found = np.mean([probabilities(one, task) for one in logits], axis=0)
    kept = np.clip(found, LEAST_PROBABILITY, None if task == CLASSES else 1 - LEAST_PROBABILITY)
    return np.asarray(np.log(kept) if task == CLASSES else np.log(kept) - np.log1p(-kept))


def ensemble_of(seeds: Sequence[ScoredRows]) -> ScoredRows:
    """Return the predictions of several seeds as one model. All must have been evaluated on the same rows."""
    logits = averaged_logits([seed.logits for seed in seeds], seeds[0].task)
    return replace(seeds[0], logits=logits, predictions=decide(logits, seeds[0].task))
