"""The Trainers and settings of transformers, with arguments that they no longer have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial

import transformers

from glassloop.compat.names import FORMER_SETTINGS
from glassloop.compat.substitution import LEDGER

GONE = "removed in transformers 5"


def settings_today(kind: type, named: dict[str, object]) -> dict[str, object]:
    """Return settings under the names that a class of settings has today."""
    known = {entry.name for entry in fields(kind)}
    found = {name: value for name, value in named.items() if name in known or name not in FORMER_SETTINGS}
    for name in named.keys() - found.keys():
        today = FORMER_SETTINGS[name]
        LEDGER.note(f"TrainingArguments({name}=)", f"{today}=" if today else "nothing", GONE)
        if today and named[name]:
            found.setdefault(today, named[name])
    for name, today, value in (
        ("group_by_length", "train_sampling_strategy", "group_by_length"),
        ("adafactor", "optim", "adafactor"),
    ):
        if name in found and name not in known:
            LEDGER.note(f"TrainingArguments({name}=)", f'{today}="{value}"', GONE)
            if found.pop(name):
                found[today] = value
    return found


def arguments_today(named: dict[str, object]) -> dict[str, object]:
    """Return arguments of a Trainer under the names that they have today."""
    if "tokenizer" in named:
        LEDGER.note("Trainer(tokenizer=)", "processing_class=", GONE)
        named.setdefault("processing_class", named.pop("tokenizer"))
    if named.pop("tb_writer", None) is not None:
        LEDGER.note("Trainer(tb_writer=)", "nothing", "removed in transformers 4")
    return named


def taking_former(kind: type, translate: Callable[[dict[str, object]], dict[str, object]]) -> type:
    """Return a class of transformers that also takes former arguments."""

    def initialize(self: object, *arguments: object, **named: object) -> None:
        kind.__init__(self, *arguments, **translate(named))  # type: ignore[misc]

    return type(kind.__name__, (kind,), {"__init__": initialize, "__module__": __name__, "__doc__": kind.__doc__})


Trainer = taking_former(transformers.Trainer, arguments_today)
Seq2SeqTrainer = taking_former(transformers.Seq2SeqTrainer, arguments_today)
TrainingArguments = taking_former(transformers.TrainingArguments, partial(settings_today, transformers.TrainingArguments))
Seq2SeqTrainingArguments = taking_former(
    transformers.Seq2SeqTrainingArguments, partial(settings_today, transformers.Seq2SeqTrainingArguments)
)
