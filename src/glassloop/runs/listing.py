"""Find and list the runs below a folder: status, result, time and size of each, in words."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev

from glassloop.base.errors import GlassloopError
from glassloop.runs.record import (
    DAMAGED,
    FAILED,
    FINISHED,
    HISTORY_NAME,
    KILLED,
    MODEL_NAME,
    RUN_NAME,
    RUNNING,
    SEEDS_NAME,
    STOPPED,
    STUDY_NAME,
    TRAINER_NAME,
    WAITING,
    RunRecord,
    is_checkpoint_name,
    is_seeds_folder,
    is_timing,
    seed_name,
)
from glassloop.runs.status import RunSummary, summary_of
from glassloop.runs.study import read_seeds

DEEPEST = 4  # levels of folders below the first
MOST_RUNS, MOST_FOLDERS = 5_000, 20_000
WORST_FIRST = (RUNNING, DAMAGED, FAILED, KILLED, STOPPED, WAITING, FINISHED)


def duration(seconds: float) -> str:
    """Return `45 s`, `3 min 20 s`, `2 h 5 min` or `3 d 4 h`."""
    whole = max(0, round(seconds))
    units = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
    place = next((place for place, (size, _) in enumerate(units) if whole >= size), 3)
    (size, name), smaller = units[place], units[place + 1 : place + 2]
    first, rest = divmod(whole, size)
    second = f" {rest // smaller[0][0]} {smaller[0][1]}" if smaller and rest >= smaller[0][0] and first < 10 else ""
    return f"{first} {name}{second}"


def amount(size: float) -> str:
    """Return a number of bytes as `912 kB`, `34 MB` or `1.2 GB`."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


@dataclass(frozen=True)
class RunFolders:
    """The runs of a folder."""

    runs: dict[str, Path]  # by name: their path below the folder
    links: int = 0  # that were not followed because they lead outside
    complete: bool = True  # all folders were visited
    groups: dict[str, Path] = field(default_factory=dict)  # the folders with a seeds.json or study.json, by name


def find_runs(root: Path) -> RunFolders:
    """Return every run below `root`, and `root` itself if it is one. Folders that cannot be read are skipped.

    A run has a run.json or, if a Trainer writes it, a trainer.json or a history.jsonl.
    """
    runs: dict[str, Path] = {}
    groups: dict[str, Path] = {}
    links = 0
    for visited, (path, subfolders, files) in enumerate(os.walk(root)):
        if visited >= MOST_FOLDERS or len(runs) >= MOST_RUNS:
            return RunFolders(runs, links, complete=False, groups=groups)
        folder = Path(path)
        below = folder.relative_to(root)
        name = str(below) if folder != root else root.absolute().name or "run"
        present = {*subfolders, *files}
        is_leaf = not present.isdisjoint((RUN_NAME, TRAINER_NAME, HISTORY_NAME))
        if is_leaf:
            runs[name] = folder
        elif not present.isdisjoint((SEEDS_NAME, STUDY_NAME)):
            groups[name] = folder
        if is_leaf or len(below.parts) >= DEEPEST:
            subfolders.clear()
        # `os.walk` visits what stays in this list, but no links: one that stays inside leads to a folder that is found anyway.
        subfolders[:] = [sub for sub in subfolders if not (sub[0] == "." or sub == MODEL_NAME or is_checkpoint_name(sub))]
        links += sum((folder / sub).is_symlink() and leads_outside(folder / sub, root) for sub in subfolders)
    return RunFolders(runs, links, groups=groups)


def leads_outside(link: Path, root: Path) -> bool:
    inside = os.path.realpath(root)
    return os.path.commonpath([os.path.realpath(link), inside]) != inside


@dataclass(frozen=True)
class ListedRun:
    """A run, or the runs of several seeds."""

    name: str  # its path below the folder that is listed
    folder: Path
    status: str  # "running", "finished", "stopped", "failed", "killed", "damaged"; "waiting" for a seed not yet started
    metrics: dict[str, float] = field(default_factory=dict)  # scores of the final evaluation; of several seeds, their means
    deviation: dict[str, float] = field(default_factory=dict)  # of several seeds, the standard deviation of each metric
    positive_label: str | None = None  # the class that the metric f1 is the score of
    step: int = 0  # the last one that was logged
    max_steps: int = 0  # of the whole training; 0 if unknown
    seconds: float | None = None  # how long a finished run took; of several seeds, all of them
    size: int = 0  # bytes of all files
    started: str = ""  # by the clock of its machine, in UTC
    problem: str = ""  # why it is damaged
    seeds: tuple[ListedRun, ...] = ()


@dataclass(frozen=True)
class RunList:
    """The runs of a folder, newest first; how many links were not followed; and whether all folders were visited."""

    entries: tuple[ListedRun, ...]
    links: int = 0
    complete: bool = True


def listed_runs(root: Path) -> RunList:
    """Return the runs below a folder. The runs of several seeds are one entry."""
    found = find_runs(root)
    entries: list[ListedRun] = []
    seeds: dict[Path, list[ListedRun]] = {folder: [] for folder in found.groups.values() if is_seeds_folder(folder)}
    for name, folder in found.runs.items():
        seeds.get(folder.parent, entries).append(listed_run(summary_of(name, folder)))
    names = {folder: name for name, folder in found.groups.items()}
    entries += [listed_seeds(names[folder], folder, runs) for folder, runs in seeds.items() if runs]
    entries = [replace(entry, size=size_of(entry.folder)) for entry in entries]
    return RunList(tuple(sorted(entries, key=lambda run: (run.started, run.name), reverse=True)), found.links, found.complete)


def listed_run(run: RunSummary) -> ListedRun:
    """Return a run as an entry of the list, without its size."""
    record = run.record
    return ListedRun(
        run.name,
        run.folder,
        run.status,
        metrics=scores_of(record) if record else {},
        positive_label=record.positive_label if record else None,
        step=run.step,
        max_steps=run.max_steps,
        seconds=record.seconds if record else None,
        started=run.started,
        problem=run.problem,
    )


def scores_of(record: RunRecord) -> dict[str, float]:
    """Return the scores of the final evaluation without prefix and timings, those of the run's own metrics first."""
    scores = {key.removeprefix("eval_"): value for key, value in (record.evaluation or {}).items()}
    return {key: scores[key] for key in dict.fromkeys([*record.metrics, *scores]) if key in scores and not is_timing(key)}


def listed_seeds(name: str, folder: Path, runs: Iterable[ListedRun]) -> ListedRun:
    """Return the runs of several seeds as one entry, without its size."""
    several = sorted(runs, key=lambda run: (len(run.name), run.name))
    known: list[str] = []
    problem = ""
    try:
        known = [seed_name(seed) for seed in read_seeds(folder).seeds]
    except GlassloopError as error:
        problem = error.problem
    present = {run.folder.name for run in several}
    waiting = [ListedRun(f"{name}/{seed}", folder / seed, WAITING) for seed in known if seed not in present]
    statuses = {run.status for run in [*several, *waiting]} | ({DAMAGED} if problem else set())
    finished = [run for run in several if run.status == FINISHED]
    keys = finished[0].metrics if finished else {}
    values = {key: [run.metrics[key] for run in finished if key in run.metrics] for key in keys}
    times = [run.seconds for run in finished if run.seconds is not None]
    return ListedRun(
        name,
        folder,
        next(status for status in WORST_FIRST if status in statuses),
        metrics={key: mean(numbers) for key, numbers in values.items()},
        deviation={key: stdev(numbers) for key, numbers in values.items() if len(numbers) > 1},
        positive_label=finished[0].positive_label if finished else None,
        step=sum(run.step for run in several),
        max_steps=max((run.max_steps for run in several), default=0) * (len(several) + len(waiting)),
        seconds=sum(times) if times else None,
        started=min((run.started for run in several if run.started), default=""),
        problem=problem,
        seeds=(*several, *waiting),
    )


def size_of(folder: Path) -> int:
    """Return the number of bytes of all files in a folder. Links and what cannot be read count as nothing."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                state = Path(path, name).lstat()
                total += state.st_size if stat.S_ISREG(state.st_mode) else 0
    return total
