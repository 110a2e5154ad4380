"""Read and write sessions.jsonl: when a training was started, resumed, stopped and ended, and by which process."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from glassloop.files import open_regular
from glassloop.records import NotARecordError, decoded
from glassloop.run_folder.history import entries_in
from glassloop.run_folder.layout import SESSIONS_NAME

START, RESUME, STOP, END = "start", "resume", "stop", "end"
MOST_BYTES = 1_000_000  # that are read; a line has about 150


@dataclass(frozen=True)
class Moment:
    """One line of the file.

    Attributes:
        event: "start", "resume", "stop" (by a signal) or "end" (after the last step).
        step: The number of steps trained so far.
        max_steps: The number of steps of the whole training.
        time: The time by the clock of the machine that trains, in UTC.
        machine: The name of that machine.
        process: The number of the process there.
    """

    event: str
    step: int
    max_steps: int
    time: str = ""
    machine: str = ""
    process: int = 0


def note_moment(folder: Path, event: str, step: int, max_steps: int) -> None:
    """Add a line to the file; a start begins a new file. A full disk does not end a training."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    moment = Moment(event, step, max_steps, now, platform.node(), os.getpid())
    with suppress(OSError), (folder / SESSIONS_NAME).open("w" if event == START else "a", encoding="utf-8") as opened:
        opened.write(json.dumps(asdict(moment)) + "\n")


def read_moments(folder: Path) -> list[Moment]:
    """Return the lines of the file, up to the first that is damaged or incomplete; empty if there is no file."""
    found: list[Moment] = []
    with suppress(OSError, NotARecordError):
        with open_regular(folder / SESSIONS_NAME) as opened:
            lines = opened.read(MOST_BYTES).split(b"\n")[:-1]
        for entry in entries_in(lines):
            found.append(decoded(Moment, entry))
    return found


def resumed_steps(folder: Path) -> list[int]:
    """Return the steps after which a run was resumed."""
    return resumes_in(read_moments(folder))


def resumes_in(moments: Sequence[Moment]) -> list[int]:
    """Return the steps after which a training was resumed, without those that a later resume went back behind."""
    kept: list[int] = []
    for moment in moments:
        if moment.event in (START, RESUME):
            kept = [step for step in kept if step < moment.step] + [moment.step]
    return [step for step in kept if step > 0]
