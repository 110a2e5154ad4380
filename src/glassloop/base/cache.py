"""A cache whose entries carry checksums. A damaged entry is rebuilt."""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

from glassloop.base.errors import ResourceError
from glassloop.base.files import cache_dir, replacing_dir, scratch_dir, sha256_of
from glassloop.base.output import say
from glassloop.base.records import sealed

MANIFEST_NAME = "manifest.json"
ATTEMPTS = 3  # another process may replace an entry between check and load
LEFTOVER = re.compile(r"\.[0-9a-f]{32}\..+")
YOUNG_SECONDS = 60  # a folder is created shortly before it is locked
OLD_SECONDS = 24 * 3600  # for file systems without locks

Loaded = TypeVar("Loaded")


def open_or_build(kind: str, key: str, build: Callable[[Path], None], load: Callable[[Path], Loaded]) -> Loaded:
    """Return an entry of the cache that `load` reads, and let `build` fill its folder first if it is missing or damaged."""
    # Keys are hashes of contents, settings and the code that reads them: those of `datasets` are hashes of pickled
    # functions, which change too often.
    folder = cache_dir() / kind / key
    for attempt in range(1, ATTEMPTS + 1):
        found = identity(folder)
        problem = damage(folder) if found else "missing"
        if problem is None:
            try:
                return load(folder)
            except Exception as error:
                if attempt == ATTEMPTS:
                    raise
                problem = f"{type(error).__name__}: {error}"
        if attempt < ATTEMPTS:
            if not may_write(folder):
                folder = private_cache() / kind / key
                if os.path.lexists(folder):
                    continue
            elif found:
                say(f"the cached {kind}/{key} is damaged ({problem}); building it again")
            build_entry(folder, build, instead_of=found)
    remedy = "check the disk, or set GLASSLOOP_CACHE to a folder on another one"
    raise ResourceError(f"{folder}: damaged again right after it was written: {problem}", remedy)


def open_if_built(kind: str, key: str, load: Callable[[Path], Loaded]) -> Loaded | None:
    """Return an entry of the cache that `load` reads; None if it is missing or damaged."""
    folder = cache_dir() / kind / key
    if damage(folder) is None:
        with suppress(Exception):  # whatever `load` raises for an entry of another kind, or one that is just replaced
            return load(folder)
    return None


def damage(folder: Path) -> str | None:
    """Return what is wrong with an entry, or None if every file matches its manifest."""

    def check_regular(path: Path) -> Path:
        if path.exists() and not path.is_file():
            raise OSError("not a file")  # reading from a pipe would never end
        return path

    # Verified whenever an entry is opened: SHA-256 reads 1.5 GB/s, so a million rows cost about 0.15 s.
    name = MANIFEST_NAME
    try:
        manifest = json.loads(check_regular(folder / name).read_text(encoding="utf-8"))
        if sealed(manifest) != manifest:
            return f"{name}: its checksum differs"
        if manifest["entry"] != entry_name(folder):
            return f"{name}: it belongs to {manifest['entry']}"
        expected = {str(file): (entry["size"], entry["sha256"]) for file, entry in manifest["files"].items()}
        if not expected:
            return f"{name}: lists no files"
        for name, (size, checksum) in expected.items():
            size_now = check_regular(folder / name).stat().st_size
            if size_now != size:
                return f"{name}: {size_now:,} bytes instead of {size:,}"
            if sha256_of(folder / name) != checksum:
                return f"{name}: its checksum differs"
    except OSError as error:
        return f"{name}: {error.strerror or error}"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return f"{name}: not a manifest"
    return None


def entry_name(folder: Path) -> str:
    """Return kind and key of an entry. The manifest contains them, so that swapped entries count as damaged."""
    return f"{folder.parent.name}/{folder.name}"


def identity(path: Path) -> tuple[int, int] | None:
    """Return what tells a file or folder from the one that takes its place, or None if nothing is there."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def build_entry(folder: Path, build: Callable[[Path], None], *, instead_of: tuple[int, int] | None) -> None:
    """Build an entry in a temporary folder, write its manifest last, and rename it, unless another process was faster."""
    for path in folder.parent.glob(".*") if folder.parent.is_dir() else ():
        with suppress(OSError):
            if LEFTOVER.fullmatch(path.name) and is_left_over(path):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    with replacing_dir(folder) as writing:
        descriptor = os.open(writing, os.O_RDONLY)
        try:
            # Locked while it is filled, for `is_left_over`: the system releases the lock of a process that dies.
            with suppress(OSError):  # some file systems have no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            build(writing)
            paths = [path for path in sorted(writing.rglob("*")) if path.is_file()]
            files = {str(path.relative_to(writing)): {"size": path.stat().st_size, "sha256": sha256_of(path)} for path in paths}
            manifest = json.dumps(sealed({"entry": entry_name(folder), "files": files}), indent=1)
            (writing / MANIFEST_NAME).write_text(manifest, encoding="utf-8")
        finally:
            os.close(descriptor)
        if instead_of:
            remove_damaged(folder, instead_of)


def remove_damaged(folder: Path, found: tuple[int, int]) -> None:
    """Remove what was found in the place of an entry, unless another process has already replaced it."""
    # Compared and moved under one lock: of many that found the damage, none may move away what another has just built.
    descriptor = os.open(folder.parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if identity(folder) == found:
            with scratch_dir(folder) as scratch:
                folder.rename(scratch / "damaged")
    finally:
        os.close(descriptor)


def is_left_over(path: Path) -> bool:
    """Return whether no process is filling this folder any more."""
    age = time.time() - path.lstat().st_mtime
    if age < YOUNG_SECONDS or not path.is_dir():
        return age >= YOUNG_SECONDS
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return age > OLD_SECONDS
    finally:
        os.close(descriptor)
    return True


def may_write(folder: Path) -> bool:
    """Return whether this user may create or replace the entry `folder`."""
    existing = next(place for place in (folder.parent, *folder.parent.parents) if os.path.lexists(place))
    if existing.is_dir() and not os.access(existing, os.W_OK | os.X_OK):
        return False
    return not folder.is_dir() or os.access(folder, os.R_OK | os.W_OK | os.X_OK)


@cache
def private_cache() -> Path:
    """Return a cache for this process only, removed when it ends. Only the speed changes, so this is no error."""
    folder = Path(tempfile.mkdtemp(prefix="glassloop-cache-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    problem = f"this user cannot write to the cache {cache_dir()}"
    say(f"{problem}; using a temporary cache for this run (set GLASSLOOP_CACHE to a folder to keep it)")
    return folder
