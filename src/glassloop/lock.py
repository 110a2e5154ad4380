"""One run a folder: a lock that the operating system lets go of when its holder dies."""

from __future__ import annotations

import fcntl
import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from glassloop.errors import LockedError, ResourceError

LOCK_NAME = ".lock"


def refuse_held(folder: Path) -> None:
    """Raise where a living process holds the folder; nothing is changed."""
    if (folder / LOCK_NAME).is_file():
        with (folder / LOCK_NAME).open(encoding="utf-8") as handle:
            hold(handle, folder, fcntl.LOCK_SH)


def hold(handle: TextIO, folder: Path, kind: int) -> str:
    """Take the lock, and return who held it before and died."""
    holder = handle.read().strip()
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except OSError as error:
        problem = f"{folder}: another run holds it: {holder or 'unknown'}"
        raise LockedError(problem, "wait for it, or choose another folder") from error
    return holder


@contextmanager
def locked(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the folder while the block runs. Raises where a living process holds it; a dead one's lock is taken over."""
    path = folder / LOCK_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise ResourceError(f"{folder}: {error.strerror}", "choose an output_dir that can be written to") from error
    with handle:
        handle.seek(0)
        if holder := hold(handle, folder, fcntl.LOCK_EX):
            say(f"the lock of a run that died was taken over: {holder}")
        handle.seek(0)
        handle.truncate()
        handle.write(json.dumps({"process": os.getpid(), "machine": platform.node()}))
        handle.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
