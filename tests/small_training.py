"""A small training for tests: rows of token ids, fixed or random, a trained Trainer, and a callback that stops it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from families import VOCABULARY, tiny_model

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


def any_word(kind: str) -> int:
    """A random word id from one of the global generators."""
    first, last = 5, len(VOCABULARY) - 1
    if kind == "python":
        return random.randint(first, last)
    if kind == "numpy":
        return int(np.random.randint(first, last + 1))
    return int(torch.randint(first, last + 1, ()))


class Augmented(torch.utils.data.Dataset):
    """Rows of few words; each reading puts random ones in their place and cuts a random number of them."""

    def __init__(self, kind: str = "torch", seed: int | None = None) -> None:
        self.kind, self.generator = kind, None if seed is None else random.Random(seed)
        self.reads = 0

    def __len__(self) -> int:
        return 21

    def __getitem__(self, number: int) -> dict[str, Any]:
        self.reads += 1
        draw = (lambda: self.generator.randint(5, len(VOCABULARY) - 1)) if self.generator else (lambda: any_word(self.kind))
        words = [draw() if place % 2 else 7 for place in range(3 + number % 4 + draw() % 3)]
        return {"input_ids": [2, *words, 3], "labels": number % 2}
