"""Run folders on disk: choose and claim one, whether its training is running, and the list of all below a folder."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from statistics import mean, stdev
from typing import TypeAlias

from glassloop.base import errors
from glassloop.base.errors import GlassloopError, ModelError, ResourceError, SettingsError
from glassloop.base.files import LOCK_NAME, Holder, holder, refuse_held, set_aside, user_path
from glassloop.base.output import say
from glassloop.runs import record as records
from glassloop.runs.history import END, RESUME, START, Moment, last_entry, number_of, read_moments, resumed_steps
from glassloop.runs.study import read_seeds

RUNS_DIR = Path("runs")
MOST_RECORD_BYTES = 8_000_000  # of a run.json
DEEPEST = 4  # levels of folders below the first
MOST_RUNS, MOST_FOLDERS = 5_000, 20_000
WORST_FIRST = (
    *(records.RUNNING, records.DAMAGED, records.FAILED, records.KILLED),
    *(records.STOPPED, records.WAITING, records.FINISHED),
)

FileState: TypeAlias = tuple[int, int, int] | None


def free_folder(chosen: str | None, *, overwrite: bool = False) -> Path:
    """Return the folder of a new run: `chosen`, which must be empty or new, or a new one with the next number in runs/."""
    if chosen:
        folder = user_path(chosen)
        if folder.exists():
            if not folder.is_dir():
                raise SettingsError(f"output_dir {folder} is a file", "choose an empty or new folder")
            refuse_held(folder)  # what a process has begun there may not look like a run yet
            if records.is_run(folder) and overwrite:
                say(f"moved aside: {folder} is now {set_aside(folder).name}")
            else:
                refuse_taken(folder)
        return folder
    taken = [int(path.name[4:]) for path in RUNS_DIR.glob("run-*") if path.name[4:].isdigit()]
    number = max(taken, default=0)
    while True:
        number += 1
        folder = RUNS_DIR / f"run-{number:03d}"
        try:
            RUNS_DIR.mkdir(exist_ok=True)
            folder.mkdir(parents=True)  # another run that failed may have removed runs/ just now
            return folder
        except FileExistsError as error:  # by another run that starts at the same time
            if not RUNS_DIR.is_dir():
                remedy = "move it, or choose a folder with --output_dir"
                raise ResourceError(f"{RUNS_DIR.absolute()} is a file", remedy) from error
        except OSError as error:
            problem = f"{folder.absolute()}: {error.strerror}"
            raise ResourceError(problem, "choose an output_dir with write permission") from error


def refuse_taken(folder: Path) -> None:
    """Raise `SettingsError` if a folder contains a run, several runs or other files."""
    move = ", or move it aside with --overwrite_output_dir"
    for is_there, what, resume, otherwise in (
        (records.is_run, "a run", "resume it:", move),
        (records.is_study, "a study", "continue it: glassloop study", ""),
        (records.is_seeds_folder, "runs of several seeds", "resume them: glassloop train --seeds NUMBER", ""),
    ):
        if is_there(folder):
            remedy = f"{resume} --resume {folder}; or choose another folder{otherwise}"
            raise SettingsError(f"output_dir {folder} already contains {what}", remedy)
    if any(path.name != LOCK_NAME and not path.name.startswith(f".{records.RUN_NAME}.") for path in folder.iterdir()):
        raise SettingsError(f"output_dir {folder} contains files that do not belong to a run", "choose an empty or new folder")


def refuse_changed(folder: Path, stored: records.RunRecord | None) -> None:
    """Raise if another run has written to the folder since `stored` was read, before this process took the lock."""
    if stored is None:
        refuse_taken(folder)
    elif records.read_run(folder) != stored:
        problem = f"{folder}: another process has resumed this run in the meantime"
        raise errors.LockedError(problem, "check its result, then resume it again")


@contextmanager
def cleared_unless_started(folder: Path, has_started: Callable[[], bool]) -> Iterator[None]:
    """Empty the folder of a new run if wrong settings, data or model end the run before its first step."""
    # The corrected command can then use the same folder. A run that ends because the disk is full stays and can be resumed.
    try:
        yield
    except (SettingsError, errors.DataError, ModelError, errors.TooLargeError):
        for path in () if has_started() else folder.iterdir():
            if path.name != LOCK_NAME:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise


def new_folders(folder: Path) -> list[Path]:
    """Return the folder of a new run and those of its parents that exist only for it: missing ones, and runs/."""
    return [folder, *(parent for parent in folder.parents if parent == RUNS_DIR or not parent.exists())]


def remove_if_empty(*folders: Path) -> None:
    """Remove folders in this order, up to the first that is not empty."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def resumed_folder(resume: str, output_dir: str | None) -> tuple[Path, bool | Path]:
    """Return the run folder to resume, and its checkpoint: True for the newest."""
    if resume == "newest":
        if not output_dir:
            raise SettingsError("--resume needs a run folder", "use glassloop train --resume RUN, or add --output_dir RUN")
        return user_path(output_dir), True
    path = user_path(resume)
    return (path.parent, path) if records.is_checkpoint_name(path.name) and not records.is_run(path) else (path, True)


def status_of(held: Holder, finished: bool, has_record: bool, moments: Sequence[Moment]) -> str:
    """Return the status of a run from its lock, its run.json (a Trainer writes none) and its sessions.jsonl."""
    # Callers ask for the lock before they read anything else: a run writes its result before it releases the lock.
    if not finished and held is not Holder.NOBODY:
        return records.KILLED if held is Holder.DEAD else records.RUNNING
    last = moments[-1].event if moments else None
    if finished or (last == END and not has_record):
        return records.FINISHED
    return records.FAILED if last in (START, RESUME) else records.STOPPED


def run_status(folder: Path, record: records.RunRecord) -> str:
    """Return the status of a run whose record was read before."""
    held = Holder.NOBODY if record.finished else holder(folder)
    return status_of(held, record.finished, records.is_run(folder), read_moments(folder))


@dataclass(frozen=True)
class RunSummary:
    """What the files of a run say."""

    name: str  # its path below the folder that is watched
    folder: Path
    status: str  # "running", "finished", "stopped", "failed", "killed" or "damaged"
    record: records.RunRecord | None = None  # None if there is no run.json or trainer.json, or if it is damaged
    problem: str = ""  # what is wrong with that file
    step: int = 0  # the last one in the history
    max_steps: int = 0  # of the whole training; 0 if unknown
    epoch: float = 0.0  # of the last step
    latest: dict[str, float] = field(default_factory=dict)  # the values of the last entry of the history
    resumed: tuple[int, ...] = ()  # the steps after which the training was resumed
    started: str = ""  # by the clock of its machine, in UTC
    changed: float = 0.0  # when the history was written, by the clock of the disk
    step_seconds: float | None = None  # how long a step takes
    elsewhere: bool = False  # another machine is training it
    by_trainer: bool = False  # a Trainer trains it in Python, not the command
    silent: float = 0.0  # seconds that a run of another machine has not written, in whole minutes, if unusually long
    version: int = field(default_factory=count(1).__next__, compare=False)  # another number for every other content

    @property
    def running(self) -> bool:
        return self.status == records.RUNNING

    @property
    def seconds_left(self) -> float | None:
        """How long the remaining steps will take; None if unknown."""
        if self.running and self.max_steps and self.step_seconds:
            return self.step_seconds * max(0, self.max_steps - self.step)
        return None


def state_of(path: Path) -> FileState:
    """Return what changes when a file is written: inode, size and time. None if it is not a regular file."""
    try:
        state = path.lstat()
    except (OSError, ValueError):
        return None
    return (state.st_ino, state.st_size, state.st_mtime_ns) if stat.S_ISREG(state.st_mode) else None


def changed(*states: FileState) -> float:
    """Return when the first file that exists was written, 0 if none exists."""
    return next((state[2] / 1e9 for state in states if state), 0.0)


def file_states(folder: Path) -> dict[str, FileState]:
    """Return the state of each file of a run that a summary is made from."""
    names = (records.RUN_NAME, records.TRAINER_NAME, records.HISTORY_NAME, records.SESSIONS_NAME, LOCK_NAME)
    return {name: state_of(folder / name) for name in names}


def summary_of(name: str, folder: Path, held: Holder | None = None, files: dict[str, FileState] | None = None) -> RunSummary:
    """Read the files of a run, whose states may be known. A damaged file is part of the result."""
    held = held or holder(folder)  # before the files are read: a run writes its result before it releases the lock
    files = files or file_states(folder)
    by_trainer = not os.path.lexists(folder / records.RUN_NAME)
    record_name = records.TRAINER_NAME if by_trainer else records.RUN_NAME
    stored = files[record_name]
    record = None
    problem = ""
    try:
        if stored and stored[1] <= MOST_RECORD_BYTES:
            record = records.read_record(folder / record_name) if by_trainer else records.read_run(folder)
        elif stored or os.path.lexists(folder / record_name):
            problem = f"{record_name} is {'too large' if stored else 'not a regular file'}"
    except GlassloopError as error:
        problem = error.problem
    moments = read_moments(folder)
    entry = last_entry(folder) if files[records.HISTORY_NAME] else {}
    step = int(number_of(entry.get("step")) or 0)
    written = changed(files[records.HISTORY_NAME], stored)
    finished = record is not None and record.finished
    # Both times are those of the disk, so no two clocks are compared.
    seconds = written - changed(files[records.SESSIONS_NAME])
    last = moments[-1] if moments else None
    new_steps = step - last.step if last and last.event in (START, RESUME) else 0
    return RunSummary(
        name,
        folder,
        records.DAMAGED if problem else status_of(held, finished, record is not None and not by_trainer, moments),
        record,
        problem,
        step=step,
        max_steps=record.plan.max_steps if record else last.max_steps if last else 0,
        epoch=number_of(entry.get("epoch")) or 0.0,
        latest={key: number for key, value in entry.items() if (number := number_of(value)) is not None},
        resumed=tuple(resumed_steps(moments)),
        started=(record.started if record else "") or (moments[0].time if moments else ""),
        changed=written,
        step_seconds=seconds / new_steps if new_steps > 0 and seconds > 0 else None,
        elsewhere=held is Holder.ELSEWHERE,
        by_trainer=by_trainer,
    )


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
    entries: tuple[ListedRun, ...] = ()  # of a list of runs, newest first


def find_runs(root: Path) -> RunFolders:
    """Return every run below `root`, and `root` itself if it is one. Folders that cannot be read are skipped."""
    runs: dict[str, Path] = {}
    groups: dict[str, Path] = {}
    links = 0
    inside = os.path.realpath(root)
    for visited, (path, subfolders, files) in enumerate(os.walk(root)):
        if visited >= MOST_FOLDERS or len(runs) >= MOST_RUNS:
            return RunFolders(runs, links, complete=False, groups=groups)
        folder = Path(path)
        below = folder.relative_to(root)
        name = str(below) if folder != root else root.absolute().name or "run"
        present = {*subfolders, *files}
        # A Trainer writes no run.json.
        if is_leaf := not present.isdisjoint((records.RUN_NAME, records.TRAINER_NAME, records.HISTORY_NAME)):
            runs[name] = folder
        elif not present.isdisjoint((records.SEEDS_NAME, records.STUDY_NAME)):
            groups[name] = folder
        if is_leaf or len(below.parts) >= DEEPEST:
            subfolders.clear()
        # `os.walk` visits what stays in this list, but no links: one that stays inside leads to a folder that is found anyway.
        skipped = {sub for sub in subfolders if sub[0] == "." or sub == records.MODEL_NAME or records.is_checkpoint_name(sub)}
        subfolders[:] = [sub for sub in subfolders if sub not in skipped]
        targets = [os.path.realpath(folder / sub) for sub in subfolders if (folder / sub).is_symlink()]
        links += sum(os.path.commonpath([target, inside]) != inside for target in targets)
    return RunFolders(runs, links, groups=groups)


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


def listed_runs(root: Path) -> RunFolders:
    """Return the runs below a folder with their entries. The runs of several seeds are one entry."""
    found = find_runs(root)
    entries: list[ListedRun] = []
    seeds: dict[Path, list[ListedRun]] = {folder: [] for folder in found.groups.values() if records.is_seeds_folder(folder)}
    for name, folder in found.runs.items():
        seeds.get(folder.parent, entries).append(listed_run(summary_of(name, folder)))
    names = {folder: name for name, folder in found.groups.items()}
    entries += [listed_seeds(names[folder], folder, runs) for folder, runs in seeds.items() if runs]
    entries = [replace(entry, size=size_of(entry.folder)) for entry in entries]
    return replace(found, entries=tuple(sorted(entries, key=lambda run: (run.started, run.name), reverse=True)))


def listed_run(run: RunSummary) -> ListedRun:
    """Return a run as an entry of the list, without its size."""
    shared = ("name", "folder", "status", "step", "max_steps", "started", "problem")
    listed = ListedRun(**{name: getattr(run, name) for name in shared})
    if (record := run.record) is None:
        return listed
    # Without prefix and timings, and those of the run's own metrics first.
    scores = {key.removeprefix("eval_"): value for key, value in (record.evaluation or {}).items()}
    keys = [key for key in dict.fromkeys([*record.metrics, *scores]) if key in scores and not records.is_timing(key)]
    metrics = {key: scores[key] for key in keys}
    return replace(listed, metrics=metrics, positive_label=record.positive_label, seconds=record.seconds)


def listed_seeds(name: str, folder: Path, runs: Iterable[ListedRun]) -> ListedRun:
    """Return the runs of several seeds as one entry, without its size."""
    several = sorted(runs, key=lambda run: (len(run.name), run.name))
    known: list[str] = []
    problem = ""
    try:
        known = [records.seed_name(seed) for seed in read_seeds(folder).seeds]
    except GlassloopError as error:
        problem = error.problem
    present = {run.folder.name for run in several}
    waiting = [ListedRun(f"{name}/{seed}", folder / seed, records.WAITING) for seed in known if seed not in present]
    statuses = {run.status for run in [*several, *waiting]} | ({records.DAMAGED} if problem else set())
    finished = [run for run in several if run.status == records.FINISHED]
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
