"""`glassloop.TrainingArguments`: the training settings as scripts for transformers use and read them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, fields
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from glassloop.base.errors import SettingsError, did_you_mean, visible
from glassloop.base.files import user_path
from glassloop.settings.training import Setting, refuse, translated
from glassloop.settings.training import TrainingArguments as Settings
from glassloop.settings.transformers_names import KEPT, RENAMED, SETTINGS, Setters

if TYPE_CHECKING:
    import torch
    from transformers.training_args import ParallelMode


Stored = Mapping[str, object]

OUTPUT_DIR, LOGGING_STEPS, EVAL_STEPS = "trainer_output", 10, 500
OWN = {entry.name: entry.default for entry in fields(Settings)}


def best_metric(stored: Stored) -> object:
    """Return the metric of the best evaluation: the loss, if only the best model is asked for."""
    return stored["metric_for_best_model"] or ("loss" if stored["load_best_model_at_end"] else None)


def greater_is_better(stored: Stored) -> object:
    metric = best_metric(stored)
    return not str(metric).endswith("loss") if stored["greater_is_better"] is None and metric else stored["greater_is_better"]


def eval_steps(stored: Stored) -> object:
    """Return the steps between evaluations: those between log entries, if only these are given."""
    return stored["eval_steps"] or (stored["logging_steps"] or EVAL_STEPS if stored["eval_strategy"] == "steps" else None)


def debug_options(stored: Stored) -> object:
    from transformers.debug_utils import DebugOption

    options = stored.get("debug") or ""
    return [DebugOption(name) for name in (options.split() if isinstance(options, str) else options)]  # type: ignore[attr-defined]


def compiles(stored: Stored) -> bool:
    """Return whether the settings ask for compiling, also by its mode or backend alone."""
    return any(stored.get(f"torch_compile{part}") for part in ("", "_mode", "_backend"))


def tokens_seen(stored: Stored) -> object:
    """Return which input tokens are counted, in words."""
    value = stored.get("include_num_input_tokens_seen")
    return "all" if value is True else value or "no"


def torch_device(stored: Mapping[str, object]) -> torch.device:
    """Return the device that a Trainer has chosen, or would choose for these settings, as transformers does."""
    import torch

    from glassloop.backends.choose import choose_device

    name = str(stored.get("_device") or stored["device"])
    name = choose_device(name) if name == "auto" else name
    return torch.device(name, int(os.environ.get("LOCAL_RANK", "0"))) if name == "cuda" else torch.device(name)


# How each setting is read whose stored value is not what transformers would return.
READ_AS: dict[str, Callable[[Stored], object]] = {
    "fp16": lambda stored: stored["precision"] == "fp16",
    "bf16": lambda stored: stored["precision"] == "bf16",
    **dict.fromkeys(("device", "_setup_devices"), torch_device),  # the second is an older name
    "output_dir": lambda stored: stored["output_dir"] or OUTPUT_DIR,
    "report_to": lambda stored: [name for name in str(stored["report_to"]).split(",") if name not in ("", "none")],
    "lr_scheduler_kwargs": lambda stored: json.loads(str(stored["lr_scheduler_kwargs"] or "null")),
    "metric_for_best_model": best_metric,
    "greater_is_better": greater_is_better,
    "logging_steps": lambda stored: stored["logging_steps"] or LOGGING_STEPS,
    "eval_steps": eval_steps,
    "do_eval": lambda stored: bool(stored.get("do_eval")) or stored["eval_strategy"] != "no",
    "dataloader_pin_memory": lambda stored: bool(stored.get("dataloader_pin_memory")) and stored["device"] != "cpu",
    "debug": debug_options,
    "torch_compile": compiles,
    "torch_compile_backend": lambda stored: stored.get("torch_compile_backend") or ("inductor" if compiles(stored) else None),
    "include_num_input_tokens_seen": tokens_seen,
}


def contradictions(stored: Stored) -> list[SettingsError]:
    problems = []
    if stored.get("fp16_full_eval") and stored.get("bf16_full_eval"):
        problems.append(SettingsError("fp16_full_eval and bf16_full_eval are both set", "set one of them"))
    cache = stored.get("torch_empty_cache_steps")
    if cache is not None and not (isinstance(cache, int) and cache > 0):
        problems.append(SettingsError(f"torch_empty_cache_steps is {cache!r}", "set it to 1 or more, or omit it"))
    if stored.get("dataloader_prefetch_factor") and not stored.get("dataloader_num_workers"):
        problems.append(SettingsError("dataloader_prefetch_factor needs workers", "set dataloader_num_workers to 1 or more"))
    if stored["save_strategy"] == "best" and best_metric(stored) is None:
        text = "`args.metric_for_best_model` must be provided if save_strategy is best"
        problems.append(SettingsError(text, "set metric_for_best_model, such as to loss"))
    return problems


def of_launcher(name: str, alone: str, text: str) -> property:
    """Return a property: the number that a launcher of several processes has set, or that of one process `alone`."""
    return property(lambda args: int(os.environ.get(name, alone)), doc=text)


def same_as(setting: str, text: str) -> property:
    return property(attrgetter(setting), doc=text)


def with_settings_of_transformers(kind: type[TrainingArguments]) -> type[TrainingArguments]:
    """Add the settings of transformers to a class, as fields, so that `HfArgumentParser` makes an option for each."""
    for name, theirs in SETTINGS.items():
        kind.__annotations__[name] = theirs.kind
        text = f"{theirs.outcome}: {theirs.text}"
        setattr(kind, name, field(default=theirs.default, metadata={"help": text}, repr=False, compare=theirs.outcome == KEPT))
    made = dataclass(init=False, unsafe_hash=True)(kind)
    # copies: HfArgumentParser changes the types of fields, and those of Glassloop's own class must stay
    made.__dataclass_fields__ = {name: copy(entry) for name, entry in made.__dataclass_fields__.items()}
    return made


@with_settings_of_transformers
class TrainingArguments(Settings, Setters):
    """The settings of a training run, under the names of transformers' `TrainingArguments`.

    A setting may be assigned after construction; all are checked again when training starts.

    Args:
        output_dir: Folder for everything the run writes.
        **given: Any other setting of Glassloop or of transformers, by name.

    Raises:
        SettingsError: A name or value is not allowed. All problems are reported together.
    """

    def __init__(self, output_dir: str | Path | None = None, **given: object) -> None:
        super().__init__(output_dir, **given)
        for name, theirs in SETTINGS.items():  # a renamed one is stored under its new name
            is_given = given.get(name) is not None and theirs.outcome != RENAMED
            object.__setattr__(self, name, given[name] if is_given else theirs.default)
        refuse(contradictions(vars(self)))

    def __post_init__(self) -> None:
        if (folder := vars(self)["output_dir"]) is not None:
            object.__setattr__(self, "output_dir", str(user_path(folder)))
        self.check()

    def check(self) -> None:
        """Raise `SettingsError` with everything that is wrong with the values."""
        super().check()
        refuse(contradictions(vars(self)))

    def __getattribute__(self, name: str) -> object:
        if name in READ_AS:
            stored = vars(self)
            return READ_AS[name](stored) if "precision" in stored else stored[name]
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: object) -> None:
        if name not in OWN and name not in SETTINGS:
            is_own = name.startswith("_") or name in {entry.name for entry in fields(self)}  # a field of a script's own class
            if not is_own and (near := did_you_mean(name, [*OWN, *SETTINGS])):
                raise SettingsError(f"there is no setting {visible(name)}{near}", "glassloop train --help lists all settings")
            object.__setattr__(self, name, value)  # of the script itself
            return
        settings, problems = translated({name: value}, Settings)
        refuse(problems)
        if "device" in settings:
            vars(self).pop("_device", None)
        kept = {} if name in SETTINGS and SETTINGS[name].outcome == RENAMED else {name: value}
        for today, meant in (kept | settings).items():
            object.__setattr__(self, today, meant)

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)

    def set_device(self, device: str) -> None:
        """Set what scripts read as `device`. A Trainer calls this with the device it has chosen."""
        object.__setattr__(self, "_device", device)

    def to_dict(self) -> dict[str, Setting]:
        """Return all settings of Glassloop, and those that a subclass adds, by name, as plain values that JSON can hold."""
        settings = {name: vars(self)[name] for name in OWN}
        for name in [entry.name for entry in fields(self) if entry.name not in (*OWN, *SETTINGS)]:
            value = vars(self)[name]  # of others than JSON's, such as a torch type, the name
            settings[name] = value if isinstance(value, str | int | float | None) else str(value).removeprefix("torch.")
        return settings

    def to_json_string(self) -> str:
        """Return all settings of Glassloop as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def to_sanitized_dict(self) -> dict[str, Setting]:
        """Return all settings of Glassloop by name."""
        return self.to_dict()

    world_size = of_launcher("WORLD_SIZE", "1", "The number of processes that train together.")
    process_index = of_launcher("RANK", "0", "The number of this process among all, from 0.")
    local_process_index = of_launcher("LOCAL_RANK", "0", "The number of this process on this machine, from 0.")
    train_batch_size = same_as("per_device_train_batch_size", "The number of training rows of a batch in this process.")
    eval_batch_size = same_as("per_device_eval_batch_size", "The number of evaluation rows of a batch in this process.")

    @property
    def should_save(self) -> bool:
        """Whether this process writes files."""
        return not self.process_index

    should_log = should_save

    @property
    def n_gpu(self) -> int:
        """The number of GPUs that this process uses, once there is a Trainer."""
        return int(torch_device(vars(self)).type == "cuda")

    @property
    def parallel_mode(self) -> ParallelMode:
        """How processes work together, as a value of transformers."""
        from transformers.training_args import ParallelMode

        return ParallelMode.DISTRIBUTED if self.world_size > 1 else ParallelMode.NOT_PARALLEL

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Return the number of warm-up steps of a training of `num_training_steps`."""
        return math.ceil(self.warmup_steps * num_training_steps) if self.warmup_steps < 1 else int(self.warmup_steps)

    def get_process_log_level(self) -> int:
        """Return the level for Python's logging in this process: warnings."""
        return 30

    @contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """Run the block in the main process first. `local` and `desc` are accepted for compatibility."""
        from accelerate import PartialState

        with PartialState().main_process_first():
            yield
