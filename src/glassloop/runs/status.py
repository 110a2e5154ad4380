"""Who uses a run folder: choose and claim it, and whether its training is running, from what its files say."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TypeAlias

from glassloop.base.errors import (
    DataError,
    GlassloopError,
    LockedError,
    ModelError,
    ResourceError,
    SettingsError,
    TooLargeError,
)
from glassloop.base.files import LOCK_NAME, Holder, holder, refuse_held, set_aside, user_path
from glassloop.base.output import say
from glassloop.runs.history import END, RESUME, START, Moment, last_entry, number_of, read_moments, resumed_steps
from glassloop.runs.record import (
    DAMAGED,
    FAILED,
    FINISHED,
    HISTORY_NAME,
    KILLED,
    RUN_NAME,
    RUNNING,
    SESSIONS_NAME,
    STOPPED,
    TRAINER_NAME,
    RunRecord,
    is_checkpoint_name,
    is_run,
    is_seeds_folder,
    is_study,
    read_record,
    read_run,
)

RUNS_DIR = Path("runs")
MOST_RECORD_BYTES = 8_000_000  # of a run.json

FileState: TypeAlias = tuple[int, int, int] | None


def free_folder(chosen: str | None, *, overwrite: bool = False) -> Path:
    """Return the folder of a new run: `chosen`, which must be empty or new, or a new one with the next number in runs/.

    With `overwrite`, an earlier run in the chosen folder is moved aside. Raises `SettingsError` if it contains a run or other
    files, `LockedError` if another process uses it.
    """
    if chosen:
        folder = user_path(chosen)
        if folder.exists():
            if not folder.is_dir():
                raise SettingsError(f"output_dir {folder} is a file", "choose an empty or new folder")
            refuse_held(folder)  # what a process has begun there may not look like a run yet
            if is_run(folder) and overwrite:
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
    overwrite = ", or move it aside with --overwrite_output_dir"
    for is_there, what, remedy in (
        (is_run, "a run", f"resume it: --resume {folder}; or choose another folder{overwrite}"),
        (is_study, "a study", f"continue it: glassloop study --resume {folder}; or choose another folder"),
        (
            is_seeds_folder,
            "runs of several seeds",
            f"resume them: glassloop train --seeds NUMBER --resume {folder}; or choose another folder",
        ),
    ):
        if is_there(folder):
            raise SettingsError(f"output_dir {folder} already contains {what}", remedy)
    if any(path.name != LOCK_NAME and not path.name.startswith(f".{RUN_NAME}.") for path in folder.iterdir()):
        raise SettingsError(f"output_dir {folder} contains files that do not belong to a run", "choose an empty or new folder")


def refuse_changed(folder: Path, stored: RunRecord | None) -> None:
    """Raise, now that this process holds the lock, if another run has written to the folder in the meantime.

    `stored` is the record that was read before; None for a new run.
    """
    if stored is None:
        refuse_taken(folder)
    elif read_run(folder) != stored:
        problem = f"{folder}: another process has resumed this run in the meantime"
        raise LockedError(problem, "check its result, then resume it again")


@contextmanager
def cleared_unless_started(folder: Path, has_started: Callable[[], bool]) -> Iterator[None]:
    """Empty the folder of a new run if wrong settings, data or model end the run before its first step.

    The corrected command can then use the same folder. A run that ends because the disk is full stays and can be resumed.
    """
    try:
        yield
    except (SettingsError, DataError, ModelError, TooLargeError):
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
    return (path.parent, path) if is_checkpoint_name(path.name) and not is_run(path) else (path, True)


def status_of(held: Holder, finished: bool, has_record: bool, moments: Sequence[Moment]) -> str:
    """Return "running", "finished", "stopped" (by a signal), "failed" (by an error) or "killed".

    Args:
        held: Who holds the lock. Ask before reading anything else: a run writes its result before it releases the lock.
        finished: Whether run.json says that the run is finished.
        has_record: Whether there is a run.json; a Trainer writes none.
        moments: The content of sessions.jsonl.
    """
    last = moments[-1].event if moments else None
    if finished:
        return FINISHED
    if held is not Holder.NOBODY:
        return KILLED if held is Holder.DEAD else RUNNING
    if last == END and not has_record:
        return FINISHED
    return FAILED if last in (START, RESUME) else STOPPED


def run_status(folder: Path, record: RunRecord) -> str:
    """Return the status of a run whose record was read before."""
    held = Holder.NOBODY if record.finished else holder(folder)
    return status_of(held, record.finished, is_run(folder), read_moments(folder))


@dataclass(frozen=True)
class RunSummary:
    """What the files of a run say."""

    name: str  # its path below the folder that is watched
    folder: Path
    status: str  # "running", "finished", "stopped", "failed", "killed" or "damaged"
    record: RunRecord | None = None  # None if there is no run.json or trainer.json, or if it is damaged
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
        return self.status == RUNNING

    @property
    def seconds_left(self) -> float | None:
        """How long the remaining steps will take; None if unknown."""
        known = self.running and self.max_steps and self.step_seconds
        return self.step_seconds * max(0, self.max_steps - self.step) if known and self.step_seconds else None


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
    return {name: state_of(folder / name) for name in (RUN_NAME, TRAINER_NAME, HISTORY_NAME, SESSIONS_NAME, LOCK_NAME)}


def summary_of(name: str, folder: Path, held: Holder | None = None, files: dict[str, FileState] | None = None) -> RunSummary:
    """Read the files of a run, whose states may be known. A damaged file is part of the result."""
    held = held or holder(folder)  # before the files are read: a run writes its result before it releases the lock
    files = files or file_states(folder)
    by_trainer = not os.path.lexists(folder / RUN_NAME)
    record_name = TRAINER_NAME if by_trainer else RUN_NAME
    stored = files[record_name]
    record = None
    problem = ""
    try:
        if stored and stored[1] <= MOST_RECORD_BYTES:
            record = read_record(folder / record_name) if by_trainer else read_run(folder)
        elif stored or os.path.lexists(folder / record_name):
            problem = f"{record_name} is {'too large' if stored else 'not a regular file'}"
    except GlassloopError as error:
        problem = error.problem
    moments = read_moments(folder)
    entry = last_entry(folder) if files[HISTORY_NAME] else {}
    step = int(number_of(entry.get("step")) or 0)
    written = changed(files[HISTORY_NAME], stored)
    finished = record is not None and record.finished
    # Both times are those of the disk, so no two clocks are compared.
    seconds = written - changed(files[SESSIONS_NAME])
    last = moments[-1] if moments else None
    new_steps = step - last.step if last and last.event in (START, RESUME) else 0
    return RunSummary(
        name,
        folder,
        DAMAGED if problem else status_of(held, finished, record is not None and not by_trainer, moments),
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
