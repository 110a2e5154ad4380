"""What stops a training: not enough disk space or memory, and figures that are not finite."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from families import tiny_model
from small_training import trained

from glassloop import Trainer, TrainingArguments
from glassloop.base.errors import DivergedError, ResourceError


def test_no_space_for_two_checkpoints_is_refused_before_the_first_step(
    rows: Dataset, tiny_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassloop.training.session.shutil.disk_usage", lambda folder: shutil._ntuple_diskusage(1, 1, 1000))
    with pytest.raises(ResourceError, match=r"bytes are needed for two checkpoints, 1,000 are free"):
        trained(tmp_path, rows, tiny_tokenizer)


def test_room_for_the_final_model_of_a_run_is_checked_and_reserved(
    rows: Dataset, tiny_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = TrainingArguments(tmp_path, max_steps=1, save_strategy="no", device="cpu", disable_tqdm=True)
    trainer = Trainer(tiny_model(), args, train_dataset=rows, processing_class=tiny_tokenizer)
    trainer._quiet, trainer._in_run = True, True
    found: list[int] = []
    trainer.on_gradients = lambda model: found.append((tmp_path / ".model.reserved").stat().st_size)
    trainer.train()
    (size,) = found
    assert size > sum(weight.nbytes for weight in trainer.model.parameters())
    assert not (tmp_path / ".model.reserved").exists()
    monkeypatch.setattr("glassloop.training.session.shutil.disk_usage", lambda folder: shutil._ntuple_diskusage(1, 1, 1000))
    with pytest.raises(ResourceError, match=rf"{size:,} bytes are needed for .*the final model, 1,000 are free"):
        trainer.train()


@pytest.mark.parametrize("evaluated", [False, True])
def test_before_the_first_update_the_learning_rate_is_not_blamed(
    rows: Dataset, tiny_tokenizer: Any, tmp_path: Path, evaluated: bool
) -> None:
    """Weights that are finite, but too large for a finite loss."""
    model = tiny_model()
    with torch.no_grad():
        model.bert.embeddings.LayerNorm.weight.mul_(1e38)
    more = {"eval_on_start": True, "eval_strategy": "epoch"} if evaluated else {}
    args = TrainingArguments(
        tmp_path, max_steps=2, save_strategy="no", device="cpu", disable_tqdm=True, backend="plain", **more
    )
    trainer = Trainer(model, args, train_dataset=rows, eval_dataset=rows, processing_class=tiny_tokenizer)
    trainer._quiet = True
    with pytest.raises(DivergedError) as caught:
        trainer.train()
    assert caught.value.problem.startswith("step 0: the loss of the evaluation" if evaluated else "step 1: the loss is nan")
    rows_named = "its rows" if evaluated else "these rows"
    assert caught.value.remedy == f"no weight was updated yet: use another model, use precision fp32, or look at {rows_named}"
