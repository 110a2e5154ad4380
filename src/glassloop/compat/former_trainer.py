"""Glassloop's Trainer with the arguments that transformers' Trainer had in 2020."""

from __future__ import annotations

from glassloop.compat.names import GONE_OF_TRAINER
from glassloop.compat.substitution import LEDGER
from glassloop.compat.trainer import Trainer as DropInTrainer


class Trainer(DropInTrainer):
    """`glassloop.Trainer`, which also takes arguments that transformers' Trainer no longer has.

    Args:
        *arguments: The arguments of `glassloop.Trainer`.
        **named: Those by name, and former ones.
    """

    def __init__(self, *arguments: object, **named: object) -> None:
        for name, why in GONE_OF_TRAINER.items():
            if name in named:
                value = named.pop(name)
                LEDGER.note(f"Trainer({name}=)", "nothing", f"removed in transformers 4: {why}")
                if name == "prediction_loss_only" and value:
                    settings = named.get("args") or (arguments[1] if len(arguments) > 1 else None)
                    if settings is not None:
                        settings.prediction_loss_only = value  # type: ignore[attr-defined]
        super().__init__(*arguments, **named)  # type: ignore[arg-type]
