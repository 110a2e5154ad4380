"""The Trainer: the data, losses, metrics and watchers of a user, and the promise that what watches changes nothing."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import accelerate.tracking
import numpy as np
import pytest
import torch
import transformers
from datasets import Dataset
from families import tiny_model, tiny_tokenizer, weights_hash
from torch.nn import functional
from transformers import DataCollatorWithPadding, pipeline

from glassloop import Callback, PaddingCollator, Trainer, TrainingArguments
from glassloop.backends.plain import PlainBackend
from glassloop.base.errors import DataError, DivergedError, ModelError, SettingsError
from glassloop.trainer import UNSUPPORTED, unused_names
from glassloop.training import callbacks as trackers
from glassloop.training import session
from glassloop.training.callbacks import EVENTS
from glassloop.training.losses import LOSS_REMEDY

pytestmark = pytest.mark.slow  # trains, or starts processes: make test runs it, make test-fast does not

STEPS_OF_AN_EPOCH = 8  # 29 rows in batches of 4


@pytest.fixture
def trainer_of(few, tiny_tokenizer, tmp_path: Path):
    """A Trainer of a tiny model on 29 rows; parts are given by name, all else are settings."""
    parts = {"model", "train_dataset", "eval_dataset", "data_collator", "compute_metrics", "callbacks", "optimizers"}
    parts |= {"loss", "on_gradients", "processing_class", "backend"}
    made = 0

    def make(**given: Any) -> Trainer:
        nonlocal made
        made += 1
        # A backend by its name is a setting.
        chosen = {name: given.pop(name) for name in parts & {*given} if not isinstance(given[name], str)}
        defaults = {"train_dataset": few["train"], "eval_dataset": few["validation"], "processing_class": tiny_tokenizer}
        settings = {"num_train_epochs": 1, "per_device_train_batch_size": 4, "learning_rate": 1e-3, "device": "cpu"}
        settings |= {"precision": "fp32", "save_strategy": "no", "disable_tqdm": True, "backend": "plain"}
        args = TrainingArguments(tmp_path / f"run-{made}", **settings | given)
        return Trainer(args=args, **{"model": tiny_model(), **defaults, **chosen})

    return make


def test_a_trainer_refuses_what_only_the_command_can_do(trainer_of) -> None:
    with pytest.raises(
        SettingsError, match=r"does not support method frozen; pooling mean has no .*; pair_form two_towers has no"
    ):
        trainer_of(method="frozen", pooling="mean", pair_form="two_towers").train()
    assert trainer_of(method="fine_tune", pooling="head", max_steps=1).train().global_step == 1


def trained(trainer: Trainer) -> str:
    """The hash of the weights after training."""
    trainer.train()
    return weights_hash(trainer.model)


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.history if "loss" in entry]


def test_unknown_arguments_and_missing_or_unusable_data_are_named(says, tiny_tokenizer, trainer_of, few) -> None:
    with says('Trainer has no argument "train_datset"', "see help(glassloop.Trainer)"):
        Trainer(tiny_model(), train_datset=[])
    for model in (None, "bert-base-uncased"):
        with says("Trainer needs a model", "pass model=load_model(...)"):
            Trainer(model)
    rows = [{"input_ids": [2, 5, 3], "labels": 0}, {"input_ids": [2, 3], "labels": 1}]  # of different lengths
    remedy = "pass processing_class=tokenizer, which pads tokens, or data_collator="
    with says("the rows have different lengths of input_ids, and nothing pads them", remedy):
        Trainer(tiny_model(), TrainingArguments(device="cpu"), eval_dataset=rows).evaluate()
    assert Trainer(tiny_model(), tokenizer=tiny_tokenizer).processing_class is tiny_tokenizer, "its old name"
    with says("the Trainer has no train_dataset", "pass train_dataset="):
        trainer_of(train_dataset=None).train()
    with says("the Trainer has no eval_dataset", "pass eval_dataset="):
        trainer_of(eval_dataset=None).evaluate()
    with says("eval_strategy is epoch, but there is no eval_dataset", "pass an eval_dataset"):
        trainer_of(eval_dataset=None, eval_strategy="epoch").train()
    with pytest.raises(SettingsError, match="the Trainer has no"):
        trainer_of().predict(None)
    for rows in ([], few["train"].select([])):
        with says("the data set has no rows", "add at least one row"):
            trainer_of(train_dataset=rows).train()
    with says("dataloader_drop_last leaves no batches", "use a smaller batch size"):
        trainer_of(per_device_train_batch_size=30, dataloader_drop_last=True).train()
    remedy = "pass a datasets.Dataset, a list of dicts, or another object with len() and [number]"
    stream = type("Stream", (torch.utils.data.IterableDataset,), {"__iter__": iter})()
    streams = {"IterableDataset": few["train"].to_iterable_dataset(), "Stream": stream, "list_iterator": iter([])}
    for name, rows in streams.items():
        with says(f"a {name} does not support len() and [number], so its order cannot be repeated", remedy):
            trainer_of(train_dataset=rows).train()
    remedy = "tokenize it first: glassloop.encode(examples, tokenizer, max_length), or dataset.map(tokenizer, …); "
    remedy += "if a collator does it, set remove_unused_columns=False"
    with says("the data set has no column input_ids; found text, label", remedy):
        trainer_of(train_dataset=Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})).train()
    for name in [name for name in UNSUPPORTED if name in unused_names(Trainer)]:
        with says(f"Trainer does not support {name}", UNSUPPORTED[name]):
            Trainer(tiny_model(), processing_class=tiny_tokenizer, **{name: lambda: None})
        Trainer(tiny_model(), processing_class=tiny_tokenizer, **{name: None})


def labelled(rows: Dataset, labels: list[Any]) -> Dataset:
    return rows.remove_columns("labels").add_column("labels", labels)


def test_labels_that_cannot_be_trained_on_or_do_not_fit_the_task(says, trainer_of, few) -> None:
    """Found before the first step, by their row: a loss would die of them, on a GPU without saying where."""
    bare, fractions = few["train"].remove_columns("labels"), labelled(few["train"], [0.5] * 29)
    for rows in (bare, bare.to_list()):
        with says("the training rows have no labels", "name their column one of labels, label, label_ids"):
            trainer_of(train_dataset=rows).train()
    problem = "the labels have the type float32, but classes are whole numbers"
    for rows in (fractions, fractions.to_list()):
        with says(problem, "use whole numbers, or set problem_type", DataError):
            trainer_of(train_dataset=rows).train()
    remedy = "fix the labels, or remove the label column if the labels are unknown"
    for label in (-1, 2):  # not of lists, which are not read before they are trained on
        rows = labelled(few["train"], [*few["train"]["labels"][:5], label, *few["train"]["labels"][6:]])
        for use in (trainer_of().predict, lambda rows: trainer_of(train_dataset=rows).train()):
            with says(f"row 5 (from 0) has the label {label}; the model has 0 to 1", remedy, DataError):
                use(rows)
    rows = labelled(few["train"], [[0.0, 1.0, 0.0]] * 29).to_list()
    with says("the label of a row has 3 numbers, but the model has 2 labels", None, DataError):
        trainer_of(train_dataset=rows).train()
    model = tiny_model(num_labels=3, problem_type="single_label_classification")
    with says("the label of a row has 3 numbers, but problem_type is single_label_classification", None, DataError):
        trainer_of(model=model, train_dataset=rows).train()
    for number in [1, 2]:
        rows = labelled(few["train"], [[0.5] * number] * 29)
        for form in (rows, rows.to_list()):
            with says(f"the score of a row is a list of length {number}", "use one number per row, not a list", DataError):
                trainer_of(model=tiny_model(num_labels=number, problem_type="regression"), train_dataset=form).train()


class Rows(torch.utils.data.Dataset):
    """A data set as torch's users write it."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {key: torch.tensor(value) for key, value in self.rows[number].items()}


def test_the_same_rows_in_any_form_give_the_same_weights_and_other_columns_are_left_out(trainer_of, few, capsys) -> None:
    rows, expected = few["train"], trained(trainer_of())
    forms = {
        "a list of dicts": rows.to_list(),
        "torch's": Rows(rows),
        "with masks": rows.add_column("attention_mask", [[1] * len(ids) for ids in rows["input_ids"]]),
        "label": rows.rename_column("labels", "label"),
        "numbers of torch": rows.with_format("torch"),
        "shuffled and back": rows.select(range(28, -1, -1)).select(range(28, -1, -1)),
    }
    for name, form in forms.items():
        assert trained(trainer_of(train_dataset=form)) == expected, name
    assert "dropped" not in capsys.readouterr().err
    extra = {name: few[name].add_column("idx", [*range(len(few[name]))]) for name in few}
    extra = {name: rows.add_column("sentence1", ["text"] * len(rows)) for name, rows in extra.items()}
    trainer = trainer_of(train_dataset=extra["train"], eval_dataset=extra["validation"], eval_strategy="epoch")
    capsys.readouterr()
    assert trained(trainer) == expected
    trainer.evaluate()
    trainer.predict(extra["test"])
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("glassloop:")]
    assert told == ["glassloop: columns the model does not accept are dropped: idx, sentence1"]
    rows = few["train"].add_column("idx", [*range(29)]).to_list()
    assert trained(trainer_of(train_dataset=rows)) == expected, "rows of one's own"
    assert capsys.readouterr().err.count("columns the model does not accept are dropped: idx") == 1


def test_rows_without_labels_have_predictions_and_no_loss(trainer_of, few) -> None:
    found = trainer_of().predict(labelled(few["train"], [-100] * 29))
    assert "test_loss" not in found.metrics
    assert np.array_equal(found.predictions, trainer_of().predict(few["train"]).predictions)
    found = trainer_of().predict(few["test"].remove_columns("labels"))
    assert found.label_ids is None
    assert {*found.metrics} == {"test_runtime", "test_samples_per_second"}
    assert np.array_equal(found.predictions, trainer_of().predict(few["test"]).predictions)


def test_collators_of_transformers_are_replaced_and_others_make_anything_of_rows(trainer_of, few, tiny_tokenizer) -> None:
    """Theirs is replaced by ours, which reads memory-mapped rows; hidden in a lambda it is used itself."""
    theirs = DataCollatorWithPadding(tiny_tokenizer)
    replaced = trainer_of(data_collator=theirs)
    assert isinstance(replaced.data_collator, PaddingCollator)
    hidden = trainer_of(data_collator=lambda rows: theirs(rows), processing_class=None)
    assert not isinstance(hidden.data_collator, PaddingCollator)
    assert trained(replaced) == trained(hidden) == trained(trainer_of())
    multiple = trainer_of(data_collator=DataCollatorWithPadding(tiny_tokenizer, pad_to_multiple_of=16), processing_class=None)
    fixed = trainer_of(data_collator=DataCollatorWithPadding(tiny_tokenizer, padding="max_length", max_length=64))
    for trainer, allowed in ((multiple, {16, 32, 48, 64}), (fixed, {64})):
        batches = trainer._batches(trainer.train_dataset, training=True).epoch()
        assert {batch.inputs["input_ids"].shape[1] for batch in batches} <= allowed
    collate, seen = PaddingCollator(tiny_tokenizer), []

    def upside_down(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        seen.append([*rows[0]])
        batch = collate([{key: value for key, value in row.items() if key != "right"} for row in rows])
        return {**batch, "labels": torch.tensor([1 - row["right"] for row in rows])}

    rows = [{**{key: row[key] for key in row if key != "labels"}, "right": row["labels"]} for row in few["train"].to_list()]
    other = few["train"].map(lambda row: {"labels": 1 - row["labels"]})
    own = trainer_of(data_collator=upside_down, train_dataset=rows, remove_unused_columns=False)
    assert trained(own) == trained(trainer_of(train_dataset=other))
    assert seen[0] == ["input_ids", "token_type_ids", "right"]


BACKENDS = pytest.mark.parametrize("backend", ["plain", "packed"])


@BACKENDS
def test_columns_that_a_format_does_not_choose_are_not_used(trainer_of, few, backend: str) -> None:
    bare = few["train"].remove_columns("token_type_ids")
    given = {"backend": backend, "max_steps": 3}
    expected = trained(trainer_of(train_dataset=bare, **given))
    assert expected != trained(trainer_of(**given)), "token types change the weights"
    for kind in (None, "torch", "numpy", "python"):
        chosen = few["train"].with_format(kind, columns=["input_ids", "labels"])
        assert trained(trainer_of(train_dataset=chosen, **given)) == expected, kind
    with pytest.raises(SettingsError, match="the training rows have no labels"):
        trainer_of(backend=backend, train_dataset=few["train"].with_format(columns=["input_ids"])).train()
    found = trainer_of(backend=backend).predict(few["test"].with_format("torch", columns=["input_ids", "token_type_ids"]))
    assert found.label_ids is None


@BACKENDS
@pytest.mark.parametrize("group_by_length", [False, True])
def test_a_transform_makes_the_rows(trainer_of, few, backend: str, group_by_length: bool) -> None:
    """Tokens, labels and even the columns come from it; the stored ones are not looked at."""

    def shorter(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        ids = [[*cells[:1], *cells[3:]] for cells in batch["ids"]]
        return {"input_ids": ids, "labels": [1 - label for label in batch["labels"]]}

    stored = few["train"].rename_column("input_ids", "ids")
    settings = {"backend": backend, "group_by_length": group_by_length, "class_weights": "balanced"}
    by_hand = Dataset.from_dict(shorter(stored[:]))
    expected = trained(trainer_of(train_dataset=by_hand, eval_dataset=by_hand, **settings))
    made = stored.with_transform(shorter)
    trainer = trainer_of(train_dataset=made, eval_dataset=made, **settings)
    assert trained(trainer) == expected
    assert trainer.evaluate()["eval_loss"] == pytest.approx(trainer.evaluate(by_hand)["eval_loss"], abs=1e-6)


@BACKENDS
@pytest.mark.parametrize("as_list", [False, True])
def test_label_beside_labels(trainer_of, few, says, backend: str, as_list: bool) -> None:
    """They were trained on, one by plain, the other by packed."""
    same = few["train"].add_column("label", few["train"]["labels"][:])
    other = few["train"].add_column("label", [1 - label for label in few["train"]["labels"]])
    forms = [rows.to_list() if as_list else rows for rows in (same, other)]
    assert trained(trainer_of(backend=backend, train_dataset=forms[0])) == trained(trainer_of(backend=backend))
    with pytest.raises(DataError, match=r'"labels" and "label" have different values \((0 and 1|1 and 0)\)\n') as caught:
        trainer_of(backend=backend, train_dataset=forms[1]).train()
    assert caught.value.remedy == "remove the column that is not the label"


@pytest.mark.parametrize(
    ("backend", "kind", "as_list"),
    [("plain", float, False), ("plain", int, True), ("packed", float, True), ("packed", int, False)],
)
def test_one_number_for_each_label_is_multi_label(trainer_of, few, capsys, backend: str, kind: type, as_list: bool) -> None:
    rows = labelled(few["train"], [[kind(number % 2), kind(number % 3 == 0), kind(1)] for number in range(29)])
    rows = rows.to_list() if as_list else rows
    said = "each row has one number for each of the 3 labels: training as multi_label_classification"
    models = [tiny_model(num_labels=3, problem_type=problem) for problem in ("multi_label_classification", None)]
    hashes = [trained(trainer_of(backend=backend, model=model, train_dataset=rows, eval_dataset=None)) for model in models]
    assert hashes[0] == hashes[1]
    assert models[1].config.problem_type == "multi_label_classification"
    assert capsys.readouterr().err.count(said) == 1


def test_metrics_of_ones_own_and_their_prefix(trainer_of, says, few) -> None:
    def metrics(found: Any) -> dict[str, Any]:
        logits, labels = found
        assert logits is found.predictions
        assert labels is found.label_ids
        assert type(logits) is type(labels) is np.ndarray
        return {"rows": len(labels), "eval_wide": np.float32(logits.shape[1])}

    found = trainer_of(compute_metrics=metrics).evaluate()
    assert {*found} == {"eval_loss", "eval_rows", "eval_wide", "eval_runtime", "eval_samples_per_second", "epoch"}
    assert (found["eval_rows"], found["eval_wide"]) == (4.0, 2.0)
    assert all(type(value) is float for value in found.values())
    for returned, kind in ((None, "NoneType"), (0.5, "float")):
        with says(f"compute_metrics returned a {kind}", "return a dict of names and numbers"):
            trainer_of(compute_metrics=lambda found, returned=returned: returned).evaluate()
    assert "held_out_loss" in trainer_of().evaluate(few["test"], metric_key_prefix="held_out")
    assert "test_accuracy" in trainer_of().predict(few["test"]).metrics
    faulty = Mock(side_effect=FloatingPointError("divide by zero"))  # as NumPy may raise it: no divergence
    with pytest.raises(FloatingPointError, match="divide by zero"):
        trainer_of(compute_metrics=faulty, eval_strategy="epoch").train()


def test_metrics_that_are_no_finite_numbers_are_reported_once_and_are_never_the_best(trainer_of, capsys, says) -> None:
    returned = {"f1": float("nan"), "auc": float("inf"), "table": [0.5, 0.25], "note": "good", "accuracy": np.float32(0.5)}
    trainer = trainer_of(compute_metrics=lambda found: returned, eval_strategy="steps", eval_steps=1, max_steps=2)
    trainer.train()
    said = capsys.readouterr().err
    for name, what in (("f1", "nan"), ("auc", "inf"), ("table", "a list"), ("note", "a str")):
        assert said.count(f"compute_metrics returned {what} for {name}: history and report omit it\n") == 1
    (first, _) = [entry for entry in trainer.state.history if "eval_loss" in entry]
    assert {*first} == {"step", "epoch", "eval_loss", "eval_accuracy"}
    found = trainer.evaluate()
    assert (found["eval_note"], found["eval_table"], found["eval_accuracy"]) == ("good", [0.5, 0.25], 0.5)
    assert found["eval_f1"] != found["eval_f1"]
    trainer._repr_html_()
    found._repr_html_()
    given = {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 2, "metric_for_best_model": "f1"}
    trainer = trainer_of(compute_metrics=lambda found: {"f1": float("nan")}, load_best_model_at_end=True, **given)
    trainer.train()
    assert trainer.state.best_step is None
    said = capsys.readouterr().err
    assert "returned nan for f1: history and report omit it, and such an evaluation cannot be the best one" in said
    with says("metric_for_best_model is f1, but compute_metrics returned a str for it"):
        trainer_of(compute_metrics=lambda found: {"f1": "good"}, **given).train()
    problem = "^settings: metric_for_best_model is eval_f2, but an evaluation computes eval_loss, eval_accuracy,"
    with pytest.raises(SettingsError, match=problem):
        trainer_of(eval_strategy="epoch", metric_for_best_model="f2").train()


def test_each_task_trains_and_has_metrics_of_its_own(trainer_of, few) -> None:
    for task, num_labels, labels, names in [
        ("single_label_classification", 2, [0, 1, 1, 0], {"accuracy", "f1"}),
        ("single_label_classification", 3, [0, 1, 2, 0], {"accuracy", "f1_macro"}),
        ("multi_label_classification", 2, [[0, 1], [1, 1], [0, 0], [1, 0]], {"f1_micro", "f1_macro", "exact_match"}),
        ("regression", 1, [0.5, 1.5, -1.0, 2.0], {"pearson", "spearmanr", "mse"}),
    ]:
        rows = labelled(few["validation"], labels)
        for problem_type in (task, None) if task != "multi_label_classification" else (task,):
            model = tiny_model(num_labels=num_labels, problem_type=problem_type)
            trainer = trainer_of(model=model, train_dataset=rows, eval_dataset=rows, eval_strategy="epoch", num_train_epochs=2)
            assert trainer.task == task
            trainer.train()
            found = trainer.evaluate()
            assert {name.removeprefix("eval_") for name in found} == names | {"loss", "runtime", "samples_per_second", "epoch"}
            assert trainer.predict(rows).label_ids.tolist() == labels


@pytest.mark.parametrize("number", [1, 4, 29])
@pytest.mark.parametrize("batch_size", [1, 7, 32])
def test_every_row_is_counted_once_and_in_its_order(trainer_of, few, number: int, batch_size: int) -> None:
    rows, counted = few["train"].select(range(number)), []
    model = tiny_model(initializer_range=0.3)  # whose answers differ by far more than rounding: a wrong order would show
    own = {"compute_metrics": lambda found: counted.append(len(found[1])) or {}}
    trainer = trainer_of(model=model, per_device_eval_batch_size=batch_size, **own)
    found = trainer.predict(rows)
    assert counted == [number]
    assert found.label_ids.tolist() == rows["labels"]
    trainer.model.eval()
    for row in (0, number // 2, number - 1):
        with torch.no_grad():
            alone = trainer.model(**{key: torch.tensor([value]) for key, value in rows[row].items() if key != "labels"})
        np.testing.assert_allclose(found.predictions[row], alone.logits[0].numpy(), atol=1e-5)
    by_hand = functional.cross_entropy(torch.tensor(found.predictions), torch.tensor(found.label_ids)).item()
    assert found.metrics["test_loss"] == pytest.approx(by_hand, abs=1e-6)


def test_how_many_steps_and_when_it_evaluates(trainer_of, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "train_step", lambda *given, **named: torch.tensor([0.5, 1.0]))  # they need not train
    for settings, steps, evaluated in [
        ({}, 8, []),
        ({"num_train_epochs": 2}, 16, []),
        ({"num_train_epochs": 1.5}, 12, []),
        ({"num_train_epochs": 0.1}, 1, []),
        ({"dataloader_drop_last": True}, 7, []),
        ({"gradient_accumulation_steps": 3}, 3, []),
        ({"max_steps": 5}, 5, []),
        ({"max_steps": 20}, 20, []),
        ({"per_device_train_batch_size": 29}, 1, []),
        ({"per_device_train_batch_size": 64}, 1, []),
        ({"eval_strategy": "epoch", "num_train_epochs": 2}, 16, [8, 16]),
        ({"eval_strategy": "epoch", "gradient_accumulation_steps": 3, "num_train_epochs": 2}, 6, [3, 6]),
        ({"eval_strategy": "epoch", "max_steps": 11}, 11, [8]),
        ({"eval_strategy": "steps", "eval_steps": 3}, 8, [3, 6, 8]),
        ({"eval_strategy": "steps", "logging_steps": 4}, 8, [4, 8]),
        ({"eval_strategy": "steps", "eval_steps": 5, "eval_on_start": True}, 8, [0, 5, 8]),
        ({"eval_on_start": True}, 8, [0]),
    ]:
        trainer = trainer_of(**settings)
        assert trainer.train().global_step == steps
        assert [entry["step"] for entry in trainer.state.history if "eval_loss" in entry] == evaluated


def test_history_is_on_disk_as_it_is_in_the_state_and_reaches_the_tracker(trainer_of, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = Mock(requires_logging_directory=False)
    monkeypatch.setattr(accelerate.tracking, "LOGGER_TYPE_TO_CLASS", {"wandb": kind})
    monkeypatch.setattr(trackers, "package_version", lambda name: "1.0")
    trainer = trainer_of(report_to=["wandb"], run_name="my run", eval_strategy="epoch", logging_steps=3, num_train_epochs=2)
    output = trainer.train()
    lines = (Path(trainer.args.output_dir) / "history.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == trainer.state.history
    assert [entry["step"] for entry in trainer.state.history] == [3, 6, 8, 9, 12, 15, 16, 16]
    assert output.global_step == trainer.state.step == 2 * STEPS_OF_AN_EPOCH
    weighed = np.average(losses(trainer), weights=[3, 3, 3, 3, 3, 1])
    assert output.training_loss == output.metrics["train_loss"] == pytest.approx(weighed)
    assert output.metrics["epoch"] == 2.0
    assert kind.call_args.args == ("my run",)
    start, settings, *logged, last = kind.return_value.method_calls
    assert (start[0], last[0]) == ("start", "finish")
    assert settings.args[0]["learning_rate"] == 1e-3
    assert [{**call.kwargs, **call.args[0]} for call in logged] == trainer.state.history


MORE = {"greater_is_better": True}
SCORES = [0.2, 0.7, 0.9, 0.4, 0.9, 0.1, 0.3, 0.5]


@pytest.fixture
def skilled(trainer_of):
    """A Trainer with these scores, one a step, and of each evaluation the hash of the weights and the metrics."""

    def make(scores: list[float] | None, **settings: Any) -> tuple[Trainer, dict[int, tuple[str, dict[str, float]]]]:
        model, watching, found, rest = tiny_model(), Mock(spec=Callback), {}, iter(scores or ())
        watching.on_evaluate.side_effect = lambda state, metrics: found.update({state.step: (weights_hash(model), metrics)})
        own = {} if scores is None else {"compute_metrics": lambda found: {"skill": next(rest)}}
        given = {"model": model, "callbacks": [watching], "eval_strategy": "steps", "eval_steps": 1, **own}
        trainer = trainer_of(**given | settings)
        trainer.train()
        return trainer, found

    return make


def test_the_best_weights_are_put_back_if_asked_and_it_stops_early(skilled, trainer_of) -> None:
    for metric, settings, best in [("skill", {}, 3), ("skill", MORE, 3), ("eval_skill", {"greater_is_better": False}, 6)]:
        trainer, found = skilled(SCORES, load_best_model_at_end=True, metric_for_best_model=metric, **settings)
        assert (trainer.state.best_step, trainer.state.best_score) == (best, SCORES[best - 1])
        assert len({digest for digest, _ in found.values()}) == STEPS_OF_AN_EPOCH
        assert weights_hash(trainer.model) == found[best][0]
    trainer, found = skilled(None, learning_rate=0.05, load_best_model_at_end=True)
    least = min(found, key=lambda step: found[step][1]["eval_loss"])
    assert least < STEPS_OF_AN_EPOCH, "a case in which the last weights are not the best"
    assert weights_hash(trainer.model) == found[least][0]
    trainer, _ = skilled(SCORES, metric_for_best_model="skill")
    assert weights_hash(trainer.model) == trained(trainer_of())
    assert trainer.state.best_step == 3
    trainer, _ = skilled([0.5, 0.6, 0.55, 0.6, 0.9], metric_for_best_model="skill", early_stopping_patience=2)
    assert trainer.state.step == 4
    assert trainer.state.stop_reason == "eval_skill did not improve in 2 evaluations"


def first_loss(trainer: Trainer, weights: torch.Tensor | None = None, smoothing: float = 0.0) -> float:
    """The loss of the first step, computed by hand from the rows of its batch."""
    model = tiny_model(dropout=0.0).eval()
    batch = next(trainer._batches(trainer.train_dataset, training=True).epoch())
    with torch.no_grad():
        logits = model(**batch.inputs).logits
    rows = functional.cross_entropy(logits, batch.labels, weight=weights, label_smoothing=smoothing, reduction="none")
    return rows.mean().item()


def test_class_weights_and_label_smoothing(trainer_of, few, says) -> None:
    labels = few["train"]["labels"][:]
    counts = [labels.count(0), labels.count(1)]
    assert counts[0] != counts[1]
    for text, values in {"balanced": [29 / (2 * count) for count in counts], "0.25, 3": [0.25, 3.0]}.items():
        weights = torch.tensor(values)
        for rows in (few["train"], few["train"].to_list()):
            trainer = trainer_of(model=tiny_model(dropout=0.0), class_weights=text, max_steps=1, train_dataset=rows)
            trainer.train()
            assert losses(trainer)[0] == pytest.approx(first_loss(trainer, weights), abs=1e-6)
            assert losses(trainer)[0] != pytest.approx(first_loss(trainer), abs=1e-3)
    with says("class_weights is balanced, but there are no training rows with labels", "use numbers"):
        trainer_of(class_weights="balanced", train_dataset=None).evaluate()
    trainer = trainer_of(model=tiny_model(dropout=0.0), label_smoothing_factor=0.2, max_steps=1)
    trainer.train()
    assert losses(trainer)[0] == pytest.approx(first_loss(trainer, smoothing=0.2), abs=1e-6)
    rows = labelled(few["validation"], [0.5, 1.5, -1.0, 2.0])
    for settings in ({"class_weights": "1"}, {"label_smoothing_factor": 0.1}):
        with says("class_weights and label_smoothing_factor do not apply to regression", "omit them"):
            trainer_of(model=tiny_model(num_labels=1), train_dataset=rows, **settings).train()


def test_a_loss_of_ones_own_is_trained_on_but_a_mean_is_refused(trainer_of) -> None:
    for reduction in ["none", "sum"]:
        for accumulate in (1, 3):
            loss = partial(functional.cross_entropy, reduction=reduction)
            given = {"gradient_accumulation_steps": accumulate, "max_steps": 3}
            assert trained(trainer_of(loss=loss, **given)) == trained(trainer_of(**given))
    model = tiny_model()
    with pytest.raises(SettingsError, match="is not the sum of its rows' losses") as caught:
        trainer_of(model=model, loss=functional.cross_entropy).train()
    assert caught.value.remedy == LOSS_REMEDY
    assert weights_hash(model) == weights_hash(tiny_model())


@pytest.mark.parametrize("accumulate", [1, 3])
def test_watching_logging_and_evaluating_change_no_weight(trainer_of, accumulate: int) -> None:
    """With dropout: a single random number drawn on the way would show."""
    common = {"num_train_epochs": 2, "gradient_accumulation_steps": accumulate}
    expected = trained(trainer_of(**common))
    everything = Mock(spec=Callback)
    saved = {"save_strategy": "steps", "save_steps": 2, "logging_steps": 3, "eval_strategy": "epoch"}
    for settings in (
        {"logging_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True},
        {"logging_steps": 500, "on_gradients": lambda model: None},
        {"callbacks": [everything], "per_device_eval_batch_size": 1, "compute_metrics": lambda found: {}, **saved},
    ):
        assert trained(trainer_of(**common, **settings)) == expected, settings
    events = [name for name, *_ in everything.method_calls]
    assert (events.count("on_step"), events.count("on_epoch_end")) == (16 if accumulate == 1 else 6, 2)
    assert {*events} == {*EVENTS}


def test_the_same_settings_give_the_same_weights_and_others_others_but_not_of_frozen_parts(trainer_of) -> None:
    torch.manual_seed(1)
    first = trained(trainer_of())
    torch.manual_seed(2)
    assert trained(trainer_of()) == first
    assert trained(trainer_of(seed=7, data_seed=42)) != first, "another dropout alone"
    same, other = (trained(trainer_of(data_seed=seed)) for seed in (42, 43))
    assert first == same != other, "another order of the data alone"
    model = tiny_model()
    model.bert.embeddings.requires_grad_(False)
    trainer_of(model=model, weight_decay=0.1).train()
    before = tiny_model().state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) is name.startswith("bert.embeddings"), name
    settings = ({"weight_decay": 0.1}, {"adam_beta2": 0.9}, {"max_grad_norm": 0.01})
    assert len({first, *(trained(trainer_of(**given)) for given in settings)}) == 4


def test_gradients_are_shown_once_a_step_before_clipping_and_may_be_changed(trainer_of) -> None:
    norms: list[float] = []

    def look(model: Any) -> None:
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        norms.append(torch.nn.utils.get_total_norm(gradients).item())

    trainer = trainer_of(on_gradients=look, max_grad_norm=1e-3, gradient_accumulation_steps=3, logging_steps=1)
    trainer.train()
    assert len(norms) == trainer.state.step == 3
    assert [entry["grad_norm"] for entry in trainer.state.history] == pytest.approx(norms)
    assert min(norms) > 0.01

    def freeze_all_but_the_head(model: Any) -> None:
        for name, parameter in model.named_parameters():
            if not name.startswith("classifier"):
                parameter.grad = None

    model = tiny_model()
    trainer_of(model=model, on_gradients=freeze_all_but_the_head).train()
    before = tiny_model().state_dict()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"classifier.weight", "classifier.bias"}


def test_a_model_or_tokenizer_that_cannot_be_used_is_found_before_training(says, trainer_of, tmp_path: Path) -> None:
    model = tiny_model()
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.bias[4] = torch.nan
    trainer = trainer_of(model=model)
    weight = "bert.encoder.layer.0.output.dense.bias"
    remedy = "download the model again: its weights are damaged, or its training diverged"
    with says(f"the model given to Trainer: the weight {weight} is not finite (1 of its 32 numbers)", remedy, ModelError):
        trainer.train()
    assert trainer.state.step == 0
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["alpha", "beta"])
    with pytest.raises(ModelError, match="beyond the 97 rows of the model's embedding"):
        trainer_of(processing_class=tokenizer)
    model = tiny_model()
    model.config.return_dict = False
    problem = "the model returns tuples (return_dict in its config is False)"
    with says(problem, "set model.config.return_dict = True", ModelError):
        trainer_of(model=model)
    tiny_model().save_pretrained(tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "output_attentions": True}))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    with pytest.raises(ModelError, match=r"the config of the model cannot be saved: .*output_attentions"):
        trainer_of(model=model)


def test_a_run_that_diverges_names_its_rows_and_rate_and_is_not_scored(trainer_of) -> None:
    for logging_steps in [1, 3, 50]:
        trainer = trainer_of(learning_rate=1e25, logging_steps=logging_steps)
        second = trainer._batches(trainer.train_dataset, training=True).order(0)[1].tolist()
        with pytest.raises(DivergedError) as caught:
            trainer.train()
        assert caught.value.exit_code == 5
        facts = f"last finite loss {trainer.state.last_loss:.4g}, learning rate 1e+25, rows {', '.join(map(str, second))}"
        assert caught.value.problem == f"step 2: the loss is nan ({facts} of the training data)"
        assert caught.value.remedy == "lower learning_rate, add warmup_steps, use precision fp32, or look at these rows"
        assert trainer.state.step <= max(logging_steps, 2)
    trainer = trainer_of(learning_rate=1e25, gradient_accumulation_steps=2, per_device_train_batch_size=2)
    order = trainer._batches(trainer.train_dataset, training=True).order(0)
    with pytest.raises(DivergedError) as caught:
        trainer.train()
    assert f"rows {', '.join(str(row) for rows in order[2:4] for row in rows)} of" in caught.value.problem
    with pytest.raises(DivergedError, match="the loss of the evaluation"):
        trainer_of(learning_rate=1e25, eval_strategy="steps", eval_steps=1).train()
    model = tiny_model()
    with pytest.raises(DivergedError, match=r"learning rate 1e\+30"):
        trainer_of(model=model, optimizers=(torch.optim.SGD(model.parameters(), lr=1e30), None)).train()


def test_fp16_that_overflows_in_every_step_is_a_divergence(trainer_of) -> None:
    """The scaler leaves such steps out, and no weight would ever change."""
    backend, usual = PlainBackend("cpu", "fp16"), partial(functional.cross_entropy, reduction="none")
    huge = {"loss": lambda logits, labels: 1e30 * usual(logits, labels)}
    trainer = trainer_of(backend=backend, max_steps=40, logging_steps=5, **huge)
    with pytest.raises(DivergedError, match="the gradient overflowed or was zero for 20 steps") as caught:
        trainer.train()
    assert caught.value.exit_code == 5
    assert trainer.state.step == 20
    assert backend.scaler.get_scale() == 65536 / 2**20


def test_an_optimizer_and_a_schedule_of_ones_own_or_by_name(trainer_of, says) -> None:
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.1)
    trainer = trainer_of(model=model, optimizers=(optimizer, scheduler), logging_steps=1)
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.history]
    assert rates == pytest.approx([0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.001, 0.001])
    assert scheduler.last_epoch == STEPS_OF_AN_EPOCH
    assert weights_hash(model) != weights_hash(tiny_model())
    named = {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": '{"min_lr_rate": 0.5}', "warmup_steps": 0.25}
    trainer = trainer_of(**named, max_steps=4, logging_steps=1)
    trainer.train()
    first, *rest = (entry["learning_rate"] for entry in trainer.state.history)
    assert (first, rest[0], 5e-4 < rest[-1] < 1e-3) == (0.0, 1e-3, True), "a schedule by its name, with its options"
    model = tiny_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    assert trained(trainer_of(model=model, optimizers=(optimizer, None))) == trained(trainer_of())
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with says("optimizers contains a schedule but no optimizer", "pass both, or only the optimizer"):
        trainer_of(model=model, optimizers=(None, torch.optim.lr_scheduler.ConstantLR(optimizer))).train()
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with says("ReduceLROnPlateau needs a metric, but schedules here advance every step", "use another schedule"):
        trainer_of(model=model, optimizers=(optimizer, scheduler)).train()


def test_a_saved_model_works_in_transformers_and_is_saved_by_the_umask(trainer_of, few, tmp_path: Path) -> None:
    model = tiny_model(id2label={0: "bad", 1: "good"}, label2id={"bad": 0, "good": 1})
    trainer = trainer_of(model=model, learning_rate=0.01)
    trainer.train()
    trainer.save_model(tmp_path / "saved")
    assert (tmp_path / "saved" / "model.safetensors").is_file()
    classify = pipeline("text-classification", model=str(tmp_path / "saved"), top_k=None)
    (said,) = classify(["the film is good"])
    encoded = trainer.processing_class("the film is good")
    logits = trainer.predict([{key: encoded[key] for key in encoded}]).predictions
    bad, good = torch.tensor(logits[0]).softmax(dim=0).tolist()
    found = {entry["label"]: entry["score"] for entry in said}
    assert found == pytest.approx({"bad": bad, "good": good}, abs=1e-5)
    trainer, before = trainer_of(), os.umask(0o002)
    try:
        trainer.save_model()
    finally:
        os.umask(before)
    folder = Path(trainer.args.output_dir)
    assert (folder / "config.json").is_file()
    assert {path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()} == {0o664}


def test_a_notebook_shows_a_trainer_before_and_after_training(trainer_of) -> None:
    script = "<script>alert(1)</script>"
    trainer = trainer_of(eval_strategy="epoch", logging_steps=2, compute_metrics=lambda found: {"accuracy": 0.5, script: 0.25})
    before = trainer._repr_html_()
    assert "bert" in before
    assert "29 train" in before
    assert "<svg" not in before
    trainer.train()
    after = trainer._repr_html_()
    rows = [[cell.text or "" for cell in row] for row in ElementTree.fromstring(after).iter("tr")]
    loss = trainer.state.history[-1]["eval_loss"]
    assert ["step", "eval_loss", "eval_accuracy", f"eval_{script}"] in rows
    assert ["8", f"{loss:.4f}", "0.5000", "0.2500"] in rows
    assert after.count("<polyline") == 1, "one evaluation is no line"
    assert "<script" not in after
    assert repr(trainer) == f"<Trainer of a bert model at step {STEPS_OF_AN_EPOCH}>"
    assert "eval_accuracy" in trainer.evaluate()._repr_html_()
    assert {"loss", "evaluations"} <= {*trainer.report().charts}
