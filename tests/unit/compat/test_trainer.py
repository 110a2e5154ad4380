"""The model card of a Trainer: facts of a script, settings and metrics, in the one format of all cards."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from families import tiny_model, weights_hash
from huggingface_hub import ModelCard
from torch.utils.data import DataLoader

from glassloop import Trainer, TrainingArguments
from glassloop.base.errors import ResourceError, SettingsError, TooLargeError
from glassloop.compat.trainer import trainer_card
from glassloop.report.card import card_text


def test_a_card_has_facts_settings_and_the_latest_metrics() -> None:
    history = [{"step": 1, "eval_loss": 2.0}, {"step": 2, "eval_loss": 1.0, "eval_runtime": 3.0}, {"step": 3, "loss": 1.0}]
    facts = {"language": "en", "tags": ["mine"], "model_name": "My model", "finetuned_from": "bert", "license": None}
    text = card_text(trainer_card("folder", TrainingArguments("out", seed=7), history, {**facts, "dataset": "Mine"}))
    for line in ("language: en", "base_model: bert", "- mine", "# My model", "| seed | 7 |"):
        assert f"\n{line}\n" in text
    assert "| loss | validation | 1.0000 |" in text
    assert "runtime" not in text
    assert "license" not in text
    data = ModelCard(text).data
    assert (data.model_name, data.eval_results[0].dataset_name, data.eval_results[0].metric_value) == ("My model", "Mine", 1.0)


def test_a_card_without_evaluation_and_data() -> None:
    data = ModelCard(card_text(trainer_card("folder", TrainingArguments("out"), [], {"tags": "one"}))).data
    assert data.tags == ["glassloop", "generated_from_trainer", "one"]
    assert data.eval_results is None


# --- The Trainer of scripts: smaller batches where memory is short, test loaders, cards and uploads.


def trainer_of(few: Any, tokenizer: Any, folder: Any, kind: Any = Trainer, **given: Any) -> Any:
    usual = {
        "max_steps": 3,
        "device": "cpu",
        "precision": "fp32",
        "backend": "plain",
        "disable_tqdm": True,
        "save_strategy": "no",
    }
    args = TrainingArguments(folder, **usual | given)
    parts = {"train_dataset": few["train"], "eval_dataset": few["validation"], "processing_class": tokenizer}
    return kind(tiny_model(), args, **parts)


class Narrow(Trainer):
    """Has no memory for more than four rows."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
        if len(inputs["labels"]) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().compute_loss(model, inputs, return_outputs)


def test_batches_are_halved_until_they_fit(few, tiny_tokenizer, tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = trainer_of(few, tiny_tokenizer, tmp_path / "a", Narrow, auto_find_batch_size=True, per_device_train_batch_size=16)
    trainer.train()
    told = capsys.readouterr().err
    assert "a batch of 16 rows does not fit into memory: training starts again with 8 rows" in told
    assert "a batch of 8 rows does not fit into memory: training starts again with 4 rows" in told
    small = trainer_of(few, tiny_tokenizer, tmp_path / "b", Narrow, per_device_train_batch_size=4)
    small.train()
    assert weights_hash(trainer.model) == weights_hash(small.model)
    with pytest.raises(TooLargeError):
        trainer_of(few, tiny_tokenizer, tmp_path / "c", Narrow, per_device_train_batch_size=16).train()


def test_an_overridden_test_loader_is_that_of_predict_alone(few, tiny_tokenizer, tmp_path) -> None:
    class Mine(Trainer):
        def get_test_dataloader(self, test_dataset: Any) -> Any:
            return DataLoader(test_dataset.select(range(3)), batch_size=2, collate_fn=self.data_collator)

    trainer = trainer_of(few, tiny_tokenizer, tmp_path, Mine)
    assert len(trainer.predict(few["validation"]).predictions) == 3
    assert len(trainer.evaluation().logits) == len(few["validation"])


def test_a_card_is_written_and_an_upload_without_a_hub_is_refused(few, tiny_tokenizer, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    trainer = trainer_of(few, tiny_tokenizer, tmp_path)
    with pytest.raises(ResourceError, match="HF_HUB_OFFLINE is set"):
        trainer.push_to_hub(model_name="mine")
    assert "# mine" in (tmp_path / "README.md").read_text(encoding="utf-8")
    assert (tmp_path / "model.safetensors").is_file()


def test_an_upload_that_the_settings_ask_for_loses_no_training(few, tiny_tokenizer, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    trainer = trainer_of(few, tiny_tokenizer, tmp_path, push_to_hub=True, max_steps=1)
    assert trainer.train().global_step == 1
    told = capsys.readouterr().err
    assert "the model was not uploaded: the model hub cannot be reached: HF_HUB_OFFLINE is set; the model is saved in" in told
    assert (tmp_path / "model.safetensors").is_file()
    uploaded: list[tuple[object, ...]] = []
    monkeypatch.setattr(
        "glassloop.compat.trainer.upload", lambda folder, name, *_, **named: uploaded.append((name, named)) or "address"
    )
    there = {"push_to_hub": True, "hub_model_id": "me/mine", "hub_token": "secret", "hub_private_repo": True}
    trainer_of(few, tiny_tokenizer, tmp_path / "b", max_steps=1, **there).train()
    assert "the model is at address" in capsys.readouterr().err
    trainer_of(few, tiny_tokenizer, tmp_path / "c").push_to_hub(token="other", revision="main")
    assert uploaded == [
        ("me/mine", {"token": "secret", "revision": None, "private": True}),
        ("c", {"token": "other", "revision": "main", "private": None}),
    ]


def test_a_model_is_no_function_that_makes_one(few, tiny_tokenizer, tmp_path) -> None:
    model = trainer_of(few, tiny_tokenizer, tmp_path).model
    with pytest.raises(SettingsError, match="model_init is a model, not a function that returns one"):
        Trainer(model_init=model, args=TrainingArguments(tmp_path / "b"), train_dataset=few["train"])


def test_batches_of_a_loader_have_only_columns_of_the_model(few, tiny_tokenizer, tmp_path, capsys) -> None:
    rows = few["train"].add_column("idx", list(range(len(few["train"]))))
    trainer = trainer_of({**few, "train": rows}, tiny_tokenizer, tmp_path)
    assert "idx" not in next(iter(trainer.get_train_dataloader()))
    assert "idx" not in next(iter(trainer.get_eval_dataloader(rows)))
    assert "idx" not in trainer._remove_unused_columns(rows).column_names

    class Mine(Trainer):
        def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
            return dataset

    with pytest.raises(SettingsError, match="Mine overrides _remove_unused_columns, which Glassloop does not call"):
        trainer_of(few, tiny_tokenizer, tmp_path, Mine)


def test_an_evaluation_after_training_is_part_of_the_history(few, tiny_tokenizer, tmp_path) -> None:
    trainer = trainer_of(few, tiny_tokenizer, tmp_path)
    trainer.train()
    trainer.evaluate()
    assert ["train_loss" in entry or "eval_loss" in entry for entry in trainer.state.log_history[-2:]] == [True, True]
    assert "eval_loss" in trainer.state.log_history[-1]


def test_the_device_can_be_read_and_the_settings_copied_after_construction(few, tiny_tokenizer, tmp_path) -> None:
    trainer = trainer_of(few, tiny_tokenizer, tmp_path, device="auto")
    assert torch.zeros(1, device=trainer.args.device).device == trainer.args.device
    trainer.args = dataclasses.replace(trainer.args, max_steps=1)
    assert trainer.train().global_step == 1


def test_a_second_training_says_that_its_optimizer_is_new(few, tiny_tokenizer, tmp_path, capsys) -> None:
    trainer = trainer_of(few, tiny_tokenizer, tmp_path, max_steps=2)
    trainer.train()
    assert "train() was called before" not in capsys.readouterr().err
    first = trainer.optimizer
    trainer.train()
    assert trainer.optimizer is not first
    assert trainer.state.global_step == 2
    assert "this training starts with a new optimizer, which transformers' Trainer would keep" in capsys.readouterr().err
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
    trainer.train()
    assert "train() was called before" not in capsys.readouterr().err
