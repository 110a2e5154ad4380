"""What a Trainer of a script asks of the loop: the entries of the history for an overridden `log`."""

from __future__ import annotations

from typing import Protocol

from transformers import TrainerControl

from glassloop.engine.callbacks import Callback
from glassloop.engine.state import State


class Logging(Protocol):
    """A Trainer whose `log` a script overrides."""

    @property
    def control(self) -> TrainerControl:
        """What callbacks ask for."""

    def _report(self, logs: dict[str, float]) -> None:
        """Call `log` with an entry that the history has already."""


class Logged(Callback):
    """Calls an overridden `log` of a Trainer with every entry of its history."""

    reads_weights = False

    def __init__(self, trainer: Logging) -> None:
        self.trainer = trainer

    def report(self, state: State) -> None:
        """Call `log` with the latest entry."""
        entry = {name: value for name, value in state.history[-1].items() if name not in ("step", "epoch")}
        self.trainer._report(entry)  # type: ignore[arg-type]  # numbers only

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        """Report a logged step, unless only Glassloop logs it."""
        if self.trainer.control.should_log:
            self.report(state)

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        """Report an evaluation."""
        self.report(state)
