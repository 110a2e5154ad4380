"""Progress of a run in a notebook: a bar and a table of its evaluations, in plain HTML without widgets."""

from __future__ import annotations

import time
from collections.abc import Callable
from html import escape
from typing import Any

from glassloop.data.batches import Batch
from glassloop.engine.callbacks import Callback
from glassloop.engine.history import History
from glassloop.engine.state import State
from glassloop.measures import short_metrics
from glassloop.run_folder.record import Plan

UPDATE_SECONDS = 0.5


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
        if time.perf_counter() - self.last >= UPDATE_SECONDS:
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
