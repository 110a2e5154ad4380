"""A small training for tests: rows of token ids, a Trainer that has trained on them, and a callback that stops it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets import Dataset
from families import tiny_model

from glassloop import Callback, Trainer, TrainingArguments


class StopAt(Callback):
    """Asks the loop to stop after a step, as a signal would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, state: Any, batches: list[Any]) -> None:
        if state.step == self.step:
            state.asked_to_stop = 15


def small_rows(number: int, lengths: int = 5) -> Dataset:
    """Return rows of token ids with two labels and this many different lengths."""
    ids = [[2, *(5 + (row * place) % 40 for place in range(3 + row % lengths)), 3] for row in range(number)]
    return Dataset.from_dict({"input_ids": ids, "labels": [row % 2 for row in range(number)]})


def trained(
    folder: Path, rows: Any, tokenizer: Any, resume: Any = None, callbacks: Any = None, restart: bool = False, **settings: Any
) -> Trainer:
    """Return a Trainer after twelve steps with a checkpoint every three; settings override."""
    chosen = {"max_steps": 12, "per_device_train_batch_size": 4, "save_strategy": "steps", "save_steps": 3, "logging_steps": 2}
    args = TrainingArguments(folder, **(chosen | {"learning_rate": 1e-3, "device": "cpu", "precision": "fp32"} | settings))
    trainer = Trainer(
        tiny_model(), args, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer, callbacks=callbacks
    )
    trainer._quiet = True
    trainer.train(resume_from_checkpoint=resume, restart=restart)
    return trainer
