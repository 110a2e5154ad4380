"""Settings as scripts for transformers read them, and combinations that transformers refuses, too."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.debug_utils import DebugOption

from glassloop import TrainingArguments
from glassloop.base.errors import SettingsError


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({}, "output_dir", "trainer_output"),
        ({}, "report_to", []),
        ({"report_to": ["tensorboard"]}, "report_to", ["tensorboard"]),
        ({"lr_scheduler_kwargs": {"num_cycles": 2}}, "lr_scheduler_kwargs", {"num_cycles": 2}),
        ({}, "metric_for_best_model", None),
        ({}, "greater_is_better", None),
        ({"load_best_model_at_end": True, "eval_strategy": "epoch"}, "metric_for_best_model", "loss"),
        ({"load_best_model_at_end": True, "eval_strategy": "epoch"}, "greater_is_better", False),
        ({"metric_for_best_model": "accuracy"}, "greater_is_better", True),
        ({}, "logging_steps", 10),
        ({}, "eval_steps", None),
        ({"eval_strategy": "steps"}, "eval_steps", 500),
        ({"eval_strategy": "steps", "logging_steps": 7}, "eval_steps", 7),
        ({"eval_strategy": "steps"}, "do_eval", True),
        ({"torch_compile_mode": "default"}, "torch_compile", True),
        ({"torch_compile": True}, "torch_compile_backend", "inductor"),
        ({"device": "cpu"}, "dataloader_pin_memory", False),
        ({"debug": "underflow_overflow"}, "debug", [DebugOption.UNDERFLOW_OVERFLOW]),
        ({"include_num_input_tokens_seen": True}, "include_num_input_tokens_seen", "all"),
        ({"precision": "bf16"}, "bf16", True),
        ({"bf16": False, "fp16": False}, "fp16", False),
    ],
)
def test_a_setting_is_read_as_transformers_returns_it(given: dict[str, Any], name: str, value: object) -> None:
    assert getattr(TrainingArguments(**given), name) == value


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"fp16_full_eval": True, "bf16_full_eval": True}, "both set"),
        ({"fp16": True, "bf16": True}, "precision is set twice"),
        ({"torch_empty_cache_steps": 0}, "torch_empty_cache_steps is 0"),
        ({"dataloader_prefetch_factor": 2}, "needs workers"),
        ({"save_strategy": "best", "eval_strategy": "epoch"}, "metric_for_best_model` must be provided"),
        ({"logging_steps": 0}, "logging_steps"),
    ],
)
def test_a_contradiction_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        TrainingArguments(**given)
