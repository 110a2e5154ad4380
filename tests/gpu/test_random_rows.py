"""Rows that draw random numbers when they are read, under captured CUDA graphs: right ids, and an exact resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from families import tiny_model, weights_hash
from small_training import Augmented, StopAt

from glassloop import Trainer, TrainingArguments

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


@pytest.fixture
def train(tiny_tokenizer, tmp_path: Path):
    def run(
        backend: str, folder: str, dropout: float = 0.0, *, resume: bool = False, callbacks: Any = None, **given: Any
    ) -> Trainer:
        settings = {
            **{"max_steps": 40, "per_device_train_batch_size": 4, "learning_rate": 3e-4, "logging_steps": 1, "device": "cuda"},
            **{"precision": "fp32", "save_strategy": "steps", "save_steps": 10, "disable_tqdm": True, "backend": backend},
        }
        trainer = Trainer(
            tiny_model(dropout=dropout, initializer_range=0.2), TrainingArguments(tmp_path / folder, **settings | given),
            train_dataset=Augmented(), processing_class=tiny_tokenizer, callbacks=callbacks,
        )  # fmt: skip
        trainer.train(resume_from_checkpoint=resume)
        assert trainer.backend.name == backend
        return trainer

    return run


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.history if "loss" in entry]


@pytest.mark.parametrize("backend", ["graphs", "packed"])
def test_random_rows_give_the_losses_of_plain(train, backend: str) -> None:
    """Without dropout only the rows draw from the CPU's generator, so both backends read the same ones."""
    assert losses(train(backend, "fast")) == pytest.approx(losses(train("plain", "plain")), abs=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_random_rows_are_resumed_exactly_and_saving_disturbs_nothing(train, precision: str) -> None:
    whole = train("graphs", "whole", 0.1, precision=precision)
    often = train("graphs", "often", 0.1, precision=precision, save_steps=1)
    assert weights_hash(often.model) == weights_hash(whole.model)
    with pytest.raises(SystemExit):
        train("graphs", "parts", 0.1, precision=precision, callbacks=[StopAt(17)])
    parts = train("graphs", "parts", 0.1, precision=precision, resume=True)
    assert weights_hash(parts.model) == weights_hash(whole.model)
    assert losses(parts) == losses(whole)
