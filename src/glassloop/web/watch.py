"""Follow the runs of a folder: what each one is doing, read again only when its files have changed, and their reports."""

from __future__ import annotations

import os
import stat
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar

from glassloop.base.errors import GlassloopError, counted
from glassloop.base.files import Holder, holder
from glassloop.report.build import report_of
from glassloop.report.comparison import compare_runs, comparison_page
from glassloop.report.study import study_page
from glassloop.runs import record as records
from glassloop.runs import status as states
from glassloop.runs.history import Curves, HistoryTail
from glassloop.runs.status import RunSummary, summary_of
from glassloop.runs.study import read_study
from glassloop.scores.metrics import Measures

Answer = TypeVar("Answer")
SEEDS, STUDY = "seeds", "study"
SCAN_SECONDS, REFRESH_SECONDS = 2.0, 0.4  # between two looks at the same files
MOST_FOLLOWED = 24  # runs whose curves are kept
SILENT_SECONDS, SILENT_TIMES = 120.0, 20  # without an entry, after which a run of another machine is called silent


class Latest(Generic[Answer]):
    """The latest answers, so that many readers of one page cost no more than one."""

    def __init__(self, most: int) -> None:
        self.most, self.lock = most, Lock()
        self.known = OrderedDict[Hashable, tuple[object, Answer]]()

    def of(self, page: Hashable, version: object, make: Callable[[], Answer]) -> Answer:
        """Return the answer for a page, made again if its version has changed."""
        with self.lock:
            known = self.known.get(page)
            if known is None or known[0] != version:
                known = self.known[page] = (version, make())
            self.known.move_to_end(page)
            while len(self.known) > self.most:
                self.known.popitem(last=False)
        return known[1]


@dataclass(frozen=True)
class GroupSummary:
    name: str  # its path below the folder that is watched
    folder: Path
    kind: str  # "seeds" or "study"
    status: str  # as that of a run; of several seeds, the most urgent of theirs
    done: int = 0  # number of finished runs
    number: int = 0  # of all runs that are known so far
    value: float | None = None  # the main result, to sort by
    result: str = ""  # the main result in words
    source: str = ""
    model: str = ""
    started: str = ""
    seconds: float | None = None
    problem: str = ""  # why it is damaged
    runs: tuple[str, ...] = ()
    version: object = None  # another value for every other content

    @property
    def progress(self) -> str:
        return f"{self.done:,} of {counted(self.number, 'run', 'runs')}" if self.number else ""


def group_of(name: str, folder: Path, runs: Sequence[RunSummary]) -> GroupSummary:
    """Return the summary of a folder, given the runs in it. A damaged file is part of the result."""
    kind, file = (STUDY, records.STUDY_NAME) if records.is_study(folder) else (SEEDS, records.SEEDS_NAME)
    version = (str(folder), states.state_of(folder / file), *(run.version for run in runs))
    names = sorted((run.name for run in runs), key=lambda name: (len(name), name))  # seed-2 before seed-10
    started = min((run.started for run in runs if run.started), default="")
    group = GroupSummary(name, folder, kind, records.DAMAGED, started=started, runs=tuple(names), version=version)
    try:
        return with_study(group) if kind == STUDY else with_seeds(group, runs)
    except GlassloopError as error:
        return replace(group, problem=error.problem)


def with_seeds(group: GroupSummary, runs: Sequence[RunSummary]) -> GroupSummary:
    seeds = states.listed_seeds(group.name, group.folder, map(states.listed_run, runs))
    key, value = next(iter(seeds.metrics.items()), ("", None))
    spread = f" ± {seeds.deviation[key]:.4f}" if key in seeds.deviation else ""
    title = Measures((key,), seeds.positive_label).title(key)
    record = next((run.record for run in runs if run.record), None)
    return replace(
        group,
        status=seeds.status,
        done=sum(seed.status == records.FINISHED for seed in seeds.seeds),
        number=len(seeds.seeds),
        value=value,
        result="" if value is None else f"{title} {value:.4f}{spread}",
        source=record.data.source if record else "",
        model=record.model.name if record else "",
        seconds=seeds.seconds,
        problem=seeds.problem,
    )


def with_study(group: GroupSummary) -> GroupSummary:
    record = read_study(group.folder)
    status, held = record.status, holder(group.folder)
    if status == records.RUNNING and held in (Holder.DEAD, Holder.NOBODY):
        status = records.KILLED if held is Holder.DEAD else records.STOPPED
    final: Any = record.results.get("final")
    scores = [one.get("mean") for one in final.values() if isinstance(one, dict)] if isinstance(final, dict) else []
    value = next((score for score in scores if isinstance(score, float)), None)
    return replace(
        group,
        status=status,
        done=sum(run.finished for run in record.runs.values()),
        number=len(record.runs),
        value=value,
        result=f"{record.results.get('metric', record.metric)} {value:.4f}" if value is not None else "",
        source=record.base.source or "quickstart",
        model=record.base.model or "quickstart",
        seconds=record.seconds or None,
    )


@dataclass
class Followed:
    tail: HistoryTail
    read: float = float("-inf")
    lock: Lock = field(default_factory=Lock)


@dataclass
class Seen:
    """A summary with the state of the files it was made from, and when that state was first seen."""

    signature: tuple[object, ...]
    summary: RunSummary
    since: float


# Files are looked at: inotify does not see what another machine writes to a shared disk. No clock is compared with another
# one; the speed of a run is the difference of two times of the disk.
class Watcher:
    """Follows all runs below a folder. Every method may be called from several threads."""

    def __init__(self, root: Path) -> None:
        self.root, self.lock = root, Lock()
        self.found, self.scanned, self.summarized = states.RunFolders({}), float("-inf"), float("-inf")
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
        with self.lock:
            if not self.exists(name):
                self.scan()
            return self.summarize(name) if self.exists(name) else None

    def groups(self, runs: Sequence[RunSummary]) -> list[GroupSummary]:
        with self.lock:
            known = [*self.found.groups.items()]
        return [group_of(name, folder, [run for run in runs if folder in run.folder.parents]) for name, folder in known]

    def exists(self, name: str) -> bool:
        return name in self.found.runs and os.path.lexists(self.found.runs[name])

    def curves(self, run: RunSummary) -> Curves:
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
        self.found, self.scanned = states.find_runs(self.root), time.monotonic()
        for name in [name for name in self.seen if name not in self.found.runs]:
            del self.seen[name]
            self.followed.pop(name, None)

    def summarize(self, name: str) -> RunSummary:
        """Return the summary of a run, made again if its files or the holder of its lock have changed."""
        folder, known, now = self.found.runs[name], self.seen.get(name), time.monotonic()
        held = holder(folder)  # before the files are read: a run writes its result before it releases the lock
        files = states.file_states(folder)
        signature = (held, *files.values())
        if known is None or known.signature != signature:
            written = states.changed(files[records.HISTORY_NAME], files[records.RUN_NAME], files[records.TRAINER_NAME])
            since = now if known else now - max(0.0, time.time() - written)
            known = self.seen[name] = Seen(signature, summary_of(name, folder, held, files), since)
        if (silent := silence(known.summary, now - known.since)) != known.summary.silent:
            known.summary = replace(known.summary, silent=silent)
        return known.summary


def silence(run: RunSummary, seconds: float) -> float:
    """Return how long a run of another machine has been silent, 0 if not unusually long: it cannot be asked."""
    every = run.record.plan.log_every if run.record else 0
    usual = SILENT_TIMES * (run.step_seconds or 0.0) * max(every, 1)
    return seconds // 60 * 60 if run.running and run.elsewhere and seconds > max(SILENT_SECONDS, usual) else 0.0


@dataclass(frozen=True)
class Report:
    html: str = ""
    problem: str = ""


# Made on request: the report.html of a run folder may have been written by anyone.
def made(*folders: Path) -> Report:
    """Make a report or a comparison. Whatever the files of the folders contain, the answer is one or a sentence."""
    try:
        for path in (path for folder in folders for path in folder.iterdir()):
            mode = path.lstat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # opening a pipe would wait forever
                return Report(problem=f"There is no report: {path.name} is a link, a pipe or a device.")
        first, *others = folders
        if others:
            return Report(comparison_page(compare_runs([str(folder) for folder in folders])))
        return Report(study_page(first.name, read_study(first)) if records.is_study(first) else report_of(first).html)
    except GlassloopError as error:
        return Report(problem=f"{error.problem}. {error.remedy}.")
    except Exception as error:
        return Report(problem=f"The report cannot be made: {type(error).__name__}: {error}")
