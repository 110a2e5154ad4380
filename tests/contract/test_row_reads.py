"""How often the rows of a torch `Dataset` are read: about once per epoch and evaluation, as with transformers' Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contract.test_scripts import calm_model
from families import tiny_tokenizer

from glassloop import Trainer, TrainingArguments
from glassloop.base.errors import ResumeError
from glassloop.data import rows as row_module

ROWS, EPOCHS = 160, 3
FEW = 60  # reads of single rows that show labels, repetition and agreement of backends, at most


class Counted(torch.utils.data.Dataset):
    """Rows of several lengths that are made when they are read."""

    def __init__(self, number: int = ROWS, random: str | None = None, edited: int | None = None) -> None:
        self.number, self.random, self.edited, self.reads = number, random, edited, 0
        self.own = np.random.default_rng(0)

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, row: int) -> dict[str, Any]:
        self.reads += 1
        ids = [2, *(5 + (row * 7 + place) % 40 for place in range(3 + row % 6)), 3]
        if self.random is not None:
            ids[1] = 5 + int(torch.randint(40, ()) if self.random == "global" else self.own.integers(40))
        if row == self.edited:
            ids[1] = 6
        return {"input_ids": torch.tensor(ids), "attention_mask": torch.ones(len(ids), dtype=torch.int64), "labels": row % 2}


def trainer_on(folder: Path, rows: Any, eval_rows: Any = None, **given: Any) -> Trainer:
    usual = {"num_train_epochs": EPOCHS, "per_device_train_batch_size": 8, "save_strategy": "epoch", "disable_tqdm": True}
    args = TrainingArguments(str(folder), **usual | {"device": "cpu", "precision": "fp32"} | given)
    return Trainer(calm_model(), args, train_dataset=rows, eval_dataset=eval_rows, processing_class=tiny_tokenizer())


@pytest.mark.parametrize("backend", ["plain", "packed"])
@pytest.mark.parametrize("more", [{}, {"group_by_length": True}, {"class_weights": "balanced"}], ids=str)
def test_rows_are_read_once_per_epoch(more: dict[str, Any], backend: str, tmp_path: Path) -> None:
    rows = Counted()
    trainer_on(tmp_path, rows, backend=backend, **more).train()
    assert EPOCHS * ROWS <= rows.reads <= EPOCHS * ROWS + FEW


@pytest.mark.parametrize("backend", ["plain", "packed"])
def test_evaluation_rows_are_read_once_per_evaluation(backend: str, tmp_path: Path) -> None:
    rows, held_out = Counted(), Counted(80)
    best = {"load_best_model_at_end": True}
    trainer = trainer_on(tmp_path, rows, held_out, eval_strategy="epoch", backend=backend, **best)
    trainer.train()
    trainer.evaluate()
    assert rows.reads <= EPOCHS * ROWS + FEW
    assert (EPOCHS + 1) * 80 <= held_out.reads <= (EPOCHS + 1) * 80 + FEW
    other = Counted(80)
    trainer.predict(other)
    assert 80 <= other.reads <= 80 + FEW / 3


@pytest.mark.parametrize("random", ["global", "own"])
def test_random_rows_are_read_once_per_epoch(random: str, tmp_path: Path) -> None:
    rows, held_out = Counted(random=random), Counted(80, random)
    trainer_on(tmp_path, rows, held_out, eval_strategy="epoch").train()
    assert rows.reads <= EPOCHS * ROWS + FEW
    assert held_out.reads <= EPOCHS * 80 + FEW


def test_rows_that_do_not_fit_into_memory_are_read_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_module, "MOST_AHEAD", 0)
    rows = Counted()
    trainer_on(tmp_path, rows, backend="packed").train()
    assert rows.reads <= (EPOCHS + 1) * ROWS + FEW


@pytest.mark.parametrize("edited", [3, 150])
def test_a_resumed_run_notices_an_edited_row(edited: int, tmp_path: Path) -> None:
    """Of rows that the run has read: the others cannot have changed its weights."""
    given = {"max_steps": 30, "save_strategy": "steps", "save_steps": 25}
    first = trainer_on(tmp_path, Counted(), **given)
    first.train()
    with pytest.raises(ResumeError, match="1 rows edited"):
        trainer_on(tmp_path, Counted(edited=edited), **given).train(True)
    rows = Counted()
    resumed = trainer_on(tmp_path, rows, **given)
    resumed.train(True)
    assert rows.reads <= ROWS + FEW
    for name, weight in first.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name])


def test_rows_that_were_not_read_before_a_checkpoint_may_change(tmp_path: Path) -> None:
    given = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "backend": "plain"}
    trainer = trainer_on(tmp_path, Counted(), **given)
    read = np.concatenate(trainer._batches(trainer.train_dataset, training=True).order(0)[:2])
    trainer.train()
    (tmp_path / "checkpoint-4").rename(tmp_path / "later")
    unread = next(row for row in range(40, ROWS) if row not in read)
    trainer_on(tmp_path, Counted(edited=unread), **given).train(str(tmp_path / "checkpoint-2"))
