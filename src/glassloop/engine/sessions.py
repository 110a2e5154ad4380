"""Note in the run folder when a training starts, resumes, stops and ends."""

from __future__ import annotations

from pathlib import Path

from glassloop.engine.callbacks import Callback
from glassloop.engine.state import State
from glassloop.run_folder.sessions import END, RESUME, START, STOP, note_moment


class Sessions(Callback):
    """Writes a line to sessions.jsonl before the first step of this process and after its last.

    The times are not in history.jsonl: a run that is repeated or resumed writes the same history.

    Args:
        folder: The folder of the run.
        max_steps: The number of steps of the whole training.
    """

    reads_weights = False

    def __init__(self, folder: Path, max_steps: int) -> None:
        self.folder, self.max_steps = folder, max_steps

    def on_fit_start(self, state: State) -> None:
        """Note a start or a resume."""
        note_moment(self.folder, RESUME if state.step else START, state.step, self.max_steps)

    def on_fit_end(self, state: State) -> None:
        """Note a stop by a signal, or the end."""
        note_moment(self.folder, STOP if state.signal else END, state.step, self.max_steps)
