"""The methods that subclasses override, called by a script itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from datasets import Dataset
from families import tiny_model, weights_hash
from safetensors.torch import save_file
from torch.nn import functional
from torch.utils.data import DataLoader
from transformers import DefaultFlowCallback, EarlyStoppingCallback, PrinterCallback, ProgressCallback, TrainerCallback

from glassloop import Callback, Trainer, TrainingArguments
from glassloop.training.checkpoints import open_checkpoint


@pytest.fixture
def trainer_overridable(few, tiny_tokenizer, tmp_path) -> Any:
    args = TrainingArguments(tmp_path, max_steps=4, device="cpu", precision="fp32", backend="plain", save_strategy="no")
    return Trainer(
        tiny_model(), args, train_dataset=few["train"], eval_dataset=few["validation"], processing_class=tiny_tokenizer
    )


def test_loaders_have_all_rows(trainer_overridable, few) -> None:
    for loader, rows in (
        (trainer_overridable.get_train_dataloader(), few["train"]),
        (trainer_overridable.get_eval_dataloader(), few["validation"]),
        (trainer_overridable.get_test_dataloader(few["train"]), few["train"]),
    ):
        assert sum(len(batch["labels"]) for batch in loader) == len(rows) == trainer_overridable.num_examples(loader)


def test_the_loss_and_the_prediction_of_a_batch(trainer_overridable) -> None:
    inputs = next(iter(trainer_overridable.get_eval_dataloader()))
    trainer_overridable.model.eval()
    loss, _ = trainer_overridable.compute_loss(trainer_overridable.model, dict(inputs), return_outputs=True)
    assert torch.equal(loss, trainer_overridable.model(**inputs).loss)
    trainer_overridable.compute_loss_func = lambda outputs, labels, num_items_in_batch: (
        outputs.logits.sum() * 0 + num_items_in_batch
    )
    assert trainer_overridable.compute_loss(trainer_overridable.model, dict(inputs)).item() == len(inputs["labels"])
    _, logits, labels = trainer_overridable.prediction_step(trainer_overridable.model, dict(inputs), prediction_loss_only=True)
    assert logits is None
    assert torch.equal(labels, inputs["labels"])


def test_optimizer_and_schedule_made_before_a_training_are_used_by_it(trainer_overridable) -> None:
    trainer_overridable.create_optimizer_and_scheduler(num_training_steps=4)
    mine = trainer_overridable.optimizer
    assert trainer_overridable.create_optimizer() is mine
    trainer_overridable.train()
    assert trainer_overridable.optimizer is mine
    assert mine.state


def test_a_line_of_ones_own_goes_to_the_history(trainer_overridable) -> None:
    trainer_overridable.log({"mine": 1.0})
    assert trainer_overridable.state.log_history[-1]["mine"] == 1.0


# --- What a script replaces decides the backend, and only that: the rest stays as fast as it was.


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


def padded(rows: Any, *, masked: bool = True, width: int = 40) -> list[dict[str, Any]]:
    """Rows of one length, as `padding="max_length"` makes them."""
    found = []
    for place, row in enumerate(rows):
        ids = row["input_ids"][: 5 + place * 7 % 35]
        mask = {"attention_mask": [1] * len(ids) + [0] * (width - len(ids))} if masked else {}
        found.append({"input_ids": ids + [0] * (width - len(ids)), **mask, "labels": row["labels"]})
    return found


class TorchRows(torch.utils.data.Dataset):
    """Rows as the tutorials of 2021 write them."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {name: torch.tensor(cell) for name, cell in self.rows[number].items()}


ROWS = {"a list": list, "a data set": Dataset.from_list, "torch": TorchRows}


COLLATORS = {
    "none": lambda tokenizer: {},
    "default": lambda tokenizer: {"data_collator": transformers.default_data_collator},
    "padding": lambda tokenizer: {"data_collator": transformers.DataCollatorWithPadding(tokenizer)},
    "multiple": lambda tokenizer: {"data_collator": transformers.DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8)},
    "fixed": lambda tokenizer: {
        "data_collator": transformers.DataCollatorWithPadding(tokenizer, padding="max_length", max_length=44)
    },
    "tokenizer": lambda tokenizer: {"processing_class": tokenizer},
}


def figures(trainer: Any) -> list[float]:
    names = ("loss", "grad_norm", "eval_loss")
    return [entry[name] for entry in trainer.state.history for name in names if name in entry]


@pytest.mark.sample(8)
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("collator", COLLATORS)
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_rows_that_are_padded_already_train_fast_with_equal_numbers(
    few, tiny_tokenizer, tmp_path, capsys, family: str, kind: str, collator: str, masked: bool
) -> None:
    rows = [ROWS[kind](padded(few[name], masked=masked)) for name in ("train", "validation")]
    parts = {"train_dataset": rows[0], "eval_dataset": rows[1], **COLLATORS[collator](tiny_tokenizer)}
    found = {}
    for backend in ("auto", "plain"):
        usual = {"max_steps": 6, "device": "cpu", "precision": "fp32", "disable_tqdm": True, "save_strategy": "no"}
        often = {"eval_strategy": "steps", "eval_steps": 3, "logging_steps": 1, "learning_rate": 1e-3, "weight_decay": 0.0}
        args = TrainingArguments(tmp_path / backend, backend=backend, **usual, **often)
        trainer = Trainer(tiny_model(family, dropout=0.0), args, **parts)
        trainer.train()
        logits = trainer.predict(rows[1]).predictions
        found[backend] = (trainer.backend.name, figures(trainer), logits)
    assert [name for name, *_ in found.values()] == ["packed", "plain"]
    assert "instead of" not in capsys.readouterr().err
    assert found["auto"][1] == pytest.approx(found["plain"][1], rel=2e-4)
    assert found["auto"][2] == pytest.approx(found["plain"][2], abs=2e-4)


@pytest.mark.parametrize("kind", ROWS)
def test_rows_that_are_padded_on_the_left_train_plain_and_say_so(few, tiny_tokenizer, tmp_path, capsys, kind: str) -> None:
    rows = padded(few["train"])
    rows[7] = {name: cell[::-1] if isinstance(cell, list) else cell for name, cell in rows[7].items()}
    trainer = trainer_of(few, None, tmp_path, parts={"train_dataset": ROWS[kind](rows), "eval_dataset": None})
    trainer.train()
    assert trainer.backend.name == "plain"
    why = "backend plain instead of packed: an attention mask hides tokens inside a row, not only at its end"
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("kind", ROWS)
def test_evaluation_rows_that_cannot_be_packed_do_not_slow_the_training(few, tiny_tokenizer, tmp_path, kind: str) -> None:
    odd = padded(few["validation"])
    odd[3] = {name: cell[::-1] if isinstance(cell, list) else cell for name, cell in odd[3].items()}
    parts = {"train_dataset": padded(few["train"]), "eval_dataset": ROWS[kind](odd)}
    found = {}
    for backend in ("auto", "plain"):
        given = {"eval_strategy": "steps", "eval_steps": 2, "backend": backend}
        trainer = trainer_of(few, None, tmp_path / backend, parts=parts, **given)
        trainer.train()
        found[trainer.backend.name] = [*figures(trainer), trainer.evaluate()["eval_loss"]]
    assert found["packed"] == pytest.approx(found["plain"], rel=2e-4)


class OwnStep(Trainer):
    def prediction_step(self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None) -> Any:
        labels = inputs.pop("labels")
        with torch.no_grad():
            logits = model(**inputs).logits
        return functional.cross_entropy(logits, labels), logits, labels


class OwnEvalLoader(Trainer):
    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        return DataLoader(rows, batch_size=4, collate_fn=self.data_collator)


class Watching(Trainer):
    def log(self, logs: Any, start_time: Any = None) -> None:
        super().log(logs)

    def evaluate(self, *given: Any, **named: Any) -> Any:
        return super().evaluate(*given, **named)

    def predict(self, *given: Any, **named: Any) -> Any:
        return super().predict(*given, **named)


ONLY_EVALUATION = {
    "prediction_step": (OwnStep, {}, "evaluations use padded batches: prediction_step is overridden"),
    "loader": (OwnEvalLoader, {}, "evaluations use padded batches: get_eval_dataloader is overridden"),
    "log, evaluate, predict": (Watching, {}, None),
    "logits": (Trainer, {"preprocess_logits_for_metrics": lambda logits, labels: logits.softmax(-1)}, None),
    "metrics": (Trainer, {"compute_metrics": lambda found: {"mean": float(found.predictions.mean())}}, None),
}


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("name", ONLY_EVALUATION)
def test_what_concerns_only_evaluations_does_not_slow_the_training(
    few, tiny_tokenizer, tmp_path, capsys, name: str, weight_decay: float
) -> None:
    kind, parts, line = ONLY_EVALUATION[name]
    parts = {"compute_metrics": lambda found: {"mean": float(found.predictions.mean())}, **parts}
    found = {}
    for backend in ("auto", "plain"):
        given = {"eval_strategy": "steps", "eval_steps": 2, "backend": backend, "weight_decay": weight_decay}
        trainer = trainer_of(few, tiny_tokenizer, tmp_path / backend, kind, parts, **given)
        trainer.train()
        after = trainer.evaluate()
        found[trainer.backend.name] = [*figures(trainer), after["eval_loss"], after["eval_mean"]]
    assert found["packed"] == pytest.approx(found["plain"], rel=2e-4, abs=1e-6)
    told = capsys.readouterr().err
    assert "instead of" not in told
    assert ("evaluations use padded" in told) == (line is not None)
    assert line is None or told.count(line) == 1


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


# --- Callbacks are added, removed and kept apart by package.


def test_callbacks_of_both_packages(tmp_path) -> None:
    ours, theirs = Callback(), EarlyStoppingCallback()
    trainer = Trainer(tiny_model(), TrainingArguments(tmp_path, device="cpu"), callbacks=[ours, theirs])
    assert trainer.callbacks[0] is ours
    names = ["DefaultFlowCallback", "EarlyStoppingCallback", "ProgressCallback"]
    assert [type(one).__name__ for one in trainer.callback_handler.callbacks] == names
    trainer.add_callback(TrainerCallback)
    assert type(trainer.callback_handler.callbacks[-1]) is TrainerCallback
    assert trainer.pop_callback(EarlyStoppingCallback) is theirs
    assert trainer.pop_callback(EarlyStoppingCallback) is None
    trainer.remove_callback(ours)
    assert len(trainer.callbacks) == 1  # those of transformers


def test_the_progress_display_can_be_removed(tmp_path) -> None:
    trainer = Trainer(tiny_model(), TrainingArguments(tmp_path, device="cpu", disable_tqdm=True))
    assert isinstance(trainer.pop_callback(PrinterCallback), PrinterCallback)
    assert not trainer._shows_progress()
    trainer.add_callback(ProgressCallback)
    assert trainer._shows_progress()


def test_without_the_default_flow_nothing_is_asked_for(tmp_path) -> None:
    rows = [{"input_ids": [2, 5, 3], "labels": number % 2} for number in range(16)]
    args = TrainingArguments(tmp_path, device="cpu", max_steps=4, logging_steps=1, save_steps=1, save_strategy="steps")
    trainer = Trainer(tiny_model(), args, train_dataset=rows)
    trainer.remove_callback(DefaultFlowCallback)
    trainer.train()
    assert [*tmp_path.glob("checkpoint-*")] == []
    assert [[*entry] for entry in trainer.state.log_history if "loss" in entry] == []
