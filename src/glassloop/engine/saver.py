"""Write checkpoints in a thread while training continues, and keep the weights of the best evaluation."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from glassloop.engine.callbacks import Callback
from glassloop.engine.checkpoint_folder import CheckpointFolder
from glassloop.engine.interfaces import Tensors
from glassloop.engine.snapshot import Snapshot
from glassloop.engine.state import State
from glassloop.errors import ResourceError, resource_error
from glassloop.run_folder.layout import checkpoint_name


class Saver:
    """Writes snapshots one after the other in a thread; the next call raises an error that occurred there.

    `keep`: the number of checkpoints to keep; None keeps all.
    """

    def __init__(self, checkpoints: CheckpointFolder, keep: int | None, save_model: Callable[[Path, Tensors], None]) -> None:
        self.checkpoints, self.keep, self.save_model = checkpoints, keep, save_model
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None
        self.step = self.num_bytes = 0

    def save(self, snapshot: Snapshot, *, in_background: bool = True) -> None:
        """Write a snapshot, `in_background` while training continues."""
        self.wait()
        self.step, self.num_bytes = snapshot.step, snapshot.num_bytes
        if in_background:
            self.thread = threading.Thread(target=self.write, args=(snapshot,), name="checkpoint")
            self.thread.start()
        else:
            self.write(snapshot)
            self.wait()

    def write(self, snapshot: Snapshot) -> None:
        """Write a snapshot and remove old checkpoints."""
        try:
            written = self.checkpoints.write(snapshot, self.save_model)
            self.checkpoints.rotate(written, self.keep, snapshot.plain["state"]["best_step"])
        except BaseException as error:
            self.error = error

    def wait(self) -> None:
        """Wait until the last snapshot is written; raise the error that occurred."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        if self.error is not None:
            error, self.error = self.error, None
            path = self.checkpoints.folder / checkpoint_name(self.step)
            raise full_disk(error, path, "a checkpoint", self.num_bytes) or error from error


def full_disk(error: BaseException, folder: Path, what: str, num_bytes: int | None = None) -> ResourceError | None:
    """Return an error with path, needed and free bytes and how to resume, if a write into a run folder failed; else None."""
    if isinstance(error, ResourceError) or not (isinstance(error, OSError) or resource_error(error)):
        return None
    reason = error.strerror if isinstance(error, OSError) else error  # safetensors has its own error class
    existing = next(place for place in (folder, *folder.parents) if place.is_dir())
    needed = f"{num_bytes:,} bytes needed, " if num_bytes is not None else ""
    room = f"{needed}{shutil.disk_usage(existing).free:,} bytes free"
    return ResourceError(
        f"{getattr(error, 'filename', None) or folder}: {reason} while writing {what} ({room})",
        f"free disk space, then resume: glassloop train --resume {folder.parent}",
    )


class SaveBest(Callback):
    """Asks for a checkpoint after each evaluation that is the best one so far."""

    reads_weights = False

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        """Ask for a checkpoint if this evaluation is the best one."""
        if state.best_step == state.step:
            state.asked.add("save")


class BestWeights(Callback):
    """Keeps a copy of the weights of the best evaluation in main memory."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.weights: Tensors = {}

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        """Copy the weights if this evaluation is the best one."""
        if state.best_step == state.step:
            self.weights = {name: value.detach().to("cpu", copy=True) for name, value in self.model.state_dict().items()}
