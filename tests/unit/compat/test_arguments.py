"""TrainingArguments as scripts use them: assigned later, read under every name, and made by HfArgumentParser."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from transformers import HfArgumentParser, IntervalStrategy
from transformers.debug_utils import DebugOption

from glassloop import TrainingArguments
from glassloop.base.errors import SettingsError


def test_a_parser_of_transformers_makes_an_option_of_each_setting_and_of_fields_of_a_script() -> None:
    parser = HfArgumentParser(TrainingArguments)
    words = "--output_dir out --do_train --learning_rate 1e-3 --eval_strategy steps --logging_dir logs"
    (args,) = parser.parse_args_into_dataclasses(words.split())
    assert (args.output_dir, args.do_train, args.learning_rate, args.eval_strategy) == ("out", True, 1e-3, "steps")
    assert args.logging_dir == "logs"

    @dataclasses.dataclass
    class Mine(TrainingArguments):
        max_len: int = 128
        learning_rat: float = 1.0

    (args,) = HfArgumentParser(Mine).parse_args_into_dataclasses(["--output_dir", "out", "--max_len", "9"])
    assert (args.max_len, args.learning_rat, args.max_length) == (9, 1.0, None)
    args.max_len = 7
    assert Mine("out", max_len=5).max_len == 5
    assert args.to_dict()["max_len"] == 7
    with pytest.raises(SettingsError, match="there is no setting"):
        args.learning_rte = 1


def test_settings_may_be_assigned_and_are_checked_again() -> None:
    args = TrainingArguments("out")
    args.num_train_epochs, args.evaluation_strategy, args.use_cpu = 5, "epoch", True
    assert (args.num_train_epochs, args.eval_strategy, args.device) == (5, "epoch", torch.device("cpu"))
    args.my_own = 7
    assert args.my_own == 7
    with pytest.raises(SettingsError, match="there is no setting"):
        args.learning_rat = 1
    with pytest.raises(SettingsError, match="deepspeed is not supported"):
        args.deepspeed = "config.json"
    args.learning_rate = -1.0
    with pytest.raises(SettingsError, match="learning_rate is -1"):
        args.check()


def test_what_scripts_read() -> None:
    args = TrainingArguments("out", bf16=True, per_device_train_batch_size=4, eval_strategy=IntervalStrategy.STEPS)
    assert (args.bf16, args.fp16, args.eval_strategy) == (True, False, "steps")
    assert (args.train_batch_size, args.eval_batch_size, args.world_size, args.process_index) == (4, 32, 1, 0)
    assert (args.should_save, args.should_log, args.local_process_index, args.n_gpu) == (True, True, 0, 0)
    assert TrainingArguments("out", warmup_ratio=0.1).get_warmup_steps(25) == 3
    assert json.loads(args.to_json_string()) == args.to_dict() == args.to_sanitized_dict()
    with args.main_process_first(desc="tokenizing"):
        pass


def test_the_device_is_that_of_the_trainer() -> None:
    args = TrainingArguments("out")
    assert torch.zeros(1, device=args.device).device.type == args.device.type
    args.set_device("cuda")
    assert (args.device, args.n_gpu, args.to_dict()["device"]) == (torch.device("cuda", 0), 1, "auto")
    assert dataclasses.replace(args, seed=3).device.type == "cuda"
    args.device = "cpu"
    assert args.device == args._setup_devices == torch.device("cpu")
    args._n_gpu = 1  # how scripts keep older versions of transformers from using several GPUs
    assert args.n_gpu == 0


def test_a_copy_has_other_values_a_wrong_one_is_a_value_error_and_several_devices_are_named(monkeypatch) -> None:
    args = dataclasses.replace(TrainingArguments("out", do_train=True), seed=3)
    assert (args.seed, args.do_train) == (3, True)
    with pytest.raises(ValueError, match="seed is -1"):
        TrainingArguments("out", seed=-1)
    from transformers.training_args import ParallelMode

    assert TrainingArguments("x").parallel_mode == ParallelMode.NOT_PARALLEL
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert TrainingArguments("x").parallel_mode == ParallelMode.DISTRIBUTED


# --- Settings as scripts for transformers read them, and combinations that transformers refuses, too.
def test_a_setting_is_read_as_transformers_returns_it_and_a_contradiction_is_refused() -> None:
    defaults = {"output_dir": "trainer_output", "report_to": [], "metric_for_best_model": None, "greater_is_better": None}
    for name, value in (defaults | {"logging_steps": 10, "eval_steps": None}).items():
        assert getattr(TrainingArguments(), name) == value
    for given, name, value in (
        ({"report_to": ["tensorboard"]}, "report_to", ["tensorboard"]),
        ({"lr_scheduler_kwargs": {"num_cycles": 2}}, "lr_scheduler_kwargs", {"num_cycles": 2}),
        ({"load_best_model_at_end": True, "eval_strategy": "epoch"}, "metric_for_best_model", "loss"),
        ({"load_best_model_at_end": True, "eval_strategy": "epoch"}, "greater_is_better", False),
        ({"metric_for_best_model": "accuracy"}, "greater_is_better", True),
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
    ):
        assert getattr(TrainingArguments(**given), name) == value, name
    for given, text in (
        ({"fp16_full_eval": True, "bf16_full_eval": True}, "both set"),
        ({"fp16": True, "bf16": True}, "precision is set twice"),
        ({"torch_empty_cache_steps": 0}, "torch_empty_cache_steps is 0"),
        ({"dataloader_prefetch_factor": 2}, "needs workers"),
        ({"save_strategy": "best", "eval_strategy": "epoch"}, "metric_for_best_model` must be provided"),
        ({"logging_steps": 0}, "logging_steps"),
    ):
        with pytest.raises(SettingsError, match=text):
            TrainingArguments(**given)
