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

    def _evaluated_parts(self, metrics: dict[str, float]) -> list[dict[str, float]]:
        """Return the metrics of the latest evaluation for each data set."""

    def _report(self, logs: dict[str, float]) -> None:
        """Call `log` with an entry that the history has already."""


class Logged(Callback):
    """Calls an overridden `log` of a Trainer with every entry of its history."""

    reads_weights = False

    def __init__(self, trainer: Logging) -> None:
        self.trainer = trainer

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        """Report a logged step, unless only Glassloop logs it."""
        if self.trainer.control.should_log:
            entry = {name: value for name, value in state.history[-1].items() if name not in ("step", "epoch")}
            self.trainer._report(entry)  # type: ignore[arg-type]  # numbers only

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        """Report the evaluation of each data set."""
        for part in self.trainer._evaluated_parts(metrics):
            self.trainer._report(dict(part))
