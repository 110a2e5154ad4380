"""Find and list the runs below a folder: status, result, time and size of each, in words."""

from __future__ import annotations

import os
from collections.abc import Iterable
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


DEEPEST = 4  # levels of folders below the first


MOST_RUNS, MOST_FOLDERS = 5_000, 20_000


@dataclass(frozen=True)
class Found:
    """The runs of a folder.

    Attributes:
        runs: The run folders by name: their path below the folder.
        groups: The folders with a seeds.json or study.json, by name.
        links: How many links were not followed because they lead outside.
        complete: Whether all folders were visited.
    """

    runs: dict[str, Path]
    links: int = 0
    complete: bool = True
    groups: dict[str, Path] = field(default_factory=dict)


def find_runs(root: Path) -> Found:
    """Return every run below `root`, and `root` itself if it is one. Folders that cannot be read are skipped.

    A run has a run.json or, if a Trainer writes it, a trainer.json or a history.jsonl.
    """
    runs: dict[str, Path] = {}
    groups: dict[str, Path] = {}
    links, visited, waiting = 0, 0, [(root, 0)]
    inside = os.path.realpath(root)
    while waiting:
        folder, level = waiting.pop()
        visited += 1
        if visited > MOST_FOLDERS or len(runs) >= MOST_RUNS:
            return Found(runs, links, complete=False, groups=groups)
        try:
            with os.scandir(folder) as entries:
                names = {entry.name: entry for entry in entries}
        except (OSError, ValueError):
            continue
        own = str(folder.relative_to(root)) if folder != root else root.absolute().name or "run"
        if not names.keys().isdisjoint((RUN_NAME, TRAINER_NAME, HISTORY_NAME)):
            runs[own] = folder
            continue
        if not names.keys().isdisjoint((SEEDS_NAME, STUDY_NAME)):
            groups[own] = folder
        for name, entry in names.items() if level < DEEPEST else ():
            if name.startswith(".") or name == MODEL_NAME or is_checkpoint_name(name):
                continue
            try:
                if entry.is_symlink():  # one that stays inside leads to a folder that is found anyway
                    links += entry.is_dir() and not within(entry.path, inside)
                elif entry.is_dir():
                    waiting.append((Path(entry.path), level + 1))
            except OSError:
                continue
    return Found(runs, links, groups=groups)


def within(path: str, inside: str) -> bool:
    """Return whether a link leads to a folder inside another."""
    found = os.path.realpath(path)
    return os.path.commonpath([found, inside]) == inside


WORST_FIRST = (RUNNING, DAMAGED, FAILED, KILLED, STOPPED, WAITING, FINISHED)


@dataclass(frozen=True)
class ListedRun:
    """A run, or the runs of several seeds.

    Attributes:
        name: Its path below the folder that is listed.
        folder: The run folder.
        status: "running", "finished", "stopped", "failed", "killed", "damaged", or "waiting" for a seed not yet started.
        metrics: The scores of the final evaluation, the run's own metrics first; of several seeds, their means.
        deviation: Of several seeds, the standard deviation of each metric.
        positive_label: The class that the metric f1 is the score of.
        step: The last step that was logged.
        max_steps: Number of steps of the whole training; 0 if unknown.
        seconds: How long a finished run took; of several seeds, all of them.
        size: Number of bytes of all files.
        started: When the run was started, by the clock of its machine, in UTC.
        problem: Why it is damaged.
        seeds: The runs of several seeds.
    """

    name: str
    folder: Path
    status: str
    metrics: dict[str, float] = field(default_factory=dict)
    deviation: dict[str, float] = field(default_factory=dict)
    positive_label: str | None = None
    step: int = 0
    max_steps: int = 0
    seconds: float | None = None
    size: int = 0
    started: str = ""
    problem: str = ""
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
    alone: list[ListedRun] = []
    groups: dict[Path, list[ListedRun]] = {}
    seeds = {folder for folder in found.groups.values() if is_seeds_folder(folder)}
    for name, folder in found.runs.items():
        in_group = folder.parent in seeds
        (groups.setdefault(folder.parent, []) if in_group else alone).append(listed_run(summary_of(name, folder)))
    names = {folder: name for name, folder in found.groups.items()}
    entries = [*alone, *(listed_seeds(names[folder], folder, runs) for folder, runs in groups.items())]
    entries = [replace(entry, size=size_of(entry.folder)) for entry in entries]
    return RunList(tuple(sorted(entries, key=lambda run: (run.started, run.name), reverse=True)), found.links, found.complete)


def listed_run(run: RunSummary) -> ListedRun:
    """Return a run as an entry of the list, without its size."""
    record = run.record
    return ListedRun(
        run.name,
        run.folder,
        run.status,
        metrics=scores_of(record),
        positive_label=record.positive_label if record else None,
        step=run.step,
        max_steps=run.max_steps,
        seconds=record.seconds if record else None,
        started=run.started,
        problem=run.problem,
    )


def scores_of(record: RunRecord | None) -> dict[str, float]:
    """Return the scores of the final evaluation without prefix and timings, those of the run's own metrics first."""
    found = {} if record is None else {key.removeprefix("eval_"): value for key, value in (record.evaluation or {}).items()}
    order = [*(record.metrics if record else ()), *found]
    return {key: found[key] for key in dict.fromkeys(order) if key in found and not is_timing(key)}


def listed_seeds(name: str, folder: Path, runs: Iterable[ListedRun]) -> ListedRun:
    """Return the runs of several seeds as one entry, without its size."""
    several = sorted(runs, key=lambda run: (len(run.name), run.name))
    try:
        known, problem = [seed_name(seed) for seed in read_seeds(folder).seeds], ""
    except GlassloopError as error:
        known, problem = [], error.problem
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
    total, waiting = 0, [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        total += entry.stat(follow_symlinks=False).st_size
        except (OSError, ValueError):
            continue
    return total
