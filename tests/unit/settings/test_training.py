"""TrainingArguments: every wrong setting has its sentence, all sentences come at once, and old names are understood."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import glassloop
from glassloop.base.errors import SettingsError
from glassloop.settings.training import CHOICES, OPTIMIZERS, SCHEDULES, TrainingArguments
from glassloop.settings.transformers_names import KEPT, REFUSED, RENAMED, SETTINGS, TRACKERS, UNNEEDED


def names_of(outcome: str) -> list[str]:
    """The settings of transformers that have this outcome."""
    return [name for name, theirs in SETTINGS.items() if theirs.outcome == outcome]


def refused(**given: Any) -> str:
    """The problem of these settings. A value that is not of the right kind has the right kind as its remedy."""
    with pytest.raises(SettingsError) as caught:
        TrainingArguments(**given)
    assert caught.value.exit_code == 2
    problem, remedy = caught.value.problem, caught.value.remedy
    for part in problem.split("; "):
        if match := re.fullmatch(r"(\w+) is .+, not (?!one of )(.+)", part):
            assert f"set {match[1]} to {match[2]}" in remedy.split("; ")
    assert remedy
    return problem


# --- what is taken -----------------------------------------------------------------------------------------------
def test_every_setting_has_a_default_of_its_kind_and_a_sentence() -> None:
    args = TrainingArguments()
    assert args.output_dir is None
    for entry in fields(TrainingArguments):
        assert getattr(args, entry.name) == entry.default
        kind = "None" if entry.default is None else type(entry.default).__name__
        assert any(one in str(entry.type) for one in (kind, "float" if kind == "int" else kind))
        sentence = entry.metadata["help"]
        assert re.fullmatch(r"\S+ .+\.", sentence), entry.name
        for choice in CHOICES.get(entry.name, ()):
            assert choice in sentence, f"{entry.name} does not say {choice}"


def test_the_folder_may_come_first_and_settings_cannot_be_changed_afterwards(monkeypatch: pytest.MonkeyPatch, says) -> None:
    for folder in ["out/run", Path("out/run")]:
        assert TrainingArguments(folder).output_dir == TrainingArguments(output_dir=folder).output_dir == "out/run"
    monkeypatch.setenv("HOME", "/home/somebody")
    assert TrainingArguments("~/run").output_dir == "/home/somebody/run"
    assert TrainingArguments(**TrainingArguments("~/run").to_dict()).output_dir == "/home/somebody/run"
    args = TrainingArguments(seed=7)
    problem = "seed cannot be changed: settings are checked once, when they are created"
    with says(problem, "create new settings: dataclasses.replace(args, seed=…)"):
        args.seed = 1
    with says(problem):
        del args.seed
    assert args == TrainingArguments(seed=7)
    assert hash(args) == hash(TrainingArguments(seed=7))


def test_every_choice_tracker_and_run_name_with_a_slash_is_taken_and_comes_back_from_a_dict() -> None:
    for given in [
        {},
        {"output_dir": "somewhere", "learning_rate": 1, "warmup_steps": 0.1, "max_length": 64, "greater_is_better": True},
        {"report_to": ["tensorboard", "wandb"], "class_weights": "balanced", "lr_scheduler_kwargs": '{"num_cycles": 2}'},
    ]:
        args = TrainingArguments(**given)
        again = TrainingArguments(**json.loads(json.dumps(args.to_dict())))
        assert again == args
        assert again.to_dict() == args.to_dict()
        assert list(args.to_dict()) == [entry.name for entry in fields(TrainingArguments)]
    for name, values in CHOICES.items():
        for value in values:
            evaluated = {"eval_strategy": "epoch"} if value == "best" else {}
            assert getattr(TrainingArguments(**{name: value}, **evaluated), name) == value
    for given, trackers in [
        *(("none", ()), ("", ()), ([], ()), (None, ()), ("wandb", ("wandb",))),
        ("tensorboard, none,wandb", ("tensorboard", "wandb")),
        (["trackio", "tensorboard"], ("trackio", "tensorboard")),
        ("all", tuple(name for name in TRACKERS if name != "none" and importlib.util.find_spec(name))),
    ]:
        assert TrainingArguments(report_to=given).trackers == trackers
    for name in ["team/run", "../up"]:
        assert TrainingArguments(run_name=name).run_name == name


# --- what is refused ---------------------------------------------------------------------------------------------
WHOLE = {"per_device_train_batch_size": 8.0, "max_steps": True, "max_length": "64"}  # and what is none
SWITCHES = {"group_by_length": 1, "disable_tqdm": None, "greater_is_better": "yes"}
NOT_ALLOWED: list[tuple[str, list[Any], str]] = [  # a setting, values that are wrong, and what it must be
    *(
        (name, [0], "1 or more")
        for name in (
            *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"),
            *("save_total_limit", "max_length", "pad_to_multiple_of"),
        )
    ),
    *(
        (name, [-1], "0 or more")
        for name in ("learning_rate", "weight_decay", "max_grad_norm", "warmup_steps", "seed", "data_seed", "eval_delay")
    ),
    ("early_stopping_threshold", [-0.5], "0 or more"),
    *(
        (name, [0, -1, 2.5], "a whole number of 1 or more, or a fraction of all steps")
        for name in ("logging_steps", "save_steps", "eval_steps")
    ),
    *(
        (name, [-0.1, 1.0], "a fraction from 0 to less than 1")
        for name in ("adam_beta1", "adam_beta2", "label_smoothing_factor", "warmup_ratio")
    ),
    ("warmup_ratio", [1, 6], "a fraction from 0 to less than 1"),
    *[("seed", [2**63], "below 2**63"), ("adam_epsilon", [0.0], "above 0"), ("max_steps", [0, -2], "1 or more (or -1)")],
    *[("run_name", ["..", "."], "a name"), ("output_dir", [" ", "a\nb"], "a folder")],
    ("lr_scheduler_kwargs", ["num_cycles=2", "[2]"], 'JSON such as {"num_cycles": 2}'),
    ("learning_rate", ["5e-5", float("nan")], "a finite number"),
    *[("num_train_epochs", [float("inf")], "a finite number"), ("weight_decay", [False], "a finite number")],
    *((name, [value], "a whole number") for name, value in WHOLE.items()),
    *((name, [value], "true or false") for name, value in SWITCHES.items()),
    ("optim", [1], "text"),
]


def test_a_wrong_value_is_told_and_the_remedy_names_the_fix() -> None:
    for name, values, wanted in NOT_ALLOWED:
        for value in values:
            assert refused(**{name: value}) == f"{name} is {value!r}, not {wanted}"
    for given, told in [*WRONG, *(({name: 1}, f"{name} is not supported") for name in names_of(REFUSED))]:
        assert refused(**given) == told
    for given, remedy in [
        ({"eval_strategy": "epochs"}, "set eval_strategy to epoch"),
        ({"device": "quantum"}, "set device to auto, cpu, cuda or mps"),
        ({"load_best_model_at_end": True}, "set eval_strategy to steps or epoch"),
        ({"seed": -1, "max_steps": 2.5}, "set max_steps to a whole number; set seed to 0 or more"),
        ({"nonsense": 1}, "glassloop train --help lists all settings"),
        ({"fsdp": 1}, f"fsdp: {SETTINGS['fsdp'].text}"),
        ({"fp16": True, "bf16": True}, "set precision once"),
    ]:
        with pytest.raises(SettingsError) as caught:
            TrainingArguments(**given)
        assert caught.value.remedy == remedy


TOLD = ", ".join(TRACKERS)
NOBODY = "~nobody-is-called-this/x"
PLATEAU = {"lr_scheduler_type": "reduce_lr_on_plateau"}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"early_stopping_patience": 0, "eval_strategy": "epoch"}, "early_stopping_patience is 0, not 1 or more"),
    ({"num_train_epochs": 0}, "num_train_epochs is 0 and max_steps is -1, so there is nothing to train"),
    ({"load_best_model_at_end": True}, "load_best_model_at_end needs evaluations, but eval_strategy is no"),
    ({"early_stopping_patience": 2}, "early_stopping_patience needs evaluations, but eval_strategy is no"),
    ({"eval_strategy": "epochs"}, 'eval_strategy is "epochs", not one of no, steps, epoch'),
    ({"evaluation_strategy": "x"}, 'eval_strategy is "x", not one of no, steps, epoch'),  # under an old name
    ({"device": "quantum"}, 'device is "quantum", not one of auto, cpu, cuda, mps'),  # far from all
    (PLATEAU, f'lr_scheduler_type is "reduce_lr_on_plateau", not one of {", ".join(SCHEDULES)}'),
    ({"optim": "lion_8bit"}, f'optim is "lion_8bit", not one of {", ".join(OPTIMIZERS)}'),
    ({"train_sampling_strategy": "batch_rebalance"}, "train_sampling_strategy is not supported"),
    ({"train_sampling_strategy": "sequential"}, "train_sampling_strategy sequential is not supported here"),
    ({"report_to": "tensorbord"}, f'report_to lists "tensorbord", not one of {TOLD}; did you mean "tensorboard"?'),
    ({"run_name": "a\nb"}, 'the name "a\\nb" contains a line break or another control character'),
    ({"run_name": "x" * 300}, f'the name "{"x" * 39}…" has 300 characters; at most 200 are allowed'),
    ({"output_dir": "a\0b"}, 'output_dir is "a\\x00b": the path contains a NUL character'),
    ({"output_dir": NOBODY}, f'output_dir is "{NOBODY}": no such user, or the user has no home folder'),
    ({"learning_rate": "x" * 70_000}, f"learning_rate is '{'x' * 78}…, not a finite number"),
    ({"nonsense": 1}, 'unknown setting "nonsense"'),
    ({"learning_rat": 1}, 'unknown setting "learning_rat"; did you mean "learning_rate"?'),
]


def test_all_that_is_wrong_is_reported_at_once() -> None:
    """Names, kinds, values and combinations in one error; nothing is said about a default that nobody chose."""
    given = {"nonsense": 1, "fsdp": "full_shard", "learning_rate": "high", "max_steps": 2.5, "eval_strategy": 3, "seed": -1}
    told = refused(**given, load_best_model_at_end=True, report_to="nobody")
    assert told.split("; ") == [
        'unknown setting "nonsense"',
        "fsdp is not supported",
        "max_steps is 2.5, not a whole number",
        "learning_rate is 'high', not a finite number",
        "eval_strategy is 3, not text",
        "seed is -1, not 0 or more",
        'report_to lists "nobody", not one of none, tensorboard, wandb, trackio',
    ]
    assert "\n" not in refused(**{"a\nb": 1, "eval_strategy": "x\x1b[31m\ny", "output_dir": "\n"})


# --- old names ---------------------------------------------------------------------------------------------------
OLD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "evaluation_strategy": ("epoch", {"eval_strategy": "epoch"}, "eval_strategy"),
    "evaluate_during_training": (True, {"eval_strategy": "steps"}, "eval_strategy"),
    "no_cuda": (True, {"device": "cpu"}, 'device="cpu"'),
    "use_cpu": (True, {"device": "cpu"}, 'device="cpu"'),
    "fp16": (True, {"precision": "fp16"}, 'precision="fp16"'),
    "bf16": (True, {"precision": "bf16"}, 'precision="bf16"'),
    "warmup_ratio": (0.1, {"warmup_steps": 0.1}, "warmup_steps (a number below 1 is a fraction of all steps)"),
    "per_gpu_train_batch_size": (4, {"per_device_train_batch_size": 4}, "per_device_train_batch_size"),
    "per_gpu_eval_batch_size": (4, {"per_device_eval_batch_size": 4}, "per_device_eval_batch_size"),
    "use_mps_device": (True, {"device": "mps"}, 'device="mps"'),
    "adafactor": (True, {"optim": "adafactor"}, 'optim="adafactor"'),
}


def test_the_old_names_are_these_taken_and_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert {*OLD} == {*names_of(RENAMED)}
    assert not {*OLD} & {entry.name for entry in fields(TrainingArguments)}
    for name, (value, today, called) in OLD.items():
        args = TrainingArguments(**{name: value})
        assert capsys.readouterr() == ("", f"glassloop: {name} is now called {called}\n")
        assert args == TrainingArguments(**today)
        assert capsys.readouterr() == ("", ""), "current names are not reported"


def test_what_other_names_mean_alone_and_together_and_two_values_are_refused() -> None:
    both = {"warmup_steps": 500, "warmup_ratio": 0.0}
    warmed = [both, dict(reversed(both.items())), both | {"warmup_ratio": 0.1}, {"warmup_ratio": 0.1, "warmup_steps": 500}]
    for meant, several in [
        ({}, [{"no_cuda": False}, {"use_cpu": False}, {"fp16": False}, {"label_names": ["labels"]}, {"label_names": None}]),
        ({}, [{"train_sampling_strategy": "random"}]),
        ({"precision": "fp32"}, [{"bf16": False}, {"bf16": False, "fp16": False}]),
        ({"precision": "bf16"}, [{"fp16": False, "bf16": True}, {"bf16": True, "fp16": False}]),
        ({"precision": "bf16"}, [{"bf16": False, "precision": "bf16"}, {"bf16": True, "precision": "bf16"}]),
        ({"precision": "fp16"}, [{"bf16": False, "fp16": True}, {"precision": "auto", "fp16": True}]),
        ({"device": "cpu"}, [{"no_cuda": True, "use_cpu": True, "device": "cpu"}]),
        # As in transformers: a warm-up of 0 is none, so the other one counts.
        ({"warmup_steps": 500}, warmed),
        ({"warmup_steps": 0.1}, [{"warmup_steps": 0, "warmup_ratio": 0.1}, {"warmup_ratio": 0.1, "warmup_steps": 0}]),
        ({"optim": "adamw_torch"}, [{"optim": "adamw_hf"}]),
        ({"group_by_length": True}, [{"train_sampling_strategy": "group_by_length"}]),
        ({"lr_scheduler_kwargs": '{"num_cycles": 2}'}, [{"lr_scheduler_kwargs": {"num_cycles": 2}}]),
    ]:
        for given in several:
            assert TrainingArguments(**given) == TrainingArguments(**meant)
    for given, problem in TWICE:
        assert refused(**given) == problem


STRATEGIES = {"evaluation_strategy": "epoch", "eval_strategy": "steps"}
TWICE = [
    ({"fp16": True, "bf16": True}, 'precision is set twice: "fp16" as fp16, and "bf16" as bf16'),
    ({"bf16": True, "fp16": True}, 'precision is set twice: "bf16" as bf16, and "fp16" as fp16'),
    ({"precision": "fp32", "bf16": True}, 'precision is set twice: "fp32", and "bf16" as bf16'),
    ({"no_cuda": True, "device": "cuda"}, 'device is set twice: "cuda", and "cpu" as no_cuda'),
    *(
        (given, 'eval_strategy is set twice: "steps", and "epoch" as evaluation_strategy')
        for given in (STRATEGIES, dict(reversed(STRATEGIES.items())))
    ),
]


def test_what_has_no_effect_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    without, page = "settings without effect:", "the page Scripts for transformers"
    for given, line in [
        ({"remove_unused_columns": True}, ""),
        ({"remove_unused_columns": False, "dataloader_num_workers": 4}, f"{without} dataloader_num_workers ({page} says why)"),
        ({"torch_compile": True, "torch_compile_mode": "default"}, f"{without} torch_compile, torch_compile_mode"),
        ({"warmup_steps": 500, "warmup_ratio": 0.1}, "warmup_ratio 0.1 has no effect: warmup_steps 500 is set"),
    ]:
        TrainingArguments("x", **given)
        said = capsys.readouterr().err
        assert line in said
        assert bool(said) == bool(line)


# --- the table of transformers' settings, and the methods that set several at once --------------------------------------
def test_every_field_of_the_installed_transformers_is_known_with_its_outcome_and_a_sentence() -> None:
    import transformers
    from transformers.trainer_utils import SchedulerType

    theirs = {entry.name for entry in fields(transformers.TrainingArguments) if not entry.name.startswith("_")}
    ours = {entry.name for entry in fields(TrainingArguments)}
    assert not theirs - ours - {*SETTINGS}, "add these to the table, or make them work"
    assert not ours & {*SETTINGS}, "these are settings of Glassloop: remove them from the table"
    for setting in SETTINGS.values():
        assert setting.outcome in (RENAMED, KEPT, UNNEEDED, REFUSED)
        assert len(setting.text.split()) >= 3
        assert not setting.refuses(setting.default), "the default of transformers asks for nothing"
        assert not setting.refuses(None)
    assert SETTINGS["train_sampling_strategy"].refuses("batch_rebalance")
    assert not any(SETTINGS["train_sampling_strategy"].refuses(name) for name in ("random", "sequential", "group_by_length"))
    assert not SETTINGS["do_train"].refuses(True)
    known = {kind.value for kind in SchedulerType}
    assert {*SCHEDULES} <= known
    assert known - {*SCHEDULES} <= {"reduce_lr_on_plateau", "greedy"}


def test_every_method_assigns_its_settings_and_returns_the_arguments() -> None:
    args = glassloop.TrainingArguments("out")
    assert args.set_training(learning_rate=1e-4, batch_size=4, num_epochs=2, seed=7) is args
    assert (args.learning_rate, args.per_device_train_batch_size, args.num_train_epochs, args.seed) == (1e-4, 4, 2, 7)
    args.set_evaluate("steps", steps=5, batch_size=2, delay=3).set_testing(batch_size=6)
    assert (args.eval_strategy, args.eval_steps, args.eval_delay, args.per_device_eval_batch_size) == ("steps", 5, 3, 6)
    args.set_save("epoch", total_limit=3).set_logging("epoch", first_step=True, level="info")
    assert (args.save_strategy, args.save_total_limit) == ("epoch", 3)
    assert (args.logging_strategy, args.logging_first_step) == ("epoch", True)
    args.set_optimizer("sgd", learning_rate=0.1, args="momentum=0.9").set_lr_scheduler("cosine", warmup_ratio=0.1)
    assert (args.optim, args.optim_args, args.lr_scheduler_type, args.warmup_steps) == ("sgd", "momentum=0.9", "cosine", 0.1)
    args.set_dataloader(train_batch_size=3, drop_last=True, sampler_seed=5, num_workers=2, auto_find_batch_size=True)
    assert (args.per_device_train_batch_size, args.dataloader_drop_last, args.data_seed) == (3, True, 5)
    assert args.auto_find_batch_size is True
    args.check()
    with pytest.raises(SettingsError, match="there is no setting"):
        glassloop.TrainingArguments("out").set_training(learning_rat=1.0)
