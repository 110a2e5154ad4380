"""The Trainer of scripts: what a script replaces as parts of the loop, which backend that needs, its rows, and its files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from datasets import Dataset
from families import tiny_model, weights_hash
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from torch.nn import functional
from torch.utils.data import DataLoader
from transformers import TrainerCallback

from glassloop import Trainer, TrainingArguments
from glassloop.base.errors import ResourceError, SettingsError, TooLargeError
from glassloop.compat import trainer as trainers
from glassloop.compat.trainer import LoaderBatches, is_bare, is_own, named_count, overrides, trainer_card, with_config
from glassloop.models.interface import config_of
from glassloop.report.card import card_text
from glassloop.training.checkpoints import open_checkpoint


# --- a script's loss, steps and loader as parts of the loop
def batch(rows: int = 4, labels: bool = True) -> Any:
    known = torch.arange(rows).float() if labels else None
    return SimpleNamespace(inputs={"x": torch.ones(rows, 1)}, labels=known, numbers=range(rows))


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=x * 3)


def mean(model: Any, inputs: Any, return_outputs: bool = False) -> Any:
    labels = inputs.pop("labels")
    found = model(**inputs)
    loss = (found.logits[:, 0] - labels).mean()
    return (loss, found) if return_outputs else loss


def by_count(model: Any, inputs: Any, return_outputs: bool = False, *, num_items_in_batch: int) -> Any:
    labels = inputs.pop("labels")
    return (model(**inputs).logits[:, 0] - labels).sum() / num_items_in_batch


@pytest.fixture
def with_methods(tmp_path) -> Any:
    """A Trainer of a plain module with methods of a script."""

    def made(callbacks: Any = (), **methods: Any) -> Any:
        trainer = Trainer(Model(), TrainingArguments(tmp_path, device="cpu"), callbacks=[*callbacks])
        for name, method in methods.items():
            setattr(trainer, name, method)
        return trainer

    return made


def test_a_mean_becomes_a_sum_and_only_functions_that_name_the_count_get_it(with_methods) -> None:
    for compute_loss in (mean, by_count):
        assert with_methods(compute_loss=compute_loss)._batch_loss(Model(), batch()).item() == 12 - 6
    assert named_count(mean, None, 3) == {}
    assert named_count(by_count, None, 0) == {"num_items_in_batch": 1}
    assert named_count(by_count, torch.tensor([1, -100, 0]), 3)["num_items_in_batch"].item() == 2


def test_methods_that_return_something_else_are_refused_and_callbacks_are_told_after_each_batch(with_methods) -> None:
    for methods, problem in (
        ({"compute_loss": lambda model, inputs: 1.0}, "compute_loss returned a float"),
        ({"compute_loss": by_count}, "ignores return_outputs"),
        ({"prediction_step": lambda *given: (None, None, None)}, "returned no logits"),
    ):
        trainer = with_methods(**methods)
        with pytest.raises(SettingsError, match=problem):
            trainer._batch_loss(Model(), batch()) if "float" in problem else trainer._predict_batch()(Model(), batch())
    events: list[str] = []

    class Watching(TrainerCallback):
        def on_prediction_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            events.append("told")

    def step(*given: Any) -> Any:
        events.append("predicted")
        return None, torch.ones(4, 1), None

    with_methods([Watching], prediction_step=step)._predict_batch()(Model(), batch())
    assert events == ["predicted", "told"]


def test_logits_are_found_in_any_outputs_and_overriding_in_a_class_and_on_an_object() -> None:
    logits = torch.ones(2, 3)
    several = ({"loss": 1, "scores": logits}, {"logits": logits}, SimpleNamespace(logits=logits), (torch.tensor(1.0), logits))
    for outputs in (logits, *several):
        assert trainers.logits_of(outputs) is logits
    with pytest.raises(SettingsError, match="no logits"):
        trainers.logits_of({})
    base = type("Base", (), {"a": lambda self: 1})
    found = base()
    assert not overrides(found, base, "a")
    found.a = lambda: 2
    assert overrides(found, base, "a")
    assert overrides(type("Sub", (base,), {"a": lambda self: 3})(), base, "a")


def loader(rows: int = 10) -> DataLoader[Any]:
    return DataLoader([{"x": torch.tensor([float(row)]), "labels": row} for row in range(rows)], batch_size=4)


def test_a_loader_gives_each_process_its_share_skips_batches_and_is_read_whole_by_an_evaluation() -> None:
    shares = [[*LoaderBatches(loader(), rank, 2).epoch()] for rank in (0, 1)]
    for place, one in enumerate(LoaderBatches(loader()).epoch()):
        rows = torch.cat([share[place].inputs["x"][: len(share[place].numbers)] for share in shares]).flatten().tolist()
        assert sorted(rows) == one.inputs["x"].flatten().tolist()
        assert {share[place].size for share in shares} == {one.size}
    batches = LoaderBatches(loader())
    assert [found.numbers.tolist() for found in batches.epoch(skip=2)] == [[8, 9]]
    assert [found.numbers.tolist() for found in batches.whole(1, 2)] == [[4, 5, 6, 7]]
    assert len(batches) == len(batches.order()) == 3
    assert len(batches.row_hashes()) == 0
    with pytest.raises(SettingsError, match="has no length"):
        len(LoaderBatches(iter([])))
    assert len(LoaderBatches(iter([]), num_batches=7)) == 7


def test_models_whose_losses_transformers_adds_up_are_known() -> None:
    """Its Trainer reports so: a step of two batches of BERT logs twice the loss."""

    class Divides(Model):
        accepts_loss_kwargs = False

        def forward(self, x: torch.Tensor, **others: Any) -> SimpleNamespace:
            return SimpleNamespace(logits=x)

    assert [trainers.adds_up_batches(model) for model in (Model(), Divides(), tiny_model())] == [False, False, True]


# --- models of scripts
def test_a_plain_module_gets_a_config_and_its_weights_are_saved(tmp_path: Path) -> None:
    module = with_config(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)))
    assert is_bare(module)
    assert (module.config.num_labels, module.config.id2label[2]) == (3, "LABEL_2")
    assert module.config.to_dict() == {"num_labels": 3}
    for config in ({"width": 8}, tiny_model().config, "small"):  # of its own, it may be of any kind
        module = torch.nn.Linear(4, 3)
        module.config = config
        assert is_bare(with_config(module))
        assert module.config is config
        assert config_of(module).num_labels == 3
    model = tiny_model()
    assert with_config(model) is model
    assert not is_bare(model)
    trainer = Trainer(torch.nn.Linear(2, 2), TrainingArguments(tmp_path, device="cpu"))
    trainer.save_model(tmp_path / "new")
    assert torch.equal(load_file(tmp_path / "new" / "model.safetensors")["weight"], trainer.model.weight)
    trainer.write_model(tmp_path, {"weight": torch.zeros(2)})
    assert load_file(tmp_path / "model.safetensors")["weight"].tolist() == [0, 0]


def test_a_class_of_a_script_has_its_own_loss_and_labels_and_a_model_is_no_function_that_makes_one(make) -> None:
    assert is_own(with_config(torch.nn.Linear(2, 2)))
    assert not is_own(tiny_model())
    assert not is_own(type("Mine", (type(tiny_model()),), {})(tiny_model().config))
    assert all(trainers.fits_classes(labels, None) for labels in (torch.tensor([0, 1]), torch.ones(2, 3)))
    assert not any(trainers.fits_classes(labels, None) for labels in (torch.tensor([0.5, 1.0]), None))
    assert not trainers.fits_classes(torch.tensor([0, 1]), np.zeros(2))
    with pytest.raises(SettingsError, match="model_init is a model, not a function that returns one"):
        make(parts={"model_init": tiny_model()})


# --- what a script replaces decides the backend, and only that: the rest stays as fast as it was
class OwnLoss(Trainer):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        labels = inputs.pop("labels")
        found = model(**inputs)
        loss = functional.cross_entropy(found.logits, labels)
        return (loss, found) if return_outputs else loss


def test_only_what_cannot_be_fast_falls_back(make, capsys) -> None:
    for change, why in (
        ({}, None),
        ({"kind": OwnLoss}, None),
        ({"parts": {"on_gradients": lambda model: None}}, None),
        ({"optim": "sgd"}, "the optimizer is sgd"),
        ({"gradient_checkpointing": True}, "gradient_checkpointing computes activations again"),
        ({"parts": {"optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": 0.1})}}, "optimizer_cls_and_kwargs is given"),
        ({"parts": {"compute_loss_func": lambda outputs, labels, num_items_in_batch: 0}}, None),
    ):
        assert make(**change).backend.name == ("packed" if why is None else "plain")
        assert ((why or "instead of") in capsys.readouterr().err) == (why is not None)


def padded(rows: Any, *, masked: bool = True, width: int = 40, reversed_row: int | None = None) -> list[dict[str, Any]]:
    """Rows of one length, as `padding="max_length"` makes them; one may be padded on the left."""
    found = []
    for place, row in enumerate(rows):
        ids = row["input_ids"][: 5 + place * 7 % 35]
        cells = {"input_ids": ids + [0] * (width - len(ids))}
        cells |= {"attention_mask": [1] * len(ids) + [0] * (width - len(ids))} if masked else {}
        turned = {name: cell[::-1] for name, cell in cells.items()} if place == reversed_row else cells
        found.append({**turned, "labels": row["labels"]})
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
PADDING = transformers.DataCollatorWithPadding
COLLATORS = {
    "none": lambda tokenizer: {"processing_class": None},
    "default": lambda tokenizer: {"processing_class": None, "data_collator": transformers.default_data_collator},
    "padding": lambda tokenizer: {"data_collator": PADDING(tokenizer)},
    "multiple": lambda tokenizer: {"data_collator": PADDING(tokenizer, pad_to_multiple_of=8)},
    "fixed": lambda tokenizer: {"data_collator": PADDING(tokenizer, padding="max_length", max_length=44)},
    "tokenizer": lambda tokenizer: {"processing_class": tokenizer},
}


def figures(trainer: Any) -> list[float]:
    names = ("loss", "grad_norm", "eval_loss")
    return [entry[name] for entry in trainer.state.history for name in names if name in entry]


def fast_and_plain(make: Any, kind: Any = Trainer, parts: Any = None, **given: Any) -> list[Any]:
    """Return the same training on the packed and on the plain backend."""
    often = {"eval_strategy": "steps", "eval_steps": 2, "logging_steps": 1}
    trainers = [make(kind, backend, parts, backend=backend, **often | given) for backend in ("auto", "plain")]
    for trainer in trainers:
        trainer.train()
    assert [trainer.backend.name for trainer in trainers] == ["packed", "plain"]
    return trainers


@pytest.mark.sample(8)
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("collator", COLLATORS)
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_padded_rows_train_fast_with_equal_numbers(few, tiny_tokenizer, make, capsys, family, kind, collator, masked) -> None:
    train, validation = (ROWS[kind](padded(few[name], masked=masked)) for name in ("train", "validation"))
    parts = {"train_dataset": train, "eval_dataset": validation, **COLLATORS[collator](tiny_tokenizer)}

    def of_family(**named: Any) -> Trainer:
        return Trainer(**named | {"model": tiny_model(family, dropout=0.0)})

    given = {"max_steps": 6, "eval_steps": 3, "learning_rate": 1e-3, "weight_decay": 0.0}
    fast, plain = fast_and_plain(make, of_family, parts, **given)
    assert "instead of" not in capsys.readouterr().err
    assert figures(fast) == pytest.approx(figures(plain), rel=2e-4)
    assert fast.predict(validation).predictions == pytest.approx(plain.predict(validation).predictions, abs=2e-4)


@pytest.mark.parametrize("kind", ROWS)
def test_rows_that_are_padded_on_the_left_train_plain_and_say_so(few, make, capsys, kind: str) -> None:
    rows = ROWS[kind](padded(few["train"], reversed_row=7))
    trainer = make(parts={"train_dataset": rows, "eval_dataset": None, "processing_class": None})
    trainer.train()
    assert trainer.backend.name == "plain"
    why = "backend plain instead of packed: an attention mask hides tokens inside a row, not only at its end"
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("kind", ROWS)
def test_evaluation_rows_that_cannot_be_packed_do_not_slow_the_training(few, make, kind: str) -> None:
    odd = ROWS[kind](padded(few["validation"], reversed_row=3))
    parts = {"train_dataset": padded(few["train"]), "eval_dataset": odd, "processing_class": None}
    fast, plain = fast_and_plain(make, parts=parts)
    assert figures(fast) == pytest.approx(figures(plain), rel=2e-4)
    assert fast.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"], rel=2e-4)


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
    "metrics": (Trainer, {}, None),
}


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("name", ONLY_EVALUATION)
def test_what_concerns_only_evaluations_does_not_slow_the_training(make, capsys, name: str, weight_decay: float) -> None:
    kind, parts, line = ONLY_EVALUATION[name]
    parts = {"compute_metrics": lambda found: {"mean": float(found.predictions.mean())}, **parts}
    trainers = fast_and_plain(make, kind, parts, weight_decay=weight_decay)
    after = [trainer.evaluate() for trainer in trainers]
    fast, plain = (
        [*figures(trainer), found["eval_loss"], found["eval_mean"]] for trainer, found in zip(trainers, after, strict=True)
    )
    assert fast == pytest.approx(plain, rel=2e-4, abs=1e-6)
    told = capsys.readouterr().err
    assert "instead of" not in told
    assert ("evaluations use padded" in told) == (line is not None)
    assert line is None or told.count(line) == 1


class OwnSaving(Trainer):
    """Writes weights that cannot be loaded back as they were trained, and no config."""

    def save_model(self, output_dir: Any = None) -> None:
        save_file({"half": self.model.classifier.weight.half()}, Path(output_dir, "model.safetensors"))
        torch.rand(1)  # must not change the training


@pytest.mark.parametrize("backend", ["plain", "auto"])
def test_a_save_model_of_a_script_writes_the_model_of_checkpoints(make, tmp_path, backend: str) -> None:
    given = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6, "backend": backend}
    whole, half, again = make(Trainer, "whole", **given), make(OwnSaving, "half", **given), make(OwnSaving, "half", **given)
    whole.train()
    half.train()
    folder = tmp_path / "half" / "checkpoint-4"
    assert "model.safetensors" in open_checkpoint(folder).manifest["files"]
    assert not (folder / "config.json").exists()
    again.train(resume_from_checkpoint=folder)
    assert weights_hash(half.model) == weights_hash(again.model) == weights_hash(whole.model)


# --- methods that a script calls itself, and lines that a training says
def test_loaders_have_all_rows_and_only_columns_of_the_model(make, few) -> None:
    rows = few["train"].add_column("idx", list(range(len(few["train"]))))
    trainer = make(parts={"train_dataset": rows})
    for loader, number in (
        (trainer.get_train_dataloader(), len(rows)),
        (trainer.get_eval_dataloader(), len(few["validation"])),
        (trainer.get_test_dataloader(rows), len(rows)),
    ):
        assert sum(len(batch["labels"]) for batch in loader) == number == trainer.num_examples(loader)
        assert "idx" not in next(iter(loader))
    assert "idx" not in trainer._remove_unused_columns(rows).column_names
    mine = type("Mine", (Trainer,), {"_remove_unused_columns": lambda self, dataset, description=None: dataset})
    with pytest.raises(SettingsError, match="Mine overrides _remove_unused_columns, which Glassloop does not call"):
        make(mine)


def test_the_loss_and_the_prediction_of_a_batch_and_an_overridden_test_loader_is_that_of_predict_alone(make, few) -> None:
    trainer = make()
    inputs = next(iter(trainer.get_eval_dataloader()))
    trainer.model.eval()
    loss, _ = trainer.compute_loss(trainer.model, dict(inputs), return_outputs=True)
    assert torch.equal(loss, trainer.model(**inputs).loss)
    trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch: outputs.logits.sum() * 0 + num_items_in_batch
    assert trainer.compute_loss(trainer.model, dict(inputs)).item() == len(inputs["labels"])
    _, logits, labels = trainer.prediction_step(trainer.model, dict(inputs), prediction_loss_only=True)
    assert logits is None
    assert torch.equal(labels, inputs["labels"])

    class Mine(Trainer):
        def get_test_dataloader(self, test_dataset: Any) -> Any:
            return DataLoader(test_dataset.select(range(3)), batch_size=2, collate_fn=self.data_collator)

    trainer = make(Mine)
    assert len(trainer.predict(few["validation"]).predictions) == 3
    assert len(trainer.evaluation().logits) == len(few["validation"])


def test_optimizer_schedule_device_and_settings_may_be_set_before_a_training(make) -> None:
    trainer = make(backend="plain")
    trainer.create_optimizer_and_scheduler(num_training_steps=4)
    mine = trainer.optimizer
    assert trainer.create_optimizer() is mine
    trainer.train()
    assert trainer.optimizer is mine
    assert mine.state
    trainer = make(device="auto")
    assert torch.zeros(1, device=trainer.args.device).device == trainer.args.device
    trainer.args = dataclasses.replace(trainer.args, max_steps=1)
    assert trainer.train().global_step == 1


class Narrow(Trainer):
    """Has no memory for more than four rows."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
        if len(inputs["labels"]) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().compute_loss(model, inputs, return_outputs)


def test_batches_are_halved_until_they_fit(make, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make(Narrow, "a", auto_find_batch_size=True, per_device_train_batch_size=16)
    trainer.train()
    told = capsys.readouterr().err
    for size in (16, 8):
        assert f"a batch of {size} rows does not fit into memory: training starts again with {size // 2} rows" in told
    small = make(Narrow, "b", per_device_train_batch_size=4)
    small.train()
    assert weights_hash(trainer.model) == weights_hash(small.model)
    with pytest.raises(TooLargeError):
        make(Narrow, "c", per_device_train_batch_size=16).train()


def test_losses_that_depend_on_the_batches_of_a_step_or_an_evaluation_are_explained(few, make, capsys) -> None:
    for batches, size, lines in ((1, 16, 0), (2, 32, 1)):
        make(max_steps=1, gradient_accumulation_steps=batches).train(report=False)
        assert capsys.readouterr().err.count("transformers' Trainer logs their sum") == lines
        make(OwnLoss, per_device_eval_batch_size=size).evaluate(few["train"])
        assert capsys.readouterr().err.count("the default of transformers is 8") == lines


def test_a_second_training_says_that_its_optimizer_is_new(make, capsys) -> None:
    trainer = make(max_steps=2, backend="plain")
    trainer.train()
    assert "train() was called before" not in capsys.readouterr().err
    first = trainer.optimizer
    trainer.train()
    assert trainer.optimizer is not first
    assert trainer.state.global_step == 2
    assert "this training starts with a new optimizer; transformers' Trainer keeps the old one" in capsys.readouterr().err
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
    trainer.train()
    assert "train() was called before" not in capsys.readouterr().err


# --- cards and uploads
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
    data = ModelCard(card_text(trainer_card("folder", TrainingArguments("out"), [], {"tags": "one"}))).data
    assert data.tags == ["glassloop", "generated_from_trainer", "one"]
    assert data.eval_results is None


def test_a_card_is_written_and_an_upload_without_a_hub_loses_no_training(make, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    trainer = make(push_to_hub=True, max_steps=1)
    assert trainer.train().global_step == 1
    told = capsys.readouterr().err
    assert "the model was not uploaded: the model hub cannot be reached: HF_HUB_OFFLINE is set; the model is saved in" in told
    assert (tmp_path / "out" / "model.safetensors").is_file()
    trainer = make(folder="card")
    with pytest.raises(ResourceError, match="HF_HUB_OFFLINE is set"):
        trainer.push_to_hub(model_name="mine")
    assert "# mine" in (tmp_path / "card" / "README.md").read_text(encoding="utf-8")


def test_an_upload_goes_where_the_settings_say(make, monkeypatch, capsys) -> None:
    uploaded: list[tuple[object, ...]] = []
    monkeypatch.setattr(
        "glassloop.compat.trainer.upload", lambda folder, name, *_, **named: uploaded.append((name, named)) or "address"
    )
    there = {"push_to_hub": True, "hub_model_id": "me/mine", "hub_token": "secret", "hub_private_repo": True}
    make(max_steps=1, **there).train()
    assert "the model is at address" in capsys.readouterr().err
    make(folder="c").push_to_hub(token="other", revision="main")
    assert uploaded == [
        ("me/mine", {"token": "secret", "revision": None, "private": True}),
        ("c", {"token": "other", "revision": "main", "private": None}),
    ]
