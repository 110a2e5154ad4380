"""The checkpoints of one run: which are intact, which is the newest, which make room, and what is moved aside."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from glassloop.engine.checkpoint import Checkpoint, Snapshot, open_checkpoint, write_checkpoint
from glassloop.engine.interfaces import Tensors
from glassloop.errors import ModelError, counted
from glassloop.files import fault_point, set_aside
from glassloop.run_folder.layout import checkpoint_name, checkpoints_in

RESTART = "restore one of them, or start again from step 0 and move them aside: --restart, or train(restart=True)"


class Shelf:
    """The checkpoints below one folder. Nothing that cannot be read is ever overwritten, counted or removed.

    What this process wrote or opened is known to be intact; anything else is verified once, when it first matters.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder, self.say = folder, say
        self.verified: dict[Path, bool] = {}

    def open(self, path: Path) -> Checkpoint:
        """Return a checkpoint after verifying it; raise `ModelError` with the file that is damaged."""
        self.verified[path] = False
        found = open_checkpoint(path)
        self.verified[path] = True
        return found

    def is_intact(self, path: Path) -> bool:
        """Whether all files of a checkpoint are as they were written."""
        if path not in self.verified:
            try:
                self.open(path)
            except ModelError as error:
                self.say(f"kept, but not counted: {error.problem}")
        return self.verified[path]

    def newest(self, skipped: Iterable[str] = ()) -> Checkpoint | None:
        """Return the intact checkpoint of the highest step and report those that were skipped; None if there are none.

        Raises `ModelError` with the reason for each if there are checkpoints and none can be used. `skipped` are the
        reasons why others than these cannot be used.
        """
        reasons = [*skipped]
        for path in checkpoints_in(self.folder):
            try:
                found = self.open(path)
            except ModelError as error:
                reasons.append(error.problem)
                continue
            for reason in reasons:
                self.say(f"skipped: {reason}")
            return found
        if reasons:
            number = counted(len(reasons), "checkpoint is there and it cannot", "checkpoints are there and none can")
            raise ModelError(f"{self.folder}: {number} be used: {'; '.join(reasons)}", RESTART)
        return None

    def write(self, snapshot: Snapshot, save_model: Callable[[Path, Tensors], None]) -> Path:
        """Write a snapshot. An intact checkpoint of the same step is replaced, anything else of that name moved aside."""
        path = self.folder / checkpoint_name(snapshot.step)
        if os.path.lexists(path) and not self.is_intact(path):
            self.set_aside(path)
        self.verified.pop(path, None)
        write_checkpoint(path, snapshot, save_model)
        self.verified[path] = True
        return path

    def rotate(self, written: Path, keep: int | None, best_step: int | None) -> None:
        """Remove intact checkpoints older than `written` until `keep` are left with it; never that of the best evaluation.

        Checkpoints of later steps, which are there after a resume from an earlier one, wait until training has passed them.
        """
        if keep is None:
            return
        best = None if best_step is None else self.folder / checkpoint_name(best_step)
        older = [path for path in checkpoints_in(self.folder) if path.name < written.name and self.is_intact(path)]
        for path in older[max(keep - 1, 0) :]:
            if path != best:
                doomed = path.with_name(f".{path.name}.old")
                path.rename(doomed)  # in one go: a half-removed checkpoint never has a good name
                fault_point("rename", path)
                shutil.rmtree(doomed, ignore_errors=True)

    def restart(self) -> None:
        """Move all checkpoints aside, so that a run can start again."""
        if self.folder.is_dir() and any(self.folder.iterdir()):
            self.set_aside(self.folder)
            self.verified.clear()

    def set_aside(self, path: Path) -> None:
        """Give `path` a name that no run uses, and report it."""
        self.say(f"moved aside: {path} is now {set_aside(path).name}")
