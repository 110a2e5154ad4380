"""Progress in a notebook: one HTML output without widgets, with a bar and a table of evaluations."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from types import ModuleType

import pytest

from glassloop.data.batches import Batch
from glassloop.runs.record import Plan
from glassloop.training import progress as notebook
from glassloop.training.callbacks import History
from glassloop.training.progress import Notebook
from glassloop.training.state import State

PLAN = Plan(
    max_steps=20, steps_per_epoch=10, batches_per_epoch=10, accumulate=1, warmup_steps=0, log_every=5, eval_every=10,
    save_every=0,
)  # fmt: skip
BATCH = Batch({}, None, [0] * 8, 8)  # type: ignore[arg-type]


class Output:
    """What IPython returns for a displayed object: all states of one output."""

    def __init__(self, first: str) -> None:
        self.shown = [first]

    def update(self, content: str) -> None:
        self.shown.append(content)


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> list[Output]:
    """IPython, as far as it is used: nothing but `display` and `HTML`."""
    found: list[Output] = []

    def display(content: str, display_id: bool) -> Output:
        assert display_id
        found.append(Output(content))
        return found[-1]

    module = ModuleType("IPython.display")
    vars(module).update(display=display, HTML=str)
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return found


class Cells(HTMLParser):
    """The texts of a document's table, by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        if self.open[-1] in ("td", "th"):
            self.rows[-1].append(text)


def run_through(watching: Notebook, history: History) -> None:
    state = State()
    for listener in (history, watching):
        listener.on_fit_start(state)
    for step in range(1, 21):
        state.step = state.batch = step
        watching.on_step(state, [BATCH])
        if step % 5 == 0:
            for listener in (history, watching):
                listener.on_log(state, [[1 / step, 1.0]])
        if step % 10 == 0:
            metrics = {"eval_loss": 0.5 / step, "eval_f1": 0.25, "eval_runtime": 1.0}
            for listener in (history, watching):
                listener.on_evaluate(state, metrics)
    watching.on_fit_end(state)


def test_one_output_with_a_table_of_evaluations(outputs: list[Output]) -> None:
    history = History(None, lambda: 5e-5, PLAN.batches_per_epoch)
    run_through(Notebook(PLAN, history, lambda name: "f1 (<b>same</b>)" if name == "f1" else name), history)
    (output,) = outputs
    assert "<table>" not in output.shown[0]
    assert '<progress value="0" max="20"' in output.shown[0]
    last = output.shown[-1]
    assert '<progress value="20" max="20"' in last
    assert "step 20/20, epoch 2.00, loss 0.0500" in last
    assert Cells(last).rows == [
        ["step", "epoch", "training loss", "loss", "f1 (<b>same</b>)"],
        ["10", "1.00", "0.1000", "0.0500", "0.2500"],
        ["20", "2.00", "0.0500", "0.0250", "0.2500"],
    ]
    assert "<b>" not in last
    assert "<script" not in last


def test_steps_do_not_flood_the_notebook(outputs: list[Output], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(notebook.time, "perf_counter", lambda: clock[0])
    history = History(None, lambda: 5e-5, PLAN.batches_per_epoch)
    watching, state = Notebook(PLAN, history), State()
    history.on_fit_start(state)
    watching.on_fit_start(state)
    for step in range(1, 17):
        clock[0] += 0.125
        state.step = state.batch = step
        watching.on_step(state, [BATCH])
    assert len(outputs[0].shown) == 1 + 4
    assert "step 13/20, epoch 1.30, 1 s left" in outputs[0].shown[-1]
