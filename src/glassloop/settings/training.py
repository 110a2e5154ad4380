"""`TrainingArguments` and `DataSettings`: the settings of a training and its data, for Python, command and settings files."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from glassloop.base.errors import SettingsError, alternatives, closest, did_you_mean, listed, visible
from glassloop.base.files import path_problem, user_path
from glassloop.base.output import say
from glassloop.settings.transformers_names import RENAMED, SEQUENTIAL, SETTINGS, TODAY, TRACKERS, UNNEEDED

if TYPE_CHECKING:
    from glassloop.base.records import Dataclass


CLASSES, SEVERAL, SCORE = "single_label_classification", "multi_label_classification", "regression"


TASKS = ("auto", CLASSES, SEVERAL, SCORE)


MAX_NAME_LENGTH = 200


MOST_SHOWN = 80  # characters of a wrong value


MOST_ROWS = 100_000_000  # that many generated rows take 25 GB


PATHS = ("data_dir", "validation", "test")


FILE_SETTINGS = ("delimiter", "header", "columns", "encoding", "sheet", "bad_rows")  # how one file is read


Default = TypeVar("Default")


Kind = TypeVar("Kind", bound="Dataclass")


def setting(default: Default, help_text: str) -> Default:
    """Return a dataclass field with its default and its sentence of help."""
    found: Default = field(default=default, metadata={"help": help_text})
    return found


def described(kind: type[Kind]) -> type[Kind]:
    """Add the help sentence of each setting to the docstring of a settings class, for `help()` and editors."""
    lines = [f"    {entry.name}: {entry.metadata['help']}" for entry in fields(kind)]
    kind.__doc__ = "\n".join([cleandoc(kind.__doc__ or ""), "", "Attributes:", *lines])
    return kind


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with the settings, and how to correct it."""

    text: str
    remedy: str


def wrong(name: str, value: object, wanted: str) -> Problem:
    """Return the problem of a setting whose value is not `wanted`, for example "1 or more". A long value is cut."""
    shown = str(value)
    shown = shown if len(shown) <= MOST_SHOWN else f"{shown[: MOST_SHOWN - 1]}…"
    return Problem(f"{name} is {shown}, not {wanted}", f"set {name} to {wanted}")


def wrong_choice(name: str, value: object, choices: Sequence[str]) -> Problem:
    """Return the problem of a setting that is none of its choices; the remedy is the closest one, if any is close."""
    text = f"{name} is {visible(value)}, not one of {listed(choices)}"
    near = closest(str(value), choices)
    return Problem(text, f"set {name} to {near}" if near else f"set {name} to {alternatives(choices)}")


def refuse(problems: Sequence[Problem]) -> None:
    """Raise one `SettingsError` with all problems and all remedies, if there are any."""
    if problems:
        texts, remedies = (dict.fromkeys(parts) for parts in zip(*((one.text, one.remedy) for one in problems), strict=True))
        raise SettingsError("; ".join(texts), "; ".join(remedies))


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
        refuse(data_problems(self))
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


def data_problems(settings: DataSettings) -> list[Problem]:
    """Return what is wrong with the value of each setting."""
    problems = []
    skipping = ("refuse", "skip")
    choices = {"task": TASKS, "empty": ("refuse", "keep"), "unknown_labels": skipping, "bad_rows": skipping}
    for choice, allowed in choices.items():
        if (value := getattr(settings, choice)) not in allowed:
            problems.append(wrong_choice(choice, value, allowed))
    share = settings.validation_share
    if not (isinstance(share, int | float) and 0 <= share < 1):
        problems.append(wrong("validation_share", repr(share), "a fraction from 0 to less than 1"))
    if settings.selection_fold is not None and fold_of(settings.selection_fold) is None:
        problems.append(wrong("selection_fold", repr(settings.selection_fold), "a part such as 1/10"))
    for whole, least in (("split_seed", 0), ("limit", 1), ("rows", 10)):
        value = getattr(settings, whole)
        is_given = value is not None or whole == "split_seed"
        if is_given and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            problems.append(wrong(whole, repr(value), f"a whole number of {least} or more"))
    if isinstance(settings.rows, int) and settings.rows > MOST_ROWS:
        problems.append(wrong("rows", f"{settings.rows:,}", f"{MOST_ROWS:,} or less"))
    sign = settings.delimiter_sign
    if sign is not None and (not isinstance(sign, str) or len(sign) != 1 or sign in '"\r\n'):
        problems.append(wrong("delimiter", visible(settings.delimiter), "a single character (write tab for a tab)"))
    separator = settings.label_separator
    if separator is not None and (not isinstance(separator, str) or not separator):
        problems.append(wrong("label_separator", repr(separator), "one or more characters"))
    if settings.header is not None and not isinstance(settings.header, bool):
        problems.append(wrong("header", repr(settings.header), "true or false"))
    if settings.encoding is not None and not is_encoding(settings.encoding):
        text = f"encoding is {visible(settings.encoding)}, which is not an encoding of text that Python knows"
        problems.append(Problem(text, "use a name such as utf-8, latin-1, cp1252 or utf-16"))
    for named in PATHS:
        path, kind = getattr(settings, named), "folder" if named == "data_dir" else "file"
        if path is not None and (not isinstance(path, str | Path) or not str(path)):
            problems.append(wrong(named, repr(path), f"a {kind}"))
        elif path is not None and (found := path_problem(path)):
            problems.append(Problem(f"{named} is {visible(path)}: {found}", f"set {named} to an existing {kind}"))
    for named in ("text", "text_pair", "label", "labels", "columns", "name", "sheet"):
        value = getattr(settings, named)
        several = named not in ("name", "sheet") and isinstance(value, str | tuple)
        parts = split_names(value) if several else (value,)
        if value is not None and not (parts and all(isinstance(part, str) and part for part in parts)):
            problems.append(wrong(named, repr(value), "a name"))
    return problems


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


def name_problems(settings: DataSettings) -> list[Problem]:
    """Return what is wrong with the names of columns and labels, alone and together."""
    columns = [*settings.text_columns, *settings.pair_columns, *settings.label_columns]
    names = [*columns, *(settings.label_names or ()), *settings.column_names]
    names += [name for name in (settings.name, settings.sheet) if name]
    problems = [Problem(found, "use a shorter or printable name") for name in names if (found := name_problem(name))]
    if settings.text_pair is not None and settings.text is None:
        problems.append(Problem("text_pair is set, but text is not", "set text to the column with the first text"))
    for name in (*repeated(columns), *repeated(settings.column_names)):
        problems.append(Problem(f"column {visible(name)} is named twice", "name each column once"))
    for given in (settings.text, settings.text_pair):
        for name in given if isinstance(given, tuple) and len(given) > 1 else ():
            if "," in name:
                problems.append(Problem(f"column {visible(name)} contains a comma and cannot be joined", "rename the column"))
    for name in repeated(settings.label_names or ()):
        problems.append(Problem(f"label {visible(name)} is named twice", "name each label once"))
    return problems


def refuse_invalid_bytes(arguments: Sequence[str]) -> None:
    """Raise `SettingsError` for a command-line argument that is not UTF-8, which cannot be recorded in a file."""
    for argument in arguments:
        if any("\ud800" <= sign <= "\udfff" for sign in argument):
            raise SettingsError(f"the argument {visible(argument)} is not UTF-8", "rename the file, or write the text in UTF-8")


def data_settings(given: Mapping[str, object]) -> DataSettings:
    """Return the settings for names and values. Raise `SettingsError` for an unknown name, with the closest known one."""
    known = [entry.name for entry in fields(DataSettings)]
    unknown = [f"unknown setting {visible(name)}{did_you_mean(name, known)}" for name in given if name not in known]
    if unknown:
        raise SettingsError("; ".join(unknown), f"use one of {listed(known, 30)}")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return DataSettings(**values)  # type: ignore[arg-type]  # each value is checked when the settings are made


def split_names(names: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the names in `a, b` as ("a", "b"). A tuple is returned unchanged: its names may contain commas."""
    if isinstance(names, str):
        return tuple(name.strip() for name in names.split(",") if name.strip())
    return names or ()


def repeated(names: Sequence[str]) -> list[str]:
    """Return the names that occur more than once, in their order."""
    return [name for name, count in Counter(names).items() if count > 1]


def name_problem(name: str) -> str | None:
    """Return why `name` cannot name a label, a column or a model, or None if it can."""
    if len(name) > MAX_NAME_LENGTH:
        return f"the name {visible(name, 40)} has {len(name):,} characters; at most {MAX_NAME_LENGTH} are allowed"
    if any("\ud800" <= sign <= "\udfff" for sign in name):
        return f"the name {visible(name)} contains invalid Unicode"
    if any(ord(sign) < 32 or ord(sign) == 127 for sign in name):
        return f"the name {visible(name)} contains a line break or another control character"
    return None


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
