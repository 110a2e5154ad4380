"""Read and write history.jsonl, one line for every logged step and evaluation of a run, and resumes.jsonl."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from glassloop.files import write_text
from glassloop.records import Json
from glassloop.run_folder.layout import HISTORY_NAME, RESUMES_NAME

Entry: TypeAlias = dict[str, Json]
TAIL_BYTES = 4096  # more than one line


def line_of(entry: Mapping[str, Json]) -> str:
    """Return an entry as a line of the file. Raises `ValueError` if a figure is not finite."""
    return json.dumps(entry, allow_nan=False) + "\n"


def write_history(folder: Path, history: Sequence[Mapping[str, Json]]) -> None:
    """Replace the history of a run, completely or not at all."""
    write_text(folder / HISTORY_NAME, "".join(map(line_of, history)))


def read_history(folder: Path) -> list[Entry]:
    """Return the entries of a run's history; empty if there is none.

    Ends before the first line that is not complete: a run may be writing it, or may have been killed while writing.
    """
    return entries_of(folder / HISTORY_NAME)


def record_resume(folder: Path, step: int) -> None:
    """Add a line to resumes.jsonl. It is not part of the history, which is the same with and without interruptions."""
    entry: Entry = {"step": step, "time": datetime.now(UTC).isoformat(timespec="seconds")}
    with suppress(OSError), (folder / RESUMES_NAME).open("a", encoding="utf-8") as opened:
        opened.write(line_of(entry))


def resumed_steps(folder: Path) -> list[int]:
    """Return the steps after which a run was resumed, in the order of time."""
    steps = (entry.get("step") for entry in entries_of(folder / RESUMES_NAME))
    return [step for step in steps if isinstance(step, int)]


def entries_of(path: Path) -> list[Entry]:
    """Return the complete lines of a file; empty if it cannot be read."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError:
        return []
    return entries_in(lines)


def last_step(folder: Path) -> int:
    """Return the last step in a run's history, 0 if there is none. Reads only the end of the file."""
    try:
        with (folder / HISTORY_NAME).open("rb") as opened:
            opened.seek(max(0, opened.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = opened.read().split(b"\n")[:-1]
        step = entries_in(lines[-1:])[0]["step"]
    except (OSError, LookupError):
        return 0
    return step if isinstance(step, int) else 0


def entries_in(lines: Sequence[bytes]) -> list[Entry]:
    """Return the entries of complete lines, up to the first line that is not a JSON object."""
    found: list[Entry] = []
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            break
        if not isinstance(entry, dict):
            break
        found.append(entry)
    return found
