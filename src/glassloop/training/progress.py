"""Progress of a command and of several seeds: a bar in a terminal, else plain lines. Imports nothing that takes long."""

from __future__ import annotations

import os
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

from glassloop.base.errors import printable
from glassloop.base.output import CHOSEN, Stage, has_terminal, messages, note, show_on, stage
from glassloop.base.records import collection_paused
from glassloop.runs.history import last_step
from glassloop.training.callbacks import Interval

UPDATE_SECONDS, SEEDS_LINE_SECONDS = 1.0, 30.0  # between two updates about several seeds, and two plain lines
RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")


@contextmanager
def starting(*, plain: bool = False, lines: bool = True) -> Iterator[None]:
    """Show the stages of a command from now on, as `choose_display` does; the block imports what the command needs."""
    choose_display(plain=plain, lines=lines)
    with stage("starting"), collection_paused():
        yield


def choose_display(*, plain: bool = False, lines: bool = True) -> None:
    """Show stages as a bar in a terminal unless `plain`, else as lines if wanted. Only the first of several processes does."""
    if any(os.environ.get(name, "0") != "0" for name in RANKS):
        show_on(None)
    elif has_terminal() and not plain:
        show_on(StageBar())
    else:
        show_on(StageLines() if lines or plain else None)


def show_lines() -> None:
    if isinstance(CHOSEN.display, StageBar):
        show_on(StageLines())


class StageBar:
    """A bar of tqdm, which vanishes at the end of its stage; the title alone if the number of rows is not known."""

    def __init__(self) -> None:
        self.bar: Any = None  # tqdm has no types

    def begin(self, stage: Stage) -> None:
        from tqdm import tqdm

        columns, title, form = get_terminal_size().columns - 1, printable(stage.title), "{desc} …"
        room = columns - 20
        if stage.total is not None:
            form, room = "{l_bar}{bar}| {n_fmt}/{total_fmt} rows [{elapsed}<{remaining}]", columns // 3
        if len(title) > room:
            title = f"{title[: room - 1]}…"
        self.bar = tqdm(total=stage.total, desc=title, leave=False, ncols=columns, file=messages(), bar_format=form)

    def advance(self, num_rows: int) -> None:
        if self.bar.total is None:
            self.bar.bar_format = "{desc} … {n_fmt} rows"
        self.bar.update(num_rows)

    def end(self) -> None:
        self.bar.close()

    def clear(self) -> None:
        self.bar.clear()


class StageLines:
    """A line when a stage begins for the first time, and one now and then while it runs."""

    def __init__(self) -> None:
        self.titles: set[str] = set()  # that were printed: a run may be evaluated many times
        self.stage, self.num_rows, self.interval = Stage(""), 0, Interval()

    def begin(self, stage: Stage) -> None:
        self.stage, self.num_rows, self.interval = stage, 0, Interval()
        if stage.title not in self.titles:
            self.titles.add(stage.title)
            note(stage.title if stage.total is None else f"{stage.title} ({stage.total:,} rows)")

    def advance(self, num_rows: int) -> None:
        self.num_rows += num_rows
        if self.interval.is_over():
            total = self.stage.total
            rows = f"{self.num_rows:,} of {total:,} rows ({self.num_rows / total:.0%})" if total else f"{self.num_rows:,} rows"
            note(f"{self.stage.title}: {rows}")

    def end(self) -> None:
        """Do nothing: what follows says that the stage has ended."""

    def clear(self) -> None:
        """Do nothing: lines follow each other."""


class SeedsProgress:
    """One bar, or a `plain` line every half minute, for several runs in other processes, read from their histories."""

    def __init__(self, runs: dict[int, Path], num_done: int, num_steps: int, plain: bool) -> None:
        self.runs, self.num_done, self.num_steps = (
            runs,
            num_done,
            num_steps,
        )  # folders of seeds to train, seeds done, steps each
        self.last_update = self.last_line = time.perf_counter()
        self.bar: Any = None  # tqdm has no types
        self.file = messages()
        if runs and not plain and has_terminal():
            from tqdm import tqdm

            form = "{percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"
            self.bar = tqdm(total=100.0, bar_format=form, dynamic_ncols=True, leave=False, file=self.file)

    def line(self, text: str) -> None:
        self.bar.write(printable(text), file=self.file) if self.bar is not None else note(text)

    def update(self, ended: Container[int]) -> None:
        """Show the progress of all seeds, at most once per second. `ended` are the seeds whose process has ended."""
        now = time.perf_counter()
        if now - self.last_update < UPDATE_SECONDS:
            return
        self.last_update = now
        most = max(self.num_steps, 1)
        shares = {seed: 1.0 if seed in ended else min(1.0, last_step(run) / most) for seed, run in self.runs.items()}
        percent = 100 * (self.num_done + sum(shares.values())) / (self.num_done + len(shares))
        running = ", ".join(f"{seed}: {share:.0%}" for seed, share in shares.items() if share and seed not in ended)
        if self.bar is not None:
            self.bar.n = percent
            self.bar.set_postfix_str(running)
        elif running and now - self.last_line >= SEEDS_LINE_SECONDS:
            self.last_line = now
            self.line(f"{percent:.0f}% done; seed {running}")

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
