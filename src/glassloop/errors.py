"""Everything Glassloop raises on purpose: what is wrong, where, what to do, and the exit code that says so."""

from __future__ import annotations

import difflib
import errno
import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import TextIO

UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # safetensors reports these in words only
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote worker", "remote process exited")


class GlassloopError(Exception):
    """Something a person can put right: `problem` says what is wrong and where, `remedy` what to do, on a line each."""

    area = "error"
    exit_code = 1

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)  # the arguments, so that an error can travel between processes
        self.problem = printable(problem)
        self.remedy = printable(remedy)

    def __str__(self) -> str:
        return f"{self.area}: {self.problem}\ntry:  {self.remedy}"


class SettingsError(GlassloopError):
    """A setting, an argument or a combination of them that cannot be meant."""

    area = "settings"
    exit_code = 2


class DataError(GlassloopError):
    """Data that is refused."""

    area = "data"
    exit_code = 3


class ModelError(GlassloopError):
    """A model, tokenizer or checkpoint that is refused."""

    area = "model"
    exit_code = 4


class DivergedError(GlassloopError):
    """A loss, gradient or weight that is not finite."""

    area = "diverged"
    exit_code = 5


class LockedError(GlassloopError):
    """Another run holds the folder."""

    area = "locked"
    exit_code = 7


class ResourceError(GlassloopError):
    """Disk, memory or permission that a run needs and does not have."""

    area = "resources"
    exit_code = 6


class TooLargeError(ResourceError):
    """A batch that the memory is not enough for: other settings are needed, not more room."""


class LostProcessError(ResourceError):
    """Another process of the same run has ended."""


def no_memory(error: BaseException) -> bool:
    """Whether memory was not enough, on whatever device."""
    return isinstance(error, MemoryError) or any(part in str(error) for part in ("out of memory", "can't allocate memory"))


def resource_error(error: BaseException) -> ResourceError | None:
    """A full disk, a missing permission, too little memory or a lost process, whoever found out; None for any other error."""
    text = str(error)
    if isinstance(error, OSError) and error.errno in FORBIDDEN:
        where = f"{error.filename}: " if error.filename else ""
        return ResourceError(where + str(error.strerror), "ask the owner for permission, or use another path")
    if getattr(error, "errno", None) in DISK or any(os.strerror(number) in text for number in DISK):
        return ResourceError(text, "make room on the disk, or write to another one")
    if no_memory(error):
        return ResourceError(f"not enough memory: {text or 'none is left'}", "use a smaller batch or a smaller max_length")
    if isinstance(error, RuntimeError) and any(part in text for part in LOST):
        return LostProcessError("another process has ended, so this one ends too", "see its message, then resume with --resume")
    return None


def visible(value: object, limit: int = 80) -> str:
    """`value` in double quotes on one line: control characters shown as escapes, long text cut with an ellipsis."""
    text = value if isinstance(value, str) else str(value)
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return '"' + printable(text) + '"'


def printable(text: str) -> str:
    """`text` with every control character (line ends, terminal escapes) or half a character written as a visible escape."""
    return UNPRINTABLE.sub(lambda match: repr(match[0])[1:-1], text)


def say(line: str) -> None:
    """One line for a person on standard error. A terminal that is gone ends nothing."""
    with suppress(OSError):
        show(f"glassloop: {line}", sys.stderr)


def show(line: str, stream: TextIO | None = None) -> None:
    """Print one line, by default on standard output; no character of it can control the terminal."""
    print(printable(line), file=stream or sys.stdout, flush=True)


def listed(names: Iterable[object], limit: int = 12) -> str:
    """`a, b, c`, and how many more there are beyond `limit`."""
    every = [printable(str(name)) for name in names]
    rest = len(every) - limit
    return ", ".join(every[:limit]) + (f" and {rest:,} more" if rest > 0 else "")


def counted(number: int, one: str, several: str) -> str:
    """`1 row is` or `2,000 rows are`."""
    return f"{number:,} {one if number == 1 else several}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean "nearest"?`, or nothing where no known name is near."""
    near = difflib.get_close_matches(name, list(islice(known, 1000)), n=1, cutoff=0.6)  # comparing takes long
    return f"; did you mean {visible(near[0])}?" if near else ""
