"""When and how checkpoints are written during training: copied between two steps, written behind the next ones."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from glassloop.engine.callbacks import Callback
from glassloop.engine.checkpoint import Snapshot
from glassloop.engine.checkpoint_folder import Shelf
from glassloop.engine.interfaces import Tensors
from glassloop.engine.state import State
from glassloop.errors import ResourceError, resource_error


class Saver:
    """Writes snapshots one after the other in a thread of its own; an error there is raised at the next call."""

    def __init__(self, shelf: Shelf, keep: int | None, save_model: Callable[[Path, Tensors], None]) -> None:
        self.shelf, self.keep, self.save_model = shelf, keep, save_model
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None
        self.num_bytes = 0

    def save(self, snapshot: Snapshot, *, behind: bool = True) -> None:
        """Write a snapshot; with `behind`, while training continues."""
        self.wait()
        self.num_bytes = snapshot.num_bytes
        self.thread = threading.Thread(target=self.write, args=(snapshot,), name="checkpoint")
        self.thread.start()
        if not behind:
            self.wait()

    def write(self, snapshot: Snapshot) -> None:
        try:
            written = self.shelf.write(snapshot, self.save_model)
            self.shelf.rotate(written, self.keep, snapshot.plain["state"]["best_step"])
        except BaseException as error:
            self.error = error

    def wait(self) -> None:
        """Wait until nothing is being written; raise the error that occurred."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        if self.error is not None:
            error, self.error = self.error, None
            raise full_disk(error, self.shelf.folder, "a checkpoint", self.num_bytes) or error from error


def full_disk(error: BaseException, folder: Path, what: str, num_bytes: int | None = None) -> ResourceError | None:
    """Return a write below a run folder that failed as an error with path, needed and free bytes and how to retry.

    Returns None for other errors.
    """
    if isinstance(error, ResourceError) or not (isinstance(error, OSError) or resource_error(error)):
        return None
    reason = error.strerror if isinstance(error, OSError) else error  # safetensors has an error of its own
    there = next(place for place in (folder, *folder.parents) if place.is_dir())
    needed = f"{num_bytes:,} bytes needed, " if num_bytes is not None else ""
    room = f"{needed}{shutil.disk_usage(there).free:,} bytes free"
    return ResourceError(
        f"{getattr(error, 'filename', None) or folder}: {reason} while writing {what} ({room})",
        f"make room, then resume: glassloop train --resume {folder.parent}",
    )


class BestWeights(Callback):
    """Keeps a copy of the weights of the best evaluation in main memory."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.weights: Tensors = {}

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        if state.best_step == state.step:
            self.weights = {name: value.detach().to("cpu", copy=True) for name, value in self.model.state_dict().items()}
