"""What a person sees while a run goes: a bar with loss, rate and time left in a terminal or notebook, else plain lines."""

from __future__ import annotations

import sys
import time
from typing import Any

from glassloop.engine.callbacks import Callback
from glassloop.engine.recorder import History
from glassloop.engine.state import Plan, State

LINE_SECONDS = 5.0  # at most one plain line of losses in so many seconds


def progress_for(plan: Plan, plain: bool, history: History) -> Callback:
    """A bar where somebody can see it move, else lines."""
    in_notebook = "ipykernel" in sys.modules
    return Lines(plan, history) if plain or not (in_notebook or sys.stderr.isatty()) else Bar(plan, history)


def described(metrics: dict[str, float]) -> str:
    """`loss 0.4012  accuracy 0.8431`: the figures of an evaluation, without its timings."""
    skipped = ("_runtime", "_per_second")
    shown = {name.partition("_")[2]: value for name, value in metrics.items() if not name.endswith(skipped)}
    return "  ".join(f"{name} {value:.4f}" for name, value in shown.items())


class Pace:
    """Rows a second since the start."""

    def __init__(self) -> None:
        self.began, self.num_rows = time.perf_counter(), 0

    def per_second(self) -> float:
        return self.num_rows / max(time.perf_counter() - self.began, 1e-9)


class Bar(Callback):
    """tqdm's bar, which also works in notebooks."""

    def __init__(self, plan: Plan, history: History) -> None:
        self.plan, self.history, self.pace = plan, history, Pace()
        self.bar: Any = None

    def on_fit_start(self, state: State) -> None:
        from tqdm.auto import tqdm

        self.pace = Pace()
        self.bar = tqdm(total=self.plan.max_steps, initial=state.step, unit="step", dynamic_ncols=True)

    def on_step(self, state: State, batches: list[Any]) -> None:
        self.pace.num_rows += sum(batch.size for batch in batches)
        self.bar.update(1)

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        entry = state.history[-1]
        shown = {"epoch": f"{entry['epoch']:.2f}", "loss": f"{entry['loss']:.4f}", "lr": f"{entry['learning_rate']:.2e}"}
        self.bar.set_postfix(shown | {"rows/s": f"{self.pace.per_second():.0f}"}, refresh=False)

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        self.bar.write(f"step {state.step:,}  epoch {self.history.epoch(state):.2f}  {described(metrics)}", file=sys.stderr)

    def on_fit_end(self, state: State) -> None:
        self.bar.close()


class Lines(Callback):
    """One line now and then, for logs and pipes."""

    def __init__(self, plan: Plan, history: History) -> None:
        self.plan, self.history, self.pace, self.last = plan, history, Pace(), 0.0

    def on_fit_start(self, state: State) -> None:
        self.pace = Pace()

    def on_step(self, state: State, batches: list[Any]) -> None:
        self.pace.num_rows += sum(batch.size for batch in batches)

    def on_log(self, state: State, figures: list[list[float]]) -> None:
        now = time.perf_counter()
        if now - self.last < LINE_SECONDS and state.step < self.plan.max_steps:
            return
        self.last = now
        entry = state.history[-1]
        left = (now - self.pace.began) / max(state.step, 1) * (self.plan.max_steps - state.step)
        self.line(
            f"step {state.step:,}/{self.plan.max_steps:,}  epoch {entry['epoch']:.2f}  loss {entry['loss']:.4f}  "
            f"lr {entry['learning_rate']:.2e}  {self.pace.per_second():.0f} rows/s  {left:.0f} s left"
        )

    def on_evaluate(self, state: State, metrics: dict[str, float]) -> None:
        self.line(f"step {state.step:,}  epoch {self.history.epoch(state):.2f}  {described(metrics)}")

    def line(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
