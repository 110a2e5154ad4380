"""What the files of a run say, read at once: its status, its record, how far it is and how fast."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TypeAlias

from glassloop.errors import GlassloopError
from glassloop.lock import LOCK_NAME, Holder, holder
from glassloop.run_folder.history import last_entry
from glassloop.run_folder.layout import HISTORY_NAME, RUN_NAME, SESSIONS_NAME, TRAINER_NAME
from glassloop.run_folder.record import RUNNING, RunRecord
from glassloop.run_folder.run_json import read_record, read_run
from glassloop.run_folder.sessions import read_moments, resumes_in
from glassloop.run_folder.status import DAMAGED, seconds_per_step, status_of
from glassloop.run_folder.tail import number_of

MOST_RECORD_BYTES = 8_000_000  # of a run.json


@dataclass(frozen=True)
class RunSummary:
    """What the files of a run say.

    Attributes:
        name: Its path below the folder that is watched.
        folder: The run folder.
        status: "running", "finished", "stopped", "failed", "killed" or "damaged".
        record: The content of run.json or trainer.json; None if there is none, or if it is damaged.
        problem: What is wrong with that file.
        step: The last step in the history.
        max_steps: The number of steps of the whole training; 0 if unknown.
        epoch: The epoch of the last step.
        latest: The values of the last entry of the history.
        resumed: The steps after which the training was resumed.
        started: When it was started, by the clock of its machine, in UTC.
        changed: When the history was written, by the clock of the disk.
        step_seconds: How long a step takes; None if unknown.
        elsewhere: Whether another machine is training it.
        by_trainer: Whether a Trainer trains it in Python, not the command.
        silent: How many seconds a run of another machine has not written anything, in whole minutes, if unusually long.
        version: Another number for every other content.
    """

    name: str
    folder: Path
    status: str
    record: RunRecord | None = None
    problem: str = ""
    step: int = 0
    max_steps: int = 0
    epoch: float = 0.0
    latest: dict[str, float] = field(default_factory=dict)
    resumed: tuple[int, ...] = ()
    started: str = ""
    changed: float = 0.0
    step_seconds: float | None = None
    elsewhere: bool = False
    by_trainer: bool = False
    silent: float = 0.0
    version: int = field(default_factory=count(1).__next__, compare=False)

    @property
    def running(self) -> bool:
        """Whether the run is training."""
        return self.status == RUNNING

    @property
    def seconds_left(self) -> float | None:
        """How long the remaining steps will take; None if unknown."""
        known = self.running and self.step_seconds is not None and self.max_steps
        return self.step_seconds * max(0, self.max_steps - self.step) if known and self.step_seconds else None


FileState: TypeAlias = tuple[int, int, int] | None


def state_of(path: Path) -> FileState:
    """Return what changes when a file is written: inode, size and time. None if it is not a regular file."""
    try:
        found = path.lstat()
    except (OSError, ValueError):
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def changed(*states: FileState) -> float:
    """Return when the first file that exists was written, 0 if none exists."""
    return next((state[2] / 1e9 for state in states if state), 0.0)


def file_states(folder: Path) -> dict[str, FileState]:
    """Return the state of each file of a run that a summary is made from."""
    return {name: state_of(folder / name) for name in (RUN_NAME, TRAINER_NAME, HISTORY_NAME, SESSIONS_NAME, LOCK_NAME)}


def summary_of(name: str, folder: Path, held: Holder | None = None, files: dict[str, FileState] | None = None) -> RunSummary:
    """Read the files of a run. A damaged file is part of the result.

    Args:
        name: The name of the run.
        folder: Its folder.
        held: Who holds its lock. It is asked before the files are read: a run writes its result before it releases the lock.
        files: What `file_states` returned.
    """
    held = held or holder(folder)
    files = files or file_states(folder)
    record, problem, by_trainer = None, "", not os.path.lexists(folder / RUN_NAME)
    kept = TRAINER_NAME if by_trainer else RUN_NAME
    stored = files[kept]
    try:
        if stored and stored[1] <= MOST_RECORD_BYTES:
            record = read_record(folder / kept) if by_trainer else read_run(folder)
        elif stored or os.path.lexists(folder / kept):
            problem = f"{kept} is too large" if stored else f"{kept} is not a regular file"
    except GlassloopError as error:
        problem = error.problem
    moments = read_moments(folder)
    entry = last_entry(folder) if files[HISTORY_NAME] else {}
    step = int(number_of(entry.get("step")) or 0)
    written = changed(files[HISTORY_NAME], stored)
    finished = record is not None and record.finished
    return RunSummary(
        name,
        folder,
        DAMAGED if problem else status_of(held, finished, record is not None and not by_trainer, moments),
        record,
        problem,
        step=step,
        max_steps=record.plan.max_steps if record else moments[-1].max_steps if moments else 0,
        epoch=number_of(entry.get("epoch")) or 0.0,
        latest={key: number for key, value in entry.items() if (number := number_of(value)) is not None},
        resumed=tuple(resumes_in(moments)),
        started=(record.started if record else "") or (moments[0].time if moments else ""),
        changed=written,
        step_seconds=seconds_per_step(moments, step, changed(files[SESSIONS_NAME]), written),
        elsewhere=held is Holder.ELSEWHERE,
        by_trainer=by_trainer,
    )
