"""Rows that draw random numbers when they are read: trained on as read, never read by saving, resumed as far as possible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from families import tiny_model, weights_hash
from small_training import Augmented, StopAt, any_word

from glassloop import PaddingCollator, Trainer, TrainingArguments
from glassloop.base.errors import ModelError

GLOBAL = "they use the global random generators, so a resumed run repeats them"
OWN = "they use their own random generator, which is not in a checkpoint, so a resumed run draws different ones"


@pytest.fixture
def train(tiny_tokenizer, tmp_path: Path):
    """Trains on random rows; returns the Trainer."""

    def run(rows: Any, folder: str, *, resume: bool = False, **given: Any) -> Trainer:
        parts = {name: given.pop(name) for name in ("callbacks", "data_collator", "eval_dataset") if name in given}
        usual = {"max_steps": 12, "per_device_train_batch_size": 4, "learning_rate": 1e-3, "logging_steps": 1}
        saved = {"save_strategy": "steps", "save_steps": 5, "device": "cpu", "precision": "fp32", "disable_tqdm": True}
        args = TrainingArguments(tmp_path / folder, **usual | saved | given)
        parts = {"eval_dataset": rows, **parts}
        trainer = Trainer(tiny_model(), args, train_dataset=rows, processing_class=tiny_tokenizer, **parts)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    return run


@pytest.fixture
def stopped_and_resumed(train):
    """Trains on rows that `make` makes, stops after seven steps, and resumes."""

    def run(make: Any, **given: Any) -> Trainer:
        with pytest.raises(SystemExit):
            train(make(), "parts", callbacks=[StopAt(7)], **given)
        return train(make(), "parts", resume=True, **given)

    return run


BACKENDS = pytest.mark.parametrize("backend", ["plain", "packed"])


@pytest.mark.parametrize(
    ("backend", "kind"), [("plain", "numpy"), ("plain", "torch"), ("packed", "python"), ("packed", "torch")]
)
def test_rows_of_the_global_generators_are_trained_resumed_and_not_disturbed(
    train, stopped_and_resumed, capsys, backend: str, kind: str
) -> None:
    """Before: an IndexError under packed; under plain saving changed the training, and resume was refused."""
    never = train(Augmented(kind), "never", save_strategy="no", backend=backend)
    assert never.backend.name == backend
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if f"the training rows differ between reads: {GLOBAL}" in line]) == 1
    often = train(Augmented(kind), "often", save_steps=1, eval_strategy="steps", eval_steps=3, backend=backend)
    assert weights_hash(often.model) == weights_hash(never.model)
    parts = stopped_and_resumed(lambda: Augmented(kind), backend=backend)
    assert weights_hash(parts.model) == weights_hash(never.model)
    assert [entry["loss"] for entry in parts.state.history] == [entry["loss"] for entry in never.state.history]


@BACKENDS
def test_rows_of_a_generator_of_their_own_are_trained_and_resumed_with_a_line(train, capsys, backend: str) -> None:
    saved, quiet = Augmented(seed=1), Augmented(seed=1)
    often = train(saved, "often", save_steps=1, backend=backend)
    never = train(quiet, "never", save_strategy="no", backend=backend)
    assert saved.reads == quiet.reads, "saving reads no rows"
    assert weights_hash(often.model) == weights_hash(never.model)
    assert f"the training rows differ between reads: {OWN}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        train(Augmented(seed=1), "parts", callbacks=[StopAt(7)], backend=backend)
    capsys.readouterr()
    parts = train(Augmented(seed=1), "parts", resume=True, backend=backend)
    assert parts.state.step == 12
    assert f"the training rows differ between reads: {OWN}" in capsys.readouterr().err


def test_saving_and_resuming_beside_random_evaluation_rows(train, stopped_and_resumed, encoded, capsys) -> None:
    """With the best weights at the end, a checkpoint holds a fingerprint of the evaluation rows."""
    rows = encoded["train"].rows
    best = {"eval_strategy": "steps", "eval_steps": 3, "load_best_model_at_end": True, "metric_for_best_model": "loss"}
    whole = train(rows, "whole", eval_dataset=Augmented(), save_steps=1, **best)
    assert "the evaluation rows differ between reads, and so do their scores" in capsys.readouterr().err
    never = train(rows, "never", eval_dataset=Augmented(), **best | {"save_strategy": "no"})
    assert weights_hash(never.model) == weights_hash(whole.model)
    parts = stopped_and_resumed(lambda: rows, eval_dataset=Augmented(), **best)
    assert weights_hash(parts.model) == weights_hash(whole.model)


@BACKENDS
def test_random_lengths_can_be_grouped_and_resumed(train, backend: str) -> None:
    whole = train(Augmented(), "whole", group_by_length=True, backend=backend)
    with pytest.raises(SystemExit):
        train(Augmented(), "parts", group_by_length=True, callbacks=[StopAt(7)], backend=backend)
    torch.manual_seed(99)
    parts = train(Augmented(), "parts", resume=True, group_by_length=True, backend=backend)
    assert weights_hash(parts.model) == weights_hash(whole.model)


@BACKENDS
def test_evaluations_read_no_training_rows_and_draw_nothing_for_them(train, backend: str) -> None:
    """Balanced class weights were counted again for each evaluation."""
    settings = {"class_weights": "balanced", "save_strategy": "no", "backend": backend}
    rows = [Augmented(seed=1), Augmented(seed=1)]
    never = train(rows[0], "never", eval_dataset=Augmented(), **settings)
    often = train(rows[1], "often", eval_dataset=Augmented(), eval_strategy="steps", eval_steps=1, **settings)
    assert rows[0].reads == rows[1].reads
    assert weights_hash(never.model) == weights_hash(often.model)


def test_a_random_transform_of_a_data_set(train, stopped_and_resumed, encoded, capsys) -> None:
    def cut(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        ids = [[*cells[:2], any_word("python"), *cells[2:]] for cells in batch["input_ids"]]
        return {"input_ids": ids, "labels": batch["labels"]}

    rows = encoded["train"].rows.with_transform(cut)
    whole = train(rows, "whole", backend="packed")
    assert GLOBAL in capsys.readouterr().err
    assert weights_hash(stopped_and_resumed(lambda: rows, backend="packed").model) == weights_hash(whole.model)


@pytest.mark.parametrize(("own", "line"), [(False, GLOBAL), (True, OWN)])
def test_a_collator_that_draws(train, stopped_and_resumed, encoded, tiny_tokenizer, capsys, own: bool, line: str) -> None:
    generator = torch.Generator().manual_seed(1) if own else None
    padded = PaddingCollator(tiny_tokenizer)

    def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = padded(rows)
        hidden = torch.rand(batch["input_ids"].shape, generator=generator) < 0.3
        return {**batch, "input_ids": batch["input_ids"].masked_fill(hidden, 4)}

    rows = encoded["train"].rows
    whole = train(rows, "whole", data_collator=collate)
    assert f"the collator returns different batches each time: {line}" in capsys.readouterr().err
    parts = stopped_and_resumed(lambda: rows, data_collator=collate)
    assert (weights_hash(parts.model) == weights_hash(whole.model)) is not own


def test_another_number_of_random_rows_or_fixed_ones_are_not_resumed(train) -> None:
    with pytest.raises(SystemExit):
        train(Augmented(), "run", callbacks=[StopAt(7)])
    fixed = [Augmented(seed=1)[number] for number in range(21)]
    with pytest.raises(ModelError, match="the training data has changed"):
        train(fixed, "run", resume=True)
    shorter = Augmented()
    shorter.__class__ = type("Shorter", (Augmented,), {"__len__": lambda self: 20})
    with pytest.raises(ModelError, match="1 removed"):
        train(shorter, "run", resume=True)


def test_fixed_rows_are_not_said_to_differ(train, encoded, capsys) -> None:
    train(encoded["train"].rows, "table", max_steps=1)
    train(encoded["train"].rows.to_list(), "list", max_steps=1)
    train(encoded["train"].rows.with_transform(lambda batch: batch), "transform", max_steps=1)
    assert "differ" not in capsys.readouterr().err
