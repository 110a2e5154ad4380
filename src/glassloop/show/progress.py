"""What a person sees while a run goes: a bar with loss, rate and time left in a terminal or notebook, else plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from glassloop.engine.callbacks import Callback
from glassloop.engine.history import History
from glassloop.engine.state import State
from glassloop.errors import printable, show
from glassloop.measures import short_metrics
from glassloop.run_folder.history import last_step
from glassloop.run_folder.record import Plan

LINE_SECONDS = 5.0  # at most one plain line of losses in so many seconds
LOOK_SECONDS, SHARES_SECONDS = 1.0, 30.0  # between two looks at several runs, and two plain lines about them


def progress_for(plan: Plan, plain: bool, history: History, title: Callable[[str], str] = str) -> Callback:
    """A progress bar in a terminal or notebook, else lines. `title` names a metric for a person."""
    in_notebook = "ipykernel" in sys.modules
    kind = Lines if plain or not (in_notebook or sys.stderr.isatty()) else Bar
    return kind(plan, history, title)


def described(metrics: dict[str, float], title: Callable[[str], str] = str) -> str:
    """`loss 0.4012  accuracy 0.8431`: the figures of an evaluation, without its timings."""
    return "  ".join(f"{printable(title(name))} {value:.4f}" for name, value in short_metrics(metrics).items())


class Pace:
    """How fast a run is since it was started or resumed."""

    def __init__(self) -> None:
        self.began, self.num_rows, self.num_steps = time.perf_counter(), 0, 0

    def count(self, batches: list[Any]) -> None:
        self.num_steps += 1
        self.num_rows += sum(batch.size for batch in batches)

    def per_second(self) -> float:
        """Rows a second."""
        return self.num_rows / max(time.perf_counter() - self.began, 1e-9)

    def seconds_for(self, steps: int) -> float:
        """How long so many more steps take."""
        return (time.perf_counter() - self.began) / max(self.num_steps, 1) * steps


class Bar(Callback):
    """tqdm's bar, which also works in notebooks."""

    def __init__(self, plan: Plan, history: History, title: Callable[[str], str] = str) -> None:
        self.plan, self.history, self.title, self.pace = plan, history, title, Pace()
        self.bar: Any = None

    def on_fit_start(self, state: State) -> None:
        from tqdm.auto import tqdm

        self.pace = Pace()
        self.bar = tqdm(total=self.plan.max_steps, initial=state.step, unit="step", dynamic_ncols=True)

    def on_step(self, state: State, batches: list[Any]) -> None:
        self.pace.count(batches)
        self.bar.update(1)

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        entry = state.history[-1]
        shown = {"epoch": f"{entry['epoch']:.2f}", "loss": f"{entry['loss']:.4f}", "lr": f"{entry['learning_rate']:.2e}"}
        self.bar.set_postfix(shown | {"rows/s": f"{self.pace.per_second():.0f}"}, refresh=False)

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        self.bar.write(
            f"step {state.step:,}  epoch {self.history.epoch(state):.2f}  {described(metrics, self.title)}", file=sys.stderr
        )

    def on_fit_end(self, state: State) -> None:
        self.bar.close()


class Lines(Callback):
    """One line now and then, for logs and pipes."""

    def __init__(self, plan: Plan, history: History, title: Callable[[str], str] = str) -> None:
        self.plan, self.history, self.title, self.pace, self.last = plan, history, title, Pace(), 0.0

    def on_fit_start(self, state: State) -> None:
        self.pace = Pace()

    def on_step(self, state: State, batches: list[Any]) -> None:
        self.pace.count(batches)

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        now = time.perf_counter()
        if now - self.last < LINE_SECONDS and state.step < self.plan.max_steps:
            return
        self.last = now
        entry = state.history[-1]
        left = self.pace.seconds_for(self.plan.max_steps - state.step)
        self.line(
            f"step {state.step:,}/{self.plan.max_steps:,}  epoch {entry['epoch']:.2f}  loss {entry['loss']:.4f}  "
            f"lr {entry['learning_rate']:.2e}  {self.pace.per_second():.0f} rows/s  {left:.0f} s left"
        )

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        self.line(f"step {state.step:,}  epoch {self.history.epoch(state):.2f}  {described(metrics, self.title)}")

    def line(self, text: str) -> None:
        show(text, sys.stderr)


class Several:
    """One bar, or a plain line now and then, over several runs in processes of their own, by what they write down."""

    def __init__(self, runs: dict[int, Path], num_done: int, num_steps: int, plain: bool) -> None:
        self.runs, self.num_done, self.num_steps = runs, num_done, num_steps
        self.looked = self.told = time.perf_counter()
        self.bar: Any = None
        if runs and not plain and sys.stderr.isatty():
            from tqdm.auto import tqdm

            form = "{percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"
            self.bar = tqdm(total=100.0, bar_format=form, dynamic_ncols=True, leave=False)

    def line(self, text: str) -> None:
        self.bar.write(printable(text), file=sys.stderr) if self.bar is not None else show(text, sys.stderr)

    def look(self, ended: Container[int]) -> None:
        """Show how far all are, if it is time to; `ended` are those that need no more."""
        now = time.perf_counter()
        if now - self.looked < LOOK_SECONDS:
            return
        self.looked = now
        shares = {seed: 1.0 if seed in ended else share_done(run, self.num_steps) for seed, run in self.runs.items()}
        percent = 100 * (self.num_done + sum(shares.values())) / (self.num_done + len(shares))
        going = ", ".join(f"{seed}: {share:.0%}" for seed, share in shares.items() if share and seed not in ended)
        if self.bar is not None:
            self.bar.n = percent
            self.bar.set_postfix_str(going)
        elif going and now - self.told >= SHARES_SECONDS:
            self.told = now
            self.line(f"{percent:.0f}% of all; seed {going}")

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def share_done(run: Path, num_steps: int) -> float:
    """Return which share of its steps a run has logged."""
    return min(1.0, last_step(run) / max(num_steps, 1))
