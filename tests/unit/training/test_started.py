"""What is checked and made before the first step: losses, random rows, callbacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from families import tiny_model
from random_rows import Augmented
from small_training import trained
from torch.nn.functional import cross_entropy

from glassloop import Trainer, TrainingArguments
from glassloop.base.errors import SettingsError
from glassloop.trainer import Trainer as RunTrainer
from glassloop.training.session import StartedTraining, checkpoint_gradients


def test_a_loss_inside_the_models_forward_is_refused_unless_a_loss_is_given(
    rows: Dataset, tiny_tokenizer: Any, tmp_path: Path
) -> None:
    """It was never used: the model trained on the usual loss instead. Runs of the command do not use it."""
    model = tiny_model()
    usual = type(model).forward

    def doubled(*given: Any, labels: Any = None, **named: Any) -> Any:
        found = usual(model, *given, labels=labels, **named)
        found.loss = None if labels is None else 2 * found.loss
        return found

    model.forward = doubled
    args = TrainingArguments(tmp_path, max_steps=1, device="cpu", precision="fp32", backend="plain", save_strategy="no")
    parts = {"args": args, "train_dataset": rows, "processing_class": tiny_tokenizer}
    with pytest.raises(SettingsError, match="the model's forward computes its own loss"):
        RunTrainer(model, **parts).train()
    RunTrainer(model, **parts, loss=lambda logits, labels: 2 * cross_entropy(logits, labels, reduction="none")).train()


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
    parts = replace(trainer._parts(), backend=SimpleNamespace(processes=SimpleNamespace(num_processes=2)))
    with says("group_by_length orders rows by lengths that differ in each process"):
        StartedTraining.report_random_rows(SimpleNamespace(parts=parts, fixed={}))


def test_gradient_checkpointing_is_refused_by_name_if_a_model_cannot_do_it() -> None:
    model = tiny_model()
    checkpoint_gradients(model)
    assert model.is_gradient_checkpointing
    with pytest.raises(SettingsError, match="Linear does not support gradient_checkpointing"):
        checkpoint_gradients(torch.nn.Linear(2, 2))
