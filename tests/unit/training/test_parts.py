"""The parts of a training are built once by the Trainer, and hold what the Trainer was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from families import tiny_model

from glassloop import Trainer, TrainingArguments
from glassloop.training.parts import TrainingParts


@pytest.fixture
def trainer(tiny_tokenizer: Any, tmp_path: Path) -> Trainer:
    rows = Dataset.from_dict({"input_ids": [[2, 5 + row, 3] for row in range(8)], "labels": [row % 2 for row in range(8)]})
    args = TrainingArguments(tmp_path, max_steps=2, per_device_train_batch_size=2, save_strategy="no", device="cpu")
    found = Trainer(tiny_model(), args, train_dataset=rows, eval_dataset=rows.select([0]), processing_class=tiny_tokenizer)
    found.quiet = True
    return found


def test_the_parts_are_those_of_the_trainer(trainer: Trainer, tmp_path: Path) -> None:
    parts = trainer._parts()
    assert isinstance(parts, TrainingParts)
    assert parts.model is trainer.model
    assert parts.state is trainer.state.loop
    assert (parts.folder, parts.plan.max_steps, len(parts.batches)) == (tmp_path, 2, 4)
    assert [len(rows) for rows in parts.use.data_sets] == [8, 1]
    assert parts.metrics == "accuracy, f1 (LABEL_1)"


def test_metrics_of_the_user_are_named_by_their_function(trainer: Trainer) -> None:
    trainer.compute_metrics = lambda found: {"skill": 1.0}
    parts = trainer._parts()
    assert parts.metrics != "accuracy, f1 (LABEL_1)"
    assert parts.metric_title("skill") == "skill"


def test_parts_that_were_built_before_are_trained(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = trainer._parts()
    monkeypatch.setattr(Trainer, "_parts", lambda self: pytest.fail("built twice"))
    with trainer._training(parts=parts) as output:
        assert output.global_step == parts.state.step == 2
