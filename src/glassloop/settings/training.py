"""`TrainingArguments`: the training settings, shared by Python, the command and settings files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from pathlib import Path

from glassloop.base.errors import SettingsError, did_you_mean, listed, say, visible
from glassloop.base.files import path_problem, user_path
from glassloop.settings.fields import Problem, described, name_problem, refuse, setting, wrong, wrong_choice
from glassloop.settings.transformers_names import RENAMED, SEQUENTIAL, SETTINGS, TODAY, TRACKERS, UNNEEDED

SCHEDULES = (
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "warmup_stable_decay",
)


OPTIMIZERS = ("adamw_torch_fused", "adamw_torch", "adafactor", "sgd", "adagrad", "rmsprop")


CHOICES: dict[str, tuple[str, ...]] = {
    "eval_strategy": ("no", "steps", "epoch"),
    "logging_strategy": ("no", "steps", "epoch"),
    "save_strategy": ("no", "steps", "epoch", "best"),
    "lr_scheduler_type": SCHEDULES,
    "optim": OPTIMIZERS,
    "precision": ("auto", "fp32", "bf16", "fp16"),
    "device": ("auto", "cpu", "cuda", "mps"),
    "backend": ("auto", "plain", "packed", "graphs", "accelerate"),
}


HALVES = ("fp16", "bf16")


KINDS = {"bool": "true or false", "int": "a whole number", "float": "a finite number", "str": "text"}


Setting = str | int | float | bool | None


@described
@dataclass(unsafe_hash=True)  # not frozen: our own __setattr__ says what to do instead
class TrainingArguments:
    """The settings of a training run. They are checked when created and cannot be changed afterwards.

    The command's help is generated from the same sentences. Earlier names of transformers are accepted with a message.

    Args:
        output_dir: Folder for everything the run writes.
        **given: Any other field by name.

    Raises:
        SettingsError: A name or value is not allowed. All problems are reported together.
    """

    output_dir: str | None = setting(None, "Run folder. Default: the next free runs/run-001.")
    overwrite_output_dir: bool = setting(False, "Start again in a folder that contains a run. The old run is moved aside.")
    num_train_epochs: float = setting(3.0, "Number of training epochs.")
    max_steps: int = setting(-1, "Number of training steps. Overrides num_train_epochs; -1 means no limit.")
    per_device_train_batch_size: int = setting(8, "Training batch size per device.")
    per_device_eval_batch_size: int = setting(32, "Evaluation batch size per device.")
    gradient_accumulation_steps: int = setting(1, "Number of batches to accumulate gradients over before each step.")
    learning_rate: float = setting(5e-5, "Peak learning rate.")
    lr_scheduler_type: str = setting("linear", "Learning rate schedule: " + ", ".join(SCHEDULES) + ".")
    lr_scheduler_kwargs: str | None = setting(None, 'Extra schedule settings as JSON, for example {"num_cycles": 2}.')
    warmup_steps: float = setting(0.0, "Number of warm-up steps. A number below 1 is a fraction of all steps.")
    weight_decay: float = setting(0.0, "Decoupled weight decay. Biases and normalization weights are exempt.")
    adam_beta1: float = setting(0.9, "Beta 1 of AdamW.")
    adam_beta2: float = setting(0.999, "Beta 2 of AdamW.")
    adam_epsilon: float = setting(1e-8, "Epsilon of AdamW.")
    optim: str = setting("adamw_torch_fused", "Optimizer: " + ", ".join(OPTIMIZERS) + ".")
    optim_args: str | None = setting(None, "Extra optimizer settings, for example momentum=0.9,nesterov=true.")
    max_grad_norm: float = setting(1.0, "Maximum gradient norm for clipping. 0 disables clipping.")
    label_smoothing_factor: float = setting(0.0, "Label smoothing factor.")
    class_weights: str | None = setting(None, "Weight of each class in the loss: balanced, or numbers separated by commas.")
    positive_label: str | None = setting(
        None, "Class whose F1 is reported. Default: class 1 if the labels are 0 and 1, else macro-averaged F1."
    )
    max_length: int | None = setting(None, "Maximum number of tokens per row. Default: the model's maximum.")
    group_by_length: bool = setting(False, "Group rows of similar length into batches to reduce padding.")
    pad_to_multiple_of: int | None = setting(None, "Pad batches to a multiple of this number of tokens.")
    gradient_checkpointing: bool = setting(False, "Save memory by computing activations again in the backward pass.")
    dataloader_drop_last: bool = setting(False, "Drop the last incomplete batch of each epoch.")
    seed: int = setting(42, "Random seed for new weights, dropout and row order.")
    data_seed: int | None = setting(None, "Random seed for row order only. Default: --seed.")
    precision: str = setting(
        "auto", "Floating-point precision: fp32, bf16, fp16, or auto (the fastest one that is safe on the device)."
    )
    device: str = setting("auto", "Device: cuda, mps, cpu, or auto (the first one available).")
    backend: str = setting(
        "auto", "Backend: plain, packed, graphs, accelerate, or auto (the fastest one that supports the model)."
    )
    eval_strategy: str = setting("no", "When to evaluate during training: no, steps, epoch.")
    eval_steps: float | None = setting(
        None, "Number of steps between evaluations, or a fraction of all steps. Default: logging_steps if it is set, else 500."
    )
    eval_delay: float = setting(0.0, "Steps, or with eval_strategy epoch epochs, before the first evaluation.")
    eval_on_start: bool = setting(False, "Evaluate before the first step.")
    logging_strategy: str = setting("steps", "When to log the loss: no, steps, epoch.")
    logging_steps: float | None = setting(None, "Number of steps between log entries, or a fraction of all steps. Default: 10.")
    logging_first_step: bool = setting(False, "Log the first step, too.")
    logging_dir: str | None = setting(None, "Folder for TensorBoard. Default: the run folder.")
    save_strategy: str = setting("epoch", "When to save a checkpoint: no, steps, epoch, best (the best evaluation so far).")
    save_steps: float = setting(500, "Number of steps between checkpoints, or a fraction of all steps.")
    save_total_limit: int | None = setting(2, "Number of recent checkpoints to keep, in addition to the best one.")
    load_best_model_at_end: bool = setting(False, "Load the weights of the best evaluation when training ends.")
    metric_for_best_model: str | None = setting(None, "Metric that selects the best evaluation. Default: the loss.")
    greater_is_better: bool | None = setting(None, "Whether higher is better. Default: yes, except for the loss.")
    early_stopping_patience: int | None = setting(None, "Stop after this many evaluations without improvement.")
    early_stopping_threshold: float = setting(0.0, "Smallest improvement that counts as progress.")
    report_to: str = setting("none", "Experiment trackers, separated by commas: " + ", ".join(TRACKERS) + ".")
    run_name: str | None = setting(None, "Name of the run in trackers and reports.")
    disable_tqdm: bool = setting(False, "Print plain lines instead of a progress bar.")

    def __init__(self, output_dir: str | Path | None = None, **given: object) -> None:
        if output_dir is not None:
            given["output_dir"] = str(output_dir)
        defaults = {entry.name: entry.default for entry in fields(TrainingArguments)}
        settings, problems = translated(given, TrainingArguments)
        for name, value in (defaults | settings).items():
            object.__setattr__(self, name, value)
        unfit = wrong_types(self)
        for name in unfit:  # so that the rest can be checked; a problem with these would be about their defaults
            object.__setattr__(self, name, defaults[name])
        if type(self) is TrainingArguments and given.get("train_sampling_strategy") == SEQUENTIAL:
            problems.append(Problem("train_sampling_strategy sequential is not supported here", "use glassloop.Trainer"))
        problems += [*unfit.values(), *(one for one in wrong_values(self) if not {*one.text.split()} & {*unfit})]
        refuse(problems)
        if self.output_dir is not None:
            object.__setattr__(self, "output_dir", str(user_path(self.output_dir)))

    def check(self) -> None:
        """Raise `SettingsError` with everything that is wrong with the values."""
        unfit = wrong_types(self)
        refuse([*unfit.values()] if unfit else wrong_values(self))

    def __setattr__(self, name: str, value: object) -> None:
        problem = f"{name} cannot be changed: settings are checked once, when they are created"
        raise SettingsError(problem, f"create new settings: dataclasses.replace(args, {name}=…)")

    def __delattr__(self, name: str) -> None:
        setattr(self, name, None)

    def to_dict(self) -> dict[str, Setting]:
        """Return all settings by name, as plain values that JSON can hold."""
        return asdict(self)

    @property
    def trackers(self) -> tuple[str, ...]:
        """Return the names in `report_to`, without `none`."""
        return tuple(name.strip() for name in vars(self)["report_to"].split(",") if name.strip() not in ("", "none"))


TYPES = {entry.name: str(entry.type) for entry in fields(TrainingArguments)}


def training_arguments(given: Mapping[str, object]) -> TrainingArguments:
    """Return the settings for names and values."""
    return TrainingArguments(**given)  # type: ignore[arg-type]  # each value is checked when the settings are made


def translated(given: Mapping[str, object], kind: type[TrainingArguments]) -> tuple[dict[str, object], list[Problem]]:
    """Return the settings under their present names, and a problem for each name that is not accepted.

    Each setting of transformers that has another name here, or no effect, is reported. A setting that has two values under two
    names is a problem, unless one of them is the default.
    """
    known = {entry.name: entry.default for entry in fields(kind)}
    settings: dict[str, object] = {}
    renamed: list[tuple[str, str, object]] = []  # the old name, the present one, and its value
    unneeded: list[str] = []
    problems = []
    for name, value in without_half_precision_off(given).items():
        theirs = SETTINGS.get(name)
        value = value.value if isinstance(value, Enum) else value  # transformers' strategies
        value = value.type if name == "device" and hasattr(value, "type") else value  # a device of torch
        value = TODAY.get(name, {}).get(str(value), value)
        if name in known and theirs is None:
            value = json.dumps(value, default=str) if isinstance(value, dict) else value
            settings[name] = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
        elif theirs is None:
            near = did_you_mean(name, known)
            problems.append(Problem(f"unknown setting {visible(name)}{near}", "glassloop train --help lists all settings"))
        elif value is None or value == theirs.default:
            continue
        elif name == "warmup_ratio" and isinstance(value, int | float) and not 0 <= value < 1:
            problems.append(wrong("warmup_ratio", str(value), "a fraction from 0 to less than 1"))
        elif theirs.outcome == RENAMED:
            if value is not False:
                say(f"{name} {theirs.text}")
            renamed += [(name, today, meant) for today, meant in theirs.translate(value).items()]
        elif theirs.refuses(value):
            problems.append(Problem(f"{name} is not supported", f"{name}: {theirs.text}"))
        elif theirs.outcome == UNNEEDED:
            unneeded.append(name)
        else:  # scripts read it under its old name, too
            renamed += [(name, today, meant) for today, meant in theirs.translate(value).items()]
    if unneeded:
        say(f"settings without effect: {listed(unneeded, 20)} (docs/reference/transformers.md says why)")
    origins = {name: quoted(value) for name, value in settings.items()}
    for name, today, value in renamed:
        if name == "warmup_ratio" and settings.get(today, 0) not in (0, value):  # the rule of transformers
            say(f"warmup_ratio {value} has no effect: warmup_steps {origins[today]} is set")
            continue
        if settings.get(today, known[today]) not in (known[today], value):
            text = f"{today} is set twice: {origins[today]}, and {quoted(value)} as {name}"
            problems.append(Problem(text, f"set {today} once"))
        settings[today], origins[today] = value, f"{quoted(value)} as {name}"
    return settings, problems


def without_half_precision_off(given: Mapping[str, object]) -> dict[str, object]:
    """Return the settings without `fp16=False` and `bf16=False` where the other one, or a precision, is asked for."""
    chosen = given.get("precision", "auto") != "auto" or any(given.get(name) for name in HALVES)
    kept = {name: value for name, value in given.items() if name not in HALVES or value or not chosen}
    if kept.get("fp16") is False:
        del kept["fp16"]  # the fastest safe precision is never fp16
        if given.get("bf16") is False:
            kept["bf16"] = False
    return kept


def quoted(value: object) -> str:
    """Return a value as it would be written in a settings file."""
    return visible(value) if isinstance(value, str) else str(value)


def wrong_types(args: TrainingArguments) -> dict[str, Problem]:
    """Return a problem for each setting whose value has the wrong type. A whole number is accepted as a fraction."""
    problems = {}
    for name, kinds in TYPES.items():
        value = vars(args)[name]
        if value is None and "None" in kinds:
            continue
        good = (
            ("bool" in kinds and isinstance(value, bool))
            or ("str" in kinds and isinstance(value, str))
            or ("int" in kinds and isinstance(value, int) and not isinstance(value, bool))
            or ("float" in kinds and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value))
        )
        if not good:
            problems[name] = wrong(name, repr(value), KINDS[kinds.removesuffix(" | None")])
    return problems


def wrong_values(args: TrainingArguments) -> list[Problem]:
    """Return a problem for each value or combination of values that is not allowed."""
    problems = [
        wrong_choice(name, value, allowed) for name, allowed in CHOICES.items() if (value := vars(args)[name]) not in allowed
    ]
    for name in ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "save_total_limit",
                 "max_length", "pad_to_multiple_of", "early_stopping_patience"):  # fmt: skip
        if (value := getattr(args, name)) is not None and value < 1:
            problems.append(wrong(name, value, "1 or more"))
    for name in ("learning_rate", "weight_decay", "max_grad_norm", "warmup_steps", "seed", "data_seed",
                 "eval_delay", "early_stopping_threshold"):  # fmt: skip
        if (value := getattr(args, name)) is not None and value < 0:
            problems.append(wrong(name, value, "0 or more"))
    for name in ("logging_steps", "eval_steps", "save_steps"):
        if (value := vars(args)[name]) is not None and (value <= 0 or (value > 1 and value != int(value))):
            problems.append(wrong(name, value, "a whole number of 1 or more, or a fraction of all steps"))
    if args.seed >= 2**63:
        problems.append(wrong("seed", str(args.seed), "below 2**63"))
    for name in ("adam_beta1", "adam_beta2", "label_smoothing_factor"):
        if not 0 <= getattr(args, name) < 1:
            problems.append(wrong(name, getattr(args, name), "a fraction from 0 to less than 1"))
    if args.adam_epsilon <= 0:
        problems.append(wrong("adam_epsilon", str(args.adam_epsilon), "above 0"))
    if args.num_train_epochs <= 0 and args.max_steps < 1:
        text = f"num_train_epochs is {args.num_train_epochs} and max_steps is {args.max_steps}, so there is nothing to train"
        problems.append(Problem(text, "set num_train_epochs above 0, or max_steps to 1 or more"))
    if args.max_steps != -1 and args.max_steps < 1:
        problems.append(wrong("max_steps", str(args.max_steps), "1 or more (or -1)"))
    wanted = {"load_best_model_at_end": args.load_best_model_at_end, "early_stopping_patience": args.early_stopping_patience}
    for name, value in {**wanted, "save_strategy best": args.save_strategy == "best"}.items():
        if args.eval_strategy == "no" and value not in (None, False):
            text = f"{name} needs evaluations, but eval_strategy is no"
            problems.append(Problem(text, "set eval_strategy to steps or epoch"))
    for name in args.trackers:
        if name not in TRACKERS:
            text = f"report_to lists {visible(name)}, not one of {listed(TRACKERS)}{did_you_mean(name, TRACKERS)}"
            problems.append(Problem(text, "name a supported tracker, or none"))
    if args.run_name and (found := name_problem(args.run_name)):
        problems.append(Problem(found, "choose another run_name"))
    if args.run_name in (".", ".."):
        problems.append(wrong("run_name", visible(args.run_name), "a name"))
    try:
        is_object = isinstance(json.loads(vars(args)["lr_scheduler_kwargs"] or "{}"), dict)
    except ValueError:
        is_object = False
    if not is_object:
        given = visible(vars(args)["lr_scheduler_kwargs"])
        problems.append(wrong("lr_scheduler_kwargs", given, 'JSON such as {"num_cycles": 2}'))
    return problems + folder_problems(args.output_dir)


def folder_problems(output_dir: str | None) -> list[Problem]:
    """Return why `output_dir` cannot be a folder, if it cannot."""
    if output_dir is None:
        return []
    if not output_dir.strip() or "\n" in output_dir:
        return [wrong("output_dir", visible(output_dir), "a folder")]
    found = path_problem(output_dir)
    return [Problem(f"output_dir is {visible(output_dir)}: {found}", "choose another output_dir")] if found else []
