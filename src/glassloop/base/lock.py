"""Lock the folder of a run. The operating system releases the lock when the process ends."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

from glassloop.base.errors import LockedError, ResourceError, printable

LOCK_NAME = ".lock"


MOST_BYTES = 500  # that are read from a lock file


HELD_LOCKS = Path("/proc/locks")  # on Linux: every lock that is held on this machine


class Holder(Enum):
    """Who holds the lock of a folder."""

    NOBODY = "nobody"  # there is no lock file
    ALIVE = "a running process of this machine"
    DEAD = "a process of this machine that was killed"
    ELSEWHERE = "a process of another machine, running or not"


def holder(folder: Path) -> Holder:
    """Return who holds the lock of a folder, without taking it even for a moment: a run may be starting right now."""
    # A reader never takes the lock, not even for a moment: a run that starts at that moment would be refused.
    try:
        handle = open_lock(folder, os.O_RDONLY)
    except FileNotFoundError:
        return Holder.NOBODY
    except ResourceError:  # a link, a special file, or one that may not be read
        return Holder.ELSEWHERE
    try:
        inode, content = os.fstat(handle).st_ino, os.pread(handle, MOST_BYTES, 0)
    finally:
        os.close(handle)
    try:
        found = json.loads(content)
        process, machine = int(found["process"]), str(found["machine"])
    except (ValueError, LookupError, TypeError, RecursionError):  # locked a moment ago, and not yet written
        process, machine = -1, platform.node()
    if machine != platform.node():
        return Holder.ELSEWHERE
    return Holder.ALIVE if holds_lock(process, inode) else Holder.DEAD


def holds_lock(process: int, inode: int) -> bool:
    """Return whether a process of this machine holds the lock on a file; where that is unknown, whether it is running."""
    try:
        locks = [line.split() for line in HELD_LOCKS.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        try:
            os.kill(process, 0)
        except PermissionError:
            return True
        except (ProcessLookupError, OverflowError, OSError):
            return False
        return True
    held = [entry for entry in locks if "FLOCK" in entry and "->" not in entry and len(entry) > 5]  # "->" is waiting
    return any(entry[4] == str(process) or entry[5].rpartition(":")[2] == str(inode) for entry in held)


def refuse_held(folder: Path) -> None:
    """Raise `LockedError` if a running process has locked the folder, without changing anything."""
    try:
        handle = open_lock(folder, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        take(handle, folder, fcntl.LOCK_SH)
    finally:
        os.close(handle)


def open_lock(folder: Path, flags: int) -> int:
    """Open the lock file and return its descriptor. Raises `ResourceError` for a link or any other special file."""
    path = folder / LOCK_NAME
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ResourceError(f"{path} is a symbolic link", "remove it: a lock must be a regular file") from error
        raise ResourceError(f"{path}: {error.strerror}", "choose an output_dir with write permission") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ResourceError(f"{path} is not a regular file", "remove it, or choose another output_dir")
    return handle


def take(handle: int, folder: Path, kind: int) -> None:
    """Take the lock without waiting. Raises `LockedError` with the process that holds it."""
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        problem = f"{folder} is in use by {holder_of(handle) or 'another process'}"
        raise LockedError(problem, "wait until it ends, or choose another folder") from error
    except OSError as error:
        raise ResourceError(f"{folder}: cannot be locked: {error.strerror}", "choose a folder on another disk") from error


def holder_of(handle: int) -> str:
    """Return "process 123 on machine" from a lock file, or its content in printable characters if it says something else."""
    content = os.pread(handle, MOST_BYTES, 0).decode("utf-8", "replace").strip()
    try:
        found = json.loads(content)
        return printable(f"process {found['process']} on {found['machine']}")
    except (ValueError, LookupError, TypeError, RecursionError):
        return printable(content)


def take_current(folder: Path) -> int:
    """Open and lock the current lock file, and return its descriptor. A process that ends removes its file."""
    while True:
        handle = open_lock(folder, os.O_RDWR | os.O_CREAT)
        try:
            take(handle, folder, fcntl.LOCK_EX)
            named = (folder / LOCK_NAME).lstat()
            if os.path.samestat(named, os.fstat(handle)):
                return handle
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


@contextmanager
def locked(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Lock the folder while the block runs. Raises `LockedError` if a running process has locked it."""
    # The file is removed while the lock is held, so no run leaves one behind. Whoever takes a lock compares the opened
    # file with the file of that name and tries again if they differ.
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = take_current(folder)
    except OSError as error:
        raise ResourceError(f"{folder}: {error.strerror}", "choose an output_dir with write permission") from error
    try:
        if holder := holder_of(handle):
            say(f"took over the lock of a run that was killed: {holder}")
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps({"process": os.getpid(), "machine": platform.node()}).encode(), 0)
        yield
    finally:
        (folder / LOCK_NAME).unlink(missing_ok=True)  # before it is released: others that have opened it notice
        os.close(handle)
