"""Whether a training is running, what its files say, and when it was started, resumed, stopped and ended."""

from __future__ import annotations

import json
import os
import platform
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TypeAlias

from glassloop.base.errors import GlassloopError
from glassloop.base.files import open_regular
from glassloop.base.lock import LOCK_NAME, Holder, holder
from glassloop.base.records import NotARecordError, decoded
from glassloop.runs.history import entries_in, last_entry, number_of
from glassloop.runs.layout import HISTORY_NAME, RUN_NAME, SESSIONS_NAME, TRAINER_NAME, is_run
from glassloop.runs.record import DAMAGED, FAILED, FINISHED, KILLED, RUNNING, STOPPED, RunRecord, read_record, read_run

START, RESUME, STOP, END = "start", "resume", "stop", "end"
MOST_BYTES = 1_000_000  # that are read; a line has about 150


# Not in history.jsonl: a run that is repeated, or killed and resumed, writes the same history byte for byte.
@dataclass(frozen=True)
class Moment:
    """One line of the file.

    Attributes:
        event: "start", "resume", "stop" (by a signal) or "end" (after the last step).
        step: The number of steps trained so far.
        max_steps: The number of steps of the whole training.
        time: The time by the clock of the machine that trains, in UTC.
        machine: The name of that machine.
        process: The number of the process there.
    """

    event: str
    step: int
    max_steps: int
    time: str = ""
    machine: str = ""
    process: int = 0


def note_moment(folder: Path, event: str, step: int, max_steps: int) -> None:
    """Add a line to the file; a start begins a new file. A full disk does not end a training."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    moment = Moment(event, step, max_steps, now, platform.node(), os.getpid())
    with suppress(OSError), (folder / SESSIONS_NAME).open("w" if event == START else "a", encoding="utf-8") as opened:
        opened.write(json.dumps(asdict(moment)) + "\n")


def read_moments(folder: Path) -> list[Moment]:
    """Return the lines of the file, up to the first that is damaged or incomplete; empty if there is no file."""
    found: list[Moment] = []
    with suppress(OSError, NotARecordError):
        with open_regular(folder / SESSIONS_NAME) as opened:
            lines = opened.read(MOST_BYTES).split(b"\n")[:-1]
        for entry in entries_in(lines):
            found.append(decoded(Moment, entry))
    return found


def resumed_steps(folder: Path) -> list[int]:
    """Return the steps after which a run was resumed."""
    return resumes_in(read_moments(folder))


def resumes_in(moments: Sequence[Moment]) -> list[int]:
    """Return the steps after which a training was resumed, without those that a later resume went back behind."""
    kept: list[int] = []
    for moment in moments:
        if moment.event in (START, RESUME):
            kept = [step for step in kept if step < moment.step] + [moment.step]
    return [step for step in kept if step > 0]


ENDED = (FINISHED, STOPPED, FAILED, KILLED, DAMAGED)


def status_of(held: Holder, finished: bool, has_record: bool, moments: Sequence[Moment]) -> str:
    """Return "running", "finished", "stopped" (by a signal), "failed" (by an error) or "killed".

    Args:
        held: Who holds the lock. Ask before reading anything else: a run writes its result before it releases the lock.
        finished: Whether run.json says that the run is finished.
        has_record: Whether there is a run.json; a Trainer writes none.
        moments: The content of sessions.jsonl.
    """
    if finished:
        return FINISHED
    if held in (Holder.ALIVE, Holder.ELSEWHERE):
        return RUNNING
    if held is Holder.DEAD:
        return KILLED
    last = moments[-1].event if moments else None
    if last == END and not has_record:
        return FINISHED
    return FAILED if last in (START, RESUME) else STOPPED


def run_status(folder: Path, record: RunRecord) -> str:
    """Return the status of a run whose record was read before."""
    held = Holder.NOBODY if record.finished else holder(folder)
    return status_of(held, record.finished, is_run(folder), read_moments(folder))


def seconds_per_step(moments: Sequence[Moment], step: int, began: float, changed: float) -> float | None:
    """Return how long a step has taken since the training was started or resumed; None before the first entry.

    Args:
        moments: The content of sessions.jsonl.
        step: The last step in the history.
        began: When sessions.jsonl was written.
        changed: When history.jsonl was written. Both times are those of the disk, so no two clocks are compared.
    """
    if not moments or moments[-1].event not in (START, RESUME):
        return None
    steps = step - moments[-1].step
    return (changed - began) / steps if steps > 0 and changed > began else None


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
