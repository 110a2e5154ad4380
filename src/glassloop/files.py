"""Writing files so that a crash leaves the old one or the new one, never half of one; and where our cache lives."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glassloop.errors import ResourceError


def cache_dir() -> Path:
    """The folder for what can be made again: `GLASSLOOP_CACHE`, else the user's cache folder."""
    if chosen := os.environ.get("GLASSLOOP_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "glassloop"


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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name[:40]}.", dir=path.parent))
    except OSError as error:
        raise ResourceError(f"{path.parent}: {error.strerror}", "name a folder that can be written to") from error
    try:
        yield temporary
        for written in temporary.iterdir():
            with written.open("rb") as opened:
                os.fsync(opened.fileno())
        sync_dir(temporary)
        if not path.exists():
            temporary.rename(path)
            sync_dir(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


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
