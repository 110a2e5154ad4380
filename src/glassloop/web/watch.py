"""Follow the runs of a folder: what each one is doing, read again only when its files have changed."""

from __future__ import annotations

import os
import stat
import time
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from threading import Lock
from typing import TypeAlias

from glassloop.errors import GlassloopError
from glassloop.lock import LOCK_NAME, Holder, holder
from glassloop.run_folder.history import last_entry
from glassloop.run_folder.layout import HISTORY_NAME, RUN_NAME, SESSIONS_NAME
from glassloop.run_folder.record import RUNNING, RunRecord
from glassloop.run_folder.run_json import read_run
from glassloop.run_folder.scan import Found, find_runs
from glassloop.run_folder.sessions import read_moments, resumes_in
from glassloop.run_folder.status import DAMAGED, seconds_per_step, status_of
from glassloop.run_folder.tail import Curves, HistoryTail, number_of

Signature: TypeAlias = tuple[object, ...]

SCAN_SECONDS, REFRESH_SECONDS = 2.0, 0.4  # between two looks at the same files
MOST_FOLLOWED = 24  # runs whose curves are kept
MOST_RECORD_BYTES = 8_000_000  # of a run.json
SILENT_SECONDS, SILENT_TIMES = 120.0, 20  # without an entry, after which a run of another machine is called silent


@dataclass(frozen=True)
class RunSummary:
    """What the files of a run say.

    Attributes:
        name: Its path below the folder that is watched.
        folder: The run folder.
        status: "running", "finished", "stopped", "failed", "killed" or "damaged".
        record: The content of run.json; None if there is none, or if it is damaged.
        problem: What is wrong with run.json.
        step: The last step in the history.
        max_steps: The number of steps of the whole training; 0 if unknown.
        epoch: The epoch of the last step.
        latest: The values of the last entry of the history.
        resumed: The steps after which the training was resumed.
        started: When it was started, by the clock of its machine, in UTC.
        changed: When the history was written, by the clock of the disk.
        step_seconds: How long a step takes; None if unknown.
        elsewhere: Whether another machine is training it.
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


@dataclass
class Followed:
    """The curves of a run, and when they were last read."""

    tail: HistoryTail
    read: float = float("-inf")
    lock: Lock = field(default_factory=Lock)


@dataclass
class Seen:
    """A summary with the state of the files it was made from, and when that state was first seen."""

    signature: Signature
    summary: RunSummary
    since: float


class Watcher:
    """Follows all runs below a folder. Every method may be called from several threads.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.lock = root, Lock()
        self.found, self.scanned, self.summarized = Found({}), float("-inf"), float("-inf")
        self.seen: dict[str, Seen] = {}
        self.followed: OrderedDict[str, Followed] = OrderedDict()

    def runs(self) -> list[RunSummary]:
        """Return all runs: those that are training first, then by time."""
        with self.lock:
            self.scan()
            if time.monotonic() - self.summarized > REFRESH_SECONDS:
                for name in self.found.runs:
                    self.summarize(name)
                self.summarized = time.monotonic()
            summaries = [entry.summary for name, entry in self.seen.items() if name in self.found.runs]
        return sorted(summaries, key=lambda run: (not run.running, -run.changed, run.name))

    def run(self, name: str) -> RunSummary | None:
        """Return a run, or None if there is none of this name."""
        with self.lock:
            self.scan(unless=name)
            return self.summarize(name) if name in self.found.runs else None

    def curves(self, run: RunSummary) -> Curves:
        """Return the curves of a run, with what it has written up to now."""
        with self.lock:
            followed = self.followed.setdefault(run.name, Followed(HistoryTail(run.folder)))
            self.followed.move_to_end(run.name)
            while len(self.followed) > MOST_FOLLOWED:
                self.followed.popitem(last=False)
        with followed.lock:
            if followed.tail.complete and time.monotonic() - followed.read <= REFRESH_SECONDS:
                return followed.tail.known
            followed.read = time.monotonic()
            return followed.tail.now()

    def scan(self, unless: str | None = None) -> None:
        """Look for new and removed runs, unless that was done a moment ago or the run in question is known and exists."""
        known = unless in self.found.runs and os.path.lexists(self.found.runs[unless])
        if known or time.monotonic() - self.scanned < SCAN_SECONDS:
            return
        self.found, self.scanned = find_runs(self.root), time.monotonic()
        for name in [name for name in self.seen if name not in self.found.runs]:
            del self.seen[name]
            self.followed.pop(name, None)

    def summarize(self, name: str) -> RunSummary:
        """Return the summary of a run, made again if its files or the holder of its lock have changed."""
        folder, known, now = self.found.runs[name], self.seen.get(name), time.monotonic()
        held = holder(folder)  # before the files are read: a run writes its result before it releases the lock
        files = {file: state_of(folder / file) for file in (RUN_NAME, HISTORY_NAME, SESSIONS_NAME, LOCK_NAME)}
        signature = (held, *files.values())
        if known is None or known.signature != signature:
            since = now if known else now - max(0.0, time.time() - changed(files[HISTORY_NAME], files[RUN_NAME]))
            known = self.seen[name] = Seen(signature, summary_of(name, folder, held, files), since)
        if (silent := silence(known.summary, now - known.since)) != known.summary.silent:
            known.summary = replace(known.summary, silent=silent)
        return known.summary


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


def summary_of(name: str, folder: Path, held: Holder, files: dict[str, FileState]) -> RunSummary:
    """Read the files of a run. A damaged file is part of the result."""
    record, problem, stored = None, "", files[RUN_NAME]
    try:
        if stored and stored[1] <= MOST_RECORD_BYTES:
            record = read_run(folder)
        elif stored or os.path.lexists(folder / RUN_NAME):
            problem = f"{RUN_NAME} is too large" if stored else f"{RUN_NAME} is not a regular file"
    except GlassloopError as error:
        problem = error.problem
    moments = read_moments(folder)
    entry = last_entry(folder) if files[HISTORY_NAME] else {}
    step = int(number_of(entry.get("step")) or 0)
    written = changed(files[HISTORY_NAME], files[RUN_NAME])
    finished = record is not None and record.finished
    return RunSummary(
        name,
        folder,
        DAMAGED if problem else status_of(held, finished, record is not None, moments),
        record,
        problem,
        step=step,
        max_steps=record.plan.max_steps if record else moments[-1].max_steps if moments else 0,
        epoch=number_of(entry.get("epoch")) or 0.0,
        latest={key: number for key, value in entry.items() if (number := number_of(value)) is not None},
        resumed=tuple(resumes_in(moments)),
        started=record.started if record else moments[0].time if moments else "",
        changed=written,
        step_seconds=seconds_per_step(moments, step, changed(files[SESSIONS_NAME]), written),
        elsewhere=held is Holder.ELSEWHERE,
    )


def silence(run: RunSummary, seconds: float) -> float:
    """Return how long a run of another machine has been silent, 0 if not unusually long: it cannot be asked."""
    every = run.record.plan.log_every if run.record else 0
    usual = SILENT_TIMES * (run.step_seconds or 0.0) * max(every, 1)
    return seconds // 60 * 60 if run.running and run.elsewhere and seconds > max(SILENT_SECONDS, usual) else 0.0
