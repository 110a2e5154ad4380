"""Callbacks are added, removed and kept apart by package."""

from __future__ import annotations

from families import tiny_model
from transformers import EarlyStoppingCallback, TrainerCallback

from glassloop import Callback, Trainer, TrainingArguments


def test_callbacks_of_both_packages(tmp_path) -> None:
    ours, theirs = Callback(), EarlyStoppingCallback()
    trainer = Trainer(tiny_model(), TrainingArguments(tmp_path, device="cpu"), callbacks=[ours, theirs])
    assert trainer.callbacks[0] is ours
    assert [*trainer.callbacks[1].callbacks] == [theirs]
    trainer.add_callback(TrainerCallback)
    assert len(trainer.callbacks[1].callbacks) == 2
    assert trainer.pop_callback(EarlyStoppingCallback) is theirs
    assert trainer.pop_callback(EarlyStoppingCallback) is None
    trainer.remove_callback(ours)
    trainer.remove_callback(TrainerCallback)
    assert trainer.callbacks == []
