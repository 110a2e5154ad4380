"""Interrupt a run at a given step, with a checkpoint, as a signal would."""

from __future__ import annotations

from glassloop.data.batches import Batch
from glassloop.engine.callbacks import Callback
from glassloop.engine.signals import PAUSE
from glassloop.engine.state import State


class PauseAt(Callback):
    """Interrupts a run after a step, with a checkpoint, as a signal would. A resumed run ends as if it had not been.

    Args:
        step: The step to stop after. The last step of a run ends it as always.
    """

    reads_weights = False

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, state: State, batches: list[Batch]) -> None:
        """Ask for the pause.

        Args:
            state: Where training stands.
            batches: The batches of the step.
        """
        if state.step == self.step:
            state.asked_to_stop = state.asked_to_stop or PAUSE
