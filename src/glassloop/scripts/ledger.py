"""What was substituted in this process: each name, what stands for it, why, and where the script used it first."""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from glassloop.errors import counted, say
from glassloop.files import near_name

INSTALLED = ("site-packages", "dist-packages")
LIBRARIES = ("<", *{sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib")}, str(Path(__file__).parents[1]))


@dataclass(frozen=True)
class Substitution:
    """One name that was not served by the library that the script names.

    Args:
        name: What the script asked for.
        by: What it got.
        reason: Why.
        place: The file and line that asked for it first.
    """

    name: str
    by: str
    reason: str
    place: str

    def __str__(self) -> str:
        return f"{self.name} -> {self.by} ({self.place}): {self.reason}"


class Ledger:
    """Collects what was substituted. There is one per process, because a process has one set of imported modules.

    Attributes:
        found: The substitutions by name, in the order of their first use.
        skipped: What was not run: the place and the text of each line.
    """

    def __init__(self) -> None:
        self.found: dict[str, Substitution] = {}
        self.skipped: list[tuple[str, str]] = []

    def note(self, name: str, by: str, reason: str, frame: FrameType | None = None) -> None:
        """Record a substitution. Only the first use of a name counts."""
        if name not in self.found:
            self.found[name] = Substitution(name, by, reason, place_of(frame or script_frame()))

    def show(self) -> None:
        """Print everything that was substituted and skipped on standard error. Of several processes, only the main one does."""
        if os.environ.get("RANK", "0") != "0":
            return
        if self.skipped:
            say(f"skipped {counted(len(self.skipped), 'line', 'lines')} that only a notebook understands:")
            for place, text in self.skipped:
                say(f"  {place}: {text}")
        if self.found:
            say(f"{counted(len(self.found), 'substitution', 'substitutions')}, in this process only:")
            for one in self.found.values():
                say(f"  {one}")
        else:
            say("nothing was substituted")


LEDGER = Ledger()


def is_script(filename: str) -> bool:
    """Return whether a file is the user's code: neither Python's own, nor an installed library, nor Glassloop."""
    return not filename.startswith(LIBRARIES) and not any(name in filename for name in INSTALLED)


def script_frame() -> FrameType | None:
    """Return the innermost frame of the user's code, or None if a library was called by no script."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_script(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def place_of(frame: FrameType | None) -> str:
    """Return the file and line of a frame."""
    return "unknown place" if frame is None else f"{near_name(frame.f_code.co_filename)}:{frame.f_lineno}"
