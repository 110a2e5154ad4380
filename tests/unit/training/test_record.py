"""The record of a Trainer's training: what it is before the first step, at the end, and what of an evaluation is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_record import RECORD
from small_training import small_rows, trained

from glassloop import Trainer, TrainingArguments
from glassloop.report import training as record
from glassloop.report.training import Evaluations, GivenRows, KeptEvaluation, plain_settings, texts_of, with_scores
from glassloop.runs.layout import TRAINER_NAME
from glassloop.runs.predictions import read_predictions
from glassloop.runs.record import read_record
from glassloop.scores.measures import Measures
from glassloop.training.evaluate import Evaluation
from glassloop.training.state import State


def evaluation(logits: Any, labels: Any, **metrics: float) -> Evaluation:
    return Evaluation(np.array(logits, dtype=np.float32), np.array(labels), 0.5, 1.0, metrics)


def test_the_evaluation_of_the_returned_weights_is_shown() -> None:
    found, state = Evaluations(), State()
    assert found.of_the_model(state, best=True) is None
    first, second, third = (evaluation([[0.0, 1.0]], [1]) for _ in range(3))
    for step, one in ((2, first), (4, second), (6, third)):
        state.step = step
        found.add(one, "eval", state)
        if step == 2:
            state.best_step = 2
        if step == 4:
            state.best_step = 4
    assert found.of_the_model(state, best=False).found is third  # type: ignore[union-attr]
    assert found.of_the_model(state, best=True).found is second  # type: ignore[union-attr]
    state.best_step = 1
    assert found.of_the_model(state, best=True) is None, "it was evaluated before the training was resumed"


def test_what_is_too_large_or_of_another_shape_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = KeptEvaluation(evaluation([[0, 1], [1, 0]], [1, 0]), "eval", 1)
    assert fits.can_be_stored(("a", "b"))
    assert not fits.can_be_stored(("a", "b", "c"))
    assert not KeptEvaluation(evaluation([[[0, 1]]], [[1]]), "eval", 1).can_be_stored(("a", "b")), "one label per token"
    assert not KeptEvaluation(evaluation([[0, 1]], [-100]), "eval", 1).can_be_stored(("a", "b"))
    monkeypatch.setattr(record, "MOST_LOGITS", 3)
    assert not fits.can_be_stored(("a", "b"))


def test_a_metric_of_the_user_has_the_baseline_only_if_it_is_the_same() -> None:
    kept = KeptEvaluation(
        evaluation([[0, 1], [1, 0], [1, 0]], [1, 0, 1], eval_accuracy=2 / 3, eval_f1=0.1, eval_own=7.0), "eval", 3
    )
    train = GivenRows(3, labels=np.array([1, 1, 0]))
    found = with_scores(RECORD, kept, None, train)
    assert found.metrics == ("accuracy", "f1", "own")
    assert found.baseline == {"accuracy": 2 / 3}, "this f1 is another one"
    found = with_scores(RECORD, kept, Measures(("accuracy",)), train)
    assert (found.metrics, found.evaluation and found.evaluation["eval_accuracy"]) == (("accuracy",), 2 / 3)


def test_of_many_rows_only_those_that_a_report_lists_have_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptEvaluation(evaluation([[0, 1], [5, 0]], [1, 0]), "eval", 1)
    rows = GivenRows(2, {"text": ["one", "two"]})
    assert texts_of(rows, kept, RECORD, None) == [{"text": "one"}, {"text": "two"}]
    monkeypatch.setattr(record, "MOST_STORED_TEXTS", 1)
    monkeypatch.setattr(record, "listed_rows", lambda scored: np.array([1]))
    assert texts_of(rows, kept, RECORD, None) == [{}, {"text": "two"}]
    assert texts_of(GivenRows(5), kept, RECORD, None) == [{}, {}], "other rows than those that were evaluated"
    assert texts_of(None, kept, RECORD, None) == [{}, {}]


def test_the_settings_of_transformers_are_left_out() -> None:
    kept = plain_settings(TrainingArguments("out", learning_rate=1e-3, tf32=False))
    assert kept.learning_rate == 1e-3
    assert not hasattr(kept, "tf32")


def test_the_folder_of_a_trainer_has_everything_a_report_needs(tmp_path: Path, tiny_tokenizer) -> None:
    trainer = trained(tmp_path, small_rows(20), tiny_tokenizer, eval_strategy="steps", eval_steps=6)
    assert isinstance(trainer, Trainer)
    found = read_record(tmp_path / TRAINER_NAME)
    assert (found.status, found.plan.max_steps, found.model.type, found.backend) == ("finished", 12, "bert", "packed")
    assert found.data.splits["train"].label_counts == {"LABEL_0": 10, "LABEL_1": 10}
    assert found.lengths["validation"].longest == 9
    assert found.baseline == {"accuracy": 0.5}
    assert found.padding > 0
    stored = read_predictions(tmp_path, "validation")
    assert len(stored) == 20
    assert {*stored[0]} == {"row", "prediction", "label", "logits", "tokens", "text"}
    assert stored[2]["text"] == tiny_tokenizer.decode(small_rows(3)[2]["input_ids"], skip_special_tokens=True)
