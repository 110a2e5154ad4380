"""When and how checkpoints are written while a run goes: copied between two steps, written behind the next ones."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from glassloop.engine.callbacks import Callback
from glassloop.engine.checkpoint import Snapshot, Tensors, rotate, write_checkpoint
from glassloop.engine.state import State
from glassloop.errors import ResourceError, resource_error


class Saver:
    """Writes snapshots one after the other in a thread of its own; what goes wrong there is raised at the next call."""

    def __init__(self, folder: Path, keep: int | None, save_model: Callable[[Path, Tensors], None]) -> None:
        self.folder, self.keep, self.save_model = folder, keep, save_model
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None
        self.num_bytes = 0

    def save(self, snapshot: Snapshot, *, behind: bool = True) -> None:
        """Write a snapshot; `behind`: while training goes on."""
        self.wait()
        self.num_bytes = snapshot.num_bytes
        self.thread = threading.Thread(target=self.write, args=(snapshot,), name="checkpoint")
        self.thread.start()
        if not behind:
            self.wait()

    def write(self, snapshot: Snapshot) -> None:
        try:
            write_checkpoint(self.folder, snapshot, self.save_model)
            rotate(self.folder, self.keep, snapshot.plain["state"]["best_step"])
        except BaseException as error:
            self.error = error

    def wait(self) -> None:
        """Wait until nothing is being written; raise what went wrong."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        if self.error is not None:
            error, self.error = self.error, None
            if isinstance(error, OSError) or resource_error(error):
                reason = error.strerror if isinstance(error, OSError) else error  # safetensors has an error of its own
                room = f"{self.num_bytes:,} bytes needed, {shutil.disk_usage(self.folder).free:,} free"
                raise ResourceError(
                    f"{getattr(error, 'filename', None) or self.folder}: {reason} while a checkpoint was written ({room})",
                    "make room and go on with --resume: the checkpoint before is intact",
                ) from error
            raise error


@contextmanager
def listening(state: State) -> Iterator[None]:
    """SIGINT and SIGTERM ask the run to stop after this step; a second one ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if state.asked_to_stop:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        state.asked_to_stop = number

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class BestWeights(Callback):
    """Keeps a copy of the weights of the best evaluation in main memory."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.weights: Tensors = {}

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        if state.best_step == state.step:
            self.weights = {name: value.detach().to("cpu", copy=True) for name, value in self.model.state_dict().items()}
