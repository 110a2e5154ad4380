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
from glassloop.runs.history import END, RESUME, START, Moment, last_entry, number_of, read_moments, resumes_in
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


def free_folder(chosen: str | None, *, overwrite: bool = False) -> Path:
    """Return the folder of a new run: `chosen`, or a new one with the next number in runs/.

    Args:
        chosen: The folder that the user chose, which must be empty or new.
        overwrite: Move an earlier run in that folder aside.

    Raises:
        SettingsError: If the folder contains a run or other files.
        LockedError: If another process uses the folder.
    """
    if not chosen:
        return numbered_folder()
    folder = user_path(chosen)
    if folder.exists():
        if not folder.is_dir():
            raise SettingsError(f"output_dir {folder} is a file", "choose an empty or new folder")
        refuse_held(folder)  # what a process has begun there may not look like a run yet
        if is_run(folder) and overwrite:
            say(f"moved aside: {folder} is now {set_aside(folder).name}")
            return folder
        refuse_taken(folder)
    return folder


def numbered_folder() -> Path:
    """Create and return the folder with the next free number. Two runs that start at the same time get two folders."""
    taken = [int(path.name[4:]) for path in RUNS_DIR.glob("run-*") if path.name[4:].isdigit()]
    for number in count(max(taken, default=0) + 1):
        folder = RUNS_DIR / f"run-{number:03d}"
        try:
            RUNS_DIR.mkdir(exist_ok=True)
            folder.mkdir(parents=True)  # another run that failed may have removed runs/ just now
        except FileExistsError:
            if not RUNS_DIR.is_dir():
                raise ResourceError(
                    f"{RUNS_DIR.absolute()} is a file", "move it, or choose a folder with --output_dir"
                ) from None
        except OSError as error:
            problem = f"{folder.absolute()}: {error.strerror}"
            raise ResourceError(problem, "choose an output_dir with write permission") from error
        else:
            break
    return folder


def refuse_taken(folder: Path) -> None:
    """Raise `SettingsError` if a folder contains a run, several runs or other files."""
    if is_run(folder):
        remedy = f"resume it: --resume {folder}; or choose another folder, or move it aside with --overwrite_output_dir"
        raise SettingsError(f"output_dir {folder} already contains a run", remedy)
    if is_study(folder):
        remedy = f"continue it: glassloop study --resume {folder}; or choose another folder"
        raise SettingsError(f"output_dir {folder} already contains a study", remedy)
    if is_seeds_folder(folder):
        remedy = f"resume them: glassloop train --seeds NUMBER --resume {folder}; or choose another folder"
        raise SettingsError(f"output_dir {folder} already contains runs of several seeds", remedy)
    if any(path.name != LOCK_NAME and not path.name.startswith(f".{RUN_NAME}.") for path in folder.iterdir()):
        raise SettingsError(f"output_dir {folder} contains files that do not belong to a run", "choose an empty or new folder")


def refuse_changed(folder: Path, stored: RunRecord | None) -> None:
    """Raise, now that this process holds the lock, if another run has written to the folder in the meantime.

    Args:
        folder: The folder of the run.
        stored: The record that was read before; None for a new run.

    Raises:
        SettingsError: If the folder of a new run now contains another run.
        LockedError: If another process has resumed the run.
    """
    if stored is None:
        refuse_taken(folder)
    elif read_run(folder) != stored:
        raise LockedError(
            f"{folder}: another process has resumed this run in the meantime", "check its result, then resume it again"
        )


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
    if is_checkpoint_name(path.name) and not is_run(path):
        return path.parent, path
    return path, True


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
