"""The methods that subclasses override, called by a script itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import tiny_model

from glassloop import Trainer, TrainingArguments


@pytest.fixture
def trainer(few, tiny_tokenizer, tmp_path) -> Any:
    args = TrainingArguments(tmp_path, max_steps=4, device="cpu", precision="fp32", backend="plain", save_strategy="no")
    return Trainer(
        tiny_model(), args, train_dataset=few["train"], eval_dataset=few["validation"], processing_class=tiny_tokenizer
    )


def test_loaders_have_all_rows(trainer, few) -> None:
    for loader, rows in (
        (trainer.get_train_dataloader(), few["train"]),
        (trainer.get_eval_dataloader(), few["validation"]),
        (trainer.get_test_dataloader(few["train"]), few["train"]),
    ):
        assert sum(len(batch["labels"]) for batch in loader) == len(rows) == trainer.num_examples(loader)


def test_the_loss_and_the_prediction_of_a_batch(trainer) -> None:
    inputs = next(iter(trainer.get_eval_dataloader()))
    trainer.model.eval()
    loss, _ = trainer.compute_loss(trainer.model, dict(inputs), return_outputs=True)
    assert torch.equal(loss, trainer.model(**inputs).loss)
    trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch: outputs.logits.sum() * 0 + num_items_in_batch
    assert trainer.compute_loss(trainer.model, dict(inputs)).item() == len(inputs["labels"])
    _, logits, labels = trainer.prediction_step(trainer.model, dict(inputs), prediction_loss_only=True)
    assert logits is None
    assert torch.equal(labels, inputs["labels"])


def test_optimizer_and_schedule_made_before_a_training_are_used_by_it(trainer) -> None:
    trainer.create_optimizer_and_scheduler(num_training_steps=4)
    mine = trainer.optimizer
    assert trainer.create_optimizer() is mine
    trainer.train()
    assert trainer.optimizer is mine
    assert mine.state


def test_a_line_of_ones_own_goes_to_the_history(trainer) -> None:
    trainer.log({"mine": 1.0})
    assert trainer.state.log_history[-1]["mine"] == 1.0
