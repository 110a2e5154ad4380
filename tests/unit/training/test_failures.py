"""What stops a training: not enough disk space or memory, and figures that are not finite."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from families import tiny_model

from glassloop import Callback, Trainer, TrainingArguments
from glassloop.errors import ResourceError


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, state: Any, batches: list[Any]) -> None:
        if state.step == self.step:
            state.asked_to_stop = 15


@pytest.fixture(scope="module")
def rows() -> Dataset:
    ids = [[2, *(5 + (row * place) % 40 for place in range(3 + row % 5)), 3] for row in range(21)]
    return Dataset.from_dict({"input_ids": ids, "labels": [row % 2 for row in range(21)]})


def trained(folder: Path, rows: Any, tokenizer: Any, resume: Any = None, callbacks: Any = None, **settings: Any) -> Trainer:
    chosen = {"max_steps": 12, "per_device_train_batch_size": 4, "save_strategy": "steps", "save_steps": 3, "logging_steps": 2}
    args = TrainingArguments(folder, **(chosen | {"learning_rate": 1e-3, "device": "cpu", "precision": "fp32"} | settings))
    trainer = Trainer(
        tiny_model(), args, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer, callbacks=callbacks
    )
    trainer.quiet = True
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_no_room_for_two_checkpoints_is_refused_before_the_first_step(
    rows: Dataset, tiny_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassloop.training.failures.shutil.disk_usage", lambda folder: shutil._ntuple_diskusage(1, 1, 1000))
    with pytest.raises(ResourceError, match=r"bytes are needed for two checkpoints, 1,000 are free"):
        trained(tmp_path, rows, tiny_tokenizer)


def test_room_for_the_final_model_of_a_run_is_checked_and_reserved(
    rows: Dataset, tiny_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = TrainingArguments(tmp_path, max_steps=1, save_strategy="no", device="cpu", disable_tqdm=True)
    trainer = Trainer(tiny_model(), args, train_dataset=rows, processing_class=tiny_tokenizer)
    trainer.quiet, trainer.in_run = True, True
    found: list[int] = []
    trainer.on_gradients = lambda model: found.append((tmp_path / ".model.reserved").stat().st_size)
    trainer.train()
    (size,) = found
    assert size > sum(weight.nbytes for weight in trainer.model.parameters())
    assert not (tmp_path / ".model.reserved").exists()
    monkeypatch.setattr("glassloop.training.failures.shutil.disk_usage", lambda folder: shutil._ntuple_diskusage(1, 1, 1000))
    with pytest.raises(ResourceError, match=rf"{size:,} bytes are needed for .*the final model, 1,000 are free"):
        trainer.train()
