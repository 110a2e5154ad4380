"""The history of a run: every logged step and every evaluation, in memory and line by line in the run folder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from glassloop.data.batches import Batch
from glassloop.engine.callbacks import Callback
from glassloop.engine.state import State
from glassloop.run_folder.history import Entry, lasting, line_of, write_history
from glassloop.run_folder.layout import HISTORY_NAME


class History(Callback):
    """Adds every logged step and every evaluation to `state.history` and, with a `folder`, to its history.jsonl.

    `learning_rate` returns the learning rate of the next step.
    """

    def __init__(self, folder: Path | None, learning_rate: Callable[[], float], batches_per_epoch: int) -> None:
        self.folder, self.learning_rate, self.batches_per_epoch = folder, learning_rate, batches_per_epoch

    def on_fit_start(self, state: State) -> None:
        """Write the history of a resumed run again, without steps after its checkpoint."""
        self.used = self.next = self.learning_rate()
        if self.folder is not None:
            write_history(self.folder, state.history)

    def on_step(self, state: State, batches: list[Batch]) -> None:
        """Remember the learning rate that the step used: the schedule is already at the next one."""
        self.used, self.next = self.next, self.learning_rate()

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        """Record the mean loss since the last log."""
        losses = [loss for loss, _ in figures]
        entry: Entry = {
            "step": state.step,
            "epoch": self.epoch(state),
            "loss": sum(losses) / len(losses),
            "grad_norm": figures[-1][1],
            "learning_rate": self.used,
        }
        self.record(state, entry)

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        """Record metrics."""
        self.record(state, {"step": state.step, "epoch": self.epoch(state), **lasting(metrics)})

    def epoch(self, state: State) -> float:
        """Return the epoch as a number with a fraction."""
        return round(state.epoch + state.batch / self.batches_per_epoch, 4)

    def record(self, state: State, entry: Entry) -> None:
        """Add an entry to the state and to the file."""
        state.history.append(entry)
        if self.folder is not None:
            # A full disk does not end a training: the whole file is written again after the last step.
            with suppress(OSError), (self.folder / HISTORY_NAME).open("a", encoding="utf-8") as opened:
                opened.write(line_of(entry))
