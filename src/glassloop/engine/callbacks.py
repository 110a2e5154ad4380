"""What watches a run: the events a callback may listen to. A callback changes nothing; it may set `state.stop_reason`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassloop.engine.state import State
from glassloop.errors import SettingsError, listed


class Callback:
    """Listens to a run. Every method may be left as it is.

    `reads_weights`: whether it may look at the model's weights. One that never does may say so: weights that are trained
    outside of the model are then not copied into it after every step.
    """

    reads_weights = True

    def on_fit_start(self, state: State) -> None:
        """Before the first step."""

    def on_step(self, state: State, batches: list[Any]) -> None:
        """After every step. Asking the device for a number here makes every step wait."""

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        """Loss and gradient norm of each step since the last log have been read."""

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        """After an evaluation."""

    def on_save(self, state: State) -> None:
        """After a checkpoint was written."""

    def on_epoch_end(self, state: State) -> None:
        """After an epoch's last step."""

    def on_fit_end(self, state: State) -> None:
        """After the last step."""


EVENTS = tuple(name for name in vars(Callback) if name.startswith("on_"))


def checked_callbacks(callbacks: Sequence[Callback | type[Callback]] | None) -> list[Callback]:
    """The callbacks, each with all events. Methods for events that do not exist here are an error: they would never run."""
    ready = []
    for given in callbacks or []:
        callback = given() if isinstance(given, type) else given
        strange = [name for name in dir(callback) if name.startswith("on_") and name not in EVENTS]
        if strange:
            raise SettingsError(
                f"{type(callback).__name__} listens to {listed(strange)}, which no run of Glassloop tells",
                f"the events are {listed(EVENTS)}; make it a subclass of glassloop.Callback",
            )
        if missing := [name for name in EVENTS if not hasattr(callback, name)]:
            raise SettingsError(f"{type(callback).__name__} has no {missing[0]}", "make it a subclass of glassloop.Callback")
        ready.append(callback)
    return ready
