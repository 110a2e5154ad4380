"""Progress of a run, a command and several seeds: a bar in a terminal, else plain lines. Imports nothing that takes long."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from glassloop.base.errors import printable
from glassloop.base.output import CHOSEN, STARTING, Clock, Stage, has_terminal, messages, note, show_on, stage
from glassloop.base.records import collection_paused
from glassloop.runs.history import last_step
from glassloop.runs.record import Plan
from glassloop.training.callbacks import Callback, State

if TYPE_CHECKING:
    from tqdm import tqdm

    from glassloop.data.batches import Batch

LINE_SECONDS = 5.0  # between two plain lines, at least
LINE_SHARE = 0.02  # of the time since the start, so that a run of many hours does not fill its log
NOTEBOOK_UPDATE_SECONDS = 0.5
UPDATE_SECONDS, SEEDS_LINE_SECONDS = 1.0, 30.0  # between two updates about several seeds, and two plain lines
WIDE_COLUMNS = 100  # of a terminal that has room for the learning rate
RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")


# --- how often and where -----------------------------------------------------------------------------------------------
class Interval:
    """When the next update is due: after some seconds and, in a long run, after a `share` of the time since its start."""

    def __init__(self, seconds: float, share: float = 0.0, *, due: bool = False) -> None:
        self.began = self.last = time.perf_counter()
        self.seconds, self.share, self.due = seconds, share, due  # due: the first update at once

    def is_over(self) -> bool:
        """Return whether an update is due now, and start the next interval if it is."""
        now = time.perf_counter()
        if not self.due and now - self.last < max(self.seconds, self.share * (now - self.began)):
            return False
        self.last, self.due = now, False
        return True


class Pace:
    """The speed of a run since it was started or resumed."""

    def __init__(self) -> None:
        self.began, self.num_rows, self.num_steps = time.perf_counter(), 0, 0

    def count(self, batches: list[Batch]) -> None:
        self.num_steps += 1
        self.num_rows += sum(batch.size for batch in batches)

    def per_second(self) -> float:
        return self.num_rows / max(time.perf_counter() - self.began, 1e-9)

    def seconds_for(self, steps: int) -> float:
        return (time.perf_counter() - self.began) / max(self.num_steps, 1) * steps


def drawn_bar(form: str, **options: object) -> tqdm:
    from tqdm import tqdm

    return tqdm(bar_format=form, file=messages(), **options)


def write_line(line: str, bar: tqdm | None) -> None:
    """Write a line above the bar, if there is one."""
    note(line) if bar is None else bar.write(printable(line), file=bar.fp)


# --- the steps of a run ------------------------------------------------------------------------------------------------
def progress_for(plan: Plan, lines: bool, title: Callable[[str], str] = str) -> Callback:
    """Return a bar in a terminal, a bar and a table in a notebook, else plain lines. `title`: the shown name of a metric."""
    if not lines and "ipykernel" in sys.modules:
        return Notebook(plan, title)
    return Progress(plan, title, lines=lines or not has_terminal())


def titled(metrics: dict[str, float], title: Callable[[str], str]) -> dict[str, str]:
    from glassloop.scores.metrics import short_metrics

    return {title(name): f"{value:.4f}" for name, value in short_metrics(metrics).items()}


class Progress(Callback):
    """A bar with the latest figures, as many as fit beside it; or plain `lines`, for logs and pipes, rarer in a long run."""

    def __init__(self, plan: Plan, title: Callable[[str], str] = str, *, lines: bool) -> None:
        self.plan, self.title, self.lines = plan, title, lines
        self.bar: Any = None

    def on_fit_start(self, state: State) -> None:
        self.pace, self.interval = Pace(), Interval(LINE_SECONDS, LINE_SHARE, due=True)
        if not self.lines:
            form = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
            self.bar = drawn_bar(form, total=self.plan.max_steps, initial=state.step, dynamic_ncols=True)

    def on_step(self, state: State, batches: list[Batch]) -> None:
        self.pace.count(batches)
        if self.bar is not None:
            self.bar.update(1)

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        entry, left = state.history[-1], self.plan.max_steps - state.step
        rate = [f"lr {entry['learning_rate']:.2e}"] if self.lines or get_terminal_size().columns >= WIDE_COLUMNS else []
        facts = [f"epoch {entry['epoch']:.2f}", f"loss {entry['loss']:.4f}", *rate, f"{self.pace.per_second():.0f} rows/s"]
        if self.bar is not None:
            self.bar.set_postfix_str(", ".join(facts), refresh=False)
        elif self.interval.is_over() or left <= 0:
            place, rest = f"step {state.step:,}/{self.plan.max_steps:,}", f"{self.pace.seconds_for(left):.0f} s left"
            note("  ".join([place, *facts, rest]))

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        scores = "  ".join(f"{name} {value}" for name, value in titled(metrics, self.title).items())
        write_line(f"step {state.step:,}  epoch {state.epoch_by(self.plan):.2f}  {scores}", self.bar)

    def on_fit_end(self, state: State) -> None:
        if self.bar is not None:
            self.bar.close()


class Notebook(Callback):
    """One output of a cell, replaced as the run goes on: a bar with the latest figures, and the table of the evaluations."""

    def __init__(self, plan: Plan, title: Callable[[str], str] = str) -> None:
        self.plan, self.title, self.loss = plan, title, ""
        self.evaluations: list[dict[str, str]] = []
        self.output: Any = None  # IPython's handle of a displayed object, which has no types

    def on_fit_start(self, state: State) -> None:
        from IPython.display import HTML, display

        self.pace, self.interval = Pace(), Interval(NOTEBOOK_UPDATE_SECONDS, due=True)
        self.output = display(HTML(self.html(state)), display_id=True)

    def on_step(self, state: State, batches: list[Batch]) -> None:
        self.pace.count(batches)
        if self.interval.is_over():
            self.draw(state)

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        self.loss = f"{state.history[-1]['loss']:.4f}"

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        place = {"step": f"{state.step:,}", "epoch": f"{state.epoch_by(self.plan):.2f}", "training loss": self.loss or "-"}
        self.evaluations.append(place | titled(metrics, self.title))
        self.draw(state)

    def on_fit_end(self, state: State) -> None:
        self.draw(state)

    def draw(self, state: State) -> None:
        from IPython.display import HTML

        if self.output is not None:
            self.output.update(HTML(self.html(state)))

    def html(self, state: State) -> str:
        from glassloop.markup.notebook import table

        step, steps = state.step, self.plan.max_steps
        facts = [f"step {step:,}/{steps:,}", f"epoch {state.epoch_by(self.plan):.2f}"]
        facts += [f"loss {self.loss}"] if self.loss else []
        facts += [f"{self.pace.seconds_for(steps - step):.0f} s left"] if self.pace.num_steps and step < steps else []
        bar = f'<progress value="{step}" max="{steps}" style="width: 20em"></progress> {", ".join(facts)}'
        columns = [*dict.fromkeys(name for entry in self.evaluations for name in entry)]
        rows = [[entry.get(name, "-") for name in columns] for entry in self.evaluations]
        return f"<div>{bar}</div>{table(columns, rows)}"


# --- the stages of a command -------------------------------------------------------------------------------------------
@contextmanager
def starting(*, plain: bool = False, lines: bool = True) -> Iterator[Clock]:
    """Show the stages of a command from now on, as `choose_display` does; the block imports what the command needs."""
    choose_display(plain=plain, lines=lines)
    clock = Clock.of_process()
    with stage(STARTING), collection_paused():
        yield clock


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
    """A bar which vanishes at the end of its stage; the title alone if the number of rows is not known."""

    bar: Any

    def begin(self, stage: Stage) -> None:
        columns, title, form = get_terminal_size().columns - 1, printable(stage.title), "{desc} …"
        room = columns - 20
        if stage.total is not None:
            form, room = "{l_bar}{bar}| {n_fmt}/{total_fmt} rows [{elapsed}<{remaining}]", columns // 3
        if len(title) > room:
            title = f"{title[: room - 1]}…"
        self.bar = drawn_bar(form, total=stage.total, desc=title, leave=False, ncols=columns)

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

    def begin(self, stage: Stage) -> None:
        self.stage, self.num_rows, self.interval = stage, 0, Interval(LINE_SECONDS, LINE_SHARE)
        if stage.title not in self.titles:
            self.titles.add(stage.title)
            note(stage.title if stage.total is None else f"{stage.title} ({stage.total:,} rows)")

    def advance(self, num_rows: int) -> None:
        self.num_rows += num_rows
        if self.interval.is_over():
            total = self.stage.total
            rows = f"{self.num_rows:,} of {total:,} rows ({self.num_rows / total:.0%})" if total else f"{self.num_rows:,} rows"
            note(f"{self.stage.title}: {rows}")

    def end(self) -> None: ...  # what follows says that the stage has ended
    def clear(self) -> None: ...  # lines follow each other


# --- several seeds -----------------------------------------------------------------------------------------------------
class SeedsProgress:
    """One bar, or a `plain` line every half minute, for several runs in other processes, read from their histories."""

    def __init__(self, runs: dict[int, Path], num_done: int, num_steps: int, plain: bool) -> None:
        self.runs = runs  # the folders of the seeds to train
        self.num_done, self.num_steps = num_done, num_steps  # seeds that are done, and steps of each
        self.updates, self.lines = Interval(UPDATE_SECONDS), Interval(SEEDS_LINE_SECONDS)
        self.bar: Any = None
        if runs and not plain and has_terminal():
            form = "{percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"
            self.bar = drawn_bar(form, total=100.0, dynamic_ncols=True, leave=False)

    def line(self, text: str) -> None:
        write_line(text, self.bar)

    def update(self, ended: Container[int]) -> None:
        """Show the progress of all seeds, at most once per second. `ended` are the seeds whose process has ended."""
        if not self.updates.is_over():
            return
        most = max(self.num_steps, 1)
        shares = {seed: 1.0 if seed in ended else min(1.0, last_step(run) / most) for seed, run in self.runs.items()}
        percent = 100 * (self.num_done + sum(shares.values())) / (self.num_done + len(shares))
        running = ", ".join(f"{seed}: {share:.0%}" for seed, share in shares.items() if share and seed not in ended)
        if self.bar is not None:
            self.bar.n = percent
            self.bar.set_postfix_str(running)
        elif running and self.lines.is_over():
            note(f"{percent:.0f}% done; seed {running}")

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
