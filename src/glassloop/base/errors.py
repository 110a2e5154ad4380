"""The errors Glassloop raises on purpose: what is wrong, where, what to do, and the exit status."""

from __future__ import annotations

import difflib
import errno
import os
import re
from collections.abc import Iterable
from itertools import islice

UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
LONGEST = 1900  # characters of a problem; messages of other libraries may quote whole files
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # safetensors reports these as text only
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "can't start new thread")
LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote worker", "remote process exited")


class GlassloopError(Exception):
    """An error the user can correct.

    Args:
        problem: What is wrong, and where.
        remedy: What to do about it.

    Attributes:
        exit_code: The exit status of the command when this error ends it.
    """

    area = "error"
    exit_code = 1

    def __init_subclass__(cls, area: str | None = None, exit_code: int | None = None) -> None:
        cls.area = area or cls.area
        cls.exit_code = exit_code or cls.exit_code

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)  # both arguments, so that the error can be pickled between processes
        self.problem = without_middle(printable(problem))
        self.remedy = without_middle(printable(remedy))

    def __str__(self) -> str:
        return f"{self.area}: {self.problem}\ntry:  {self.remedy}"


class SettingsError(GlassloopError, ValueError, area="settings", exit_code=2):
    """A setting, an argument or a combination of them is not allowed. Scripts for transformers catch a `ValueError`."""


class DataError(GlassloopError, area="data", exit_code=3):
    """The data cannot be used."""


class ModelError(GlassloopError, area="model", exit_code=4):
    """A model, tokenizer or checkpoint cannot be used."""


class ResumeError(ModelError, area="resume"):
    """A resumed run would differ from the run that was started: in its settings, its model or its data."""


class DivergedError(GlassloopError, area="diverged", exit_code=5):
    """A loss, gradient or weight is not finite."""


class LockedError(GlassloopError, area="locked", exit_code=7):
    """Another process is using the run folder."""


class ResourceError(GlassloopError, area="resources", exit_code=6):
    """Disk space, memory or a permission is missing."""


class TooLargeError(ResourceError):
    """A batch does not fit into memory: the settings must change."""


class LostProcessError(ResourceError):
    """Another process of the same run ended first."""


def no_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or any(part in str(error).lower() for part in NO_MEMORY)


def resource_error(error: BaseException) -> ResourceError | None:
    """Return a full disk, a missing permission, a lack of memory or a lost process as a `ResourceError`; else None."""
    text = str(error)
    if isinstance(error, OSError) and error.errno in FORBIDDEN:
        where = f"{error.filename}: " if error.filename else ""
        return ResourceError(where + str(error.strerror), "ask the owner for permission, or use another path")
    if getattr(error, "errno", None) in DISK or any(os.strerror(number) in text for number in DISK):
        return ResourceError(text, "free some disk space, or write to another disk")
    if no_memory(error):
        problem = f"not enough memory: {text or 'none is left'}"
        return ResourceError(problem, "use a smaller batch, a smaller max_length or a smaller model")
    if isinstance(error, RuntimeError) and any(part in text for part in LOST):
        problem = "another process of this run ended, so this one stops too"
        return LostProcessError(problem, "see its message, then resume with --resume")
    return None


def failure_of(error: BaseException) -> tuple[int, tuple[str, ...]]:
    """Return the exit status that an error would have ended the command with, and what was wrong: problem and remedy."""
    known = error if isinstance(error, GlassloopError) else resource_error(error)
    return (known.exit_code, (known.problem, known.remedy)) if known else (1, (f"{type(error).__name__}: {error}",))


def printable(text: str) -> str:
    """Return `text` with control characters (line breaks, terminal escapes) and lone surrogates written as escapes."""
    return UNPRINTABLE.sub(lambda match: repr(match[0])[1:-1], text)


def without_middle(text: str) -> str:
    """Return `text`, without its middle if it is very long: what is wrong often comes last, after the name of a file."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 600]} … {text[-597:]}"


def shortened(value: object, limit: int = 150) -> str:
    """Return `value` as text on one line, with control characters escaped and long text cut to `limit` characters."""
    text = str(value)
    return printable(text if len(text) <= limit else text[: limit - 1] + "…")


def visible(value: object, limit: int = 80) -> str:
    """Return `value` as `shortened` does, in double quotes."""
    return f'"{shortened(value, limit)}"'


def listed(names: Iterable[object], limit: int = 12) -> str:
    """Return `a, b, c` with long names shortened, and how many more names there are beyond `limit`."""
    every = [*names]
    rest = len(every) - limit
    return ", ".join(map(shortened, every[:limit])) + (f" and {rest:,} more" if rest > 0 else "")


def alternatives(names: Iterable[str]) -> str:
    """Return `a, b or c`."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def counted(number: int, one: str, several: str) -> str:
    """Return `1 row` or `2,000 rows`: the number with the noun in its singular or plural."""
    return f"{number:,} {one if number == 1 else several}"


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to `name`, or None if none is similar."""
    near = difflib.get_close_matches(name, list(islice(known, 1000)), n=1, cutoff=0.6)  # comparing is slow
    return near[0] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean "closest"?`, or nothing if no known name is similar."""
    near = closest(name, known)
    return f"; did you mean {visible(near)}?" if near else ""
