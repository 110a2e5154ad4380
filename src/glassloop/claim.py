"""Which folder a run writes to, and that nobody else writes there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from glassloop.errors import DataError, LockedError, ModelError, ResourceError, SettingsError, TooLargeError, say
from glassloop.files import set_aside, user_path
from glassloop.lock import LOCK_NAME, refuse_held
from glassloop.run_folder.layout import CHECKPOINTS_NAME, RUN_NAME, is_run
from glassloop.run_folder.record import RunRecord
from glassloop.run_folder.run_json import read_run

RUNS_DIR = Path("runs")


def free_folder(chosen: str | None, *, overwrite: bool = False) -> Path:
    """Return the folder to write to: `chosen`, if it is empty or new, else a new one with the next number below runs/.

    `overwrite`: move a run that is there aside.
    """
    if not chosen:
        return numbered_folder()
    folder = user_path(chosen)
    if folder.exists():
        if not folder.is_dir():
            raise SettingsError(f"output_dir {folder} is a file", "choose an empty or a new folder")
        if is_run(folder):
            refuse_held(folder)
            if overwrite:
                say(f"moved aside: {folder} is now {set_aside(folder).name}")
                return folder
        refuse_taken(folder)
    return folder


def numbered_folder() -> Path:
    """Make the folder with the next free number: two runs that start at once get two folders."""
    taken = [int(path.name[4:]) for path in RUNS_DIR.glob("run-*") if path.name[4:].isdigit()]
    for number in count(max(taken, default=0) + 1):
        folder = RUNS_DIR / f"run-{number:03d}"
        try:
            RUNS_DIR.mkdir(exist_ok=True)
            folder.mkdir()
        except FileExistsError:
            if not RUNS_DIR.is_dir():
                raise ResourceError(
                    f"{RUNS_DIR.absolute()} is a file", "move it, or choose a folder with --output_dir"
                ) from None
        except OSError as error:
            problem = f"{folder.absolute()}: {error.strerror}"
            raise ResourceError(problem, "choose an output_dir that can be written to") from error
        else:
            break
    return folder


def refuse_taken(folder: Path) -> None:
    """Raise `SettingsError` if a folder holds a run, or files of somebody else."""
    if is_run(folder):
        remedy = f"resume it: --resume {folder}; or choose another folder, or move it aside with --overwrite_output_dir"
        raise SettingsError(f"output_dir {folder} holds a run already", remedy)
    if any(path.name != LOCK_NAME and not path.name.startswith(f".{RUN_NAME}.") for path in folder.iterdir()):
        raise SettingsError(f"output_dir {folder} holds files that are not of a run", "choose an empty or a new folder")


def refuse_changed(folder: Path, stored: RunRecord | None) -> None:
    """Look again under the lock: raise if another run has written to the folder since it was looked at.

    `stored` is the record that was read then; None for a new run.
    """
    if stored is None:
        refuse_taken(folder)
    elif read_run(folder) != stored:
        raise LockedError(f"{folder}: another process has resumed it in the meantime", "see how it ended, then resume again")


@contextmanager
def cleared_unless_started(folder: Path, has_started: Callable[[], bool]) -> Iterator[None]:
    """Remove what a new run has written if it fails before its first step for what was asked of it.

    The corrected command can then use the folder. Where only room on the disk is missing, the run stays and can be resumed.
    """
    try:
        yield
    except (SettingsError, DataError, ModelError, TooLargeError):
        for path in () if has_started() else folder.iterdir():
            if path.name != LOCK_NAME:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise


def remove_if_empty(folder: Path) -> None:
    """Remove a folder that was made for a run, if nothing was written to it."""
    with suppress(OSError):
        folder.rmdir()


def resumed_folder(resume: str, output_dir: str | None) -> tuple[Path, bool | Path]:
    """Return the run folder to resume, and the checkpoint: True for the newest."""
    if resume == "newest":
        if not output_dir:
            raise SettingsError("resume which run?", "glassloop train --resume RUN, or name it with --output_dir")
        return user_path(output_dir), True
    path = user_path(resume)
    if path.parent.name == CHECKPOINTS_NAME:
        return path.parent.parent, path
    return path, True
