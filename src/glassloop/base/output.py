"""What a person sees of a command: lines and JSON on streams that may be broken, and the stages of its work."""

from __future__ import annotations

import errno
import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Protocol, TextIO, cast

from glassloop.base.errors import GlassloopError, printable
from glassloop.base.files import assigned

# Titles of stages that several rooms begin.
LOADING, EVALUATING, PREDICTING = "loading the model", "evaluating", "predicting"
STARTING, OTHER = "starting", "everything else"


@dataclass(frozen=True)
class Stage:
    """A part of the work that may take long, such as "tokenizing train", and its number of rows, if known."""

    title: str
    total: int | None = None


class Display(Protocol):
    """What shows the stages to a person."""

    def begin(self, stage: Stage) -> None: ...
    def advance(self, num_rows: int) -> None: ...
    def end(self) -> None: ...
    def clear(self) -> None: ...  # makes room for a line of text


@dataclass
class Chosen:
    """The display of this process, whether a stage is running, and how many rows the current part of it may still count."""

    display: Display | None = None
    running: bool = False
    room: int | None = None


CHOSEN = Chosen()


def show_on(display: Display | None) -> None:
    """Show the stages from now on; None shows nothing."""
    CHOSEN.display = display
    CHOSEN.running = False
    CHOSEN.room = None


@contextmanager
def stage(title: str, total: int | None = None, counts_as: str = "") -> Iterator[None]:
    """Show the block as a stage and count its time, by default under its title. A stage inside another one is part of it."""
    with timed(counts_as or title):
        # Shown by the command, never by the library: without a display the block is only counted.
        display = CHOSEN.display
        if display is None or CHOSEN.running:
            yield
            return
        CHOSEN.running = True
        display.begin(Stage(title, total))
        try:
            yield
        finally:
            CHOSEN.running = False
            display.end()


@dataclass
class Counted:
    """The seconds of all stages of this process by title, and whether one is running."""

    seconds: dict[str, float] = field(default_factory=dict)
    running: bool = False


COUNTED = Counted()


@contextmanager
def timed(title: str, *, between: bool = False) -> Iterator[None]:
    """Count the time of the block. A stage inside it is part of it or, with `between`, is counted on its own."""
    # What another thread does is counted where the main thread waits for it: no second is counted twice.
    if COUNTED.running or threading.current_thread() is not threading.main_thread():
        yield
        return
    began, before = time.perf_counter(), sum(COUNTED.seconds.values())
    COUNTED.seconds.setdefault(title, 0.0)  # in the order in which the stages began
    COUNTED.running = not between
    try:
        yield
    finally:
        COUNTED.running = False
        inside = sum(COUNTED.seconds.values()) - before
        COUNTED.seconds[title] += max(time.perf_counter() - began - inside, 0.0)


@dataclass(frozen=True)
class Clock:
    """Where the time goes from now on: in which stages, and in none of them."""

    began: float = field(default_factory=lambda: time.perf_counter())
    before: Mapping[str, float] = field(default_factory=lambda: dict(COUNTED.seconds))

    @staticmethod
    def of_process() -> Clock:
        """Return a clock that began when this process started. The time until now counts as that of starting it."""
        age = process_age()
        clock = Clock(time.perf_counter() - age)
        COUNTED.seconds[STARTING] = COUNTED.seconds.get(STARTING, 0.0) + age
        return clock

    def stages(self) -> dict[str, float]:
        """Return the seconds of each stage since the beginning, and of what was in no stage. They add up to the whole."""
        passed = time.perf_counter() - self.began
        stages = {title: seconds - self.before.get(title, 0.0) for title, seconds in COUNTED.seconds.items()}
        return {title: seconds for title, seconds in stages.items() if seconds > 0} | {OTHER: passed - sum(stages.values())}


def process_age() -> float:
    """Return the seconds since this process started; where no file says so, those that the processor worked for it."""
    with suppress(OSError, ValueError, IndexError, AttributeError):
        started = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])  # in ticks after boot
        return max(time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK"), 0.0)
    return time.process_time()


@contextmanager
def part_of_stage(num_rows: int) -> Iterator[None]:
    """Count the block as exactly `num_rows` rows, although steps inside it, such as tokenizing, count the same rows again."""
    with assigned(CHOSEN, room=num_rows):
        yield
        advance(CHOSEN.room or 0)


def advance(num_rows: int) -> None:
    """Count rows of the running stage."""
    if CHOSEN.display is None or not CHOSEN.running:
        return
    if CHOSEN.room is not None:
        num_rows = min(num_rows, CHOSEN.room)
        CHOSEN.room -= num_rows
    if num_rows:
        CHOSEN.display.advance(num_rows)


class TolerantStream:
    """A text stream that remembers the first write that failed, as `error`, and raises nothing: no work is lost for a line."""

    def __init__(self, stream: TextIO | None) -> None:
        self.closed_from_start = stream is None  # before the process started
        self.stream = stream if stream is not None else Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
        self.error: OSError | ValueError | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        try:
            if self.closed_from_start:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            return self.stream.write(text)
        except (OSError, ValueError) as error:  # a ValueError is a stream that the process itself has closed
            self.lose(error)
            return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except (OSError, ValueError) as error:
            self.lose(error)

    def lose(self, error: OSError | ValueError) -> None:
        """Remember an error, and empty the buffer, which Python would try to write again when the process exits."""
        self.error = self.error or error
        with suppress(OSError, ValueError, AttributeError):
            number = self.stream.fileno()
            inheritable, target, nowhere = os.get_inheritable(number), os.dup(number), os.open(os.devnull, os.O_WRONLY)
            try:
                os.dup2(nowhere, number, inheritable)
                self.stream.flush()
            finally:
                os.dup2(target, number, inheritable)
                os.close(target)
                os.close(nowhere)


def tolerant(stream: TextIO | TolerantStream | None) -> TextIO:
    """Return a stream that never raises because text cannot be written."""
    return cast("TextIO", stream if isinstance(stream, TolerantStream) else TolerantStream(stream))


def messages() -> TextIO:
    """Return standard error for messages and progress bars, which never end a run."""
    return tolerant(sys.stderr)


def has_terminal() -> bool:
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
    with assigned(sys, stdout=tolerant(sys.stdout), stderr=tolerant(sys.stderr)):
        try:
            yield cast("TolerantStream", sys.stdout)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()


def clear() -> None:
    if CHOSEN.display is not None and CHOSEN.running:
        CHOSEN.display.clear()


def note(line: str) -> None:
    """Print one line on standard error as it is. A closed terminal or a full disk is ignored: no run ends for a message."""
    clear()
    print(printable(line), file=messages(), flush=True)


def say(line: str) -> None:
    """Print one line on standard error, with the name of the program."""
    note(f"glassloop: {line}")


def show(line: str) -> None:
    """Print one line of the answer on standard output, with control characters escaped."""
    clear()
    print(printable(line), flush=True)


@dataclass(frozen=True)
class CommandResult:
    """The result of a command for `--json`: plain values, records and paths by name."""

    content: Mapping[str, object]
    exit_status: int = 0

    def __str__(self) -> str:
        return json.dumps(json_value(self.content), indent=1, allow_nan=False)  # in ASCII, which every terminal can show


def error_result(error: GlassloopError) -> CommandResult:
    content = {"area": error.area, "problem": error.problem, "remedy": error.remedy, "exit_status": error.exit_code}
    return CommandResult({"error": content}, error.exit_code)


def json_value(value: object) -> object:
    """Return a value as JSON can hold it: a record is an object, a path is text, and a number that is not finite is null."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(name): json_value(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


@contextmanager
def output_of(as_json: bool) -> Iterator[TextIO]:
    """Yield standard output. For JSON, everything else that is printed in the meantime goes to standard error."""
    output = sys.stdout
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        yield output


def show_result(result: CommandResult, output: TextIO) -> None:
    """Print a result as JSON. Of several processes, only the main one prints it."""
    if os.environ.get("RANK", "0") == "0":
        output.write(f"{result}\n")
        output.flush()
