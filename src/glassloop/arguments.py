"""`TrainingArguments`: the one set of training settings, for Python, for the command and for the TOML file."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from glassloop.errors import SettingsError, did_you_mean, listed, say, visible
from glassloop.files import path_problem, user_path
from glassloop.settings import name_problem, setting

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
CHOICES: dict[str, tuple[str, ...]] = {
    "eval_strategy": ("no", "steps", "epoch"),
    "save_strategy": ("no", "steps", "epoch"),
    "lr_scheduler_type": SCHEDULES,
    "optim": ("adamw_torch_fused", "adamw_torch"),
    "precision": ("auto", "fp32", "bf16", "fp16"),
    "device": ("auto", "cpu", "cuda", "mps"),
    "backend": ("auto", "plain", "packed", "graphs", "accelerate"),
}
TRACKERS = ("none", "tensorboard", "wandb", "trackio")
# Names of other versions: what is said about each, and the settings it means here. None: it is accepted and changes nothing.
RENAMED: dict[str, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    "evaluation_strategy": ("is now called eval_strategy", lambda value: {"eval_strategy": value}),
    "no_cuda": ('is now called device="cpu"', lambda value: {"device": "cpu"} if value else {}),
    "use_cpu": ('is now called device="cpu"', lambda value: {"device": "cpu"} if value else {}),
    "fp16": ('is now called precision="fp16"', lambda value: {"precision": "fp16"} if value else {}),
    "bf16": ('is now called precision="bf16"', lambda value: {"precision": "bf16"} if value else {}),
    "warmup_ratio": (
        "is now called warmup_steps (a number below 1 is a share of all steps)",
        lambda value: {"warmup_steps": value} if value else {},
    ),
    "per_gpu_train_batch_size": (
        "is now called per_device_train_batch_size",
        lambda value: {"per_device_train_batch_size": value},
    ),
    "per_gpu_eval_batch_size": (
        "is now called per_device_eval_batch_size",
        lambda value: {"per_device_eval_batch_size": value},
    ),
    "remove_unused_columns": (
        "has no effect: columns that the model does not accept are dropped and reported",
        lambda value: {},
    ),
    "train_sampling_strategy": (
        "is now called group_by_length",
        lambda value: {"group_by_length": value == "group_by_length"},
    ),
}
# Known elsewhere, not here: what to do instead.
REFUSED = {
    "dataloader_num_workers": "leave it away: batches come from memory-mapped rows and need no workers",
    "torch_compile": "leave it away: compiling costs more than a fine-tune lasts",
    "deepspeed": "use --processes or torchrun; FSDP comes from accelerate's config file (docs/how-to/processes.md)",
    "fsdp": "use accelerate launch with a config of distributed_type FSDP and fsdp_version 2 (docs/how-to/processes.md)",
    "push_to_hub": "call trainer.save_model(), then huggingface-cli upload",
    "auto_find_batch_size": "set per_device_train_batch_size and gradient_accumulation_steps",
    "neftune_noise_alpha": "leave it away: it changes the maths",
}


@dataclass(unsafe_hash=True)  # not frozen: its error would not say what to do instead
class TrainingArguments:
    """How a run trains. Checked when made, all problems are reported together, and never changed afterwards."""

    output_dir: str | None = setting(None, "Folder for everything the run leaves behind; by default the next runs/run-001.")
    overwrite_output_dir: bool = setting(False, "Start again in a folder that holds a run; what is there is moved aside.")
    num_train_epochs: float = setting(3.0, "Passes over the training examples.")
    max_steps: int = setting(-1, "Stop after so many steps, whatever the number of epochs; -1: never.")
    per_device_train_batch_size: int = setting(8, "Training rows in a batch on each device.")
    per_device_eval_batch_size: int = setting(32, "Rows in a batch of evaluation or prediction on each device.")
    gradient_accumulation_steps: int = setting(1, "Batches whose gradients are added up before a step.")
    learning_rate: float = setting(5e-5, "Highest learning rate of the schedule.")
    lr_scheduler_type: str = setting("linear", "Schedule of the learning rate: " + ", ".join(SCHEDULES) + ".")
    lr_scheduler_kwargs: str | None = setting(None, 'Further settings of the schedule, as JSON: {"num_cycles": 2}.')
    warmup_steps: float = setting(0.0, "Steps in which the rate rises from 0; below 1: a share of all steps.")
    weight_decay: float = setting(0.0, "Decoupled weight decay; biases and normalisation weights are left out.")
    adam_beta1: float = setting(0.9, "AdamW's first decay rate.")
    adam_beta2: float = setting(0.999, "AdamW's second decay rate.")
    adam_epsilon: float = setting(1e-8, "AdamW's epsilon.")
    optim: str = setting("adamw_torch_fused", "Optimizer: adamw_torch_fused, adamw_torch.")
    max_grad_norm: float = setting(1.0, "Gradients are scaled down to this norm; 0: never.")
    label_smoothing_factor: float = setting(0.0, "Share of each label spread over all classes.")
    class_weights: str | None = setting(None, "Weight of each class: balanced, or numbers separated by commas.")
    positive_label: str | None = setting(
        None, "Class whose F1 is reported. Default: class 1 where labels are 0 and 1, else the mean over classes (macro)."
    )
    max_length: int | None = setting(None, "Most tokens a row may have; by default what the model takes.")
    group_by_length: bool = setting(False, "Put rows of like length into a batch: less padding.")
    pad_to_multiple_of: int | None = setting(None, "Pad batches up to a multiple of so many tokens.")
    dataloader_drop_last: bool = setting(False, "Leave out the last batch of an epoch if it is short.")
    seed: int = setting(42, "Seed of everything random: fresh weights, dropout, order of the rows.")
    data_seed: int | None = setting(None, "Another seed for the order of the rows alone.")
    precision: str = setting("auto", "fp32, bf16, fp16, or auto: the fastest kind that is safe on the device.")
    device: str = setting("auto", "cuda, mps, cpu, or auto: the first of these that is there.")
    backend: str = setting("auto", "How a step is run: plain, packed, graphs, accelerate, or auto: the fastest that can.")
    eval_strategy: str = setting("no", "When to evaluate while training: no, steps, epoch.")
    eval_steps: int | None = setting(None, "Steps between evaluations; by default logging_steps.")
    eval_on_start: bool = setting(False, "Evaluate before the first step too.")
    logging_steps: int = setting(10, "Steps between two records of loss and learning rate.")
    save_strategy: str = setting("epoch", "When to write a checkpoint: no, steps, epoch.")
    save_steps: int = setting(500, "Steps between two checkpoints.")
    save_total_limit: int | None = setting(2, "Newest checkpoints to keep; that of the best evaluation stays as well.")
    load_best_model_at_end: bool = setting(False, "End with the weights of the best evaluation.")
    metric_for_best_model: str | None = setting(None, "The figure that decides which is best; by default the loss.")
    greater_is_better: bool | None = setting(None, "Whether more is better; by default for all but the loss.")
    early_stopping_patience: int | None = setting(None, "Stop after so many evaluations without a better one.")
    early_stopping_threshold: float = setting(0.0, "A smaller gain than this is none.")
    report_to: str = setting("none", "Trackers to report to, separated by commas: " + ", ".join(TRACKERS) + ".")
    run_name: str | None = setting(None, "The run's name in trackers and reports.")
    disable_tqdm: bool = setting(False, "Plain lines instead of a progress bar.")

    def __init__(self, output_dir: str | None = None, **given: Any) -> None:
        if output_dir is not None:
            given["output_dir"] = str(output_dir)
        defaults = {entry.name: entry.default for entry in fields(type(self))}
        settings, problems = translated(given, type(self))
        for name, value in (defaults | settings).items():
            object.__setattr__(self, name, value)
        unfit = wrong_types(self)
        for name in unfit:  # so that the rest can be looked at; what is said about these would be about their defaults
            object.__setattr__(self, name, defaults[name])
        problems += [*unfit.values(), *(line for line in impossible(self) if not {*line.split()} & {*unfit})]
        if problems:
            raise SettingsError("; ".join(problems), "glassloop train --help lists every setting")
        if self.output_dir is not None:
            object.__setattr__(self, "output_dir", str(user_path(self.output_dir)))

    def __setattr__(self, name: str, value: object) -> None:
        problem = f"{name} cannot be changed: settings are checked once, when they are made"
        raise SettingsError(problem, f"make new settings: dataclasses.replace(args, {name}=…)")

    def __delattr__(self, name: str) -> None:
        setattr(self, name, None)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def trackers(self) -> tuple[str, ...]:
        """The trackers asked for, without `none`."""
        return tuple(name.strip() for name in self.report_to.split(",") if name.strip() not in ("", "none"))


def translated(given: Mapping[str, Any], kind: type) -> tuple[dict[str, Any], list[str]]:
    """The settings under their present names, and one sentence for each name or combination of names that is refused.

    Each old name is reported in a line. A setting that has two values under two names is refused, unless one is its default.
    """
    known = {entry.name: entry.default for entry in fields(kind)}
    settings: dict[str, Any] = {}
    renamed: list[tuple[str, str, Any]] = []  # the old name, the present one, and its value
    problems = []
    for name, value in given.items():
        if name in known:
            value = json.dumps(value) if isinstance(value, dict) else value
            settings[name] = ",".join(value) if isinstance(value, list | tuple) else value
        elif name == "warmup_ratio" and isinstance(value, int | float) and not 0 <= value < 1:
            problems.append(f"warmup_ratio is {value}, not from 0 to below 1")
        elif name in RENAMED:
            about, translate = RENAMED[name]
            say(f"{name} {about}")
            renamed += [(name, today, meant) for today, meant in translate(value).items()]
        elif name in REFUSED:
            problems.append(f"{name} is not supported: {REFUSED[name]}")
        else:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            problems.append(f"unknown setting {visible(name)}" + (f'; did you mean "{near[0]}"?' if near else ""))
    origins = {name: shown(value) for name, value in settings.items()}
    for name, today, value in renamed:
        if settings.get(today, known[today]) not in (known[today], value):
            problems.append(f"{today} is given twice: {origins[today]}, and {shown(value)} as {name}")
        settings[today], origins[today] = value, f"{shown(value)} as {name}"
    return settings, problems


def shown(value: object) -> str:
    """A value as a person writes it."""
    return visible(value) if isinstance(value, str) else str(value)


def wrong_types(args: TrainingArguments) -> dict[str, str]:
    """One sentence for each setting whose value is of the wrong kind. Whole numbers are taken for fractions."""
    problems = {}
    for entry in fields(args):
        value, kinds = getattr(args, entry.name), str(entry.type)
        if value is None and "None" in kinds:
            continue
        good = (
            ("bool" in kinds and isinstance(value, bool))
            or ("str" in kinds and isinstance(value, str))
            or ("int" in kinds and isinstance(value, int) and not isinstance(value, bool))
            or ("float" in kinds and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value))
        )
        if not good:
            kind = kinds.replace(" | None", "").replace("float", "a finite number")
            problems[entry.name] = f"{entry.name} is {value!r}, not {kind}"
    return problems


def impossible(args: TrainingArguments) -> list[str]:
    """One sentence for each value or combination that cannot be meant."""
    problems = []
    for name, allowed in CHOICES.items():
        if (value := getattr(args, name)) not in allowed:
            problems.append(f"{name} is {visible(value)}, not one of {listed(allowed)}{did_you_mean(value, allowed)}")
    for name in ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "logging_steps",
                 "save_steps", "save_total_limit", "eval_steps", "max_length", "pad_to_multiple_of",
                 "early_stopping_patience"):  # fmt: skip
        if (value := getattr(args, name)) is not None and value < 1:
            problems.append(f"{name} is {value}, not 1 or more")
    for name in ("learning_rate", "weight_decay", "max_grad_norm", "warmup_steps", "seed", "data_seed",
                 "early_stopping_threshold"):  # fmt: skip
        if (value := getattr(args, name)) is not None and value < 0:
            problems.append(f"{name} is {value}, not 0 or more")
    if args.seed >= 2**63:
        problems.append(f"seed is {args.seed}, not below 2**63")
    for name in ("adam_beta1", "adam_beta2", "label_smoothing_factor"):
        if not 0 <= getattr(args, name) < 1:
            problems.append(f"{name} is {getattr(args, name)}, not between 0 and 1")
    if args.adam_epsilon <= 0:
        problems.append(f"adam_epsilon is {args.adam_epsilon}, not above 0")
    if args.num_train_epochs <= 0 and args.max_steps < 1:
        problems.append(f"num_train_epochs is {args.num_train_epochs} and max_steps {args.max_steps}: nothing to train")
    if args.max_steps != -1 and args.max_steps < 1:
        problems.append(f"max_steps is {args.max_steps}, not 1 or more (or -1)")
    if args.eval_strategy == "no" and args.load_best_model_at_end:
        problems.append("load_best_model_at_end needs eval_strategy steps or epoch")
    if args.eval_strategy == "no" and args.early_stopping_patience is not None:
        problems.append("early_stopping_patience needs eval_strategy steps or epoch")
    for name in args.trackers:
        if name not in TRACKERS:
            problems.append(f"report_to names {visible(name)}, not one of {listed(TRACKERS)}{did_you_mean(name, TRACKERS)}")
    if args.run_name and (problem := name_problem(args.run_name)):
        problems.append(problem)
    elif args.run_name and ("/" in args.run_name or args.run_name in (".", "..")):
        problems.append(f"run_name is {visible(args.run_name)}, not a name without /")
    try:
        is_object = isinstance(json.loads(args.lr_scheduler_kwargs or "{}"), dict)
    except ValueError:
        is_object = False
    if not is_object:
        problems.append(f'lr_scheduler_kwargs is {visible(args.lr_scheduler_kwargs)}, not JSON such as {{"num_cycles": 2}}')
    if args.output_dir is None:
        return problems
    if not args.output_dir.strip() or "\n" in args.output_dir:
        problems.append(f"output_dir is {visible(args.output_dir)}, not a folder")
    elif problem := path_problem(args.output_dir):
        problems.append(f"output_dir is {visible(args.output_dir)}: {problem}")
    return problems
