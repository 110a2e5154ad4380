"""The evaluation of a run: the metrics that are asked for, and the predictions of every row."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from glassloop import Predictor
from glassloop.base.errors import SettingsError
from glassloop.predict.evaluation import Wanted, evaluate_run


def test_the_metrics_are_those_that_were_asked_for(text_run: Path) -> None:
    found = evaluate_run(str(text_run), Wanted(metrics=("accuracy", "matthews_correlation,f1_macro"), device="cpu"))
    assert [*found.outcomes[0].metrics] == ["loss", "accuracy", "matthews_correlation", "f1_macro"]
    of_class = Wanted(metrics=("precision,recall",), positive="neg", device="cpu")
    found = evaluate_run(str(text_run), of_class)
    assert [*found.outcomes[0].metrics] == ["loss", "precision", "recall"]
    assert found.outcomes[0].measures.title("recall") == "recall (neg)"
    every = evaluate_run(str(text_run), Wanted(device="cpu")).outcomes[0].classes["neg"]
    scores = found.outcomes[0].metrics
    assert (scores["precision"], scores["recall"]) == pytest.approx((every.precision or 0.0, every.recall or 0.0))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("pearson", '"pearson" is not a known metric of single_label_classification'),
        ("f1", "f1 is the score of one class, but none is chosen"),
    ],
)
def test_a_metric_that_does_not_fit(text_run: Path, name: str, problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        evaluate_run(str(text_run), Wanted(metrics=(name,), device="cpu"))
    assert caught.value.problem.startswith(problem)


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


def test_a_file_has_its_own_name(text_run: Path) -> None:
    found = evaluate_run(str(text_run), Wanted(str(text_run.parent / "test.csv"), device="cpu"))
    assert found.title(found.outcomes[0]) == "test.csv (9 rows)"
    own = evaluate_run(str(text_run), Wanted(split="test", device="cpu"))
    assert own.title(own.outcomes[0]) == "test (9 rows)"
