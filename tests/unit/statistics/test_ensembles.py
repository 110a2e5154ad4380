"""Several seeds as one model, from stored predictions."""

from __future__ import annotations

import numpy as np
import pytest
from drawn_runs import drawn_rows

from glassloop.scores.conclusions import averaged_logits, ensemble_of
from glassloop.scores.metrics import probabilities
from glassloop.settings.fields import CLASSES, SCORE, SEVERAL


@pytest.mark.parametrize("task", [CLASSES, SEVERAL])
def test_the_probabilities_are_averaged(task: str) -> None:
    seeds = [drawn_rows(60, 1.0, seed, task) for seed in range(3)]
    found = ensemble_of(seeds)
    wanted = np.mean([probabilities(rows.logits, task) for rows in seeds], axis=0)
    np.testing.assert_allclose(probabilities(found.logits, task), wanted, rtol=1e-9)
    np.testing.assert_array_equal(found.predictions, wanted.argmax(axis=1) if task == CLASSES else wanted >= 0.5)
    np.testing.assert_array_equal(found.references, seeds[0].references)


def test_scores_are_averaged() -> None:
    seeds = [drawn_rows(60, 1.0, seed, SCORE) for seed in range(3)]
    np.testing.assert_allclose(ensemble_of(seeds).predictions, np.mean([rows.predictions for rows in seeds], axis=0))


def test_certain_answers_stay_finite() -> None:
    certain = np.array([[1000.0, -1000.0]])
    for task in (CLASSES, SEVERAL):
        assert np.isfinite(averaged_logits([certain, certain], task)).all()
