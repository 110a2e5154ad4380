"""What is checked and made before the first step: losses, random rows, callbacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset
from families import tiny_model
from random_rows import Augmented
from torch.nn.functional import cross_entropy

from glassloop import Callback, Trainer, TrainingArguments
from glassloop.errors import SettingsError
from glassloop.training.started import StartedTraining


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
    parts = replace(trainer.parts(), backend=SimpleNamespace(num_processes=2))
    with says("group_by_length orders rows by lengths that differ in each process"):
        StartedTraining.report_random_rows(SimpleNamespace(parts=parts, fixed={}))
