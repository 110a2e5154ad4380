"""What only a GPU can show: precisions, device choice, random states of the device in checkpoints. Skipped elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from families import tiny_model
from small_training import StopAt, small_rows

from glassloop import Trainer, TrainingArguments

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


@pytest.fixture(scope="module")
def rows() -> Dataset:
    return small_rows(64, lengths=9)


def trained(folder: Path, rows: Any, tokenizer: Any, *, resume: Any = None, callbacks: Any = None, **settings: Any) -> Trainer:
    chosen = {"max_steps": 12, "logging_steps": 1, "learning_rate": 1e-3, "save_strategy": "no"} | settings
    parts = {"train_dataset": rows, "eval_dataset": rows, "processing_class": tokenizer, "callbacks": callbacks}
    trainer = Trainer(tiny_model(), TrainingArguments(folder, **chosen), **parts)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def losses(trainer: Trainer) -> torch.Tensor:
    return torch.tensor([entry["loss"] for entry in trainer.state.history])


@pytest.mark.parametrize("backend", ["plain", "accelerate"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_precision_trains_and_evaluates(precision: str, backend: str, rows: Dataset, tiny_tokenizer, tmp_path) -> None:
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    trainer = trained(tmp_path, rows, tiny_tokenizer, precision=precision, backend=backend)
    assert torch.isfinite(losses(trainer)).all()
    assert trainer.backend.device.type == "cuda"
    assert trainer.backend.precision == precision
    assert all(weight.dtype == torch.float32 for weight in trainer.model.parameters())
    assert trainer.predict(rows).predictions.shape == (64, 2)


def test_auto_is_bf16_on_a_gpu_made_for_it(rows: Dataset, tiny_tokenizer: Any, tmp_path: Path) -> None:
    expected = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    assert trained(tmp_path, rows, tiny_tokenizer, max_steps=1).backend.precision == expected


def test_the_gpu_agrees_with_the_cpu_without_dropout(rows: Dataset, tiny_tokenizer: Any, tmp_path: Path) -> None:
    found = {}
    for device in ("cpu", "cuda"):
        settings = {"max_steps": 12, "logging_steps": 1, "precision": "fp32", "learning_rate": 1e-3}
        args = TrainingArguments(tmp_path / device, device=device, **settings)
        trainer = Trainer(tiny_model(dropout=0.0), args, train_dataset=rows, processing_class=tiny_tokenizer)
        trainer.train()
        found[device] = losses(trainer)
    torch.testing.assert_close(found["cuda"], found["cpu"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_stopping_and_resuming_draws_the_same_dropout_masks(precision: str, rows: Dataset, tiny_tokenizer, tmp_path) -> None:
    whole = trained(tmp_path / "whole", rows, tiny_tokenizer, precision=precision)
    with pytest.raises(SystemExit):
        trained(tmp_path / "parts", rows, tiny_tokenizer, precision=precision, callbacks=[StopAt(5)])
    parts = trained(tmp_path / "parts", rows, tiny_tokenizer, precision=precision, resume=True)
    torch.testing.assert_close(losses(parts), losses(whole), rtol=1e-4, atol=1e-5)
