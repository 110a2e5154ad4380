"""Standard output and standard error that may be closed, full or broken: no work is lost because a line cannot be written."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO


class TolerantStream:
    """A text stream that remembers the first write that failed instead of raising it. Everything else is the stream's own.

    Args:
        stream: Where to write. None is a stream that was closed before the process started.

    Attributes:
        error: Why the first text that was lost could not be written; None while nothing is lost.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self.closed_from_start = stream is None
        self.stream = stream if stream is not None else Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
        self.error: OSError | ValueError | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write text if that is possible."""
        if self.closed_from_start:
            self.lose(OSError(errno.EBADF, os.strerror(errno.EBADF)))
            return len(text)
        try:
            return self.stream.write(text)
        except (OSError, ValueError) as error:  # a ValueError is a stream that the process itself has closed
            self.lose(error)
            return len(text)

    def flush(self) -> None:
        """Write what is buffered if that is possible."""
        try:
            self.stream.flush()
        except (OSError, ValueError) as error:
            self.lose(error)

    def lose(self, error: OSError | ValueError) -> None:
        """Remember an error, and drop what is buffered."""
        self.error = self.error or error
        drop_buffer(self.stream)


def drop_buffer(stream: TextIO) -> None:
    """Empty the buffer of a stream that cannot be written, which Python would try to write again when the process exits."""
    with suppress(OSError, ValueError, AttributeError):
        number = stream.fileno()
        inheritable, target, nowhere = os.get_inheritable(number), os.dup(number), os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, number, inheritable)
            stream.flush()
        finally:
            os.dup2(target, number, inheritable)
            os.close(target)
            os.close(nowhere)


def tolerant(stream: TextIO | TolerantStream | None) -> TextIO:
    """Return a stream that never raises because text cannot be written."""
    found: Any = stream if isinstance(stream, TolerantStream) else TolerantStream(stream)
    return found  # type: ignore[no-any-return]


def messages() -> TextIO:
    """Return standard error for messages and progress bars, which never end a run."""
    return tolerant(sys.stderr)


def has_terminal() -> bool:
    """Return whether standard error is a terminal."""
    with suppress(ValueError):  # closed by the script
        return sys.stderr is not None and sys.stderr.isatty()
    return False


@contextmanager
def tolerant_streams() -> Iterator[TolerantStream]:
    """Make standard output and standard error tolerant in the block, for all code that prints. Yield standard output."""
    for number in range(3):  # else the next file that is opened gets the number, and messages of C++ end up in that file
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    before = sys.stdout, sys.stderr
    output: Any = tolerant(sys.stdout)
    sys.stdout, sys.stderr = output, tolerant(sys.stderr)
    try:
        yield output
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before
