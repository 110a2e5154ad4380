"""The parts of a training are built once by the Trainer, and hold what the Trainer was given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from families import tiny_model, weights_hash
from run_folders import RECORD
from small_training import StopAt, small_rows
from torch.nn.functional import cross_entropy

from glassloop import Trainer, TrainingArguments
from glassloop.base.errors import ModelError, SettingsError
from glassloop.runs.record import checkpoints_in, write_run
from glassloop.training.session import TrainingParts, trained


@pytest.fixture
def trainer(tiny_tokenizer: Any, tmp_path: Path) -> Trainer:
    rows = Dataset.from_dict({"input_ids": [[2, 5 + row, 3] for row in range(8)], "labels": [row % 2 for row in range(8)]})
    args = TrainingArguments(tmp_path, max_steps=2, per_device_train_batch_size=2, save_strategy="no", device="cpu")
    evaluated = rows.select([0])
    return Trainer(tiny_model(), args, train_dataset=rows, eval_dataset=evaluated, processing_class=tiny_tokenizer, quiet=True)


def test_the_parts_are_those_of_the_trainer(trainer: Trainer, tmp_path: Path) -> None:
    parts = trainer.training_parts()
    assert isinstance(parts, TrainingParts)
    assert parts.model is trainer.model
    assert parts.state is trainer.state.loop
    assert (parts.folder, parts.plan.max_steps, len(parts.batches)) == (tmp_path, 2, 4)
    assert [len(rows) for rows in parts.use.data_sets] == [8, 1]
    assert [*map(parts.metric_title, parts.measures().keys)] == ["accuracy", "f1 (LABEL_1)"]  # type: ignore[union-attr]


def test_metrics_of_the_user_are_named_by_their_function(trainer: Trainer) -> None:
    trainer.compute_metrics = lambda found: {"skill": 1.0}
    parts = trainer.training_parts()
    assert parts.measures() is None
    assert parts.metric_title("skill") == "skill"


def test_parts_are_trained_as_they_were_built(trainer: Trainer) -> None:
    parts = trainer.training_parts()
    with trained(parts) as metrics:
        assert metrics["epoch"] == 0.5
        assert parts.state.step == trainer.state.step == 2


# --- Resume refuses whatever would change the weights, with both values, and accepts whatever would not.


BEST = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 2}


def summed(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits, labels, reduction="none")


def doubled(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return 2 * cross_entropy(logits, labels, reduction="none")


def share(found: Any) -> dict[str, float]:
    return {"share": float((found.predictions.argmax(-1) == found.label_ids).mean())}


def error(found: Any) -> dict[str, float]:
    return {"share": 1 - float((found.predictions.argmax(-1) == found.label_ids).mean())}


class Attempt:
    """Trainings of the same rows into one folder, each a little different."""

    def __init__(self, folder: Path, tokenizer: Any) -> None:
        self.folder, self.tokenizer = folder, tokenizer

    def __call__(
        self,
        *,
        resume: bool = True,
        change: Callable[[Any], Any] | None = None,
        optimizer: Callable[[Any], tuple[Any, Any]] | None = None,
        validation: int = 9,
        settings: dict[str, Any] | None = None,
        **parts: Any,
    ) -> Trainer:
        chosen = {"max_steps": 5, "per_device_train_batch_size": 4, "save_strategy": "steps", "save_steps": 2}
        chosen |= {"learning_rate": 1e-3, "device": "cpu", "precision": "fp32", "backend": "plain", **(settings or {})}
        model = tiny_model()
        if change:
            change(model)
        trainer = Trainer(
            model, TrainingArguments(self.folder, **chosen), train_dataset=small_rows(21), eval_dataset=small_rows(validation),
            processing_class=self.tokenizer, callbacks=[StopAt(3)] if resume is False else None,
            optimizers=optimizer(model) if optimizer else (None, None), **parts,
        )  # fmt: skip
        trainer._quiet = True
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    def stop(self, **parts: Any) -> None:
        with pytest.raises(SystemExit):
            self(resume=False, **parts)


@pytest.fixture
def attempt(tmp_path: Path, tiny_tokenizer: Any) -> Attempt:
    return Attempt(tmp_path / "run", tiny_tokenizer)


def freeze(model: Any) -> None:
    model.bert.embeddings.requires_grad_(False)


def drop_more(model: Any) -> None:
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        setattr(model.config, name, 0.3)


def drop_more_in_a_part(model: Any) -> None:
    model.bert.encoder.layer[0].output.dropout.p = 0.3


def other_activation(model: Any) -> None:
    model.bert.encoder.layer[0].intermediate.intermediate_act_fn = torch.nn.SiLU()


def halve(model: torch.nn.Module) -> None:
    for weight in model.parameters():
        weight.grad = None if weight.grad is None else weight.grad / 2


def first_tokens(rows: Any) -> dict[str, torch.Tensor]:
    return {name: torch.tensor([row[name][:3] for row in rows]) for name in ("input_ids",)} | labels_of(rows)


def first_two_tokens(rows: Any) -> dict[str, torch.Tensor]:
    return {name: torch.tensor([row[name][:2] for row in rows]) for name in ("input_ids",)} | labels_of(rows)


def labels_of(rows: Any) -> dict[str, torch.Tensor]:
    return {"labels": torch.tensor([row["labels"] for row in rows])}


def sgd(rate: float, end: float = 0.5) -> Callable[[Any], tuple[Any, Any]]:
    def make(model: Any) -> tuple[Any, Any]:
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: end**step)

    return make


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "dropout": ({}, {"change": drop_more}, "config.hidden_dropout_prob: 0.1 then, 0.3 now"),
    "dropout of one part": ({}, {"change": drop_more_in_a_part}, "parts without weights: "),
    "an activation": ({}, {"change": other_activation}, "parts without weights: "),
    "gradients": ({}, {"on_gradients": halve}, "on_gradients: None then, halve ("),
    "a collator": ({"data_collator": first_tokens}, {"data_collator": first_two_tokens}, "collator: "),
    "frozen weights": ({}, {"change": freeze}, "frozen: [] then, ['bert.embeddings.LayerNorm.bias', "),
    "a loss": ({}, {"loss": summed}, "loss: single_label_classification then, summed ("),
    "another loss": ({"loss": summed}, {"loss": doubled}, "loss: summed ("),
    "another value in a loss": (
        {"loss": torch.nn.CrossEntropyLoss(reduction="sum", label_smoothing=0.1)},
        {"loss": torch.nn.CrossEntropyLoss(reduction="sum", label_smoothing=0.2)},
        "loss: CrossEntropyLoss (",
    ),
    "an optimizer": ({}, {"optimizer": sgd(0.1)}, "optimizer: None then, {'class': 'SGD'"),
    "the rate of an optimizer": ({"optimizer": sgd(0.1)}, {"optimizer": sgd(0.2)}, "groups.0.lr: 0.1 then, 0.2 now"),
    "a schedule": ({"optimizer": sgd(0.1)}, {"optimizer": sgd(0.1, 0.9)}, "schedule.functions: "),
    "validation rows that choose": ({"settings": BEST}, {"settings": BEST, "validation": 8}, "validation: 9 rows ("),
    "validation rows that stop": (
        {"settings": BEST | {"load_best_model_at_end": False, "early_stopping_patience": 3}},
        {"settings": BEST | {"load_best_model_at_end": False, "early_stopping_patience": 3}, "validation": 8},
        "validation: 9 rows (",
    ),
    "a class whose F1 chooses": (
        {"settings": BEST | {"metric_for_best_model": "f1", "positive_label": "LABEL_0"}},
        {"settings": BEST | {"metric_for_best_model": "f1", "positive_label": "LABEL_1"}},
        "metrics: accuracy, f1 (LABEL_0) then, accuracy, f1 (LABEL_1) now",
    ),
    "a metric that chooses": (
        {"settings": BEST | {"metric_for_best_model": "share"}, "compute_metrics": share},
        {"settings": BEST | {"metric_for_best_model": "share"}, "compute_metrics": error},
        "metrics: share (",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("then", "now", "problem"), CHANGES.values(), ids=CHANGES)
def test_what_changes_the_weights_is_refused(attempt: Attempt, then: Any, now: Any, problem: str) -> None:
    attempt.stop(**then)
    with pytest.raises(ModelError) as caught:
        attempt(**now)
    assert problem in caught.value.problem
    assert "then" in caught.value.problem
    assert "now" in caught.value.problem
    attempt(**then)


def test_what_changes_no_weight_is_accepted(attempt: Attempt) -> None:
    """Other validation rows where they decide nothing, and a model that starts from the weights of a checkpoint."""
    attempt.stop()
    trained = attempt.folder / "checkpoint-2"

    def load(model: Any) -> None:
        model.load_state_dict(type(model).from_pretrained(trained).state_dict())

    resumed = attempt(validation=7, change=load)
    whole = Attempt(attempt.folder.with_name("whole"), attempt.tokenizer)(resume=None)  # type: ignore[arg-type]
    assert weights_hash(resumed.model) == weights_hash(whole.model)


# --- an earlier training in the folder ---------------------------------------------------------------------------


def test_an_earlier_training_is_moved_aside(attempt: Attempt) -> None:
    attempt(resume=None)  # type: ignore[arg-type]
    attempt(resume=None, settings={"max_steps": 3})  # type: ignore[arg-type]
    assert [path.name for path in checkpoints_in(attempt.folder)] == ["checkpoint-3", "checkpoint-2"]
    kept = attempt.folder / "checkpoints.kept-1"
    assert sorted(path.name for path in kept.iterdir()) == ["checkpoint-4", "checkpoint-5"]


def test_resume_goes_before_overwriting(attempt: Attempt) -> None:
    attempt.stop()
    resumed = attempt(settings={"overwrite_output_dir": True})
    assert resumed.state.step == 5
    assert not [*attempt.folder.glob("*.kept-*")]


def test_a_run_of_the_command_is_not_overwritten_by_a_trainer(attempt: Attempt) -> None:
    """Not even if asked: the folder would then hold the record of one training and the history of another."""
    write_run(attempt.folder, RECORD)
    for settings in ({}, {"overwrite_output_dir": True}):
        with pytest.raises(SettingsError, match=f"output_dir {attempt.folder} contains a run of glassloop train"):
            attempt(resume=None, settings=settings)  # type: ignore[arg-type]
        assert [path.name for path in attempt.folder.iterdir()] == ["run.json"]
