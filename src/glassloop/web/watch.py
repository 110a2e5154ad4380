"""Follow the runs of a folder: what each one is doing, read again only when its files have changed."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import TypeAlias

from glassloop.lock import holder
from glassloop.run_folder.layout import HISTORY_NAME, RUN_NAME, TRAINER_NAME
from glassloop.run_folder.scan import Found, find_runs
from glassloop.run_folder.summary import RunSummary, changed, file_states, summary_of
from glassloop.run_folder.tail import Curves, HistoryTail
from glassloop.web.groups import GroupSummary, group_of

Signature: TypeAlias = tuple[object, ...]

SCAN_SECONDS, REFRESH_SECONDS = 2.0, 0.4  # between two looks at the same files
MOST_FOLLOWED = 24  # runs whose curves are kept
SILENT_SECONDS, SILENT_TIMES = 120.0, 20  # without an entry, after which a run of another machine is called silent


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
            if not self.exists(name):
                self.scan()
            return self.summarize(name) if self.exists(name) else None

    def groups(self, runs: Sequence[RunSummary]) -> list[GroupSummary]:
        """Return the folders of several seeds and of studies, given all runs."""
        with self.lock:
            found = [*self.found.groups.items()]
        return [group_of(name, folder, [run for run in runs if folder in run.folder.parents]) for name, folder in found]

    def group(self, name: str) -> GroupSummary | None:
        """Return a folder of several seeds or of a study, or None if there is none of this name."""
        return next((group for group in self.groups(self.runs()) if group.name == name), None)

    def exists(self, name: str) -> bool:
        """Return whether a run was found before and is still there."""
        return name in self.found.runs and os.path.lexists(self.found.runs[name])

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

    def scan(self) -> None:
        """Look for new and removed runs, unless that was done a moment ago."""
        if time.monotonic() - self.scanned < SCAN_SECONDS:
            return
        self.found, self.scanned = find_runs(self.root), time.monotonic()
        for name in [name for name in self.seen if name not in self.found.runs]:
            del self.seen[name]
            self.followed.pop(name, None)

    def summarize(self, name: str) -> RunSummary:
        """Return the summary of a run, made again if its files or the holder of its lock have changed."""
        folder, known, now = self.found.runs[name], self.seen.get(name), time.monotonic()
        held = holder(folder)  # before the files are read: a run writes its result before it releases the lock
        files = file_states(folder)
        signature = (held, *files.values())
        if known is None or known.signature != signature:
            since = (
                now
                if known
                else now - max(0.0, time.time() - changed(files[HISTORY_NAME], files[RUN_NAME], files[TRAINER_NAME]))
            )
            known = self.seen[name] = Seen(signature, summary_of(name, folder, held, files), since)
        if (silent := silence(known.summary, now - known.since)) != known.summary.silent:
            known.summary = replace(known.summary, silent=silent)
        return known.summary


def silence(run: RunSummary, seconds: float) -> float:
    """Return how long a run of another machine has been silent, 0 if not unusually long: it cannot be asked."""
    every = run.record.plan.log_every if run.record else 0
    usual = SILENT_TIMES * (run.step_seconds or 0.0) * max(every, 1)
    return seconds // 60 * 60 if run.running and run.elsewhere and seconds > max(SILENT_SECONDS, usual) else 0.0
