"""Writing files so that a crash leaves the old one or the new one, never half of one; and where our cache lives."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glassloop.errors import ResourceError, visible


def cache_dir() -> Path:
    """The folder for what can be made again: `GLASSLOOP_CACHE`, else the user's cache folder."""
    chosen = os.environ.get("GLASSLOOP_CACHE") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/glassloop"
    try:
        path = Path(chosen).expanduser()
        path.exists()
    except (OSError, RuntimeError) as error:  # a RuntimeError: nobody is called like that, so `~name` is no folder
        reason = getattr(error, "strerror", None) or error
        raise ResourceError(f"{visible(chosen, 200)}: {reason}", "set GLASSLOOP_CACHE to another folder") from error
    return path


def find_path(name: str | Path) -> Path | None:
    """The file or folder that `name` means, `~` expanded; None where there is none."""
    try:
        path = Path(name).expanduser()
        path.stat()
    except PermissionError as error:
        raise ResourceError(f"{visible(name, 200)}: {error.strerror}", "check the path and its permissions") from error
    except (OSError, RuntimeError, ValueError):  # absent, too long, in the home of nobody, with a NUL in it
        return None
    return path


def names_beside(name: str | Path) -> list[str]:
    """The names in the folder that would hold `name`; none where it cannot be read."""
    try:
        return [entry.name for entry in Path(name).expanduser().parent.iterdir()]
    except (OSError, RuntimeError, ValueError):
        return []


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; on success it is synced and renamed to `path`, on failure removed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
    except OSError as error:
        raise ResourceError(f"{path.parent}: {error.strerror}", "name a folder that can be written to") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
        sync_dir(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replacing_dir(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` to fill; on success it is synced and takes the name, unless another run was first."""
    with scratch_dir(path) as temporary:
        yield temporary
        for written in temporary.iterdir():
            with written.open("rb") as opened:
                os.fsync(opened.fileno())
        sync_dir(temporary)
        try:
            temporary.rename(path)
        except OSError:
            if not path.is_dir():  # a filled folder is never replaced
                raise
        sync_dir(path.parent)


@contextmanager
def scratch_dir(path: Path) -> Iterator[Path]:
    """An empty folder beside `path`, removed at the end."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{path.name[:40]}.", dir=path.parent))
    except OSError as error:
        raise ResourceError(f"{path.parent}: {error.strerror}", "name a folder that can be written to") from error
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def sync_dir(path: Path) -> None:
    """Make the names in folder `path` durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text`, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
