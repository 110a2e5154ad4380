"""What a Trainer records: rows of every kind, an evaluation, and the report of each training, which fails no run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from datasets import Dataset
from families import tiny_model
from run_folders import RECORD
from small_training import StopAt, small_rows

from glassloop import Trainer, TrainingArguments
from glassloop.data import rows as row_module
from glassloop.data.rows import RowReader
from glassloop.report.build import NO_REPORT, report_of
from glassloop.runs.record import REPORT_NAME, TRAINER_NAME, read_predictions, read_record
from glassloop.scores.metrics import Measures
from glassloop.settings.training import CLASSES, SEVERAL
from glassloop.training import recorder
from glassloop.training.callbacks import State
from glassloop.training.evaluate import Evaluation
from glassloop.training.recorder import GivenRows, Recorder, can_be_stored, decoded_texts, facts_of, read_given, text_columns

COLUMNS = {
    "guid": ["a-1", "a-2", "a-3"],
    "first": ["a good film", "a bad film", "a good film"],
    "second": ["it was good", "it was bad", "it was good"],
    "input_ids": [[2, 5, 3], [2, 6, 7, 3], [2, 5, 3]],
    "labels": [1, 0, 1],
}
LISTED = [{name: cells[row] for name, cells in COLUMNS.items()} for row in range(3)]
EVALUATED = {"eval_strategy": "steps", "eval_steps": 6}


class Rows:
    """Rows that code of the user returns, as tensors."""

    def __init__(self, number: int = 3) -> None:
        self.number = number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, row: int) -> dict[str, Any]:
        torch.rand(1)
        cells = {"input_ids": [2, 5, 3, 0], "attention_mask": [1, 1, 1, 0], "labels": 1}
        return {name: torch.tensor(value) for name, value in cells.items()}


def test_text_columns_labels_and_lengths_are_found() -> None:
    stored = Dataset.from_dict(COLUMNS)
    formatted = stored.with_format("torch", columns=["input_ids", "labels"])
    for rows in (stored, formatted, stored.with_transform(lambda batch: 1 / 0), LISTED, tuple(LISTED)):
        found = read_given(rows)
        assert {*found.texts} == {"first", "second"}, "not the column of names"
        assert found.texts["first"][1] == "a bad film"
        assert (found.labels.tolist(), found.lengths.tolist()) == ([1, 0, 1], [3, 4, 3])


def test_rows_of_the_user_are_known_from_a_reading_and_of_very_many_only_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    assert read_given(Rows()) == GivenRows(3), "rows that may be slow are not read for a report"
    assert torch.equal(torch.rand(1), expected)
    reader = RowReader(Rows())
    assert [reader[row]["labels"].item() for row in (2, 0)] == [1, 1]
    assert read_given(reader) == GivenRows(3), "a row was not read"
    reader.survey()
    padded = Dataset.from_dict({"input_ids": [[2, 5, 3, 0]] * 3, "attention_mask": [[1, 1, 1, 0]] * 3})
    for rows in (reader, padded):
        found = read_given(rows)
        assert found.lengths.tolist() == [3, 3, 3], "padding does not count"
        assert found.ids[0] == [2, 5, 3, 0]
    many = RowReader(Rows(row_module.MOST_NOTED + 1))
    many.survey()
    assert read_given(many) == GivenRows(row_module.MOST_NOTED + 1)
    monkeypatch.setattr(recorder, "MOST_READ", 2)
    assert read_given(Dataset.from_dict(COLUMNS)) == read_given(LISTED) == GivenRows(3)
    assert read_given(iter([1])) is read_given(None) is None
    assert read_given([[1], [2]]) == GivenRows(2)


def test_texts_are_columns_of_several_words_or_tokens_and_labels_duplicates_conflicts_are_counted(tiny_tokenizer: Any) -> None:
    assert text_columns({"id": ["x"], "text": ["two words"]}) == ["text"]
    assert text_columns({"id": ["x"], "word": ["longer"]}) == ["word"]
    assert text_columns({}) == []
    single = tiny_tokenizer(["the good film", "the"])["input_ids"]
    assert decoded_texts(single, tiny_tokenizer) == [{"text": "the good film"}, {"text": "the"}]
    pairs = tiny_tokenizer(["the good film", "the"], ["the film", "good"], padding=True)["input_ids"]
    assert decoded_texts(pairs, tiny_tokenizer)[1] == {"text": "the", "text_pair": "good"}
    train = GivenRows(3, {"text": ["a b", "c d", "a b"]}, labels=np.array([0, 1, 1]))
    facts = facts_of(train, ("no", "yes"), CLASSES, None)
    assert (facts.num_rows, facts.label_counts, facts.num_duplicates, facts.num_conflicts) == (3, {"no": 1, "yes": 2}, 1, 1)
    facts = facts_of(GivenRows(2, {"text": ["a b", "e f"]}), ("no", "yes"), CLASSES, train.keys())
    assert (facts.num_in_train, facts.unlabelled, len(facts.fingerprint)) == (1, True, 32)
    facts = facts_of(GivenRows(2, labels=np.array([[1, 0], [1, 1]])), ("a", "b"), SEVERAL, None)
    assert (facts.label_counts, facts.fingerprint) == ({"a": 2, "b": 1}, ""), "without texts nothing is known of duplicates"
    assert GivenRows(2, ids=[[1, 2], [1, 2]]).keys()[0] == GivenRows(1, ids=[[1, 2]]).keys()[0]


def evaluation(logits: Any, labels: Any, **metrics: float) -> Evaluation:
    return Evaluation(np.array(logits, dtype=np.float32), np.array(labels), 0.5, 1.0, metrics)


@pytest.mark.parametrize(("best", "best_step", "expected"), [(False, 4, 6), (True, 4, 4), (True, 1, None), (True, None, 6)])
def test_the_evaluation_of_the_returned_weights_is_shown(best: bool, best_step: int | None, expected: int | None) -> None:
    """That of the best step, unless it took place before the training was resumed."""
    backend = SimpleNamespace(processes=SimpleNamespace(is_main=False))
    parts: Any = SimpleNamespace(state=State(), args=SimpleNamespace(load_best_model_at_end=best), backend=backend)
    found = Recorder(parts, None, np.asarray, None)
    for step in (2, 4, 6):
        parts.state.step = step
        found.evaluated(replace(evaluation([[0.0, 1.0]], [1]), loss=float(step)))
        parts.state.best_step = best_step if best_step is None else min(step, best_step)
    found.end({})
    assert (found.shown and found.shown.loss) == expected


def test_what_is_too_large_or_of_another_shape_is_not_stored_and_of_many_rows_few_texts(monkeypatch) -> None:
    fits, names = evaluation([[0, 1], [1, 0]], [1, 0]), ("a", "b")
    assert can_be_stored(fits, names)
    assert not can_be_stored(fits, ("a", "b", "c"))
    assert not can_be_stored(evaluation([[[0, 1]]], [[1]]), names), "one label per token"
    assert not can_be_stored(evaluation([[0, 1]], [-100]), names)
    monkeypatch.setattr(recorder, "MOST_LOGITS", 3)
    assert not can_be_stored(fits, names)
    found, rows = evaluation([[0, 1], [5, 0]], [1, 0]), GivenRows(2, {"text": ["one", "two"]})
    texts = Recorder(None, None, lambda scored: np.array([1]), None).texts
    assert texts(rows, found, RECORD) == [{"text": "one"}, {"text": "two"}]
    monkeypatch.setattr(recorder, "MOST_STORED_TEXTS", 1)
    assert texts(rows, found, RECORD) == [{}, {"text": "two"}]
    assert texts(GivenRows(5), found, RECORD) == texts(None, found, RECORD) == [{}, {}], "not the rows that were evaluated"


def test_a_metric_of_the_user_has_the_baseline_only_if_it_is_the_same() -> None:
    found = evaluation([[0, 1], [1, 0], [1, 0]], [1, 0, 1], eval_accuracy=2 / 3, eval_f1=0.1, eval_own=7.0)
    train = GivenRows(3, labels=np.array([1, 1, 0]))
    record = recorder.with_scores(RECORD, found, None, train)
    assert record.metrics == ("accuracy", "f1", "own")
    assert record.baseline == {"accuracy": 2 / 3}, "this f1 is another one"
    record = recorder.with_scores(RECORD, found, Measures(("accuracy",)), train)
    assert (record.metrics, record.evaluation and record.evaluation["eval_accuracy"]) == (("accuracy",), 2 / 3)


@pytest.fixture(autouse=True)
def reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NO_REPORT, raising=False)  # other tests skip them


def few_steps(folder: Path, tokenizer: Any, rows: Any = None, parts: Any = None, **settings: Any) -> Trainer:
    rows, args = small_rows(8) if rows is None else rows, TrainingArguments(folder, max_steps=2, device="cpu", **settings)
    return Trainer(tiny_model(), args, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer, **(parts or {}))


def test_every_training_writes_a_record_and_the_report_it_shows(train: Any, tmp_path: Path, tiny_tokenizer: Any) -> None:
    trainer = train(rows=small_rows(20), **EVALUATED)
    found = read_record(tmp_path / TRAINER_NAME)
    assert (found.status, found.plan.max_steps, found.model.type, found.backend) == ("finished", 12, "bert", "packed")
    assert found.data.splits["train"].label_counts == {"LABEL_0": 10, "LABEL_1": 10}
    assert found.lengths["validation"].longest == 9
    assert found.baseline == {"accuracy": 0.5}
    assert found.padding > 0
    assert not hasattr(found.settings, "tf32"), "a setting that only transformers has"
    stored = read_predictions(tmp_path, "validation")
    assert len(stored) == 20
    assert {*stored[0]} == {"row", "prediction", "label", "logits", "tokens", "text"}
    assert stored[2]["text"] == tiny_tokenizer.decode(small_rows(3)[2]["input_ids"], skip_special_tokens=True)
    html = (tmp_path / REPORT_NAME).read_text()
    for title in ("Results", "Learning curves", "Errors", "Confidence", "Data", "The run"):
        assert f">{title}</h2>" in html
    for text in ("95% interval", "Confusion matrix", "run the script again", "Most confident errors", "bert"):
        assert text in html
    assert "glassloop train" not in html, "no command trains this"
    assert trainer.report().html == html == report_of(tmp_path).html
    assert trainer.report()._repr_html_().startswith("<iframe srcdoc=")
    before = (tmp_path / REPORT_NAME).stat().st_mtime_ns
    trainer.evaluate()
    assert (tmp_path / REPORT_NAME).stat().st_mtime_ns == before, "it shows this result already"


def test_an_evaluation_after_the_training_completes_its_report(train: Any, tmp_path: Path) -> None:
    trainer, path = train(max_steps=2), tmp_path / REPORT_NAME
    assert "there is no final evaluation" in path.read_text().lower()
    trainer.evaluate(small_rows(5))
    assert "Confusion matrix" not in path.read_text(), "other rows"
    trainer.evaluate()
    assert "Confusion matrix" in path.read_text()


def test_metrics_of_the_user_are_shown_and_have_intervals_where_they_are_known(tmp_path: Path, tiny_tokenizer: Any) -> None:
    def accuracy(found: Any) -> dict[str, float]:
        return {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean()), "own <b>": 0.25}

    settings = {"eval_strategy": "steps", "eval_steps": 2}
    few_steps(tmp_path, tiny_tokenizer, small_rows(20), {"compute_metrics": accuracy}, **settings).train()
    found = {result.key: result for result in report_of(tmp_path).results}
    assert found["accuracy"].low is not None
    assert (found["own <b>"].value, found["own <b>"].low) == (0.25, None)
    assert "own &lt;b&gt;" in (tmp_path / REPORT_NAME).read_text()


def test_the_report_can_be_skipped_and_never_fails_a_training(
    tmp_path: Path, tiny_tokenizer: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = few_steps(tmp_path, tiny_tokenizer)
    trainer.train(report=False)
    assert (tmp_path / TRAINER_NAME).exists(), "glassloop report can write it later"
    for place in ["start", "finish"]:
        with monkeypatch.context() as patched:
            patched.setattr(Recorder, place, Mock(side_effect=OSError("the disk is full")))
            assert few_steps(tmp_path, tiny_tokenizer).train().global_step == 2
        assert "could not be recorded for its report: OSError: the disk is full" in capsys.readouterr().err
    monkeypatch.setenv(NO_REPORT, "1")
    trainer.train()
    assert not (tmp_path / REPORT_NAME).exists()


def test_a_stopped_training_has_its_record_and_no_results(train: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        train(rows=small_rows(20), callbacks=[StopAt(4)], **EVALUATED)
    assert read_record(tmp_path / TRAINER_NAME).status == "running"
    html = report_of(tmp_path).html
    assert "The run was stopped before its end and can be resumed." in html
    assert "Settings that differ" in html
    train(rows=small_rows(20), resume=True, **EVALUATED)
    for text in ("Confusion matrix", ">resumed<"):
        assert text in (tmp_path / REPORT_NAME).read_text()


def test_the_best_evaluation_is_shown_if_its_weights_are_returned(train: Any, tmp_path: Path) -> None:
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "save_steps": 6}
    best["greater_is_better"] = True  # the first evaluation is the best
    trainer = train(rows=small_rows(20), **best, **EVALUATED)
    found = read_record(tmp_path / TRAINER_NAME)
    by_step = {entry["step"]: entry["eval_loss"] for entry in trainer.state.history if "eval_loss" in entry}
    assert found.best_step == max(by_step, key=lambda step: by_step[step])
    assert np.isclose(found.evaluation["eval_loss"], by_step[found.best_step])
