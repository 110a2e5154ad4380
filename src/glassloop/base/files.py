"""Paths given by users, files written so that a crash leaves either the old or the new one, locks, and safe cells."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import signal
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from enum import Enum
from itertools import count
from pathlib import Path
from types import SimpleNamespace

from glassloop.base.errors import LockedError, ResourceError, SettingsError, printable, visible

MOST_NAME_BYTES, MOST_PATH_BYTES = 255, 4095  # the limits of Linux and macOS
KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
SYNCING = SimpleNamespace(wanted=True)  # whether this process waits until the disk has what it writes
FAULT_COUNT = count(1)  # used only if a test asks for a fault

LOCK_NAME = ".lock"
MOST_LOCK_BYTES = 500  # that are read from a lock file
HELD_LOCKS = Path("/proc/locks")  # on Linux: every lock that is held on this machine

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
# A number, alone or followed by words, which no spreadsheet evaluates. With an operator or a parenthesis it could be a formula.
NUMBER = re.compile(r"[+-] ?(?:\d[\d.,]*|\.\d+)(?:[eE][+-]?\d+)? ?%?(?: [^=+*/^&<>|!(){}\[\];:@\"\t\r\n]*)?")


def path_problem(name: str | Path) -> str | None:
    """Return why `name` cannot be a path, or None if it can."""
    if not str(name):
        return "the path is empty"  # Path would make it the working directory
    try:
        path = Path(name).expanduser()
        encoded = str(path).encode()
    except RuntimeError:
        return "no such user, or the user has no home folder"
    except UnicodeEncodeError:
        return "the path contains bytes that are not UTF-8"
    if b"\0" in encoded:
        return "the path contains a NUL character"
    if len(encoded) > MOST_PATH_BYTES or any(len(part.encode()) > MOST_NAME_BYTES for part in path.parts):
        return f"the path is too long: at most {MOST_NAME_BYTES} bytes per name and {MOST_PATH_BYTES:,} in all"
    return None


def user_path(name: str | Path) -> Path:
    """Return `name` as a path, with `~` expanded. Raises `SettingsError` for a path that cannot exist."""
    if problem := path_problem(name):
        raise SettingsError(f"{visible(name, 200)}: {problem}", "use another path")
    return Path(name).expanduser()


def find_path(name: str | Path) -> Path | None:
    """Return the existing file or folder `name`, with `~` expanded, or None if it does not exist."""
    try:
        path = Path(name).expanduser()
        path.stat()
    except PermissionError as error:
        raise ResourceError(f"{visible(name, 200)}: {error.strerror}", "check the path and its permissions") from error
    except (OSError, RuntimeError, ValueError):  # missing, too long, of an unknown user, or with a NUL
        return None
    return path if str(name) else None


def cache_dir() -> Path:
    """Return the cache folder: `GLASSLOOP_CACHE`, else the user's cache folder."""
    chosen = os.environ.get("GLASSLOOP_CACHE") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/glassloop"
    problem = path_problem(chosen)
    if not problem:
        try:
            path = Path(chosen).expanduser()
            path.exists()
            return path
        except OSError as error:
            problem = error.strerror
    raise ResourceError(f"{visible(chosen, 100)}: {problem}", "set GLASSLOOP_CACHE to another folder")


def kind_of_special(path: Path) -> str | None:
    """Return "a pipe", "a socket" or "a device" for such a path, and None for a file or folder."""
    return KINDS.get(stat.S_IFMT(path.stat().st_mode))


def absolute_name(name: str) -> str:
    """Return a name of data or of a model with local paths made absolute, so that it is valid in any working directory."""
    if name in ("quickstart", "glue") or name.startswith("glue/"):
        return name
    path = find_path(name)
    return os.path.abspath(path) if path else name  # noqa: PTH100 (keeps symbolic links, resolves ..)


def near_name(name: str) -> str:
    """Return a name for display: a path below the working directory becomes relative."""
    here = Path.cwd()
    return str(Path(name).relative_to(here)) if Path(name).is_relative_to(here) and name != str(here) else name


def home_name(name: str) -> str:
    """Return a name for a page that may be shared: a path below the user's home begins with `~`, which commands expand."""
    try:
        home = Path.home()
    except RuntimeError:
        return name
    path = Path(name)
    return f"~/{path.relative_to(home)}" if home != Path("/") and path != home and path.is_relative_to(home) else name


def names_beside(name: str | Path) -> list[str]:
    """Return the names in the folder of `name`, or none if it cannot be read."""
    try:
        return [entry.name for entry in Path(name).expanduser().parent.iterdir()]
    except (OSError, RuntimeError, ValueError):
        return []


def set_aside(path: Path) -> Path:
    """Rename `path` to a free name in the same folder, and return the new path."""
    free = next(new for number in count(1) if not os.path.lexists(new := path.with_name(f"{path.name}.kept-{number}")))
    path.rename(free)
    return free


def share_files(folder: Path, pattern: str) -> None:
    """Give the files of `folder` that match `pattern` the permissions of the folder."""
    # safetensors creates files with mode 0600 and ignores the umask, which the folder follows.
    allowed = stat.S_IMODE(folder.stat().st_mode) & 0o666
    for path in folder.glob(pattern):
        if path.is_file():
            path.chmod(allowed)


def new_beside(path: Path, create: Callable[[Path], None]) -> Path:
    """Create and return something with a hidden name in the folder of `path`. Unlike with `tempfile`, it follows the umask."""
    temporary = path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        create(temporary)
    except OSError as error:
        raise ResourceError(f"{path.parent}: {error.strerror}", "choose a folder that can be written to") from error
    return temporary


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to. On success it is synced and renamed to `path`, on failure removed."""
    if path.is_dir():
        raise ResourceError(f"{path} is a folder, but a file must be written there", "rename or remove it")
    temporary = new_beside(path, lambda new: new.touch(exist_ok=False))
    try:
        yield temporary
        fault_point("write", path)
        sync(temporary)
        temporary.replace(path)
        fault_point("rename", path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def scratch_dir(path: Path) -> Iterator[Path]:
    """Yield an empty folder next to `path`, and remove it at the end."""
    scratch = new_beside(path, Path.mkdir)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def replacing_dir(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary folder to fill. On success it is synced and renamed to `path`, unless another run was faster."""
    # A crash leaves the old folder, which only `replace` replaces, the new one, or none.
    with scratch_dir(path) as temporary:
        yield temporary
        share_files(temporary, "**/*")
        for written in sorted(temporary.rglob("*"), reverse=True):
            sync(written)
        sync(temporary)
        old = temporary.with_name(f"{temporary.name}.old")
        if replace and path.is_dir():
            with suppress(FileNotFoundError):  # another run has just moved it
                path.rename(old)
            fault_point("rename", path)
        try:
            temporary.rename(path)
        except OSError:
            if not path.is_dir():  # a folder that is not empty is never replaced
                raise
        fault_point("rename", path)
        sync(path.parent)
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def reserved(path: Path, num_bytes: int) -> Iterator[None]:
    """Reserve disk space in a file without content. Remove the file to use the space; the end of the block removes it too."""
    # Reserved, not only checked: the disk may fill up during the training.
    try:
        with path.open("wb") as opened, suppress(AttributeError):  # missing on some platforms, where nothing is reserved
            os.posix_fallocate(opened.fileno(), 0, num_bytes)
    except OSError as error:
        path.unlink(missing_ok=True)
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # not supported by the file system
            free = shutil.disk_usage(path.parent).free
            problem = f"{path.parent}: {error.strerror} ({num_bytes:,} bytes needed, {free:,} free)"
            raise ResourceError(problem, "free some disk space, or choose another folder") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def assigned(owner: object, **values: object) -> Iterator[None]:
    """Give attributes of an object, or names of a module, other values while a block runs."""
    before = {name: getattr(owner, name) for name in values}
    vars(owner).update(values)
    try:
        yield
    finally:
        vars(owner).update(before)


def unsynced() -> AbstractContextManager[None]:
    """Let the system decide when the files of the block reach the disk: a kill loses nothing, a loss of power may."""
    return assigned(SYNCING, wanted=False)


def sync(path: Path) -> None:
    """Write the content of a file, or the names in a folder, to disk."""
    if SYNCING.wanted:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    fault_point("sync", path)


def fault_point(what: str, path: Path) -> None:
    """Kill the process or report a full disk if a test asks for it: `GLASSLOOP_FAULT=kill:12` (or full:12) at the 12th call."""
    kind, _, number = os.environ.get("GLASSLOOP_FAULT", "").partition(":")
    if kind == "count":
        with Path(number).open("a", encoding="utf-8") as opened:
            opened.write(f"{what} {path.name}\n")
    elif kind and next(FAULT_COUNT) == int(number):
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def write_text(path: Path, text: str) -> None:
    """Replace the content of `path` by `text`, completely or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a file and return its descriptor. Raises `OSError` for a link and for a pipe, whose opening would never end."""
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file")
    return handle


def sha256_of(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


class Holder(Enum):
    NOBODY = "nobody"  # there is no lock file
    ALIVE = "a running process of this machine"
    DEAD = "a process of this machine that was killed"
    ELSEWHERE = "a process of another machine, running or not"


def holder(folder: Path) -> Holder:
    # A reader never takes the lock, not even for a moment: a run that starts at that moment would be refused.
    try:
        handle = open_lock(folder, os.O_RDONLY)
    except FileNotFoundError:
        return Holder.NOBODY
    except ResourceError:  # a link, a special file, or one that may not be read
        return Holder.ELSEWHERE
    with os.fdopen(handle):
        inode = os.fstat(handle).st_ino
        process, machine = owner_in(handle) or (-1, platform.node())  # locked a moment ago, and not yet written
    if machine != platform.node():
        return Holder.ELSEWHERE
    try:
        locks = [line.split() for line in HELD_LOCKS.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:  # another system: whether the process is running
        try:
            os.kill(process, 0)
        except (OverflowError, OSError) as error:
            return Holder.ALIVE if isinstance(error, PermissionError) else Holder.DEAD
        return Holder.ALIVE
    taken = [entry for entry in locks if "FLOCK" in entry and "->" not in entry and len(entry) > 5]  # "->" is waiting
    alive = any(entry[4] == str(process) or entry[5].rpartition(":")[2] == str(inode) for entry in taken)
    return Holder.ALIVE if alive else Holder.DEAD


def owner_in(handle: int) -> tuple[int, str] | None:
    """Return the process and the machine that a lock file names; None if it names none."""
    try:
        content = json.loads(os.pread(handle, MOST_LOCK_BYTES, 0))
        return int(content["process"]), printable(str(content["machine"]))
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def open_lock(folder: Path, flags: int) -> int:
    """Open the lock file and return its descriptor. Raises `ResourceError` for a link or any other special file."""
    path = folder / LOCK_NAME
    try:
        return open_regular(path, flags)
    except FileNotFoundError:
        raise
    except OSError as error:
        problem = "a symbolic link" if error.errno == errno.ELOOP else str(error.strerror)
        raise ResourceError(f"{path}: {problem}", "remove it, or choose another output_dir with write permission") from error


def take(handle: int, folder: Path, kind: int) -> None:
    """Take the lock without waiting. Raises `LockedError` with the process that holds it."""
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = owner_in(handle)
        problem = f"{folder} is in use by {f'process {owner[0]} on {owner[1]}' if owner else 'another process'}"
        raise LockedError(problem, "wait until it ends, or choose another folder") from error
    except OSError as error:
        raise ResourceError(f"{folder}: cannot be locked: {error.strerror}", "choose a folder on another disk") from error


def refuse_held(folder: Path) -> None:
    """Raise `LockedError` if a running process has locked the folder, without changing anything."""
    with suppress(FileNotFoundError), os.fdopen(open_lock(folder, os.O_RDONLY)) as opened:
        take(opened.fileno(), folder, fcntl.LOCK_SH)


@contextmanager
def locked(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Lock the folder while the block runs. Raises `LockedError` if a running process has locked it."""
    # The system releases the lock when the process ends, however it ends. The file is removed while the lock is held, so no
    # run leaves one behind. Whoever takes a lock compares the opened file with the file of that name and tries again if they
    # differ.
    path = folder / LOCK_NAME
    is_current = False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while not is_current:
            handle = open_lock(folder, os.O_RDWR | os.O_CREAT)
            try:
                take(handle, folder, fcntl.LOCK_EX)
                with suppress(FileNotFoundError):
                    is_current = os.path.samestat(path.lstat(), os.fstat(handle))
            finally:
                if not is_current:
                    os.close(handle)
    except OSError as error:
        raise ResourceError(f"{folder}: {error.strerror}", "choose an output_dir with write permission") from error
    try:
        if os.fstat(handle).st_size:
            process, machine = owner_in(handle) or ("unknown", "an unknown machine")
            say(f"took over the lock of a run that was killed: process {process} on {machine}")
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps({"process": os.getpid(), "machine": platform.node()}).encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)  # before it is released: others that have opened it notice
        os.close(handle)


def is_formula(text: str) -> bool:
    """Return whether a spreadsheet could run a text, without apostrophes before it, as a formula."""
    bare = text.lstrip("'")  # apostrophes count, so that removing one restores the text
    return bare.startswith(FORMULA_STARTS) and not NUMBER.fullmatch(bare)


def protected(text: str) -> str:
    """Return a text as a cell that no spreadsheet runs: with an apostrophe before a formula."""
    return f"'{text}" if is_formula(text) else text


def restored(cell: str) -> str:
    """Return the text of a cell that `protected` returned."""
    return cell[1:] if cell.startswith("'") and is_formula(cell) else cell


def is_protected_table(columns: Sequence[str]) -> bool:
    """Return whether a table ends with the columns of predictions: then Glassloop wrote it, and protected its cells."""
    if "prediction" not in columns:
        return False
    return all(name.startswith("score_") for name in columns[columns.index("prediction") + 1 :])
