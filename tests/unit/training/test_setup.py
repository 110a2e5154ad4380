"""What a Trainer is given: checked when it is made, and again when it is assigned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from families import tiny_model

from glassloop import Callback, Trainer, TrainingArguments
from glassloop.base.errors import SettingsError


@pytest.fixture
def trainer(tiny_tokenizer: Any, tmp_path: Path) -> Trainer:
    rows = Dataset.from_dict({"input_ids": [[2, 5, 3]] * 4, "labels": [0, 1, 1, 1]})
    args = TrainingArguments(tmp_path, device="cpu", class_weights="balanced")
    return Trainer(tiny_model(), args, train_dataset=rows, processing_class=tiny_tokenizer)


def test_a_line_is_shown_once(trainer: Trainer, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        trainer._say_once("once")
    assert capsys.readouterr().err.count("once") == 1
    trainer._quiet = True
    trainer._say("never")
    assert capsys.readouterr().err == ""


def test_callbacks_are_made_and_checked_when_they_are_assigned(trainer: Trainer) -> None:
    trainer.callbacks = [Callback]
    assert [type(callback).__name__ for callback in trainer.callbacks] == ["Callback", "TrainerCallbacks"]
    with pytest.raises(SettingsError, match="has no on_fit_start"):
        trainer.callbacks = [object()]  # type: ignore[list-item]


def test_classes_are_counted_once_for_each_data_set(trainer: Trainer) -> None:
    first = trainer._class_weights()
    assert first == [2.0, pytest.approx(2 / 3)]
    assert trainer._class_weights() is first
    trainer.train_dataset = Dataset.from_dict({"input_ids": [[2, 5, 3]] * 2, "labels": [0, 1]})
    assert trainer._class_weights() == [1.0, 1.0]


def test_the_use_of_a_training_names_what_a_backend_has_to_know(trainer: Trainer) -> None:
    use = trainer._training_use()
    assert (use.reads_gradients, use.adds_gradients, use.reads_weights) == (False, False, False)
    trainer.on_gradients, trainer.callbacks = lambda model: None, [Callback]
    use = trainer._training_use()
    assert (use.reads_gradients, use.reads_weights, len(use.data_sets)) == (True, True, 1)


def test_a_trainer_needs_a_model(tiny_tokenizer: Any) -> None:
    with pytest.raises(SettingsError, match="Trainer needs a model"):
        Trainer(processing_class=tiny_tokenizer)
