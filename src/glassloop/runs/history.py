"""history.jsonl: a line for every logged step and evaluation; sessions.jsonl: one for every start and end of a training."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, TypeAlias

from glassloop.base.files import open_regular, write_text
from glassloop.base.records import Json, NotARecordError, decoded
from glassloop.runs.record import HISTORY_NAME, SESSIONS_NAME, is_timing

Entry: TypeAlias = dict[str, Json]
Point: TypeAlias = tuple[float, float]

TAIL_BYTES = 4096  # more than one line
MOST_BINS = 300  # of a curve; each has up to two points
MOST_CURVES, LONGEST_NAME = 60, 100  # a history has about ten; a hostile one may have any number
MOST_BYTES = 32_000_000  # that one refresh reads; the next one continues
LONGEST_LINE = 1_000_000
FEW = 30  # points of a curve: each one is visible
CHECKED_BYTES = 200  # before the place where reading continues; they show whether it is still the same file
START, RESUME, STOP, END = "start", "resume", "stop", "end"
MOST_SESSION_BYTES = 1_000_000  # that are read; a line has about 150


def line_of(entry: Mapping[str, Json]) -> str:
    """Return an entry as a line of the file. Raises `ValueError` if a figure is not finite."""
    return json.dumps(entry, allow_nan=False) + "\n"


def lasting(metrics: Mapping[str, object]) -> Entry:
    """Return the finite numbers among metrics. Timings are left out: they would differ in a run that is repeated."""
    scores = {name: value for name, value in metrics.items() if isinstance(value, int | float) and not is_timing(name)}
    return {name: value for name, value in scores.items() if math.isfinite(value)}


def write_history(folder: Path, history: Sequence[Mapping[str, Json]]) -> None:
    """Replace the history of a run, completely or not at all."""
    write_text(folder / HISTORY_NAME, "".join(map(line_of, history)))


def read_history(folder: Path) -> list[Entry]:
    """Return the entries of a run's history; empty if there is none."""
    # Up to the first line that is not complete: a run may be writing it, or may have been killed while writing.
    path = folder / HISTORY_NAME
    try:
        return entries_in(path.read_bytes().split(b"\n")[:-1] if path.is_file() else [])  # opening a pipe would wait forever
    except OSError:
        return []


def last_entry(folder: Path) -> Entry:
    """Return the last complete entry of a run's history; empty if there is none. Reads only the end of the file."""
    try:
        with os.fdopen(open_regular(folder / HISTORY_NAME), "rb") as opened:
            opened.seek(max(0, opened.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = opened.read(TAIL_BYTES).split(b"\n")[:-1]
    except OSError:
        return {}
    return next(iter(entries_in(lines[-1:])), {})


def last_step(folder: Path) -> int:
    step = last_entry(folder).get("step")
    return step if isinstance(step, int) else 0


def entries_in(lines: Sequence[bytes]) -> list[Entry]:
    """Return the entries of complete lines, up to the first line that is not a JSON object."""
    entries: list[Entry] = []
    with suppress(ValueError, RecursionError):
        for line in lines:
            if not isinstance(entry := json.loads(line), dict):
                break
            entries.append(entry)
    return entries


def numbers_by_step(history: Sequence[Entry], name: str) -> list[Point]:
    """Return a figure of the history with its step, where both are numbers."""
    pairs = [(entry.get("step"), entry.get(name)) for entry in history]
    return [(step, value) for step, value in pairs if isinstance(step, int | float) and isinstance(value, int | float)]


def number_of(value: Json) -> float | None:
    """Return a finite number, or None for any other value."""
    with suppress(OverflowError):  # a whole number may be larger than any float
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    return None


class Curve:
    """The values of one name by step: all of them at first, then the lowest and the highest of every few."""

    def __init__(self) -> None:
        self.bins: list[tuple[Point, Point]] = []  # lowest and highest point
        self.size = 1  # points of a bin
        self.in_last = 0  # points of the last bin
        self.ends: list[Point] = []  # the first and the last point
        self.count = 0

    def add(self, point: Point) -> None:
        self.ends = [*self.ends[:1], point]
        self.count += 1
        if self.bins and self.in_last < self.size:
            self.bins[-1] = merged(self.bins[-1], (point, point))
            self.in_last += 1
            return
        if len(self.bins) == 2 * MOST_BINS:
            self.bins = [merged(*self.bins[place : place + 2]) for place in range(0, len(self.bins), 2)]
            self.size *= 2
        self.bins.append((point, point))
        self.in_last = 1

    def points(self) -> list[Point]:
        """Return the points to draw, in their order, with the first and the last."""
        return sorted({*self.ends, *(point for pair in self.bins for point in pair)}, key=lambda point: point[0])


def merged(one: tuple[Point, Point], two: tuple[Point, Point]) -> tuple[Point, Point]:
    """Return the lowest and the highest point of two bins."""
    return min(one[0], two[0], key=lambda point: point[1]), max(one[1], two[1], key=lambda point: point[1])


@dataclass(frozen=True)
class Curves:
    """What the history of a run contains."""

    points: dict[str, list[Point]]  # of each curve to draw, by name
    sparse: frozenset[str]  # the names of curves with few points, all of which are here
    latest: dict[str, float]  # the latest value of each name
    step: int  # the last one
    damaged: bool  # a line cannot be read, and what follows it is missing
    complete: bool  # everything that is in the file was read
    version: int  # another number for every other content


class HistoryTail:
    """Reads the history of a run folder whose run may be writing it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / HISTORY_NAME
        self.version = 0
        self.restart()
        self.known = self.content()

    def restart(self) -> None:
        """Forget everything: the file was replaced, as a resumed run does, or removed."""
        self.curves: dict[str, Curve] = {}
        self.latest: dict[str, float] = {}
        self.step = 0
        self.file = 0  # its inode
        self.place = 0  # where reading continues
        self.before = b""  # the bytes before that place
        self.damaged = False
        self.complete = True
        self.version += 1

    def now(self) -> Curves:
        """Return the curves, with what was added since the last call. The file is open only meanwhile."""
        try:
            with os.fdopen(open_regular(self.path), "rb") as opened:
                self.read_new(opened)
        except OSError:
            if self.place or self.file:
                self.restart()
        if self.known.version != self.version:
            self.known = self.content()
        return self.known

    def content(self) -> Curves:
        points = {name: curve.points() for name, curve in self.curves.items()}
        sparse = frozenset(name for name, curve in self.curves.items() if curve.count <= FEW)
        return Curves(points, sparse, {**self.latest}, self.step, self.damaged, self.complete, self.version)

    def read_new(self, opened: BinaryIO) -> None:
        """Read the new lines of the opened file, or all lines if it is another file than before."""
        state = os.fstat(opened.fileno())
        start = max(0, self.place - CHECKED_BYTES)
        opened.seek(start)
        if state.st_ino != self.file or state.st_size < self.place or opened.read(self.place - start) != self.before:
            if self.file:
                self.restart()
            opened.seek(0)
        self.file = state.st_ino
        if self.damaged:
            return
        new = opened.read(MOST_BYTES)
        self.complete = len(new) < MOST_BYTES
        whole = new[: new.rfind(b"\n") + 1]
        if not whole and len(new) <= LONGEST_LINE:
            return
        lines = whole.split(b"\n")[:-1]
        entries = entries_in(lines)
        self.damaged = not whole or len(entries) < len(lines)
        for entry in entries:
            self.take(entry)
        self.before = (self.before + whole)[-CHECKED_BYTES:]
        self.place += len(whole)
        self.version += 1

    def take(self, entry: Mapping[str, Json]) -> None:
        step = number_of(entry.get("step"))
        if step is None or step < 0:
            return
        self.step = int(step)
        for name, value in entry.items():
            number = number_of(value)
            if number is None or name in ("step", "epoch") or len(name) > LONGEST_NAME:
                continue
            if name in self.curves or len(self.curves) < MOST_CURVES:
                self.curves.setdefault(name, Curve()).add((step, number))
                self.latest[name] = number


# Not in history.jsonl: a run that is repeated, or killed and resumed, writes the same history byte for byte.
@dataclass(frozen=True)
class Moment:
    """One line of sessions.jsonl."""

    event: str  # "start", "resume", "stop" (by a signal) or "end" (after the last step)
    step: int  # steps trained so far
    max_steps: int  # of the whole training
    time: str = ""  # by the clock of the machine that trains, in UTC
    machine: str = ""
    process: int = 0


def note_moment(folder: Path, event: str, step: int, max_steps: int) -> None:
    """Add a line to sessions.jsonl; a start begins a new file. A full disk does not end a training."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    moment = Moment(event, step, max_steps, now, platform.node(), os.getpid())
    with suppress(OSError), (folder / SESSIONS_NAME).open("w" if event == START else "a", encoding="utf-8") as opened:
        opened.write(json.dumps(asdict(moment)) + "\n")


def read_moments(folder: Path) -> list[Moment]:
    """Return the lines of sessions.jsonl, up to the first that is damaged or incomplete; empty if there is no file."""
    moments: list[Moment] = []
    with suppress(OSError, NotARecordError):
        with os.fdopen(open_regular(folder / SESSIONS_NAME), "rb") as opened:
            lines = opened.read(MOST_SESSION_BYTES).split(b"\n")[:-1]
        for entry in entries_in(lines):
            moments.append(decoded(Moment, entry))
    return moments


def trained_seconds(moments: Sequence[Moment], runtime: float) -> float | None:
    """Return how long all sessions of a training took, the last of which took `runtime`; None if one of them was killed."""
    sessions: list[list[Moment]] = []
    for moment in moments:
        if moment.event in (START, RESUME) or not sessions:
            sessions.append([])
        sessions[-1].append(moment)
    if len(sessions) <= 1:
        return runtime
    try:
        times = [[datetime.fromisoformat(moment.time) for moment in session] for session in sessions]
        return sum((ended - began).total_seconds() for began, ended in times)
    except ValueError:  # a session without an end
        return None


def resumed_steps(moments: Sequence[Moment]) -> list[int]:
    """Return the steps after which a training was resumed, without those that a later resume went back behind."""
    steps: list[int] = []
    for moment in moments:
        if moment.event in (START, RESUME):
            steps = [step for step in steps if step < moment.step] + [moment.step]
    return [step for step in steps if step > 0]
