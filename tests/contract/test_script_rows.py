"""What scripts for transformers get from their rows: columns, order, streams, predictions. Both libraries give the same.

Each script gets the package, and returns what it found. Rows come in a fixed order, and there is no dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from contract.test_scripts import calm_model, losses, padded_rows, settings
from datasets import Dataset
from families import tiny_tokenizer
from torch import nn
from torch.nn import functional
from torch.utils.data import RandomSampler, SequentialSampler
from transformers.modeling_outputs import ModelOutput, SequenceClassifierOutput

import glassloop

Found = list[Any]
Script = Callable[[ModuleType, Path], Found]
SCRIPTS: dict[str, Script] = {}
SEQUENTIAL = {"train_sampling_strategy": "sequential"}


def script(function: Script) -> Script:
    """Add a script to the collection."""
    SCRIPTS[function.__name__] = function
    return function


def weighted_rows(number: int = 48) -> list[dict[str, Any]]:
    return [{**row, "weight": 0.5 + place % 3} for place, row in enumerate(padded_rows(number))]


def ragged_rows(number: int = 48) -> list[dict[str, Any]]:
    """Rows of several lengths."""
    rows = padded_rows(number)
    return [{"input_ids": row["input_ids"][: sum(row["attention_mask"])], "labels": row["labels"]} for row in rows]


def run(
    lib: ModuleType, folder: Path, kind: Any = None, model: Any = None, parts: dict[str, Any] | None = None, **given: Any
) -> Any:
    """A Trainer after its training, in the order of the rows."""
    given = {**SEQUENTIAL, **given}
    parts = {"train_dataset": weighted_rows(), **(parts or {})}
    model = calm_model() if model is None else model
    trainer = (kind or lib.Trainer)(model=model, args=settings(lib, folder, **given), **parts)
    trainer.train()
    return trainer


def by_weight(lib: ModuleType, seen: list[str] | None = None) -> Any:
    """A Trainer that weights rows by a column."""

    class Weighted(lib.Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **others: Any) -> Any:
            if seen is not None:
                seen[:] = sorted(inputs)
            weight, labels = inputs.pop("weight"), inputs.pop("labels")
            outputs = model(**inputs)
            loss = (functional.cross_entropy(outputs.logits, labels, reduction="none") * weight).mean()
            return (loss, outputs) if return_outputs else loss

    return Weighted


# --- columns -------------------------------------------------------------------------------------------------------


@script
def weights_of_rows(lib: ModuleType, folder: Path) -> Found:
    seen: list[str] = []
    parts = {"eval_dataset": weighted_rows(16)}
    trainer = run(lib, folder, by_weight(lib, seen), parts=parts, remove_unused_columns=False)
    return [*losses(trainer), trainer.evaluate()["eval_loss"], *seen, trainer.predict(weighted_rows(8)).predictions]


@script
def weights_in_a_table(lib: ModuleType, folder: Path) -> Found:
    rows = Dataset.from_list(weighted_rows())
    seen: list[str] = []
    parts = {"train_dataset": rows, "eval_dataset": rows, "processing_class": tiny_tokenizer()}
    trainer = run(lib, folder, by_weight(lib, seen), parts=parts, remove_unused_columns=False)
    return [*losses(trainer), trainer.evaluate()["eval_loss"], *seen]


@script
def weights_and_lengths(lib: ModuleType, folder: Path) -> Found:
    rows = [{**row, "weight": float(place % 3)} for place, row in enumerate(ragged_rows())]
    parts = {"train_dataset": rows, "eval_dataset": rows, "processing_class": tiny_tokenizer()}
    trainer = run(lib, folder, by_weight(lib), parts=parts, remove_unused_columns=False)
    return [*losses(trainer), trainer.evaluate()["eval_loss"]]


@script
def collator_that_tokenizes(lib: ModuleType, folder: Path) -> Found:
    tokenizer = tiny_tokenizer()

    def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")
        return {**batch, "labels": torch.tensor([row["target"] for row in rows])}

    texts = ["the cat sat", "a dog", "the mat is on the cat", "dog sat on a mat"] * 12
    rows = Dataset.from_dict({"text": texts, "target": [place % 2 for place in range(48)]})
    parts = {"train_dataset": rows, "eval_dataset": rows, "data_collator": collate}
    trainer = run(lib, folder, parts=parts, remove_unused_columns=False)
    return [*losses(trainer), trainer.evaluate()["eval_loss"]]


@script
def unused_columns_are_removed(lib: ModuleType, folder: Path) -> Found:
    seen: set[str] = set()

    def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        seen.update(*rows)
        return transformers.default_data_collator(rows)

    first = losses(run(lib, folder, parts={"data_collator": collate}))
    second = losses(run(lib, folder, parts={"data_collator": collate, "train_dataset": Dataset.from_list(weighted_rows())}))
    third = losses(run(lib, folder, parts={"train_dataset": weighted_rows(), "processing_class": tiny_tokenizer()}))
    return [*first, *second, *third, *sorted(seen)]


@script
def columns_of_the_signature(lib: ModuleType, folder: Path) -> Found:
    class Narrow(transformers.BertForSequenceClassification):
        def forward(self, input_ids: Any, weight: Any = None, labels: Any = None, **others: Any) -> Any:
            names.update(others)
            return super().forward(input_ids, labels=labels)

    names: set[str] = set()
    torch.manual_seed(0)
    model = Narrow(calm_model().config)
    found = losses(run(lib, folder, model=model, parts={"train_dataset": Dataset.from_list(weighted_rows())}))
    return [*found, *sorted(names - {"num_items_in_batch"})]


class OtherNames(nn.Module):
    """A module whose labels have other names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(60, 8), nn.Linear(8, 2)

    def forward(self, input_ids: Any, target: Any = None, other: Any = None) -> Any:
        logits = self.head(self.words(input_ids).mean(1))
        loss = None if target is None else functional.cross_entropy(logits, target) + other.float().mean()
        return SequenceClassifierOutput(loss=loss, logits=logits)


@script
def labels_by_other_names(lib: ModuleType, folder: Path) -> Found:
    rows = [{"input_ids": row["input_ids"], "target": row["labels"], "other": row["labels"] + 1} for row in padded_rows()]
    seen: list[Any] = []

    def scores(found: Any) -> dict[str, float]:
        seen[:] = found.label_ids if isinstance(found.label_ids, tuple) else [found.label_ids]
        return {"rows": float(len(seen[0]))}

    found: list[Any] = []
    for names in (["target"], ["target", "other"]):
        parts = {"train_dataset": rows, "eval_dataset": rows, "compute_metrics": scores}
        trainer = run(lib, folder, model=OtherNames(), parts=parts, label_names=names)
        found += [*losses(trainer), trainer.evaluate()["eval_loss"], *seen]
    return found


# --- order ---------------------------------------------------------------------------------------------------------


def order_of(lib: ModuleType, folder: Path, kind: Any = None, **given: Any) -> Found:
    """Which rows were in which batch."""
    batches: list[list[int]] = []

    class Noted(kind or lib.Trainer):
        def compute_loss(self, model: Any, inputs: Any, *others: Any, **named: Any) -> Any:
            batches.append(inputs.pop("row").tolist())
            return super().compute_loss(model, inputs, *others, **named)

    rows = [{**row, "row": place} for place, row in enumerate(padded_rows(20))]
    parts = {"train_dataset": rows}
    run(lib, folder, Noted, parts=parts, remove_unused_columns=False, max_steps=-1, num_train_epochs=2, **given)
    return batches


@script
def rows_in_order(lib: ModuleType, folder: Path) -> Found:
    return order_of(lib, folder)


@script
def own_sampler(lib: ModuleType, folder: Path) -> Found:
    class Backwards(torch.utils.data.Sampler[int]):
        def __init__(self, rows: Any) -> None:
            self.rows = rows

        def __len__(self) -> int:
            return len(self.rows)

        def __iter__(self) -> Any:
            return iter(reversed(range(len(self.rows))))

    class Sampled(lib.Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return Backwards(self.train_dataset)

        def _get_eval_sampler(self, eval_dataset: Any) -> Any:
            return Backwards(eval_dataset)

    predicted = Sampled(calm_model(), settings(lib, folder)).predict(padded_rows(5))
    return [*order_of(lib, folder, Sampled, train_sampling_strategy="random"), predicted.predictions]


@script
def usual_samplers(lib: ModuleType, folder: Path) -> Found:
    args = settings(lib, folder, **SEQUENTIAL)
    trainer = lib.Trainer(calm_model(), args, train_dataset=padded_rows(), eval_dataset=padded_rows())
    found = [trainer._get_train_sampler(), trainer._get_eval_sampler(trainer.eval_dataset)]
    assert all(isinstance(one, SequentialSampler) for one in found)
    shuffled = lib.Trainer(calm_model(), settings(lib, folder), train_dataset=padded_rows())._get_train_sampler()
    assert isinstance(shuffled, RandomSampler)
    return [len(one) for one in found]


# --- labels to ignore ----------------------------------------------------------------------------------------------


def ignored_rows() -> Dataset:
    return Dataset.from_list([{**row, "labels": -100 if place % 4 == 3 else row["labels"]} for place, row in
                              enumerate(padded_rows())])  # fmt: skip


@script
def ignored_labels(lib: ModuleType, folder: Path) -> Found:
    class Own(lib.Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **others: Any) -> Any:
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            loss = functional.cross_entropy(outputs.logits, labels, ignore_index=-100)
            return (loss, outputs) if return_outputs else loss

    def by_count(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        return functional.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch

    rows = ignored_rows()
    found: list[float] = []
    for kind, more in ((Own, {}), (lib.Trainer, {"compute_loss_func": by_count}), (lib.Trainer, {})):
        trainer = run(lib, folder, kind, parts={"train_dataset": rows, "eval_dataset": rows, **more})
        found += [*losses(trainer), trainer.evaluate()["eval_loss"]]
    return found


# --- streams -------------------------------------------------------------------------------------------------------


@script
def streamed_rows(lib: ModuleType, folder: Path) -> Found:
    rows = Dataset.from_list(weighted_rows()).to_iterable_dataset()
    parts = {"train_dataset": rows, "eval_dataset": rows}
    given = {"eval_strategy": "steps", "eval_steps": 4, "max_steps": 9, "train_sampling_strategy": "random"}
    trainer = run(lib, folder, parts=parts, **given)
    predicted = trainer.predict(rows)
    return [*losses(trainer), *losses(trainer, "eval_loss"), predicted.predictions, predicted.label_ids]


@script
def streamed_and_shuffled(lib: ModuleType, folder: Path) -> Found:
    rows = Dataset.from_list(padded_rows()).to_iterable_dataset().shuffle(seed=3, buffer_size=20)
    return losses(run(lib, folder, parts={"train_dataset": rows}, max_steps=9, train_sampling_strategy="random"))


# --- predictions ---------------------------------------------------------------------------------------------------


def shapes_of(values: Any) -> Any:
    return [shapes_of(value) for value in values] if isinstance(values, tuple | list) else list(values.shape)


def leaves(values: Any) -> list[Any]:
    return [leaf for value in values for leaf in leaves(value)] if isinstance(values, tuple | list) else [values]


def hidden_scores(found: Any) -> dict[str, float]:
    return {"share": float((found.predictions[0].argmax(-1) == found.label_ids).mean()), "parts": len(found.predictions)}


@script
def hidden_states_in_metrics(lib: ModuleType, folder: Path) -> Found:
    rows = padded_rows()
    parts = {"train_dataset": rows, "eval_dataset": rows, "compute_metrics": hidden_scores}
    given = {"eval_strategy": "steps", "eval_steps": 3, "metric_for_best_model": "share", "load_best_model_at_end": True}
    model = calm_model(output_hidden_states=True)
    trainer = run(lib, folder, model=model, parts=parts, **given, save_strategy="steps", save_steps=3)
    predicted = trainer.predict(rows[:10])
    return [*losses(trainer, "eval_share"), *losses(trainer, "eval_parts"), trainer.state.best_metric,
            shapes_of(predicted.predictions), *leaves(predicted.predictions)]  # fmt: skip


@script
def hidden_states_of_many_lengths(lib: ModuleType, folder: Path) -> Found:
    model, rows = calm_model(output_hidden_states=True), ragged_rows(20)
    tokenizer = tiny_tokenizer()
    trainer = lib.Trainer(model, settings(lib, folder, per_device_eval_batch_size=4), processing_class=tokenizer)
    return [shapes_of(trainer.predict(rows).predictions), *leaves(trainer.predict(rows).predictions)]


@script
def ignored_outputs(lib: ModuleType, folder: Path) -> Found:
    model = calm_model(output_hidden_states=True, output_attentions=True)
    trainer = lib.Trainer(model, settings(lib, folder), compute_metrics=lambda found: {"parts": len(shapes_of(found[0]))})
    few = trainer.predict(padded_rows(6), ignore_keys=["attentions"])
    alone = trainer.predict(padded_rows(6), ignore_keys=["attentions", "hidden_states"])
    metrics = trainer.evaluate(padded_rows(6), ignore_keys=["hidden_states"])
    model.config.keys_to_ignore_at_inference = ["hidden_states", "attentions"]
    never = trainer.predict(padded_rows(6))
    found = (few, alone, never)
    return [metrics["eval_parts"], *(shapes_of(one.predictions) for one in found), *leaves([one.predictions for one in found])]


@script
def logits_changed_with_hidden_states(lib: ModuleType, folder: Path) -> Found:
    def change(logits: Any, labels: Any) -> Any:
        return logits[0].argmax(-1), logits[1][-1][:, 0]

    trainer = lib.Trainer(
        calm_model(output_hidden_states=True),
        settings(lib, folder, per_device_eval_batch_size=4),
        compute_metrics=lambda found: {"sum": float(found.predictions[1].sum()), "rows": len(found.predictions[0])},
        preprocess_logits_for_metrics=change,
    )
    metrics = trainer.evaluate(padded_rows(10))
    return [metrics["eval_sum"], metrics["eval_rows"], *trainer.predict(padded_rows(10)).predictions]


class Extra(nn.Module):
    """A module that returns more than logits."""

    def __init__(self, as_tuple: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head, self.as_tuple = nn.Embedding(60, 8), nn.Linear(8, 2), as_tuple

    def forward(self, input_ids: Any, labels: Any = None) -> Any:
        pooled = self.words(input_ids).mean(1)
        logits = self.head(pooled)
        loss = None if labels is None else functional.cross_entropy(logits, labels)
        if self.as_tuple:
            return (logits, pooled) if loss is None else (loss, logits, pooled)
        return (
            ModelOutput(logits=logits, pooled=pooled) if loss is None else ModelOutput(loss=loss, logits=logits, pooled=pooled)
        )


@script
def own_model_with_more_outputs(lib: ModuleType, folder: Path) -> Found:
    found: list[Any] = []
    rows = [{"input_ids": row["input_ids"], "labels": row["labels"]} for row in padded_rows()]
    for as_tuple in (False, True):
        parts = {"train_dataset": rows, "eval_dataset": rows, "compute_metrics": hidden_scores}
        trainer = run(lib, folder, model=Extra(as_tuple), parts=parts, eval_strategy="epoch")
        unlabelled = [{"input_ids": row["input_ids"]} for row in rows[:6]]
        found += [*losses(trainer), *losses(trainer, "eval_share"), *losses(trainer, "eval_parts")]
        found += [*leaves(trainer.predict(rows[:6]).predictions), *leaves(trainer.predict(unlabelled).predictions)]
    return found


@script
def own_prediction_step(lib: ModuleType, folder: Path) -> Found:
    class Stepped(lib.Trainer):
        def prediction_step(self, model: Any, inputs: Any, prediction_loss_only: Any, ignore_keys: Any = None) -> Any:
            loss, logits, labels = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
            return loss, (logits[0], logits[1][0][:, 0]), labels

    trainer = Stepped(calm_model(output_hidden_states=True), settings(lib, folder), compute_metrics=hidden_scores)
    metrics = trainer.evaluate(padded_rows())
    return [metrics["eval_share"], metrics["eval_parts"], metrics["eval_loss"], *trainer.predict(padded_rows()).predictions]


# -------------------------------------------------------------------------------------------------------------------


def assert_same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    elif isinstance(theirs, np.ndarray):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    else:
        assert ours == (pytest.approx(theirs, abs=1e-5) if isinstance(theirs, float) else theirs)


@pytest.mark.parametrize("name", SCRIPTS)
def test_rows_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    theirs, ours = (SCRIPTS[name](lib, tmp_path) for lib in (transformers, glassloop))
    assert theirs
    assert_same(ours, theirs)


def test_a_resumed_run_notices_other_columns_and_another_order(tmp_path: Path) -> None:
    """A weight of a row that only `compute_loss` reads is part of the data."""
    given = {"remove_unused_columns": False, "save_strategy": "steps", "save_steps": 3, **SEQUENTIAL}

    def trainer(rows: Any, **more: Any) -> Any:
        return by_weight(glassloop)(calm_model(), settings(glassloop, tmp_path, **given | more), train_dataset=rows)

    rows = weighted_rows()
    trainer(rows).train()
    trainer(rows).train(resume_from_checkpoint=True)
    with pytest.raises(glassloop.base.errors.ResumeError, match="order: sequential then"):
        trainer(rows, train_sampling_strategy="random").train(resume_from_checkpoint=True)
    rows[5] = {**rows[5], "weight": 7.0}
    with pytest.raises(glassloop.base.errors.ResumeError, match=r"1 rows edited \(first row 6\)"):
        trainer(rows).train(resume_from_checkpoint=True)


def test_evaluations_keep_only_logits_unless_something_reads_more(tmp_path: Path) -> None:
    trainer = glassloop.Trainer(calm_model(output_hidden_states=True), settings(glassloop, tmp_path))
    found = trainer.evaluation(padded_rows(6))
    assert found.outputs is None
    assert found.logits.shape == (6, 2)
