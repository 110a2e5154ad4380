"""Several seeds as one model: the mean of their probabilities, and only of those that are finished."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from glassloop import Predictor
from glassloop.base.errors import ModelError
from glassloop.predict.evaluation import SeedsPredictor, averaged_logits, finished_runs, has_seeds
from glassloop.runs.seeds import SeedRecord, SeedsRecord, write_seeds
from glassloop.scores.metrics import decide, probabilities
from glassloop.settings.fields import CLASSES, SCORE, SEVERAL
from glassloop.settings.file import RunSettings

TEXTS = ["a good film", "bad", "very good story", "not bad"]


def test_probabilities_are_averaged() -> None:
    first, second = np.array([[2.0, 0.0, -1.0]]), np.array([[0.0, 3.0, 1.0]])
    for task in (CLASSES, SEVERAL):
        mean = (probabilities(first, task) + probabilities(second, task)) / 2
        np.testing.assert_allclose(probabilities(averaged_logits([first, second], task), task), mean, rtol=1e-9)
    np.testing.assert_array_equal(averaged_logits([first, second], SCORE), [[1.0, 1.5, 0.0]])


def test_certain_models_have_finite_logits() -> None:
    certain = np.array([[1000.0, -1000.0]])
    for task in (CLASSES, SEVERAL):
        found = averaged_logits([certain, certain], task)
        assert np.isfinite(found).all()
        np.testing.assert_array_equal(decide(found, task), decide(certain, task))


def test_all_finished_seeds_predict_together(seeds_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert has_seeds(seeds_folder)
    assert not has_seeds(seeds_folder / "seed-1")
    found = SeedsPredictor(seeds_folder, device="cpu").predict(TEXTS)
    assert "omitted, because they are not finished: seed-3" in capsys.readouterr().err
    alone = [Predictor(seeds_folder / f"seed-{seed}", device="cpu").predict(TEXTS) for seed in (1, 2)]
    for answer, first, second in zip(found, *alone, strict=True):
        for label, score in answer.scores.items():
            assert score == pytest.approx((first.scores[label] + second.scores[label]) / 2, abs=1e-6)
        assert answer.label == max(answer.scores, key=lambda label: answer.scores[label])


def test_seeds_predict_a_few_rows_in_one_pass_each(seeds_folder: Path) -> None:
    predictor = SeedsPredictor(seeds_folder, device="cpu")
    rows = predictor.encoded([TEXTS]).rows
    assert predictor._in_one_pass([row.inputs for row in rows]) is None, "no batch was run yet"
    wanted = predictor.forward(rows)
    found = predictor._in_one_pass([row.inputs for row in rows])
    assert found is not None
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(found, predictor.logits(TEXTS))


def test_no_seed_is_finished(tmp_path: Path) -> None:
    write_seeds(SeedsRecord(RunSettings(), {1: SeedRecord()}, tmp_path))
    with pytest.raises(ModelError, match="no seed is finished yet") as caught:
        finished_runs(tmp_path)
    assert f"--resume {tmp_path}" in caught.value.remedy
