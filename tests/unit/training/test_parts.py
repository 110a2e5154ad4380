"""The parts of a training: what is saved, what resume refuses, and how much room there must be."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset
from families import tiny_model, weights_hash
from random_rows import Augmented
from torch.nn.functional import cross_entropy

from glassloop import Callback, Trainer, TrainingArguments
from glassloop.errors import ModelError, ResourceError, SettingsError
from glassloop.training.parts import Training


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


def test_saving_disturbs_nothing(rows: Dataset, tiny_tokenizer: Any, tmp_path: Path) -> None:
    often = trained(tmp_path / "often", rows, tiny_tokenizer, save_steps=1)
    never = trained(tmp_path / "never", rows, tiny_tokenizer, save_strategy="no")
    assert weights_hash(often.model) == weights_hash(never.model)
    assert often.state.history == never.state.history
    assert len(list((tmp_path / "often" / "checkpoints").iterdir())) == 2
    assert not (tmp_path / "never" / "checkpoints").exists()


def test_other_intervals_are_accepted_other_numbers_refused(rows: Dataset, tiny_tokenizer: Any, tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", rows, tiny_tokenizer)
    with pytest.raises(SystemExit):
        trained(tmp_path / "run", rows, tiny_tokenizer, callbacks=[StopAt(5)])
    for name, value in (("learning_rate", 2e-3), ("seed", 7), ("per_device_train_batch_size", 3), ("max_steps", 13)):
        with pytest.raises(ModelError, match=r"then.*now") as caught:
            trained(tmp_path / "run", rows, tiny_tokenizer, resume=True, **{name: value})
        assert caught.value.exit_code == 4
        assert ("batch_size" if "batch" in name else name) in caught.value.problem
    edited = rows.map(lambda row, number: {"labels": 1 - row["labels"] if number == 4 else row["labels"]}, with_indices=True)
    for changed, text in (
        (edited, "1 rows edited"),
        (rows.select(range(20)), "1 removed"),
        (rows.select([1, 0, *range(2, 21)]), "another order"),
    ):
        with pytest.raises(ModelError, match=text):
            trained(tmp_path / "run", changed, tiny_tokenizer, resume=True)
    other = trained(tmp_path / "run", rows, tiny_tokenizer, resume=True, logging_steps=5, save_steps=4, eval_strategy="epoch")
    assert weights_hash(other.model) == weights_hash(whole.model)


def test_no_room_for_two_checkpoints_is_refused_before_the_first_step(
    rows: Dataset, tiny_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassloop.training.parts.shutil.disk_usage", lambda folder: shutil._ntuple_diskusage(1, 1, 1000))
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
    monkeypatch.setattr("glassloop.training.parts.shutil.disk_usage", lambda folder: shutil._ntuple_diskusage(1, 1, 1000))
    with pytest.raises(ResourceError, match=rf"{size:,} bytes are needed for .*the final model, 1,000 are free"):
        trainer.train()


def test_a_loss_inside_the_models_forward_is_refused_unless_a_loss_is_given(
    rows: Dataset, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    """It was never used: the model trained on the usual loss instead."""
    model = tiny_model()
    usual = type(model).forward

    def doubled(*given: Any, labels: Any = None, **named: Any) -> Any:
        found = usual(model, *given, labels=labels, **named)
        found.loss = None if labels is None else 2 * found.loss
        return found

    model.forward = doubled
    args = TrainingArguments(tmp_path, max_steps=1, device="cpu", precision="fp32", backend="plain", save_strategy="no")
    parts = {"args": args, "train_dataset": rows, "processing_class": tiny_tokenizer}
    with pytest.raises(SettingsError, match="the model's forward has a loss of its own"):
        Trainer(model, **parts).train()
    Trainer(model, **parts, loss=lambda logits, labels: 2 * cross_entropy(logits, labels, reduction="none")).train()


def test_weights_and_smoothing_of_the_settings_are_not_taken_for_another_loss(
    rows: Dataset, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    settings = {"max_steps": 1, "save_strategy": "no", "label_smoothing_factor": 0.1, "class_weights": "1,3"}
    trained(tmp_path, rows, tiny_tokenizer, **settings)


def test_several_processes_cannot_group_rows_of_a_generator_of_their_own_by_length(
    tiny_tokenizer: Any, tmp_path: Path, says: Any
) -> None:
    """Each process would read other lengths, and so train on another order."""
    args = TrainingArguments(tmp_path, group_by_length=True, device="cpu", precision="fp32", backend="plain")
    trainer = Trainer(tiny_model(), args, train_dataset=Augmented(seed=1), processing_class=tiny_tokenizer)
    training = SimpleNamespace(trainer=trainer, args=args, backend=SimpleNamespace(num_processes=2), same={})
    with says("group_by_length orders rows by lengths that differ in each process"):
        Training.report_random(training, trainer.batches(trainer.train_dataset, training=True))
