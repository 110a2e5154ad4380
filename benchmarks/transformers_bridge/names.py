"""The names of transformers that stand for Glassloop's while its tests run."""

from __future__ import annotations

import os
import sys
from dataclasses import fields
from inspect import signature
from pathlib import Path

import transformers
import transformers.trainer
import transformers.training_args
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments  # noqa: F401 - subclasses of transformers' own

from glassloop.compat.arguments import TrainingArguments
from glassloop.compat.trainer import Trainer
from glassloop.settings.training import TrainingArguments as Settings

# Defaults that differ on purpose (docs/reference/transformers.md): the tests get transformers' own.
DEFAULTS: dict[str, object] = {
    "per_device_eval_batch_size": 8,
    "save_strategy": "steps",
    "save_total_limit": None,
    "logging_steps": 500,
}
BRIDGED = (
    "`transformers.Trainer` and `transformers.TrainingArguments` are Glassloop's.",
    "Defaults that Glassloop chose differently are set to transformers' own: "
    + ", ".join(f"`{name}`" for name in DEFAULTS)
    + ".",
    "Of a checkpoint, `optimizer.pt` is `optimizer.safetensors`, `scheduler.pt` is in `state.json`, "
    "and `training_args.bin` is in `manifest.json`.",
    "`history.jsonl`, `sessions.jsonl` and the files of the report, which Glassloop adds to the output folder, "
    "are not counted.",
    "The helper `get_steps_per_epoch` of the tests reads the plan of Glassloop, because it uses internals of transformers.",
    "Names that newer versions of transformers have removed exist, so that test modules can be imported.",
)
made: set[str] = set()  # which classes of Glassloop the current test has used
REMOVED = ("GlueDataset", "GlueDataTrainingArguments", "LineByLineTextDataset", "TextDataset", "DataCollatorForWholeWordMask")


def bridge_names(*, is_on: bool) -> None:
    """Replace Trainer and TrainingArguments; supply names that newer versions of transformers have removed."""
    for name in REMOVED:
        if not hasattr(transformers, name):
            setattr(transformers, name, type(name, (), {}))
    if not is_on:
        return
    for entry in (*fields(Settings), *fields(TrainingArguments)):
        if entry.name in DEFAULTS:
            entry.default = DEFAULTS[entry.name]
    for kind in (Trainer, TrainingArguments):
        note_use(kind)
    for module, name, kind in (
        (transformers, "Trainer", Trainer),
        (transformers, "TrainingArguments", TrainingArguments),
        (transformers.trainer, "Trainer", Trainer),
        (transformers.training_args, "TrainingArguments", TrainingArguments),
    ):
        setattr(module, name, kind)


def note_use(kind: type) -> None:
    """Note in `made` that a test constructs a class of Glassloop."""
    construct = kind.__init__  # type: ignore[misc]

    def noted(self: object, *given: object, **named: object) -> None:
        made.add(kind.__name__)
        construct(self, *given, **named)

    noted.__signature__ = signature(construct)  # type: ignore[attr-defined]
    kind.__init__ = noted  # type: ignore[misc]


# Files of a checkpoint, each under the name that Glassloop gives it. Settings are in run.json or in the script, the schedule
# and the scaler in state.json.
FILES = {
    "optimizer.pt": "optimizer.safetensors",
    "scheduler.pt": "state.json",
    "scaler.pt": "state.json",
    "training_args.bin": "manifest.json",
}
# What Glassloop writes beside the checkpoints.
ADDED = ("history.jsonl", "sessions.jsonl", "trainer.json", "report.html", "validation-predictions.jsonl")


def bridge_helpers() -> None:
    """Give the test modules an `os` whose questions about files know Glassloop's names."""
    for name, module in [*sys.modules.items()]:
        if name.startswith("tests.trainer.") and getattr(module, "os", None) is os:
            module.os = BridgedOs()  # type: ignore[attr-defined]
        if name.startswith("tests.trainer.") and hasattr(module, "get_steps_per_epoch"):  # by transformers' internals
            module.get_steps_per_epoch = lambda trainer: trainer._current_plan().steps_per_epoch


class BridgedPath:
    """`os.path`, with the names of Glassloop's files."""

    def isfile(self, path: str) -> bool:
        folder, name = os.path.split(path)
        return Path(folder, FILES.get(name, name)).is_file()

    def __getattr__(self, name: str) -> object:
        return getattr(os.path, name)


class BridgedOs:
    """`os`, as the test modules see it."""

    path = BridgedPath()

    def listdir(self, folder: str) -> list[str]:
        return [path.name for path in Path(folder).iterdir() if path.name not in ADDED]

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)
