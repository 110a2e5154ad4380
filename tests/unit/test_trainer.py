"""Methods and attributes of transformers' Trainer that Glassloop never reads: refused by name, never ignored."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from datasets import Dataset
from families import tiny_model, weights_hash

from glassloop import Callback, Trainer, TrainingArguments
from glassloop.base.errors import SettingsError
from glassloop.trainer import INSTEAD, Metrics, PredictionOutput, TrainOutput, accepted_columns, columns_taken_by, unused_names
from glassloop.trainer import Trainer as RunTrainer

# Called by users, never by transformers' own loop: a subclass that defines one calls it itself.
FOR_USERS = {
    *("get_learning_rates", "get_num_trainable_parameters", "get_optimizer_group", "log_metrics", "metrics_format"),
    *("save_metrics", "save_state", "add_callback", "pop_callback", "remove_callback", "is_local_process_zero"),
    *("is_world_process_zero", "push_to_hub", "hyperparameter_search", "init_hf_repo", "create_model_card"),
}


# May be called, but a training does not, so they cannot be overridden.
ONLY_FOR_DEBUGGING = {"_prepare_inputs", "compute_loss_context_manager", "_remove_unused_columns"}


def their_methods() -> set[str]:
    return {name for name, value in vars(transformers.Trainer).items() if callable(value) and not name.startswith("__")}


def test_the_table_holds_every_method_that_transformers_calls_and_glassloop_does_not() -> None:
    ours = {*dir(Trainer)}
    missing = their_methods() - ours - FOR_USERS - {*INSTEAD}
    assert not missing, "add these to the table, or make them work"
    works = {name for name in unused_names(Trainer) if name in ours} - ONLY_FOR_DEBUGGING
    assert not works, "these work"


@pytest.fixture
def parts(few, tiny_tokenizer, tmp_path) -> dict[str, Any]:
    """What a small training needs."""
    args = TrainingArguments(
        tmp_path, max_steps=2, per_device_train_batch_size=4, device="cpu", precision="fp32", save_strategy="no",
        backend="plain", learning_rate=1e-3, disable_tqdm=True,
    )  # fmt: skip
    return {"model": tiny_model(), "args": args, "train_dataset": few["train"], "processing_class": tiny_tokenizer}


def test_methods_and_attributes_that_are_never_used_are_refused(parts, says, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(**parts)
    for name in sorted(their_methods() - {*dir(Trainer)} - FOR_USERS):
        subclass = type("Mine", (Trainer,), {name: lambda self, *given, **named: None})
        with says(f"Mine overrides {name}, which Glassloop does not call", INSTEAD[name]):
            subclass(**parts)
        with says(f"assigning {name} to a Trainer has no effect in Glassloop", INSTEAD[name]):
            setattr(trainer, name, lambda *given: None)

    class Mixin:
        def _clip_grad_norm(self, model: Any) -> None: ...

    class Mine(Mixin, Trainer):
        def evaluation_loop(self) -> None: ...

    remedy = f"{INSTEAD['_clip_grad_norm']}; {INSTEAD['evaluation_loop']}"
    with says("Mine overrides _clip_grad_norm, evaluation_loop, which Glassloop does not call", remedy):
        Mine(**parts)
    for name in ("label_smoother", "neftune_noise_alpha", "gather_function", "_signature_columns"):
        with pytest.raises(SettingsError, match=f"assigning {name} to a Trainer has no effect in Glassloop"):
            setattr(trainer, name, object())
    monkeypatch.setattr(Trainer, "evaluation_loop", lambda self: None, raising=False)
    with pytest.raises(SettingsError, match="Trainer overrides evaluation_loop"):
        trainer.train()


def test_a_subclass_may_have_methods_of_its_own_and_override_those_that_take_effect(parts, few) -> None:
    class Mine(Trainer):
        def __init__(self, **given: Any) -> None:
            self.weights = [1.0, 2.0]
            super().__init__(**given)

        def helper(self) -> float:
            return sum(self.weights)

    trainer = Mine(**parts)
    trainer.more = trainer.helper()
    trainer.train()
    called: list[str] = []

    def watched(name: str) -> Any:
        def method(self: Any, *given: Any, **named: Any) -> Any:
            called.append(name)
            found = getattr(Trainer, name)(self, *given, **named)
            return found | {"eval_mine": 7.0} if name == "evaluate" else found

        return method

    names = ["metrics_of", "write_model", "evaluation", "evaluate"]
    subclass = type("Mine", (Trainer,), {name: watched(name) for name in names})
    parts["args"] = dataclasses.replace(parts["args"], eval_strategy="epoch", save_strategy="steps", save_steps=1, max_steps=8)
    trainer = subclass(**parts, eval_dataset=few["validation"])
    trainer.train()
    assert {*called} == {*names}
    assert [entry["eval_mine"] for entry in trainer.state.history if "eval_loss" in entry] == [7.0]


def trained(trainer: Any) -> str:
    trainer.train()
    return weights_hash(trainer.model)


def test_assigned_settings_take_effect_and_are_checked_and_some_come_too_late(parts, says) -> None:
    other = dataclasses.replace(parts["args"], learning_rate=0.01)
    expected = trained(Trainer(**parts | {"args": other}))
    whole, trainer = (Trainer(**parts | {"model": tiny_model()}) for _ in range(2))
    whole.args = other
    assert trained(whole) == expected
    trainer.args.learning_rate = 0.01
    assert trained(trainer) == expected
    trainer.args.learning_rate = -1.0
    with says("learning_rate is -1.0, not 0 or more", "set learning_rate to 0 or more"):
        trainer.train()
    trainer.args.learning_rate = 0.01
    trainer, late = Trainer(**parts), "cannot be changed after a Trainer is constructed"
    settings = {"output_dir": "elsewhere", "backend": "packed", "precision": "bf16", "device": "auto", "pad_to_multiple_of": 8}
    for name, value in settings.items():
        with says(f"{name} {late}", "construct a new Trainer"):
            trainer.args = dataclasses.replace(trainer.args, **{name: value})
    with says(f"processing_class {late}", "construct a new Trainer"):
        trainer.processing_class = object()
    with says("Trainer needs a model", "pass model=load_model(...)"):
        trainer.model = None
    trainer.args.pad_to_multiple_of = 8
    with says(f"pad_to_multiple_of {late}", "construct a new Trainer"):
        trainer.train()
    problem = "args is a transformers.training_args.TrainingArguments, not glassloop.TrainingArguments"
    with says(problem, "change the import: from glassloop import TrainingArguments"):
        Trainer(**parts | {"args": transformers.TrainingArguments("out", use_cpu=True)})


def test_parts_a_loss_and_measures_assigned_later_take_effect(parts, few, tiny_tokenizer, says) -> None:
    other = few["train"].select(range(28, -1, -1))
    expected = trained(Trainer(**parts | {"train_dataset": other}))
    trainer = Trainer(**parts | {"model": tiny_model(dropout=0.5)})
    trainer.model, trainer.train_dataset = tiny_model(), other
    assert trained(trainer) == expected
    theirs, seen = transformers.DataCollatorWithPadding(tiny_tokenizer), []
    packed = dataclasses.replace(parts["args"], backend="packed")
    trainer = Trainer(**parts | {"model": tiny_model(), "args": packed})
    trainer.data_collator = lambda rows: seen.append(len(rows)) or theirs(rows)
    trainer.train()
    assert seen[-2:] == [4, 4]
    assert trainer.backend.name == "plain"
    trainer = Trainer(**parts | {"args": packed})
    trainer.optimizers = (torch.optim.SGD(trainer.model.parameters(), lr=0.0), None)
    assert weights_hash(trainer.model) == trained(trainer)
    with pytest.raises(SettingsError, match="subclass of glassloop"):
        trainer.callbacks = [3]
    with pytest.raises(SettingsError, match="Theirs has on_train_begin"):
        trainer.add_callback(type("Theirs", (), {"on_train_begin": print})())
    trainer = Trainer(**parts, optimizers=(torch.optim.SGD(tiny_model().parameters(), lr=0.1), None))
    with says("the optimizer contains no parameter of the model", "create it from model.parameters() of this model"):
        trainer.train()
    calls = []

    def scaled(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        calls.append(len(labels))
        return torch.nn.functional.cross_entropy(logits, labels, reduction="none") * 5

    trainer = Trainer(**parts)
    trainer.loss = scaled
    trainer.train()
    assert calls
    trainer.loss = lambda logits, labels: scaled(logits, labels).mean()
    with pytest.raises(SettingsError, match="not the sum of its rows' losses"):
        trainer.train()
    trainer.measures = dataclasses.replace(trainer.measures, keys=("accuracy",))
    assert trainer.measures.keys == ("accuracy",)


def test_results_are_shown_as_tables_and_stay_what_they_were() -> None:
    metrics = {"eval_f1": 0.75, "eval_runtime": 2.0}
    results = Metrics(metrics), PredictionOutput(np.zeros((3, 2)), None, metrics), TrainOutput(1234, 0.5, metrics)
    shown = [result._repr_html_() for result in results]
    assert all("0.7500" in html and "runtime" not in html for html in shown)
    assert "(3, 2)" in shown[1]
    assert "1,234" in shown[2]
    assert Metrics(metrics) == metrics
    assert repr(Metrics(metrics)) == repr(metrics)
    assert json.loads(json.dumps(Metrics(metrics))) == metrics


ROWS = Dataset.from_dict({"input_ids": [[2, 5, 3]] * 5, "labels": [0, 1, 0, 1, 0], "id": [*range(5)]})


def test_columns_the_model_does_not_accept_are_dropped_and_batches_have_the_size_of_the_settings(tiny_tokenizer: Any) -> None:
    lines: list[str] = []
    taken = columns_taken_by(tiny_model())
    assert accepted_columns(ROWS, taken, lines.append).column_names == ["input_ids", "labels"]  # type: ignore[attr-defined]
    assert lines == ["columns the model does not accept are dropped: id"]
    assert [*accepted_columns(ROWS.to_list(), taken, lines.append)[0]] == ["input_ids", "labels"]
    assert lines[1:] == lines[:1]
    assert accepted_columns(ROWS, None, lines.append) is ROWS
    assert [*accepted_columns(ROWS.to_list(), None, lines.append)[0]] == ["input_ids", "labels", "id"]
    for training, sizes in [(True, [2, 2, 1]), (False, [4, 1])]:
        args = TrainingArguments("x", per_device_train_batch_size=2, per_device_eval_batch_size=4, device="cpu")
        batches = RunTrainer(tiny_model(), args, processing_class=tiny_tokenizer, quiet=True)._batches(ROWS, training=training)
        assert [batch.size for batch in batches.epoch()] == sizes


def test_lines_are_shown_and_classes_counted_once_and_callbacks_made(tiny_tokenizer, tmp_path: Path, capsys) -> None:
    rows = Dataset.from_dict({"input_ids": [[2, 5, 3]] * 4, "labels": [0, 1, 1, 1]})
    args = TrainingArguments(tmp_path, device="cpu", class_weights="balanced")
    trainer = Trainer(tiny_model(), args, train_dataset=rows, processing_class=tiny_tokenizer)
    for _ in range(2):
        trainer._say_once("once")
    assert capsys.readouterr().err.count("once") == 1
    trainer._say("resuming from \x1b[31m")
    assert capsys.readouterr().err == "glassloop: resuming from \\x1b[31m\n", "it cannot control the terminal"
    trainer._quiet = True
    trainer._say("never")
    assert capsys.readouterr().err == ""
    first = trainer._class_weights()
    assert first == [2.0, pytest.approx(2 / 3)]
    assert trainer._class_weights() is first
    trainer.train_dataset = Dataset.from_dict({"input_ids": [[2, 5, 3]] * 2, "labels": [0, 1]})
    assert trainer._class_weights() == [1.0, 1.0]
    use = trainer._training_use()
    assert (use.reads_gradients, use.adds_gradients, use.reads_weights) == (False, False, False)
    trainer.on_gradients, trainer.callbacks = lambda model: None, [Callback]
    use = trainer._training_use()
    assert (use.reads_gradients, use.reads_weights, len(use.data_sets)) == (True, True, 1)
    trainer.callbacks = [Callback]
    assert [type(callback).__name__ for callback in trainer.callbacks] == ["Callback", "TrainerCallbacks"]
