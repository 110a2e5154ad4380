"""Paths given by users, and files written so that a crash leaves either the old or the new one, complete."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import BinaryIO

from glassloop.base.errors import ResourceError, SettingsError, visible

MOST_NAME_BYTES, MOST_PATH_BYTES = 255, 4095  # the limits of Linux and macOS


KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def user_path(name: str | Path) -> Path:
    """Return `name` as a path, with `~` expanded.

    Raises `SettingsError` for a path that cannot exist: an empty one, the home of an unknown user, a NUL or invalid bytes, a
    name that is too long.
    """
    if problem := path_problem(name):
        raise SettingsError(f"{visible(name, 200)}: {problem}", "use another path")
    return Path(name).expanduser()


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
    longest = max((len(part.encode()) for part in path.parts), default=0)
    if longest > MOST_NAME_BYTES or len(encoded) > MOST_PATH_BYTES:
        return f"the path is too long: at most {MOST_NAME_BYTES} bytes per name and {MOST_PATH_BYTES:,} in all"
    return None


def kind_of_special(path: Path) -> str | None:
    """Return "a pipe", "a socket" or "a device" for such a path, and None for a file or folder."""
    return KINDS.get(stat.S_IFMT(path.stat().st_mode))


def cache_dir() -> Path:
    """Return the cache folder: `GLASSLOOP_CACHE`, else the user's cache folder."""
    chosen = os.environ.get("GLASSLOOP_CACHE") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/glassloop"
    remedy = "set GLASSLOOP_CACHE to another folder"
    if problem := path_problem(chosen):
        raise ResourceError(f"{visible(chosen, 100)}: {problem}", remedy)
    path = Path(chosen).expanduser()
    try:
        path.exists()
    except OSError as error:
        raise ResourceError(f"{visible(chosen, 100)}: {error.strerror}", remedy) from error
    return path


def find_path(name: str | Path) -> Path | None:
    """Return the existing file or folder `name`, with `~` expanded, or None if it does not exist."""
    if not str(name):
        return None
    try:
        path = Path(name).expanduser()
        path.stat()
    except PermissionError as error:
        raise ResourceError(f"{visible(name, 200)}: {error.strerror}", "check the path and its permissions") from error
    except (OSError, RuntimeError, ValueError):  # missing, too long, of an unknown user, or with a NUL
        return None
    return path


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


def beside(path: Path) -> Path:
    """Return a new hidden name in the folder of `path`. Unlike with `tempfile`, files created there follow the umask."""
    return path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}")


def set_aside(path: Path) -> Path:
    """Rename `path` to a free name in the same folder, and return the new path."""
    kept = next(new for number in count(1) if not os.path.lexists(new := path.with_name(f"{path.name}.kept-{number}")))
    path.rename(kept)
    return kept


def share_files(folder: Path, pattern: str) -> None:
    """Give the files of `folder` that match `pattern` the permissions of the folder.

    safetensors creates files with mode 0600 and ignores the umask, which the folder follows.
    """
    allowed = stat.S_IMODE(folder.stat().st_mode) & 0o666
    for path in folder.glob(pattern):
        if path.is_file():
            path.chmod(allowed)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to. On success it is synced and renamed to `path`, on failure removed."""
    # Follows the umask: safetensors alone would write mode 0600.
    if path.is_dir():
        raise ResourceError(f"{path} is a folder, but a file must be written there", "rename or remove it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = beside(path)
        temporary.touch(exist_ok=False)
    except OSError as error:
        raise ResourceError(f"{path.parent}: {error.strerror}", "choose a folder that can be written to") from error
    try:
        yield temporary
        fault_point("write", path)
        sync_file(temporary)
        temporary.replace(path)
        fault_point("rename", path)
        sync_dir(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replacing_dir(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary folder to fill. On success it is synced and renamed to `path`, unless another run was faster.

    With `replace` it replaces an existing folder. A crash leaves the old folder, the new one, or none.
    """
    with scratch_dir(path) as temporary:
        yield temporary
        share_files(temporary, "**/*")
        for written in sorted(temporary.rglob("*"), reverse=True):
            sync_dir(written) if written.is_dir() else sync_file(written)
        sync_dir(temporary)
        if replace and path.is_dir():
            with suppress(FileNotFoundError):  # another run has just moved it
                path.rename(temporary.with_name(f"{temporary.name}.old"))
            fault_point("rename", path)
        try:
            temporary.rename(path)
        except OSError:
            if not path.is_dir():  # a folder that is not empty is never replaced
                raise
        fault_point("rename", path)
        sync_dir(path.parent)
        shutil.rmtree(temporary.with_name(f"{temporary.name}.old"), ignore_errors=True)


@contextmanager
def scratch_dir(path: Path) -> Iterator[Path]:
    """Yield an empty folder next to `path`, and remove it at the end."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = beside(path)
        scratch.mkdir()
    except OSError as error:
        raise ResourceError(f"{path.parent}: {error.strerror}", "choose a folder that can be written to") from error
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


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


@dataclass
class Syncing:
    """Whether this process waits until the disk has what it writes."""

    wanted: bool = True


SYNCING = Syncing()


@contextmanager
def unsynced() -> Iterator[None]:
    """Let the system decide when the files of the block reach the disk: a kill loses nothing, a loss of power may."""
    before, SYNCING.wanted = SYNCING.wanted, False
    try:
        yield
    finally:
        SYNCING.wanted = before


def sync_file(path: Path) -> None:
    """Write the content of a file to disk."""
    if SYNCING.wanted:
        with path.open("rb") as written:
            os.fsync(written.fileno())
    fault_point("sync", path)


def sync_dir(path: Path) -> None:
    """Write the names in a folder to disk."""
    if SYNCING.wanted:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    fault_point("sync", path)


FAULT_COUNT = count(1)  # used only if a test asks for a fault


def fault_point(what: str, path: Path) -> None:
    """Kill the process or report a full disk if a test asks for it: `GLASSLOOP_FAULT=kill:12` (or full:12) at the 12th call."""
    wanted = os.environ.get("GLASSLOOP_FAULT")
    if not wanted:
        return
    kind, _, number = wanted.partition(":")
    now = next(FAULT_COUNT)
    if kind == "count":
        with Path(number).open("a", encoding="utf-8") as opened:
            opened.write(f"{what} {path.name}\n")
    elif now == int(number):
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def write_text(path: Path, text: str) -> None:
    """Replace the content of `path` by `text`, completely or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raises `OSError` for anything but a regular file: opening a pipe would wait forever."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("not a regular file")
    return os.fdopen(handle, "rb")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
