"""A Trainer writes the report of each training, which fails no run, and shows the same report itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import tiny_model
from small_training import StopAt, small_rows, trained

from glassloop import Trainer, TrainingArguments
from glassloop.report.build import NO_REPORT, report_of
from glassloop.runs.record import REPORT_NAME, TRAINER_NAME, read_record
from glassloop.training.recorder import Recorder

EVALUATED = {"eval_strategy": "steps", "eval_steps": 6}


@pytest.fixture(autouse=True)
def with_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NO_REPORT, raising=False)  # other tests skip them


def accuracy(found: Any) -> dict[str, float]:
    return {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean()), "own <b>": 0.25}


def test_every_training_writes_the_report_that_the_trainer_shows(tmp_path: Path, tiny_tokenizer, capsys) -> None:
    trainer = trained(tmp_path, small_rows(20), tiny_tokenizer, **EVALUATED)
    html = (tmp_path / REPORT_NAME).read_text()
    for title in ("Results", "Learning curves", "Errors", "Confidence", "Data", "The run"):
        assert f">{title}</h2>" in html
    for text in ("95 % interval", "Confusion matrix", "run the script again", "Most confident errors", "bert"):
        assert text in html
    assert "glassloop train" not in html, "no command trains this"
    assert trainer.report().html == html == report_of(tmp_path).html
    assert trainer.report()._repr_html_().startswith("<iframe srcdoc=")
    before = (tmp_path / REPORT_NAME).stat().st_mtime_ns
    trainer.evaluate()
    assert (tmp_path / REPORT_NAME).stat().st_mtime_ns == before, "it shows this result already"


def test_an_evaluation_after_the_training_completes_its_report(tmp_path: Path, tiny_tokenizer) -> None:
    trainer = trained(tmp_path, small_rows(20), tiny_tokenizer)
    assert "Confusion matrix" not in (tmp_path / REPORT_NAME).read_text()
    assert "there is no final evaluation" in (tmp_path / REPORT_NAME).read_text().lower()
    trainer.evaluate(small_rows(5))
    assert "Confusion matrix" not in (tmp_path / REPORT_NAME).read_text(), "other rows"
    trainer.evaluate()
    assert "Confusion matrix" in (tmp_path / REPORT_NAME).read_text()


def test_metrics_of_the_user_are_shown_and_have_intervals_where_they_are_known(tmp_path: Path, tiny_tokenizer) -> None:
    rows, args = small_rows(20), TrainingArguments(tmp_path, max_steps=2, device="cpu", eval_strategy="steps", eval_steps=2)
    Trainer(
        tiny_model(), args, train_dataset=rows, eval_dataset=rows, processing_class=tiny_tokenizer, compute_metrics=accuracy
    ).train()
    found = {result.key: result for result in report_of(tmp_path).results}
    assert found["accuracy"].low is not None
    assert (found["own <b>"].value, found["own <b>"].low) == (0.25, None)
    assert "own &lt;b&gt;" in (tmp_path / REPORT_NAME).read_text()


def test_the_report_can_be_skipped(tmp_path: Path, tiny_tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, args = small_rows(8), TrainingArguments(tmp_path, max_steps=2, device="cpu")
    trainer = Trainer(tiny_model(), args, train_dataset=rows, processing_class=tiny_tokenizer)
    trainer.train(report=False)
    assert not (tmp_path / REPORT_NAME).exists()
    assert (tmp_path / TRAINER_NAME).exists(), "glassloop report can write it later"
    monkeypatch.setenv(NO_REPORT, "1")
    trainer.train()
    assert not (tmp_path / REPORT_NAME).exists()


@pytest.mark.parametrize("place", ["start", "finish"])
def test_a_report_never_fails_a_training(
    place: str, tmp_path: Path, tiny_tokenizer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*given: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(Recorder, place, fail)
    rows, args = small_rows(8), TrainingArguments(tmp_path, max_steps=2, device="cpu")
    output = Trainer(tiny_model(), args, train_dataset=rows, processing_class=tiny_tokenizer).train()
    assert output.global_step == 2
    assert "could not be recorded for its report: OSError: the disk is full" in capsys.readouterr().err


def test_a_stopped_training_has_its_record_and_no_results(tmp_path: Path, tiny_tokenizer) -> None:
    with pytest.raises(SystemExit):
        trained(tmp_path, small_rows(20), tiny_tokenizer, callbacks=[StopAt(4)], **EVALUATED)
    assert read_record(tmp_path / TRAINER_NAME).status == "running"
    html = report_of(tmp_path).html
    assert "The run was stopped before its end and can be resumed." in html
    assert "Settings that differ" in html
    trained(tmp_path, small_rows(20), tiny_tokenizer, resume=True, **EVALUATED)
    assert "Confusion matrix" in (tmp_path / REPORT_NAME).read_text()
    assert ">resumed<" in (tmp_path / REPORT_NAME).read_text()


def test_the_best_evaluation_is_shown_if_its_weights_are_returned(tmp_path: Path, tiny_tokenizer) -> None:
    trainer = trained(
        tmp_path,
        small_rows(20),
        tiny_tokenizer,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=True,  # the first evaluation is the best
        eval_strategy="steps",
        eval_steps=6,
        save_steps=6,
    )
    found = read_record(tmp_path / TRAINER_NAME)
    assert found.evaluation is not None
    by_step = {entry["step"]: entry["eval_loss"] for entry in trainer.state.history if "eval_loss" in entry}
    assert found.best_step == max(by_step, key=lambda step: by_step[step])
    assert np.isclose(found.evaluation["eval_loss"], by_step[found.best_step])
