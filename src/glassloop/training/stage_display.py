"""How stages look: a bar in a terminal, which vanishes at its end, else plain lines. Imports nothing that takes long."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from shutil import get_terminal_size
from typing import Any

from glassloop.base.errors import printable
from glassloop.base.output import CHOSEN, Stage, has_terminal, messages, note, show_on, stage
from glassloop.base.records import collection_paused

LINE_SECONDS = 5.0  # between two plain lines, at least


LINE_SHARE = 0.02  # of the time since the start, so that a run of many hours does not fill its log


RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")


@contextmanager
def starting(*, plain: bool = False, lines: bool = True) -> Iterator[None]:
    """Show the stages of a command from now on; the block imports what the command needs.

    Args:
        plain: Whether to print lines even in a terminal.
        lines: Whether to print lines outside a terminal; else nothing is shown there.
    """
    choose_display(plain=plain, lines=lines)
    with stage("starting"), collection_paused():
        yield


def choose_display(*, plain: bool = False, lines: bool = True) -> None:
    """Show stages as a bar in a terminal, else as lines if wanted. Of several processes only the first shows any."""
    if any(os.environ.get(name, "0") != "0" for name in RANKS):
        show_on(None)
    elif has_terminal() and not plain:
        show_on(StageBar())
    else:
        show_on(StageLines() if lines or plain else None)


def show_lines() -> None:
    """Print lines from now on if stages are shown as a bar."""
    if isinstance(CHOSEN.display, StageBar):
        show_on(StageLines())


class Interval:
    """When the next plain line is due: after a few seconds at first, then less and less often."""

    def __init__(self, *, due: bool = False) -> None:
        self.began = self.last = time.perf_counter()
        self.due = due  # the first line at once

    def is_over(self) -> bool:
        """Return whether a line is due now, and start the next interval if it is."""
        now = time.perf_counter()
        if not self.due and now - self.last < max(LINE_SECONDS, LINE_SHARE * (now - self.began)):
            return False
        self.last, self.due = now, False
        return True


class StageBar:
    """A bar of tqdm in a terminal; the title alone if the number of rows is not known."""

    def __init__(self) -> None:
        self.bar: Any = None  # tqdm has no types

    def begin(self, stage: Stage) -> None:
        """Show the bar."""
        from tqdm import tqdm

        columns, title = get_terminal_size().columns - 1, printable(stage.title)
        room = columns // 3 if stage.total is not None else columns - 20
        if len(title) > room:
            title = f"{title[: room - 1]}…"
        counted = "{l_bar}{bar}| {n_fmt}/{total_fmt} rows [{elapsed}<{remaining}]"
        self.bar = tqdm(
            total=stage.total,
            desc=title,
            leave=False,
            ncols=columns,
            file=messages(),
            bar_format="{desc} …" if stage.total is None else counted,
        )

    def advance(self, num_rows: int) -> None:
        """Move the bar; without a total, show how many rows were read."""
        if self.bar.total is None:
            self.bar.bar_format = "{desc} … {n_fmt} rows"
        self.bar.update(num_rows)

    def end(self) -> None:
        """Remove the bar."""
        self.bar.close()

    def clear(self) -> None:
        """Remove the bar until it moves again."""
        self.bar.clear()


class StageLines:
    """A line when a stage begins for the first time, and one now and then while it runs."""

    def __init__(self) -> None:
        self.shown: set[str] = set()
        self.stage, self.num_rows, self.interval = Stage(""), 0, Interval()

    def begin(self, stage: Stage) -> None:
        """Print the title, unless it was printed before: a run may be evaluated many times."""
        self.stage, self.num_rows, self.interval = stage, 0, Interval()
        if stage.title not in self.shown:
            self.shown.add(stage.title)
            rows = "" if stage.total is None else f" ({stage.total:,} rows)"
            note(f"{stage.title}{rows}")

    def advance(self, num_rows: int) -> None:
        """Print how far the stage is, if the last line is old enough."""
        self.num_rows += num_rows
        if self.interval.is_over():
            of_all = "" if not self.stage.total else f" of {self.stage.total:,}"
            share = "" if not self.stage.total else f" ({self.num_rows / self.stage.total:.0%})"
            note(f"{self.stage.title}: {self.num_rows:,}{of_all} rows{share}")

    def end(self) -> None:
        """Do nothing: what follows says that the stage has ended."""

    def clear(self) -> None:
        """Do nothing: lines follow each other."""
