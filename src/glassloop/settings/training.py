"""`TrainingArguments` and `DataSettings`: the settings of a training and its data, for Python, command and settings files."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

from glassloop.base.errors import SettingsError, alternatives, closest, did_you_mean, listed, shortened, visible
from glassloop.base.files import path_problem, user_path
from glassloop.base.output import say
from glassloop.base.records import Dataclass, described
from glassloop.base.records import entry as setting
from glassloop.settings.transformers_names import RENAMED, SEQUENTIAL, SETTINGS, TODAY, TRACKERS, UNNEEDED

CLASSES, SEVERAL, SCORE = "single_label_classification", "multi_label_classification", "regression"
TASKS = ("auto", CLASSES, SEVERAL, SCORE)
MAX_NAME_LENGTH = 200
MOST_SHOWN = 80  # characters of a wrong value
MOST_ROWS = 100_000_000  # that many generated rows take 25 GB
PATHS = ("data_dir", "validation", "test")
FILE_SETTINGS = ("delimiter", "header", "columns", "encoding", "sheet", "bad_rows")  # how one file is read
SCHEDULES = (
    *("linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt"),
    *("cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay"),
)
# How a run trains, what its head reads, and how a pair of texts is read.
AUTO, FINE_TUNE, FROZEN = "auto", "fine_tune", "frozen"
FAMILY_HEAD, POOLING_MODES = "head", ("mean", "cls", "max", "last")
ONE_SEQUENCE, TWO_TOWERS = "one_sequence", "two_towers"
NO_ADAPTER, LORA, ALL_LINEAR = "none", "lora", "all-linear"
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
    "method": (AUTO, FINE_TUNE, FROZEN),
    "pooling": (AUTO, FAMILY_HEAD, *POOLING_MODES),
    "pair_form": (AUTO, ONE_SEQUENCE, TWO_TOWERS),
    "adapter": (NO_ADAPTER, LORA),
}
# Settings of the steps, and of what happens between them: the method frozen takes none.
OF_STEPS = (
    *("num_train_epochs", "max_steps", "per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate"),
    *("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon"),
    *("optim", "optim_args", "max_grad_norm", "label_smoothing_factor", "group_by_length", "data_seed"),
    *("gradient_checkpointing", "dataloader_drop_last", "eval_strategy", "eval_steps", "eval_delay", "eval_on_start"),
    *("logging_strategy", "logging_steps", "logging_first_step", "save_strategy", "save_steps", "save_total_limit"),
    *("load_best_model_at_end", "metric_for_best_model", "greater_is_better", "early_stopping_patience"),
    *("early_stopping_threshold",),
)
DATA_CHOICES: dict[str, tuple[str, ...]] = {
    "task": TASKS,
    "empty": ("refuse", "keep"),
    "unknown_labels": ("refuse", "skip"),
    "bad_rows": ("refuse", "skip"),
}
KINDS = {"bool": "true or false", "int": "a whole number", "float": "a finite number", "str": "text"}

Setting = str | int | float | bool | None


def refuse_settings_of_steps(given: Mapping[str, object]) -> None:
    """Raise one `SettingsError` that names all settings of steps that a user gave for the method frozen."""
    unused = [name for name in given if name in OF_STEPS and given[name] not in (None, False)]
    if given.get("method") == FROZEN and unused:
        problem = f"method frozen takes no steps, so these settings have no effect: {listed(unused, len(unused))}"
        raise SettingsError(problem, "omit them, or use method fine_tune")


def refuse_methods(args: TrainingArguments) -> None:
    """Raise one `SettingsError` for settings that a Trainer cannot follow: its model and its rows are already made."""
    problems = []
    if args.method not in (AUTO, FINE_TUNE):
        problems.append(SettingsError(f"Trainer does not support method {args.method}", "use glassloop train --method frozen"))
    if args.pooling not in (AUTO, FAMILY_HEAD):
        remedy = 'load the model with it: load_model(…, pooling=Pooling("mean")), or use glassloop train'
        problems.append(SettingsError(f"pooling {args.pooling} has no effect on the model of a Trainer", remedy))
    if args.pair_form != AUTO:
        remedy = "choose it where the rows are tokenized, or use glassloop train"
        problems.append(SettingsError(f"pair_form {args.pair_form} has no effect on the rows of a Trainer", remedy))
    if args.adapter != NO_ADAPTER:
        remedy = "wrap the model with peft first, or use glassloop train"
        problems.append(SettingsError(f"adapter {args.adapter} has no effect on the model of a Trainer", remedy))
    refuse(problems)


def types_of(kind: type[Dataclass]) -> dict[str, str]:
    """Return the type of each setting, as it is written."""
    return {entry.name: str(entry.type) for entry in fields(kind)}


def wrong(name: str, value: object, wanted: str) -> SettingsError:
    """Return the problem of a setting whose value is not `wanted`, for example "1 or more". A long value is cut."""
    return SettingsError(f"{name} is {shortened(repr(value), MOST_SHOWN)}, not {wanted}", f"set {name} to {wanted}")


def wrong_choice(name: str, value: object, choices: Sequence[str]) -> SettingsError:
    """Return the problem of a setting that is none of its choices; the remedy is the closest one, if any is close."""
    text = f"{name} is {visible(value)}, not one of {listed(choices)}"
    return SettingsError(text, f"set {name} to {closest(str(value), choices) or alternatives(choices)}")


def refuse(problems: Sequence[SettingsError]) -> None:
    """Raise one `SettingsError` with all problems and all remedies, if there are any."""
    if problems:
        texts = dict.fromkeys(problem.problem for problem in problems)
        raise SettingsError("; ".join(texts), "; ".join(dict.fromkeys(problem.remedy for problem in problems)))


def unknown_names(
    names: Iterable[str], known: Collection[str], remedy: str, what: str = "setting", where: str = ""
) -> list[SettingsError]:
    """Return a problem for each name that is not known, with the closest one that is."""
    unknown = [name for name in names if name not in known]
    return [SettingsError(f"unknown {what} {visible(name)}{where}{did_you_mean(name, known)}", remedy) for name in unknown]


def problems_of(check: Callable[[Mapping[str, object]], object], values: Mapping[str, object]) -> list[SettingsError]:
    """Return what a function that raises `SettingsError` finds wrong with values."""
    try:
        check(values)
    except SettingsError as error:
        return [error]
    return []


# Names of settings, what each value must be, and whether a value is. None is right where the type allows it.
Rules: TypeAlias = Sequence[tuple[Sequence[str], str, Callable[[Any], object]]]


def value_problems(
    settings: Dataclass, types: Mapping[str, str], choices: Mapping[str, Sequence[str]], rules: Rules, paths: Sequence[str] = ()
) -> list[SettingsError]:
    """Return a problem for each setting that is none of its choices, breaks a rule or is an impossible path."""
    stored = vars(settings)
    problems = [wrong_choice(name, stored[name], allowed) for name, allowed in choices.items() if stored[name] not in allowed]
    for names, wanted, holds in rules:
        values = {name: stored[name] for name in names if stored[name] is not None or "None" not in types[name]}
        problems += [wrong(name, value, wanted) for name, value in values.items() if not holds(value)]
    for name in paths:
        path = stored[name]
        if isinstance(path, str | Path) and str(path) and (reason := path_problem(path)):
            problems.append(SettingsError(f"{name} is {visible(path)}: {reason}", f"set {name} to another path"))
    return problems


@described
@dataclass(frozen=True)
class DataSettings:
    """How to read the data: which columns hold texts and labels, and what to do with unusual rows.

    The command's help is generated from the same sentences. In Python, names separated by commas may also be tuples. The names
    in `label`, `labels` and `columns` may then contain commas.

    Raises:
        SettingsError: A value is not allowed. All problems are reported together.
    """

    name: str | None = setting(None, "Configuration of a hub data set, for example a language.")
    data_dir: str | None = setting(None, "Folder with the original GLUE files, or its parent folder.")
    validation: str | None = setting(None, "File with the validation rows. Default: a part of the training rows is held out.")
    test: str | None = setting(None, "File with the test rows.")
    text: str | tuple[str, ...] | None = setting(
        None, "Column with the text, or with the first text of a pair. Several columns, separated by commas, are joined."
    )
    text_pair: str | tuple[str, ...] | None = setting(None, "Column with the second text of a pair, or several to join.")
    label: str | tuple[str, ...] | None = setting(None, "Column with the label, or several 0/1 columns separated by commas.")
    labels: str | tuple[str, ...] | None = setting(None, "Label names in the order of their ids, separated by commas.")
    task: str = setting("auto", "Task to train for: " + ", ".join(TASKS) + ".")
    label_separator: str | None = setting(
        None, "Separator between several labels in one cell. Implies multi-label classification."
    )
    delimiter: str | None = setting(None, "Column delimiter. Default: comma for .csv files, tab for .tsv files.")
    header: bool | None = setting(
        None, "Whether the first row holds the column names. Without a header, columns are called column_1, column_2."
    )
    columns: str | tuple[str, ...] | None = setting(
        None, "Column names of a file without a header, separated by commas. With --header, they replace its names."
    )
    encoding: str | None = setting(None, "Encoding of text files, for example cp1252. Default: UTF-8, or the byte order mark.")
    sheet: str | None = setting(None, "Sheet of an Excel file. Default: the only sheet with cells.")
    bad_rows: str = setting(
        "refuse", "What to do with rows that cannot be read (wrong number of fields, invalid bytes): refuse or skip."
    )
    empty: str = setting("refuse", "What to do with rows whose text is empty: refuse or keep.")
    unknown_labels: str = setting(
        "refuse", "What to do with evaluation rows whose label does not occur in the training rows: refuse or skip."
    )
    validation_share: float = setting(
        0.1, "Fraction of the training rows to hold out if there is no validation split. 0 holds out none."
    )
    selection_fold: str | None = setting(
        None,
        'Part of the training rows to hold out as the split "selection", to choose settings on: 2/5 is the second of 5 folds.',
    )
    split_seed: int = setting(42, "Random seed for the held-out validation rows and for generated data. Independent of --seed.")
    limit: int | None = setting(None, "Number of rows per split to use at most, drawn at random with --split_seed.")
    rows: int | None = setting(None, "Number of training pairs to generate (quickstart data only).")

    def __post_init__(self) -> None:
        refuse(value_problems(self, types_of(DataSettings), DATA_CHOICES, DATA_RULES, PATHS))
        refuse(name_problems(self))
        for name in PATHS:
            if (path := getattr(self, name)) is not None:
                object.__setattr__(self, name, str(user_path(path)))

    def with_absolute_paths(self) -> DataSettings:
        """Return the settings with absolute paths, which hold in every working directory."""
        paths = {name: str(user_path(path).absolute()) for name in PATHS if (path := getattr(self, name))}
        return replace(self, **paths)  # type: ignore[arg-type]  # paths are texts

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Return the columns of the text that the user named."""
        return split_names(self.text)

    @property
    def pair_columns(self) -> tuple[str, ...]:
        """Return the columns of the second text that the user named."""
        return split_names(self.text_pair)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Return the names that the user gave to the columns of a file."""
        return split_names(self.columns)

    @property
    def label_columns(self) -> tuple[str, ...]:
        """Return the label columns the user named. Several columns hold 0 or 1 for one label each."""
        return split_names(self.label)

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """Return the label names the user gave, in the order of their ids."""
        return split_names(self.labels) or None

    @property
    def delimiter_sign(self) -> str | None:
        """Return the delimiter as one character: `tab` and `\\t` mean a tab."""
        return "\t" if self.delimiter in ("tab", "\\t") else self.delimiter


def data_settings(given: Mapping[str, object]) -> DataSettings:
    """Return the settings for names and values. Raise `SettingsError` for an unknown name, with the closest known one."""
    known = [entry.name for entry in fields(DataSettings)]
    refuse(unknown_names(given, known, f"use one of {listed(known, 30)}"))
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return DataSettings(**values)  # type: ignore[arg-type]  # each value is checked when the settings are made


def split_names(names: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the names in `a, b` as ("a", "b"). A tuple is returned unchanged: its names may contain commas."""
    if isinstance(names, str):
        return tuple(name.strip() for name in names.split(",") if name.strip())
    return names or ()


def are_names(value: object) -> bool:
    """Return whether a value is a name, or several that are separated by commas or in a tuple."""
    names = split_names(value) if isinstance(value, str | tuple) else ()
    return bool(names) and all(isinstance(name, str) and name for name in names)


def fold_of(text: object) -> tuple[int, int] | None:
    """Return 1/5 as (1, 5): the number of a fold and of all folds; None for anything else."""
    parts = text.split("/") if isinstance(text, str) else []
    if len(parts) != 2 or not all(part.isascii() and part.isdecimal() and len(part) < 6 for part in parts):
        return None
    number, folds = map(int, parts)
    return (number, folds) if 1 <= number <= folds >= 2 else None


def is_encoding(name: object) -> bool:
    """Return whether Python can decode text with the encoding of this name."""
    try:
        return isinstance(name, str) and "a".encode(name).decode(name) == "a"
    except (LookupError, ValueError):
        return False


DATA_RULES: Rules = (
    (["validation_share"], "a fraction from 0 to less than 1", lambda value: isinstance(value, int | float) and 0 <= value < 1),
    (["selection_fold"], "a part such as 1/10", fold_of),
    (["split_seed"], "a whole number of 0 or more", lambda value: type(value) is int and value >= 0),
    (["limit"], "a whole number of 1 or more", lambda value: type(value) is int and value >= 1),
    (["rows"], "a whole number of 10 or more", lambda value: type(value) is int and value >= 10),
    (["rows"], f"{MOST_ROWS:,} or less", lambda value: not isinstance(value, int) or value <= MOST_ROWS),
    (
        ["delimiter"],
        "a single character (write tab for a tab)",
        lambda value: value in ("tab", "\\t") or (isinstance(value, str) and len(value) == 1 and value not in '"\r\n'),
    ),
    (["label_separator"], "one or more characters", lambda value: isinstance(value, str) and value),
    (["header"], "true or false", lambda value: isinstance(value, bool)),
    (["encoding"], "an encoding of text that Python knows, such as utf-8, latin-1, cp1252 or utf-16", is_encoding),
    (["data_dir"], "a folder", lambda value: isinstance(value, str | Path) and str(value)),
    (["validation", "test"], "a file", lambda value: isinstance(value, str | Path) and str(value)),
    (["text", "text_pair", "label", "labels", "columns"], "a name", are_names),
    (["name", "sheet"], "a name", lambda value: isinstance(value, str) and value),
)


def name_problem(name: str) -> str | None:
    """Return why `name` cannot name a label, a column or a model, or None if it can."""
    if len(name) > MAX_NAME_LENGTH:
        return f"the name {visible(name, 40)} has {len(name):,} characters; at most {MAX_NAME_LENGTH} are allowed"
    if any("\ud800" <= sign <= "\udfff" for sign in name):
        return f"the name {visible(name)} contains invalid Unicode"
    if any(ord(sign) < 32 or ord(sign) == 127 for sign in name):
        return f"the name {visible(name)} contains a line break or another control character"
    return None


def name_problems(settings: DataSettings) -> list[SettingsError]:
    """Return what is wrong with the names of columns and labels, alone and together."""
    columns = [*settings.text_columns, *settings.pair_columns, *settings.label_columns]
    labels = settings.label_names or ()
    names = [*columns, *labels, *settings.column_names, settings.name or "", settings.sheet or ""]
    problems = [SettingsError(text, "use a shorter or printable name") for name in names if (text := name_problem(name))]
    if settings.text_pair is not None and settings.text is None:
        problems.append(SettingsError("text_pair is set, but text is not", "set text to the column with the first text"))
    for what, several in (("column", columns), ("column", settings.column_names), ("label", labels)):
        twice = repeated(several)
        problems += [SettingsError(f"{what} {visible(name)} is named twice", f"name each {what} once") for name in twice]
    several_texts = [texts for texts in (settings.text, settings.text_pair) if isinstance(texts, tuple) and len(texts) > 1]
    for name in (name for texts in several_texts for name in texts if "," in name):
        problems.append(SettingsError(f"column {visible(name)} contains a comma and cannot be joined", "rename the column"))
    return problems


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once, in their order."""
    return [name for name, count in Counter(names).items() if count > 1]


def refuse_invalid_bytes(arguments: Sequence[str]) -> None:
    """Raise `SettingsError` for a command-line argument that is not UTF-8, which cannot be recorded in a file."""
    for argument in arguments:
        if any("\ud800" <= sign <= "\udfff" for sign in argument):
            raise SettingsError(f"the argument {visible(argument)} is not UTF-8", "rename the file, or write the text in UTF-8")


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
    method: str = setting(
        AUTO,
        "Training method: fine_tune (all weights), frozen (a linear head on the embeddings of the encoder), or auto "
        "(fine_tune, unless a regression on the embeddings of few rows learns nothing).",
    )
    pooling: str = setting(
        AUTO,
        "How token vectors are pooled for the classification head: mean or max of all tokens, cls (the first token), last "
        "(the last token), head (the classification head of the model family), or auto (what the model was trained with; "
        "head for GLUE).",
    )
    pair_form: str = setting(
        AUTO,
        "How a pair is encoded: one_sequence (both texts together), two_towers (each text encoded separately), or auto "
        "(chosen from the number of rows).",
    )
    adapter: str = setting(
        NO_ADAPTER, "Adapter: none (all weights are trained), or lora (low-rank adapters and the head; needs glassloop[peft])."
    )
    lora_r: int = setting(8, "Rank of LoRA.")
    lora_alpha: int = setting(16, "Scale of LoRA: its contribution is multiplied by lora_alpha / lora_r.")
    lora_dropout: float = setting(0.05, "Dropout of the inputs of LoRA.")
    lora_target_modules: str = setting(
        ALL_LINEAR, "Linear layers of the encoder with LoRA: names such as query,value, or all-linear."
    )
    baselines: bool = setting(
        True, "Fit simple baselines before training and compare the run with them. Disable with --no_baselines."
    )
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
    save_strategy: str = setting(
        "epoch",
        "When to save a checkpoint: no, steps, epoch, best (the best evaluation so far). With epoch, glassloop train leaves "
        "out a checkpoint while the one before is still being written.",
    )
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
            problems.append(SettingsError("train_sampling_strategy sequential is not supported here", "use glassloop.Trainer"))
        refuse([*problems, *unfit.values(), *(one for one in wrong_values(self) if not {*one.problem.split()} & {*unfit})])
        if self.output_dir is not None:
            object.__setattr__(self, "output_dir", str(user_path(self.output_dir)))

    def check(self) -> None:
        """Raise `SettingsError` with everything that is wrong with the values."""
        refuse([*wrong_types(self).values()] or wrong_values(self))

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


TYPES = types_of(TrainingArguments)  # once: HfArgumentParser replaces the types of fields


def training_arguments(given: Mapping[str, object]) -> TrainingArguments:
    return TrainingArguments(**given)  # type: ignore[arg-type]  # each value is checked when the settings are made


def translated(given: Mapping[str, object], kind: type[TrainingArguments]) -> tuple[dict[str, object], list[SettingsError]]:
    """Return the settings under their present names, and a problem for each name that is not accepted or has two values."""

    def quoted(value: object) -> str:
        return visible(value) if isinstance(value, str) else str(value)

    known = {entry.name: entry.default for entry in fields(kind)}
    settings: dict[str, object] = {}
    renamed: list[tuple[str, str, object]] = []  # the old name, the present one, and its value
    unneeded: list[str] = []
    problems = []
    has_precision = given.get("precision", "auto") != "auto" or given.get("fp16") or given.get("bf16")
    for name, value in given.items():
        theirs = SETTINGS.get(name)
        value = value.value if isinstance(value, Enum) else value  # transformers' strategies
        value = value.type if name == "device" and hasattr(value, "type") else value  # a device of torch
        value = TODAY.get(name, {}).get(str(value), value)
        if name in known and theirs is None:
            value = json.dumps(value, default=str) if isinstance(value, dict) else value
            settings[name] = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
        elif theirs is None:
            problems += unknown_names([name], known, "glassloop train --help lists all settings")
        elif value is None or value == theirs.default:
            continue
        elif not value and (name == "fp16" or (name == "bf16" and has_precision)):
            continue  # bf16=False alone means fp32; the fastest safe precision is never fp16
        elif name == "warmup_ratio" and isinstance(value, int | float) and not 0 <= value < 1:
            problems.append(wrong("warmup_ratio", value, "a fraction from 0 to less than 1"))
        elif theirs.outcome != RENAMED and theirs.refuses(value):
            problems.append(SettingsError(f"{name} is not supported", f"{name}: {theirs.text}"))
        elif theirs.outcome == UNNEEDED:
            unneeded.append(name)
        else:  # a setting that is only kept is read by scripts under its old name, too
            if theirs.outcome == RENAMED and value is not False:
                say(f"{name} {theirs.text}")
            renamed += [(name, today, meant) for today, meant in theirs.translate(value).items()]
    if unneeded:
        say(f"settings without effect: {listed(unneeded, 20)} (the page Scripts for transformers says why)")
    origins = {name: quoted(value) for name, value in settings.items()}
    for name, today, value in renamed:
        if name == "warmup_ratio" and settings.get(today, 0) not in (0, value):  # the rule of transformers
            say(f"warmup_ratio {value} has no effect: warmup_steps {origins[today]} is set")
            continue
        if settings.get(today, known[today]) not in (known[today], value):
            text = f"{today} is set twice: {origins[today]}, and {quoted(value)} as {name}"
            problems.append(SettingsError(text, f"set {today} once"))
        settings[today] = value
        origins[today] = f"{quoted(value)} as {name}"
    return settings, problems


def wrong_types(args: TrainingArguments) -> dict[str, SettingsError]:
    """Return a problem for each setting whose value has the wrong type. A whole number is accepted as a fraction."""

    def fits(value: object, kinds: str) -> bool:
        match value:
            case None:
                return "None" in kinds
            case bool() | str():
                return type(value).__name__ in kinds
            case int():
                return "int" in kinds or "float" in kinds
            case float():
                return "float" in kinds and math.isfinite(value)
        return False

    values = vars(args)
    unfit = {name: kinds for name, kinds in TYPES.items() if not fits(values[name], kinds)}
    return {name: wrong(name, values[name], KINDS[kinds.removesuffix(" | None")]) for name, kinds in unfit.items()}


def is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text or "{}"), dict)
    except ValueError:
        return False


RULES: Rules = (
    (["per_device_train_batch_size", "per_device_eval_batch_size"], "1 or more", lambda value: value >= 1),
    (["gradient_accumulation_steps", "save_total_limit", "max_length"], "1 or more", lambda value: value >= 1),
    (["pad_to_multiple_of", "early_stopping_patience"], "1 or more", lambda value: value >= 1),
    (["learning_rate", "weight_decay", "max_grad_norm", "warmup_steps"], "0 or more", lambda value: value >= 0),
    (["seed", "data_seed", "eval_delay", "early_stopping_threshold"], "0 or more", lambda value: value >= 0),
    (
        ["logging_steps", "eval_steps", "save_steps"],
        "a whole number of 1 or more, or a fraction of all steps",
        lambda value: value > 0 and (value <= 1 or value == int(value)),
    ),
    (["seed"], "below 2**63", lambda value: value < 2**63),
    (["adam_beta1", "adam_beta2", "label_smoothing_factor"], "a fraction from 0 to less than 1", lambda value: 0 <= value < 1),
    (["lora_r"], "1 or more", lambda value: value >= 1),
    (["lora_dropout"], "a fraction from 0 to less than 1", lambda value: 0 <= value < 1),
    (["adam_epsilon", "lora_alpha"], "above 0", lambda value: value > 0),
    (["max_steps"], "1 or more (or -1)", lambda value: value == -1 or value >= 1),
    (["run_name"], "a name", lambda value: value not in (".", "..")),
    (["lr_scheduler_kwargs"], 'JSON such as {"num_cycles": 2}', is_json_object),
    (["output_dir"], "a folder", lambda value: value.strip() and "\n" not in value),
)


def wrong_values(args: TrainingArguments) -> list[SettingsError]:
    """Return a problem for each value or combination of values that is not allowed."""
    problems = value_problems(args, TYPES, CHOICES, RULES, ("output_dir",))
    if args.num_train_epochs <= 0 and args.max_steps < 1:
        text = f"num_train_epochs is {args.num_train_epochs} and max_steps is {args.max_steps}, so there is nothing to train"
        problems.append(SettingsError(text, "set num_train_epochs above 0, or max_steps to 1 or more"))
    if args.adapter != NO_ADAPTER and args.method == FROZEN:
        problems.append(SettingsError("method frozen takes no steps, so an adapter has no effect", "omit adapter or method"))
    of_lora = {entry.name: entry.default for entry in fields(args) if entry.name.startswith("lora_")}
    if args.adapter == NO_ADAPTER and (set_names := [name for name in of_lora if getattr(args, name) != of_lora[name]]):
        problems.append(SettingsError(f"{listed(set_names)} without an adapter has no effect", f"set adapter to {LORA}"))
    wanted = {"load_best_model_at_end": args.load_best_model_at_end, "early_stopping_patience": args.early_stopping_patience}
    for name, value in {**wanted, "save_strategy best": args.save_strategy == "best"}.items():
        if args.eval_strategy == "no" and value not in (None, False):
            text = f"{name} needs evaluations, but eval_strategy is no"
            problems.append(SettingsError(text, "set eval_strategy to steps or epoch"))
    for name in args.trackers:
        if name not in TRACKERS:
            text = f"report_to lists {visible(name)}, not one of {listed(TRACKERS)}{did_you_mean(name, TRACKERS)}"
            problems.append(SettingsError(text, "name a supported tracker, or none"))
    if args.run_name and (text := name_problem(args.run_name) or ""):
        problems.append(SettingsError(text, "choose another run_name"))
    return problems


def launched_processes() -> int:
    """Return how many processes of this program a launcher (torchrun, accelerate launch, mpirun) has started."""
    names = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
    name = next((name for name in names if name in os.environ), None)
    if name is None:
        return 1
    text = os.environ[name]
    if not re.fullmatch("[1-9][0-9]{0,5}", text):
        raise SettingsError(f"the variable {name} is {visible(text)}, not a number of processes", f"unset {name}")
    return int(text)
