"""The plan of a run: intervals, ratios and epochs as plain numbers."""

from __future__ import annotations

from typing import Any

import pytest

from glassloop.base.errors import SettingsError
from glassloop.settings.training import TrainingArguments
from glassloop.training.optimizer import make_plan


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"max_steps": 1377, "steps_per_epoch": 459, "warmup_steps": 0, "eval_every": 0, "save_every": 459}),
        ({"gradient_accumulation_steps": 4}, {"max_steps": 345, "steps_per_epoch": 115, "accumulate": 4}),
        ({"num_train_epochs": 0.5}, {"max_steps": 230}),
        ({"max_steps": 7, "warmup_steps": 0.5}, {"max_steps": 7, "warmup_steps": 4}),
        ({"warmup_steps": 12}, {"warmup_steps": 12}),
        ({"eval_strategy": "epoch", "save_strategy": "no"}, {"eval_every": 459, "save_every": 0}),
        ({"eval_strategy": "steps", "logging_steps": 3}, {"eval_every": 3, "log_every": 3}),
        (
            {"eval_strategy": "steps", "eval_steps": 5, "save_strategy": "steps", "save_steps": 9},
            {"eval_every": 5, "save_every": 9},
        ),
        ({}, {"best_metric": "eval_loss", "greater_is_better": False}),
        ({"metric_for_best_model": "f1"}, {"best_metric": "eval_f1", "greater_is_better": True}),
        ({"metric_for_best_model": "eval_mse", "greater_is_better": False}, {"best_metric": "eval_mse"}),
    ],
)
def test_the_plan_is_plain_numbers(settings: dict[str, Any], expected: dict[str, Any]) -> None:
    plan = make_plan(TrainingArguments("x", **settings), 459, has_eval=True)
    assert {name: getattr(plan, name) for name in expected} == expected


def test_impossible_plans_are_refused() -> None:
    with pytest.raises(SettingsError, match="leaves no batch"):
        make_plan(TrainingArguments("x"), 0, has_eval=True)
    with pytest.raises(SettingsError, match="no eval_dataset"):
        make_plan(TrainingArguments("x", eval_strategy="epoch"), 5, has_eval=False)
