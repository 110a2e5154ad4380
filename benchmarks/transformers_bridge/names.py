"""The names of transformers that stand for Glassloop's while its tests run."""

from __future__ import annotations

from dataclasses import fields

import transformers
import transformers.trainer
import transformers.training_args
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments  # noqa: F401 - subclasses of transformers' own

from glassloop.arguments import TrainingArguments as Settings
from glassloop.drop_in.arguments import TrainingArguments
from glassloop.drop_in.trainer import Trainer

# Defaults that differ on purpose (docs/reference/transformers.md): the tests get transformers' own.
DEFAULTS: dict[str, object] = {
    "per_device_eval_batch_size": 8,
    "save_strategy": "steps",
    "save_total_limit": None,
    "logging_steps": 500,
}
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

    noted.__signature__ = __import__("inspect").signature(construct)  # type: ignore[attr-defined]
    kind.__init__ = noted  # type: ignore[misc]


def bridge_helpers() -> None:
    """Replace what the helpers of the tests know about names of files."""
