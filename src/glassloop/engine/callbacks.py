"""Callbacks: what a run calls at each of its events. A callback observes; it may set `state.stop_reason` to stop the run.

`state.epoch_ends` ends the epoch after this step.
"""

from __future__ import annotations

from collections.abc import Sequence

from glassloop.data.batches import Batch
from glassloop.engine.state import State
from glassloop.errors import SettingsError, listed


class Callback:
    """The base class of callbacks; override the events you need.

    Attributes:
        reads_weights: Whether the callback may read the model's weights. Set it to False if it never does: a backend that
            stores weights elsewhere during training then need not copy them into the model after every step.
    """

    reads_weights = True

    def on_fit_start(self, state: State) -> None:
        """Act before the first step.

        Args:
            state: Where training stands.
        """

    def on_epoch_start(self, state: State) -> None:
        """Act before the first step of an epoch, or before the next one of a resumed epoch.

        Args:
            state: Where training stands.
        """

    def on_step_start(self, state: State) -> None:
        """Act before every step.

        Args:
            state: Where training stands.
        """

    def on_step(self, state: State, batches: list[Batch]) -> None:
        """Act after every step. Reading a number from the device here makes every step wait for it.

        Args:
            state: Where training stands.
            batches: The batches of the step.
        """

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        """Act when losses were read.

        Args:
            state: Where training stands.
            figures: Loss and gradient norm of each step since the last log.
        """

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        """Act after an evaluation.

        Args:
            state: Where training stands.
            metrics: The metrics by name.
        """

    def on_save(self, state: State) -> None:
        """Act after a checkpoint was handed to the thread that writes it.

        Args:
            state: Where training stands.
        """

    def on_epoch_end(self, state: State) -> None:
        """Act after the last step of an epoch.

        Args:
            state: Where training stands.
        """

    def on_fit_end(self, state: State) -> None:
        """Act after the last step.

        Args:
            state: Where training stands.
        """


EVENTS = tuple(name for name in vars(Callback) if name.startswith("on_"))


def checked_callbacks(callbacks: Sequence[Callback | type[Callback]] | None) -> list[Callback]:
    """Return the callbacks, classes among them as instances.

    Raises `SettingsError` if one lacks an event, or has a method for an event that Glassloop does not have: it would never
    be called.
    """
    ready = []
    for given in callbacks or []:
        callback = given() if isinstance(given, type) else given
        unknown = [name for name in dir(callback) if name.startswith("on_") and name not in EVENTS]
        if unknown:
            raise SettingsError(
                f"{type(callback).__name__} has {listed(unknown)}, which is not a Glassloop event",
                f"the events are {listed(EVENTS)}; make it a subclass of glassloop.Callback",
            )
        if missing := [name for name in EVENTS if not hasattr(callback, name)]:
            raise SettingsError(f"{type(callback).__name__} has no {missing[0]}", "make it a subclass of glassloop.Callback")
        ready.append(callback)
    return ready
