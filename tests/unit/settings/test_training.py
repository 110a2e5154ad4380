"""TrainingArguments: every wrong setting has its sentence, all sentences come at once, and old names are understood."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from glassloop.base.errors import SettingsError
from glassloop.settings.training import CHOICES, OPTIMIZERS, SCHEDULES, TrainingArguments
from glassloop.settings.transformers_names import REFUSED, RENAMED, SETTINGS, TRACKERS


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


def test_every_setting_has_a_default() -> None:
    args = TrainingArguments()
    assert args.output_dir is None
    assert {entry.name: getattr(args, entry.name) for entry in fields(args)} == {
        entry.name: entry.default for entry in fields(args)
    }


@pytest.mark.parametrize("folder", ["out/run", Path("out/run")])
def test_the_folder_may_come_first(folder: Any) -> None:
    assert TrainingArguments(folder).output_dir == TrainingArguments(output_dir=folder).output_dir == "out/run"


def test_the_home_folder_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert TrainingArguments("~/run").output_dir == "/home/somebody/run"
    assert TrainingArguments(**TrainingArguments("~/run").to_dict()).output_dir == "/home/somebody/run"


def test_every_setting_has_a_sentence_and_a_default_of_its_kind() -> None:
    for entry in fields(TrainingArguments):
        sentence = entry.metadata["help"]
        assert sentence.endswith("."), entry.name
        assert len(sentence.split()) >= 2, entry.name
        assert "\n" not in sentence
        if entry.default is None:
            assert "None" in str(entry.type)
        else:
            kinds = {"int": ("int", "float")}.get(type(entry.default).__name__, (type(entry.default).__name__,))
            assert any(kind in str(entry.type) for kind in kinds)


def test_the_sentences_name_every_choice() -> None:
    for name, choices in CHOICES.items():
        sentence = next(entry.metadata["help"] for entry in fields(TrainingArguments) if entry.name == name)
        for choice in choices:
            assert choice in sentence, f"{name} does not say {choice}"


def test_settings_cannot_be_changed_afterwards() -> None:
    args = TrainingArguments(seed=7)
    with pytest.raises(SettingsError) as caught:
        args.seed = 1
    assert caught.value.problem == "seed cannot be changed: settings are checked once, when they are created"
    assert caught.value.remedy == "create new settings: dataclasses.replace(args, seed=…)"
    with pytest.raises(SettingsError):
        del args.seed
    assert args == TrainingArguments(seed=7)
    assert hash(args) == hash(TrainingArguments(seed=7))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"output_dir": "somewhere", "learning_rate": 1, "warmup_steps": 0.1, "max_length": 64, "greater_is_better": True},
        {"report_to": ["tensorboard", "wandb"], "class_weights": "balanced", "lr_scheduler_kwargs": '{"num_cycles": 2}'},
    ],
)
def test_a_dict_and_back(given: dict[str, Any]) -> None:
    args = TrainingArguments(**given)
    again = TrainingArguments(**json.loads(json.dumps(args.to_dict())))
    assert again == args
    assert again.to_dict() == args.to_dict()
    assert list(args.to_dict()) == [entry.name for entry in fields(TrainingArguments)]


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in CHOICES.items() for value in values])
def test_every_choice_is_taken(name: str, value: str) -> None:
    evaluated = {"eval_strategy": "epoch"} if value == "best" else {}
    assert getattr(TrainingArguments(**{name: value}, **evaluated), name) == value


@pytest.mark.parametrize(
    ("given", "trackers"),
    [
        ("none", ()),
        ("", ()),
        ([], ()),
        ("wandb", ("wandb",)),
        ("tensorboard, none,wandb", ("tensorboard", "wandb")),
        (["trackio", "tensorboard"], ("trackio", "tensorboard")),
    ],
)
def test_trackers(given: Any, trackers: tuple[str, ...]) -> None:
    assert TrainingArguments(report_to=given).trackers == trackers


def test_the_schedules_are_those_of_transformers_that_need_no_metric() -> None:
    from transformers.trainer_utils import SchedulerType

    known = {kind.value for kind in SchedulerType}
    assert {*SCHEDULES} <= known
    assert known - {*SCHEDULES} <= {"reduce_lr_on_plateau", "greedy"}


# --- what is refused ---------------------------------------------------------------------------------------------

WRONG = {
    **{
        name: ({name: 0}, f"{name} is 0, not 1 or more")
        for name in (
            *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"),
            *("max_length", "pad_to_multiple_of"),
        )
    },
    **{
        f"{name} {value}": ({name: value}, f"{name} is {value}, not a whole number of 1 or more, or a fraction of all steps")
        for name in ("logging_steps", "save_steps", "eval_steps")
        for value in (0, -1, 2.5)
    },
    "patience": (
        {"early_stopping_patience": 0, "eval_strategy": "epoch"},
        "early_stopping_patience is 0, not 1 or more",
    ),
    **{
        name: ({name: -1}, f"{name} is -1, not 0 or more")
        for name in ("learning_rate", "weight_decay", "max_grad_norm", "warmup_steps", "seed", "data_seed")
    },
    "early_stopping_threshold": ({"early_stopping_threshold": -0.5}, "early_stopping_threshold is -0.5, not 0 or more"),
    "seed too large": ({"seed": 2**63}, "seed is 9223372036854775808, not below 2**63"),
    **{
        f"{name} {value}": ({name: value}, f"{name} is {value}, not a fraction from 0 to less than 1")
        for name in ("adam_beta1", "adam_beta2", "label_smoothing_factor")
        for value in (-0.1, 1.0)
    },
    "adam_epsilon": ({"adam_epsilon": 0.0}, "adam_epsilon is 0.0, not above 0"),
    "no epochs": ({"num_train_epochs": 0}, "num_train_epochs is 0 and max_steps is -1, so there is nothing to train"),
    "no steps": ({"max_steps": 0}, "max_steps is 0, not 1 or more (or -1)"),
    "steps below none": ({"max_steps": -2}, "max_steps is -2, not 1 or more (or -1)"),
    "best of no evaluation": (
        {"load_best_model_at_end": True},
        "load_best_model_at_end needs evaluations, but eval_strategy is no",
    ),
    "patience with no evaluation": (
        {"early_stopping_patience": 2},
        "early_stopping_patience needs evaluations, but eval_strategy is no",
    ),
    "choice": (
        {"eval_strategy": "epochs"},
        'eval_strategy is "epochs", not one of no, steps, epoch',
    ),
    "choice far from all": ({"device": "quantum"}, 'device is "quantum", not one of auto, cpu, cuda, mps'),
    "schedule": (
        {"lr_scheduler_type": "reduce_lr_on_plateau"},
        f'lr_scheduler_type is "reduce_lr_on_plateau", not one of {", ".join(SCHEDULES)}',
    ),
    "optimizer": ({"optim": "lion_8bit"}, f'optim is "lion_8bit", not one of {", ".join(OPTIMIZERS)}'),
    "sampling": ({"train_sampling_strategy": "batch_rebalance"}, "train_sampling_strategy is not supported"),
    "tracker": (
        {"report_to": "tensorbord"},
        f'report_to lists "tensorbord", not one of {", ".join(TRACKERS)}; did you mean "tensorboard"?',
    ),
    "run name that is a folder": ({"run_name": ".."}, 'run_name is "..", not a name'),
    "run name that is this folder": ({"run_name": "."}, 'run_name is ".", not a name'),
    "run name of two lines": (
        {"run_name": "a\nb"},
        'the name "a\\nb" contains a line break or another control character',
    ),
    "run name without end": (
        {"run_name": "x" * 300},
        f'the name "{"x" * 39}…" has 300 characters; at most 200 are allowed',
    ),
    "folder without a name": ({"output_dir": " "}, 'output_dir is " ", not a folder'),
    "folder of two lines": ({"output_dir": "a\nb"}, 'output_dir is "a\\nb", not a folder'),
    "folder with a NUL": ({"output_dir": "a\0b"}, 'output_dir is "a\\x00b": the path contains a NUL character'),
    "folder of nobody": (
        {"output_dir": "~nobody-is-called-this/x"},
        'output_dir is "~nobody-is-called-this/x": no such user, or the user has no home folder',
    ),
    "options that are no JSON": (
        {"lr_scheduler_kwargs": "num_cycles=2"},
        'lr_scheduler_kwargs is "num_cycles=2", not JSON such as {"num_cycles": 2}',
    ),
    "options that are no object": (
        {"lr_scheduler_kwargs": "[2]"},
        'lr_scheduler_kwargs is "[2]", not JSON such as {"num_cycles": 2}',
    ),
    # Kinds
    "text for a number": ({"learning_rate": "5e-5"}, "learning_rate is '5e-5', not a finite number"),
    "no number": ({"learning_rate": float("nan")}, "learning_rate is nan, not a finite number"),
    "a long text": ({"learning_rate": "x" * 70_000}, f"learning_rate is '{'x' * 78}…, not a finite number"),
    "without end": ({"num_train_epochs": float("inf")}, "num_train_epochs is inf, not a finite number"),
    "fraction for a whole number": (
        {"per_device_train_batch_size": 8.0},
        "per_device_train_batch_size is 8.0, not a whole number",
    ),
    "truth for a whole number": ({"max_steps": True}, "max_steps is True, not a whole number"),
    "truth for a fraction": ({"weight_decay": False}, "weight_decay is False, not a finite number"),
    "number for a truth": ({"group_by_length": 1}, "group_by_length is 1, not true or false"),
    "nothing for a truth": ({"disable_tqdm": None}, "disable_tqdm is None, not true or false"),
    "number for a text": ({"optim": 1}, "optim is 1, not text"),
    "kind of an optional setting": ({"max_length": "64"}, "max_length is '64', not a whole number"),
    "kind of an optional truth": ({"greater_is_better": "yes"}, "greater_is_better is 'yes', not true or false"),
    # Names
    "unknown": ({"nonsense": 1}, 'unknown setting "nonsense"'),
    "nearly known": ({"learning_rat": 1}, 'unknown setting "learning_rat"; did you mean "learning_rate"?'),
    **{name: ({name: 1}, f"{name} is not supported") for name in names_of(REFUSED)},
}


@pytest.mark.parametrize(("given", "told"), WRONG.values(), ids=WRONG)
def test_wrong(given: dict[str, Any], told: str) -> None:
    assert refused(**given) == told


def test_all_that_is_wrong_is_reported_at_once() -> None:
    """Names, kinds, values and combinations in one error; nothing is said about a default that nobody chose."""
    told = refused(
        nonsense=1,
        fsdp="full_shard",
        learning_rate="high",
        max_steps=2.5,
        eval_strategy=3,
        load_best_model_at_end=True,
        seed=-1,
        logging_steps=0,
        adam_beta2=2,
        report_to="nobody",
    )
    assert told.split("; ") == [
        'unknown setting "nonsense"',
        "fsdp is not supported",
        "max_steps is 2.5, not a whole number",
        "learning_rate is 'high', not a finite number",
        "eval_strategy is 3, not text",
        "seed is -1, not 0 or more",
        "logging_steps is 0, not a whole number of 1 or more, or a fraction of all steps",
        "adam_beta2 is 2, not a fraction from 0 to less than 1",
        'report_to lists "nobody", not one of none, tensorboard, wandb, trackio',
    ]


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"eval_strategy": "epochs"}, "set eval_strategy to epoch"),
        ({"device": "quantum"}, "set device to auto, cpu, cuda or mps"),
        ({"load_best_model_at_end": True}, "set eval_strategy to steps or epoch"),
        ({"seed": -1, "max_steps": 2.5}, "set max_steps to a whole number; set seed to 0 or more"),
        ({"nonsense": 1}, "glassloop train --help lists all settings"),
        ({"fsdp": 1}, f"fsdp: {SETTINGS['fsdp'].text}"),
        ({"fp16": True, "bf16": True}, "set precision once"),
    ],
)
def test_the_remedy_names_the_fix(given: dict[str, Any], remedy: str) -> None:
    with pytest.raises(SettingsError) as caught:
        TrainingArguments(**given)
    assert caught.value.remedy == remedy


def test_what_is_reported_stays_on_a_line() -> None:
    assert "\n" not in refused(**{"a\nb": 1, "eval_strategy": "x\x1b[31m\ny", "output_dir": "\n"})


# --- old names ---------------------------------------------------------------------------------------------------

OLD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "evaluation_strategy": ("epoch", {"eval_strategy": "epoch"}, "is now called eval_strategy"),
    "evaluate_during_training": (True, {"eval_strategy": "steps"}, "is now called eval_strategy"),
    "no_cuda": (True, {"device": "cpu"}, 'is now called device="cpu"'),
    "use_cpu": (True, {"device": "cpu"}, 'is now called device="cpu"'),
    "fp16": (True, {"precision": "fp16"}, 'is now called precision="fp16"'),
    "bf16": (True, {"precision": "bf16"}, 'is now called precision="bf16"'),
    "warmup_ratio": (0.1, {"warmup_steps": 0.1}, "is now called warmup_steps (a number below 1 is a fraction of all steps)"),
    "per_gpu_train_batch_size": (4, {"per_device_train_batch_size": 4}, "is now called per_device_train_batch_size"),
    "per_gpu_eval_batch_size": (4, {"per_device_eval_batch_size": 4}, "is now called per_device_eval_batch_size"),
    "use_mps_device": (True, {"device": "mps"}, 'is now called device="mps"'),
    "adafactor": (True, {"optim": "adafactor"}, 'is now called optim="adafactor"'),
}


def test_the_old_names_are_these() -> None:
    assert {*OLD} == {*names_of(RENAMED)}
    assert not {*OLD} & {entry.name for entry in fields(TrainingArguments)}


@pytest.mark.parametrize("name", OLD)
def test_an_old_name_is_taken_and_reported_in_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    value, today, called = OLD[name]
    assert TrainingArguments(**{name: value}) == TrainingArguments(**today)
    assert capsys.readouterr() == ("", f"glassloop: {name} {called}\n")


@pytest.mark.parametrize("name", ["no_cuda", "use_cpu", "fp16"])
def test_an_old_switch_that_is_off_changes_nothing(name: str) -> None:
    assert TrainingArguments(**{name: False}) == TrainingArguments()


@pytest.mark.parametrize("given", [{"bf16": False}, {"bf16": False, "fp16": False}])
def test_without_half_precision_a_run_uses_full_precision(given: dict[str, Any]) -> None:
    assert TrainingArguments(**given).precision == "fp32"


@pytest.mark.parametrize("name", ["team/run", "../up"])
def test_a_run_name_may_contain_a_slash(name: str) -> None:
    assert TrainingArguments(run_name=name).run_name == name


def test_labels_under_a_known_name_are_accepted() -> None:
    assert TrainingArguments(label_names=["labels"]) == TrainingArguments(label_names=None) == TrainingArguments()


def test_values_of_transformers_that_are_written_differently() -> None:
    assert TrainingArguments(optim="adamw_hf").optim == "adamw_torch"
    assert TrainingArguments(report_to=None).trackers == ()
    assert {*TrainingArguments(report_to="all").trackers} == {
        name for name in TRACKERS if name != "none" and importlib.util.find_spec(name)
    }


TWICE = {
    "fp16 and bf16": ({"fp16": True, "bf16": True}, 'precision is set twice: "fp16" as fp16, and "bf16" as bf16'),
    "another precision": ({"precision": "fp32", "bf16": True}, 'precision is set twice: "fp32", and "bf16" as bf16'),
    "another device": ({"no_cuda": True, "device": "cuda"}, 'device is set twice: "cuda", and "cpu" as no_cuda'),
    "another strategy": (
        {"evaluation_strategy": "epoch", "eval_strategy": "steps"},
        'eval_strategy is set twice: "steps", and "epoch" as evaluation_strategy',
    ),
}


@pytest.mark.parametrize("turned", [False, True], ids=["in this order", "in the other"])
@pytest.mark.parametrize("case", TWICE)
def test_a_setting_with_two_values_under_two_names_is_refused(case: str, turned: bool) -> None:
    given, problem = TWICE[case]
    if case == "fp16 and bf16" and turned:
        problem = 'precision is set twice: "bf16" as bf16, and "fp16" as fp16'
    assert refused(**dict(reversed(given.items()) if turned else given.items())) == problem


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"warmup_steps": 500, "warmup_ratio": 0.0}, {"warmup_steps": 500}),
        ({"warmup_ratio": 0.0, "warmup_steps": 500}, {"warmup_steps": 500}),
        ({"warmup_steps": 0, "warmup_ratio": 0.1}, {"warmup_steps": 0.1}),
        ({"warmup_steps": 500, "warmup_ratio": 0.1}, {"warmup_steps": 500}),
        ({"warmup_ratio": 0.1, "warmup_steps": 500}, {"warmup_steps": 500}),
        ({"warmup_ratio": 0.1, "warmup_steps": 0}, {"warmup_steps": 0.1}),
        ({"fp16": False, "bf16": True}, {"precision": "bf16"}),
        ({"bf16": True, "fp16": False}, {"precision": "bf16"}),
        ({"bf16": True, "precision": "bf16"}, {"precision": "bf16"}),
        ({"precision": "auto", "fp16": True}, {"precision": "fp16"}),
        ({"no_cuda": True, "use_cpu": True, "device": "cpu"}, {"device": "cpu"}),
    ],
    ids=str,
)
def test_two_names_of_a_setting_that_agree_are_taken(given: dict[str, Any], meant: dict[str, Any]) -> None:
    """As in transformers: a warm-up of 0 is none, so the other one counts."""
    assert TrainingArguments(**given) == TrainingArguments(**meant)


@pytest.mark.parametrize("share", [1, 1.0, 6, -0.1])
def test_a_share_of_warmup_is_below_one(share: float) -> None:
    assert refused(warmup_ratio=share) == f"warmup_ratio is {share}, not a fraction from 0 to less than 1"


def test_other_sampling_is_the_usual_one() -> None:
    assert TrainingArguments(train_sampling_strategy="random") == TrainingArguments()
    assert TrainingArguments(train_sampling_strategy="group_by_length") == TrainingArguments(group_by_length=True)
    assert refused(train_sampling_strategy="sequential") == "train_sampling_strategy sequential is not supported here"


def test_a_wrong_value_under_an_old_name_is_reported_under_the_current_one() -> None:
    assert refused(evaluation_strategy="always") == 'eval_strategy is "always", not one of no, steps, epoch'


def test_current_names_are_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    TrainingArguments("out", eval_strategy="epoch", device="cpu")
    assert capsys.readouterr() == ("", "")


def test_what_transformers_users_write_for_columns_and_schedules_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    args = TrainingArguments("x", remove_unused_columns=True, lr_scheduler_type="cosine", lr_scheduler_kwargs={"num_cycles": 2})
    assert args.lr_scheduler_kwargs == '{"num_cycles": 2}'
    assert capsys.readouterr().err == ""
    TrainingArguments("x", remove_unused_columns=False, dataloader_num_workers=4)
    told = "settings without effect: dataloader_num_workers (docs/reference/transformers.md says why)"
    assert capsys.readouterr().err == f"glassloop: {told}\n"


def test_a_line_says_that_warmup_steps_decide(capsys) -> None:
    TrainingArguments(warmup_steps=500, warmup_ratio=0.1)
    assert "warmup_ratio 0.1 has no effect: warmup_steps 500 is set" in capsys.readouterr().err


def test_compiling_has_no_effect(capsys) -> None:
    TrainingArguments(torch_compile=True, torch_compile_mode="default")
    assert "settings without effect: torch_compile, torch_compile_mode" in capsys.readouterr().err
