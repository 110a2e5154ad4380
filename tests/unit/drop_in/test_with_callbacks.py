"""Callbacks are added, removed and kept apart by package."""

from __future__ import annotations

from families import tiny_model
from transformers import DefaultFlowCallback, EarlyStoppingCallback, PrinterCallback, ProgressCallback, TrainerCallback

from glassloop import Callback, Trainer, TrainingArguments


def test_callbacks_of_both_packages(tmp_path) -> None:
    ours, theirs = Callback(), EarlyStoppingCallback()
    trainer = Trainer(tiny_model(), TrainingArguments(tmp_path, device="cpu"), callbacks=[ours, theirs])
    assert trainer.callbacks[0] is ours
    names = ["DefaultFlowCallback", "EarlyStoppingCallback", "ProgressCallback"]
    assert [type(one).__name__ for one in trainer.callback_handler.callbacks] == names
    trainer.add_callback(TrainerCallback)
    assert type(trainer.callback_handler.callbacks[-1]) is TrainerCallback
    assert trainer.pop_callback(EarlyStoppingCallback) is theirs
    assert trainer.pop_callback(EarlyStoppingCallback) is None
    trainer.remove_callback(ours)
    assert len(trainer.callbacks) == 1  # those of transformers


def test_the_progress_display_can_be_removed(tmp_path) -> None:
    trainer = Trainer(tiny_model(), TrainingArguments(tmp_path, device="cpu", disable_tqdm=True))
    assert isinstance(trainer.pop_callback(PrinterCallback), PrinterCallback)
    assert not trainer._shows_progress()
    trainer.add_callback(ProgressCallback)
    assert trainer._shows_progress()


def test_without_the_default_flow_nothing_is_asked_for(tmp_path) -> None:
    rows = [{"input_ids": [2, 5, 3], "labels": number % 2} for number in range(16)]
    args = TrainingArguments(tmp_path, device="cpu", max_steps=4, logging_steps=1, save_steps=1, save_strategy="steps")
    trainer = Trainer(tiny_model(), args, train_dataset=rows)
    trainer.remove_callback(DefaultFlowCallback)
    trainer.train()
    assert [*tmp_path.glob("checkpoint-*")] == []
    assert [[*entry] for entry in trainer.state.log_history if "loss" in entry] == []
