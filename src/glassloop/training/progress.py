"""Progress of a run: a bar with loss and time left in a terminal, a table in a notebook, else plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Container, Mapping, Sequence
from html import escape
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

from glassloop.base.errors import printable
from glassloop.base.output import has_terminal, messages, note
from glassloop.data.batches import Batch
from glassloop.data.examples import SHOWN_LABELS
from glassloop.markup.notebook import chart, facts, figure, table, view
from glassloop.runs.history import Entry, last_step, numbers_by_step
from glassloop.runs.record import Plan
from glassloop.scores.metrics import short_metrics
from glassloop.training.callbacks import Callback, History
from glassloop.training.stage_display import Interval
from glassloop.training.state import State


def learning_curve(history: Sequence[Entry]) -> str:
    """Return the loss of training and of evaluations by step, as a small chart."""
    names = {"training loss": "loss", "evaluation loss": "eval_loss"}
    return chart({title: numbers_by_step(history, name) for title, name in names.items()}, "step")


def trainer_view(named: Mapping[str, str], history: Sequence[Entry]) -> str:
    """Return what a Trainer has and how far it is: facts, every evaluation so far, and the learning curve."""
    evaluations = [entry for entry in history if any(name.startswith("eval_") for name in entry)][-SHOWN_LABELS:]
    names = [name for name in (evaluations[-1] if evaluations else ()) if name.startswith("eval_")]
    rows = [(f"{entry.get('step')}", *(shown_number(entry.get(name)) for name in names)) for entry in evaluations]
    return view("Trainer", facts(named), table(("step", *names), rows), learning_curve(history))


def shown_number(value: object) -> str:
    """Return a figure of the history; a dash if there is none."""
    return figure(value) if isinstance(value, int | float) else figure(None)


NOTEBOOK_UPDATE_SECONDS = 0.5


class Notebook(Callback):
    """One output of a cell, replaced as the run goes on.

    Args:
        plan: The plan of the run.
        history: The history, which knows the epoch of a step.
        title: Returns the name to show for a metric.
    """

    def __init__(self, plan: Plan, history: History, title: Callable[[str], str] = str) -> None:
        self.plan, self.history, self.title = plan, history, title
        self.evaluations: list[dict[str, str]] = []
        self.loss, self.last, self.began, self.first = "", 0.0, 0.0, 0
        self.output: Any = None  # IPython's handle of a displayed object, which has no types

    def on_fit_start(self, state: State) -> None:
        from IPython.display import HTML, display

        self.began, self.first = time.perf_counter(), state.step
        self.output = display(HTML(self.html(state)), display_id=True)

    def on_step(self, state: State, batches: list[Batch]) -> None:
        if time.perf_counter() - self.last >= NOTEBOOK_UPDATE_SECONDS:
            self.draw(state)

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        self.loss = f"{state.history[-1]['loss']:.4f}"

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        found = {"step": f"{state.step:,}", "epoch": f"{self.history.epoch(state):.2f}", "training loss": self.loss or "-"}
        found |= {self.title(name): f"{value:.4f}" for name, value in short_metrics(metrics).items()}
        self.evaluations.append(found)
        self.draw(state)

    def on_fit_end(self, state: State) -> None:
        self.draw(state)

    def draw(self, state: State) -> None:
        """Replace the output."""
        from IPython.display import HTML

        self.last = time.perf_counter()
        if self.output is not None:
            self.output.update(HTML(self.html(state)))

    def html(self, state: State) -> str:
        """Return the bar with the latest figures, and the table of the evaluations."""
        step, steps = state.step, self.plan.max_steps
        seconds = (time.perf_counter() - self.began) / max(step - self.first, 1) * (steps - step)
        facts = [f"step {step:,}/{steps:,}", f"epoch {self.history.epoch(state):.2f}"]
        facts += [f"loss {self.loss}"] if self.loss else []
        facts += [f"{seconds:.0f} s left"] if self.first < step < steps else []
        bar = f'<progress value="{step}" max="{steps}" style="width: 20em"></progress> {", ".join(facts)}'
        return f"<div>{bar}</div>{self.table()}"

    def table(self) -> str:
        """Return the evaluations as an HTML table, one row each; nothing before the first one."""
        if not self.evaluations:
            return ""
        columns = dict.fromkeys(name for entry in self.evaluations for name in entry)
        head = "".join(f"<th>{escape(name)}</th>" for name in columns)
        cells = [[f"<td>{escape(entry.get(name, '-'))}</td>" for name in columns] for entry in self.evaluations]
        rows = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


WIDE_COLUMNS = 100  # of a terminal that has room for the learning rate


UPDATE_SECONDS, SEEDS_LINE_SECONDS = 1.0, 30.0  # between two updates about several seeds, and two plain lines


def progress_for(plan: Plan, plain: bool, history: History, title: Callable[[str], str] = str) -> Callback:
    """Return a bar in a terminal, a bar and a table in a notebook, else plain lines.

    `title` returns the name to show for a metric.
    """
    if plain:
        return Lines(plan, history, title)
    if "ipykernel" in sys.modules:
        return Notebook(plan, history, title)
    return Bar(plan, history, title) if has_terminal() else Lines(plan, history, title)


def described(metrics: dict[str, float], title: Callable[[str], str] = str) -> str:
    """Return `loss 0.4012  accuracy 0.8431`: the metrics of an evaluation, without its timings."""
    return "  ".join(f"{printable(title(name))} {value:.4f}" for name, value in short_metrics(metrics).items())


class Pace:
    """The speed of a run since it was started or resumed."""

    def __init__(self) -> None:
        self.began, self.num_rows, self.num_steps = time.perf_counter(), 0, 0

    def count(self, batches: list[Batch]) -> None:
        """Count one step."""
        self.num_steps += 1
        self.num_rows += sum(batch.size for batch in batches)

    def per_second(self) -> float:
        """Return the rows trained on per second."""
        return self.num_rows / max(time.perf_counter() - self.began, 1e-9)

    def seconds_for(self, steps: int) -> float:
        """Return how long the next `steps` steps will take."""
        return (time.perf_counter() - self.began) / max(self.num_steps, 1) * steps


class Bar(Callback):
    """A tqdm progress bar with the latest figures, as many as fit beside it."""

    def __init__(self, plan: Plan, history: History, title: Callable[[str], str] = str) -> None:
        self.plan, self.history, self.title, self.pace = plan, history, title, Pace()
        self.bar: Any = None  # tqdm has no types
        self.file = messages()

    def on_fit_start(self, state: State) -> None:
        from tqdm import tqdm

        self.pace = Pace()
        form = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
        self.bar = tqdm(total=self.plan.max_steps, initial=state.step, bar_format=form, dynamic_ncols=True, file=self.file)

    def on_step(self, state: State, batches: list[Batch]) -> None:
        self.pace.count(batches)
        self.bar.update(1)

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        entry = state.history[-1]
        facts = [f"epoch {entry['epoch']:.2f}", f"loss {entry['loss']:.4f}", f"{self.pace.per_second():.0f} rows/s"]
        if get_terminal_size().columns >= WIDE_COLUMNS:
            facts.insert(2, f"lr {entry['learning_rate']:.2e}")
        self.bar.set_postfix_str(", ".join(facts), refresh=False)

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        self.bar.write(
            f"step {state.step:,}  epoch {self.history.epoch(state):.2f}  {described(metrics, self.title)}", file=self.file
        )

    def on_fit_end(self, state: State) -> None:
        self.bar.close()


class Lines(Callback):
    """A plain line every few seconds, and less often in a long run, for logs and pipes."""

    def __init__(self, plan: Plan, history: History, title: Callable[[str], str] = str) -> None:
        self.plan, self.history, self.title, self.pace, self.interval = plan, history, title, Pace(), Interval()

    def on_fit_start(self, state: State) -> None:
        self.pace, self.interval = Pace(), Interval(due=True)

    def on_step(self, state: State, batches: list[Batch]) -> None:
        self.pace.count(batches)

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        if not self.interval.is_over() and state.step < self.plan.max_steps:
            return
        entry = state.history[-1]
        left = self.pace.seconds_for(self.plan.max_steps - state.step)
        self.line(
            f"step {state.step:,}/{self.plan.max_steps:,}  epoch {entry['epoch']:.2f}  loss {entry['loss']:.4f}  "
            f"lr {entry['learning_rate']:.2e}  {self.pace.per_second():.0f} rows/s  {left:.0f} s left"
        )

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        self.line(f"step {state.step:,}  epoch {self.history.epoch(state):.2f}  {described(metrics, self.title)}")

    def line(self, text: str) -> None:
        note(text)


class SeedsProgress:
    """One bar, or a plain line every half minute, for several runs in other processes, read from their histories.

    Args:
        runs: The run folder of each seed that will be trained.
        num_done: How many seeds are finished already.
        num_steps: How many steps each run has.
        plain: Whether to print lines instead of a bar.
    """

    def __init__(self, runs: dict[int, Path], num_done: int, num_steps: int, plain: bool) -> None:
        self.runs, self.num_done, self.num_steps = runs, num_done, num_steps
        self.last_update = self.last_line = time.perf_counter()
        self.bar: Any = None  # tqdm has no types
        self.file = messages()
        if runs and not plain and has_terminal():
            from tqdm import tqdm

            form = "{percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"
            self.bar = tqdm(total=100.0, bar_format=form, dynamic_ncols=True, leave=False, file=self.file)

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        self.bar.write(printable(text), file=self.file) if self.bar is not None else note(text)

    def update(self, ended: Container[int]) -> None:
        """Show the progress of all seeds, at most once per second. `ended` are the seeds whose process has ended."""
        now = time.perf_counter()
        if now - self.last_update < UPDATE_SECONDS:
            return
        self.last_update = now
        shares = {seed: 1.0 if seed in ended else share_done(run, self.num_steps) for seed, run in self.runs.items()}
        percent = 100 * (self.num_done + sum(shares.values())) / (self.num_done + len(shares))
        running = ", ".join(f"{seed}: {share:.0%}" for seed, share in shares.items() if share and seed not in ended)
        if self.bar is not None:
            self.bar.n = percent
            self.bar.set_postfix_str(running)
        elif running and now - self.last_line >= SEEDS_LINE_SECONDS:
            self.last_line = now
            self.line(f"{percent:.0f}% done; seed {running}")

    def close(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.close()


def share_done(run: Path, num_steps: int) -> float:
    """Return the fraction of its steps that a run has logged."""
    return min(1.0, last_step(run) / max(num_steps, 1))
