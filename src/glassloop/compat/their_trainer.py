"""The Trainers and settings of transformers, with arguments that they no longer have."""

from __future__ import annotations

from dataclasses import fields

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


class TrainingArguments(transformers.TrainingArguments):  # type: ignore[misc]
    """The settings of transformers, also under former names.

    Args:
        *arguments: The settings by place.
        **named: The settings by name.
    """

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **settings_today(transformers.TrainingArguments, named))


class Seq2SeqTrainingArguments(transformers.Seq2SeqTrainingArguments):  # type: ignore[misc]
    """The settings of transformers for sequence-to-sequence models, also under former names.

    Args:
        *arguments: The settings by place.
        **named: The settings by name.
    """

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **settings_today(transformers.Seq2SeqTrainingArguments, named))


class Trainer(transformers.Trainer):  # type: ignore[misc]
    """The Trainer of transformers, which also takes former arguments.

    Args:
        *arguments: The arguments by place.
        **named: The arguments by name.
    """

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **arguments_today(named))


class Seq2SeqTrainer(transformers.Seq2SeqTrainer):  # type: ignore[misc]
    """The Trainer of transformers for sequence-to-sequence models, which also takes former arguments.

    Args:
        *arguments: The arguments by place.
        **named: The arguments by name.
    """

    def __init__(self, *arguments: object, **named: object) -> None:
        super().__init__(*arguments, **arguments_today(named))
