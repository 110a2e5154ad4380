"""All checkpoints of a run: find the newest intact one, write new ones, and remove old ones."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from glassloop.engine.checkpoint import Checkpoint, open_checkpoint, write_checkpoint
from glassloop.engine.interfaces import Tensors
from glassloop.engine.snapshot import Snapshot
from glassloop.errors import ModelError, counted
from glassloop.files import fault_point, set_aside
from glassloop.run_folder.layout import EARLIER_CHECKPOINTS, KEPT_CHECKPOINTS_NAME, checkpoint_name, checkpoints_in, step_of

RESTART = "restore one of them, or start again from step 0 and move them aside: --restart, or train(restart=True)"


class CheckpointFolder:
    """The checkpoints in a run folder. Damaged ones are never overwritten, counted or removed.

    Checkpoints that this process wrote or opened are known to be intact. Others are verified once, when they are needed.
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
        """Return whether all files of a checkpoint are as they were written."""
        if path not in self.verified:
            try:
                self.open(path)
            except ModelError as error:
                self.say(f"kept, but not counted in save_total_limit: {error.problem}")
        return self.verified[path]

    def newest(self, skipped: Iterable[str] = ()) -> Checkpoint | None:
        """Return the intact checkpoint with the highest step, and report skipped ones; None if there are no checkpoints.

        `skipped` names what the caller has skipped before. Raises `ModelError` with all reasons if nothing can be used.
        """
        reasons = [*skipped, *(f"{path} was written by an earlier version" for path in self.folder.glob(EARLIER_CHECKPOINTS))]
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
            number = counted(len(reasons), "checkpoint, which cannot", "checkpoints, none of which can")
            raise ModelError(f"{self.folder}: {number} be used: {'; '.join(reasons)}", RESTART)
        return None

    def write(self, snapshot: Snapshot, save_model: Callable[[Path, Tensors], None]) -> Path:
        """Write a snapshot. Replace an intact checkpoint of the same step; move a damaged one aside."""
        path = self.folder / checkpoint_name(snapshot.step)
        if os.path.lexists(path) and not self.is_intact(path):
            self.set_aside(path)
        self.verified.pop(path, None)
        write_checkpoint(path, snapshot, save_model)
        self.verified[path] = True
        return path

    def rotate(self, written: Path, keep: int | None, best_step: int | None) -> None:
        """Remove old intact checkpoints until `keep` are left, counting `written`; never that of the best evaluation.

        Checkpoints of later steps, which exist after a resume from an earlier one, stay until training has passed them.
        """
        if keep is None:
            return
        best = None if best_step is None else self.folder / checkpoint_name(best_step)
        older = [path for path in checkpoints_in(self.folder) if step_of(path) < step_of(written) and self.is_intact(path)]
        for path in older[max(keep - 1, 0) :]:
            if path != best:
                renamed = path.with_name(f".{path.name}.old")
                path.rename(renamed)  # at once: a checkpoint that is partly removed never has its final name
                fault_point("rename", path)
                shutil.rmtree(renamed, ignore_errors=True)

    def restart(self) -> None:
        """Move all checkpoints aside, into one folder, so that a run can start from step 0."""
        found, gathered = checkpoints_in(self.folder), self.folder / KEPT_CHECKPOINTS_NAME
        if found or any(self.folder.glob(EARLIER_CHECKPOINTS)):
            gathered.mkdir(exist_ok=True)
            for path in reversed(found):  # the newest last: a crash leaves a run that can be resumed
                path.rename(gathered / path.name)
            self.set_aside(gathered)
            self.verified.clear()

    def set_aside(self, path: Path) -> None:
        """Give `path` a name that no run uses, and report it."""
        self.say(f"moved aside: {path} is now {set_aside(path).name}")
