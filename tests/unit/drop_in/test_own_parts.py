"""What a script replaces decides the backend, and only that: the rest stays as fast as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from families import tiny_model, weights_hash
from safetensors.torch import save_file
from torch.nn import functional

from glassloop import Trainer, TrainingArguments
from glassloop.engine.checkpoint import open_checkpoint


def trainer_of(few: Any, tokenizer: Any, folder: Any, kind: Any = Trainer, parts: Any = None, **given: Any) -> Any:
    usual = {
        "max_steps": 4,
        "device": "cpu",
        "precision": "fp32",
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_steps": 1,
    }
    args = TrainingArguments(folder, **usual | given)
    rows = {"train_dataset": few["train"], "eval_dataset": few["validation"], "processing_class": tokenizer}
    return kind(tiny_model(dropout=0.0), args, **rows | (parts or {}))


class OwnLoss(Trainer):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        labels = inputs.pop("labels")
        found = model(**inputs)
        loss = functional.cross_entropy(found.logits, labels)
        return (loss, found) if return_outputs else loss


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, None),
        ({"kind": OwnLoss}, "compute_loss is overridden"),
        ({"optim": "sgd"}, "the optimizer is sgd"),
        ({"gradient_checkpointing": True}, "gradient_checkpointing computes activations again"),
        ({"parts": {"optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": 0.1})}}, "optimizer_cls_and_kwargs is given"),
        ({"parts": {"compute_loss_func": lambda outputs, labels, num_items_in_batch: 0}}, "compute_loss_func is given"),
    ],
)
def test_only_what_cannot_be_fast_falls_back(few, tiny_tokenizer, tmp_path, capsys, change: Any, why: str | None) -> None:
    trainer = trainer_of(few, tiny_tokenizer, tmp_path, **change)
    assert trainer.backend.name == ("packed" if why is None else "plain")
    assert ((why or "instead of") in capsys.readouterr().err) == (why is not None)


def test_the_same_loss_in_a_subclass_gives_the_same_training_under_accumulation(few, tiny_tokenizer, tmp_path) -> None:
    given = {"backend": "plain", "gradient_accumulation_steps": 3, "per_device_train_batch_size": 4}
    usual = trainer_of(few, tiny_tokenizer, tmp_path / "a", **given)
    mine = trainer_of(few, tiny_tokenizer, tmp_path / "b", OwnLoss, **given)
    for trainer in (usual, mine):
        trainer.train()
    found = [[entry["loss"] for entry in trainer.state.history if "loss" in entry] for trainer in (usual, mine)]
    assert found[0] == pytest.approx(found[1], abs=1e-6)


def test_a_resumed_training_with_a_loss_of_its_own_is_bit_identical(few, tiny_tokenizer, tmp_path) -> None:
    given = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6}
    whole = trainer_of(few, tiny_tokenizer, tmp_path / "whole", OwnLoss, **given)
    whole.train()

    half = trainer_of(few, tiny_tokenizer, tmp_path / "half", OwnLoss, **given)
    half.add_callback(stop_at(2))
    half.train()
    again = trainer_of(few, tiny_tokenizer, tmp_path / "half", OwnLoss, **given)
    again.train(resume_from_checkpoint=tmp_path / "half" / "checkpoint-2")
    assert weights_hash(again.model) == weights_hash(whole.model)


class OwnSaving(Trainer):
    """Writes weights that cannot be loaded back as they were trained, and no config."""

    def save_model(self, output_dir: Any = None) -> None:
        save_file({"half": self.model.classifier.weight.half()}, Path(output_dir, "model.safetensors"))
        torch.rand(1)  # must not change the training


@pytest.mark.parametrize("backend", ["plain", "auto"])
def test_a_save_model_of_a_script_writes_the_model_of_checkpoints(few, tiny_tokenizer, tmp_path, backend: str) -> None:
    given = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6, "backend": backend}
    whole = trainer_of(few, tiny_tokenizer, tmp_path / "whole", **given)
    whole.train()
    half = trainer_of(few, tiny_tokenizer, tmp_path / "half", OwnSaving, **given)
    half.train()
    assert weights_hash(half.model) == weights_hash(whole.model)
    folder = tmp_path / "half" / "checkpoint-4"
    assert "model.safetensors" in open_checkpoint(folder).manifest["files"]
    assert not (folder / "config.json").exists()
    again = trainer_of(few, tiny_tokenizer, tmp_path / "half", OwnSaving, **given)
    again.train(resume_from_checkpoint=folder)
    assert weights_hash(again.model) == weights_hash(whole.model)


def stop_at(step: int) -> Any:
    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            control.should_training_stop = state.global_step == step

    return Stop()
