"""Several seeds as one model: the mean of their probabilities, and only of those that are finished."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from glassloop import Predictor
from glassloop.base.errors import ModelError, SettingsError
from glassloop.predictor import SeedsPredictor, Wanted, averaged_logits, evaluate_run, finished_runs, has_seeds
from glassloop.runs.study import SeedRecord, SeedsRecord, write_seeds
from glassloop.scores.metrics import decide, probabilities
from glassloop.settings.file import RunSettings
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

TEXTS = ["a good film", "bad", "very good story", "not bad"]


def test_probabilities_are_averaged() -> None:
    first, second = np.array([[2.0, 0.0, -1.0]]), np.array([[0.0, 3.0, 1.0]])
    for task in (CLASSES, SEVERAL):
        mean = (probabilities(first, task) + probabilities(second, task)) / 2
        np.testing.assert_allclose(probabilities(averaged_logits([first, second], task), task), mean, rtol=1e-9)
    np.testing.assert_array_equal(averaged_logits([first, second], SCORE), [[1.0, 1.5, 0.0]])
    certain = np.array([[1000.0, -1000.0]])
    for task in (CLASSES, SEVERAL):
        found = averaged_logits([certain, certain], task)
        assert np.isfinite(found).all()
        np.testing.assert_array_equal(decide(found, task), decide(certain, task))


def test_all_finished_seeds_predict_together(seeds_folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert has_seeds(seeds_folder)
    assert not has_seeds(seeds_folder / "seed-1")
    found = SeedsPredictor(seeds_folder, device="cpu").predict(TEXTS)
    assert "omitted, because they are not finished: seed-3" in capsys.readouterr().err
    alone = [Predictor(seeds_folder / f"seed-{seed}", device="cpu").predict(TEXTS) for seed in (1, 2)]
    for answer, first, second in zip(found, *alone, strict=True):
        for label, score in answer.scores.items():
            assert score == pytest.approx((first.scores[label] + second.scores[label]) / 2, abs=1e-6)
        assert answer.label == max(answer.scores, key=lambda label: answer.scores[label])
    predictor = SeedsPredictor(seeds_folder, device="cpu")
    rows = predictor.encoded([TEXTS]).rows
    assert predictor._in_one_pass([row.inputs for row in rows]) is None, "no batch was run yet"
    wanted = predictor.forward(rows)
    found = predictor._in_one_pass([row.inputs for row in rows])
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(found, predictor.logits(TEXTS))
    write_seeds(SeedsRecord(RunSettings(), {1: SeedRecord()}, tmp_path))
    with pytest.raises(ModelError, match="no seed is finished yet") as caught:
        finished_runs(tmp_path)
    assert f"--resume {tmp_path}" in caught.value.remedy


def test_the_metrics_are_those_that_were_asked_for_and_fit(text_run: Path) -> None:
    found = evaluate_run(str(text_run), Wanted(metrics=("accuracy", "matthews_correlation,f1_macro"), device="cpu"))
    assert [*found.results[0].metrics] == ["loss", "accuracy", "matthews_correlation", "f1_macro"]
    of_class = Wanted(metrics=("precision,recall",), positive="neg", device="cpu")
    found = evaluate_run(str(text_run), of_class)
    assert [*found.results[0].metrics] == ["loss", "precision", "recall"]
    assert found.results[0].measures.title("recall") == "recall (neg)"
    every = evaluate_run(str(text_run), Wanted(device="cpu")).results[0].classes["neg"]
    scores = found.results[0].metrics
    assert (scores["precision"], scores["recall"]) == pytest.approx((every.precision or 0.0, every.recall or 0.0))
    found = evaluate_run(str(text_run), Wanted(str(text_run.parent / "test.csv"), device="cpu"))
    assert found.title(found.results[0]) == "test.csv (9 rows)"
    own = evaluate_run(str(text_run), Wanted(split="test", device="cpu"))
    assert own.title(own.results[0]) == "test (9 rows)"
    with pytest.raises(SettingsError, match='settings: "pearson" is not a known metric of single_label_classification'):
        evaluate_run(str(text_run), Wanted(metrics=("pearson",), device="cpu"))
    with pytest.raises(SettingsError, match="settings: f1 is the score of one class, but none is chosen"):
        evaluate_run(str(text_run), Wanted(metrics=("f1",), device="cpu"))


def test_every_row_is_saved_with_its_prediction(text_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluate_run(str(text_run), Wanted(device="cpu"))
    found.save(tmp_path / "rows.jsonl")
    found.save(tmp_path / "rows.csv")
    assert f"11 rows → {tmp_path / 'rows.csv'}" in capsys.readouterr().err
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    with (tmp_path / "rows.csv").open(newline="") as opened:
        assert [row["prediction"] for row in csv.DictReader(opened)] == [row["prediction"] for row in rows]
    answers = Predictor(text_run, device="cpu").predict([row["text"] for row in rows])
    for number, (row, answer) in enumerate(zip(rows, answers, strict=True)):
        assert (row["split"], row["row"], row["prediction"]) == ("validation", number, answer.label)
        assert row["score_neg"] == pytest.approx(answer.scores["neg"], abs=1e-5)
    right = sum(row["label"] == row["prediction"] for row in rows)
    assert right / len(rows) == pytest.approx(found.metrics["eval_accuracy"])
