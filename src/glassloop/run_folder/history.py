"""Read and write history.jsonl: one line for every logged step and every evaluation of a run."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from glassloop.files import open_regular, write_text
from glassloop.records import Json
from glassloop.run_folder.layout import HISTORY_NAME
from glassloop.run_folder.record import is_timing

Entry: TypeAlias = dict[str, Json]
TAIL_BYTES = 4096  # more than one line


def line_of(entry: Mapping[str, Json]) -> str:
    """Return an entry as a line of the file. Raises `ValueError` if a figure is not finite."""
    return json.dumps(entry, allow_nan=False) + "\n"


def lasting(metrics: Mapping[str, object]) -> Entry:
    """Return the finite numbers among metrics. Timings are left out: they would differ in a run that is repeated."""
    return {
        name: value
        for name, value in metrics.items()
        if isinstance(value, int | float) and math.isfinite(value) and not is_timing(name)
    }


def write_history(folder: Path, history: Sequence[Mapping[str, Json]]) -> None:
    """Replace the history of a run, completely or not at all."""
    write_text(folder / HISTORY_NAME, "".join(map(line_of, history)))


def read_history(folder: Path) -> list[Entry]:
    """Return the entries of a run's history; empty if there is none.

    Ends before the first line that is not complete: a run may be writing it, or may have been killed while writing.
    """
    path = folder / HISTORY_NAME
    try:
        lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []  # opening a pipe would wait forever
    except OSError:
        return []
    return entries_in(lines)


def last_entry(folder: Path) -> Entry:
    """Return the last complete entry of a run's history; empty if there is none. Reads only the end of the file."""
    try:
        with open_regular(folder / HISTORY_NAME) as opened:
            opened.seek(max(0, opened.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = opened.read(TAIL_BYTES).split(b"\n")[:-1]
    except OSError:
        return {}
    return next(iter(entries_in(lines[-1:])), {})


def last_step(folder: Path) -> int:
    """Return the last step in a run's history, 0 if there is none."""
    step = last_entry(folder).get("step")
    return step if isinstance(step, int) else 0


def entries_in(lines: Sequence[bytes]) -> list[Entry]:
    """Return the entries of complete lines, up to the first line that is not a JSON object."""
    found: list[Entry] = []
    for line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(entry, dict):
            break
        found.append(entry)
    return found


def numbers_by_step(history: Sequence[Entry], name: str) -> list[tuple[float, float]]:
    """Return a figure of the history with its step, where both are numbers."""
    found = [(entry.get("step"), entry.get(name)) for entry in history]
    return [(step, value) for step, value in found if isinstance(step, int | float) and isinstance(value, int | float)]
