"""Choose the folder of a run, and make sure that no other run writes to it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from glassloop.base.errors import DataError, LockedError, ModelError, ResourceError, SettingsError, TooLargeError, say
from glassloop.base.files import set_aside, user_path
from glassloop.base.lock import LOCK_NAME, refuse_held
from glassloop.runs.layout import RUN_NAME, is_checkpoint_name, is_run, is_seeds_folder, is_study
from glassloop.runs.record import RunRecord, read_run

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
