"""The HTML view of Trainers: evaluations are shown, and names stay text."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

from glassloop.data.batches import Batch
from glassloop.runs.record import Plan
from glassloop.training import callbacks as notebook
from glassloop.training import callbacks as stages
from glassloop.training import progress
from glassloop.training.callbacks import Bar, History, Lines, Notebook, Pace, State, evaluation_line, progress_for
from glassloop.training.progress import SeedsProgress

# --- Progress in a notebook: one HTML output without widgets, with a bar and a table of evaluations.


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
    history = History(None, lambda: 5e-5, PLAN)
    run_through(Notebook(PLAN, lambda name: "f1 (<b>same</b>)" if name == "f1" else name), history)
    (output,) = outputs
    assert "<table" not in output.shown[0]
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
    history = History(None, lambda: 5e-5, PLAN)
    watching, state = Notebook(PLAN), State()
    history.on_fit_start(state)
    watching.on_fit_start(state)
    for step in range(1, 17):
        clock[0] += 0.125
        state.step = state.batch = step
        watching.on_step(state, [BATCH])
    assert len(outputs[0].shown) == 1 + 4
    assert "step 13/20, epoch 1.30, 1 s left" in outputs[0].shown[-1]


# --- What a person sees: a bar where somebody can see it move, lines everywhere else.


PLAN_PROGRESS = Plan(
    max_steps=1200, steps_per_epoch=600, batches_per_epoch=600, accumulate=1, warmup_steps=0, log_every=10, eval_every=0,
    save_every=0,
)  # fmt: skip


METRICS = {"eval_loss": 0.40123, "eval_f1_macro": 0.5, "eval_runtime": 1.5, "eval_samples_per_second": 99.0}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def history_progress() -> History:
    return History(None, lambda: 5e-5, PLAN_PROGRESS)


def run_through_progress(watching, history_progress: History, steps: int, log_every: int = 10) -> State:
    """A run as the loop tells it, with an evaluation at its end."""
    state = State()
    batch = Batch({}, None, [0] * 8, 8)  # type: ignore[arg-type]
    for listener in (history_progress, watching):
        listener.on_fit_start(state)
    for _ in range(steps):
        state.step, state.batch = state.step + 1, state.batch + 1
        watching.on_step(state, [batch])
        if state.step % log_every == 0:
            for listener in (history_progress, watching):
                listener.on_log(state, [[0.5, 1.0]])
    for listener in (history_progress, watching):
        listener.on_evaluate(state, METRICS)
        listener.on_fit_end(state)
    return state


# --- which one ---------------------------------------------------------------------------------------------------


def test_lines_without_a_terminal(history_progress: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(progress_for(PLAN_PROGRESS, False), Lines)


def test_a_bar_in_a_terminal_unless_it_is_not_wanted(history_progress: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert isinstance(progress_for(PLAN_PROGRESS, False), Bar)
    assert isinstance(progress_for(PLAN_PROGRESS, True), Lines)


def test_html_in_a_notebook_unless_lines_are_wanted(history_progress: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert isinstance(progress_for(PLAN_PROGRESS, False), Notebook)
    assert isinstance(progress_for(PLAN_PROGRESS, True), Lines)


# --- lines -------------------------------------------------------------------------------------------------------


def test_the_time_left_counts_steps_since_the_resume(
    history_progress: History, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run resumed after step 1,100 that takes 1 s a step has 90 s left after ten more."""
    clock = [1000.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: clock[0])
    lines, state = Lines(PLAN_PROGRESS), State(step=1100)
    history_progress.on_fit_start(state)
    lines.on_fit_start(state)
    for _ in range(10):
        clock[0] += 1.0
        state.step += 1
        lines.on_step(state, [Batch({}, None, [0] * 8, 8)])  # type: ignore[arg-type]
    history_progress.on_log(state, [[0.5, 1.0]])
    lines.on_log(state, [[0.5, 1.0]])
    assert capsys.readouterr().err.endswith("  8 rows/s  90 s left\n")


def test_lines_are_lines(
    history_progress: History, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "LINE_SECONDS", 0.0)
    run_through_progress(Lines(PLAN_PROGRESS), history_progress, 1200, log_every=600)
    out, err = capsys.readouterr()
    assert out == ""
    assert "\r" not in err
    assert "\x1b" not in err
    first, second, third = err.splitlines()
    rest = r"loss 0\.5000  lr 5\.00e-05  \d+ rows/s  \d+ s left"
    assert re.fullmatch(rf"step 600/1,200  epoch 1\.00  {rest}", first)
    assert re.fullmatch(rf"step 1,200/1,200  epoch 2\.00  {rest}", second)
    assert second.endswith(" 0 s left")
    assert third == "step 1,200  epoch 2.00  loss 0.4012  f1_macro 0.5000"


def test_lines_do_not_flood_a_log(history_progress: History, capsys: pytest.CaptureFixture[str]) -> None:
    """One at once, then one in five seconds; the last step always has one."""
    run_through_progress(Lines(PLAN_PROGRESS), history_progress, 1200)
    lines = [line for line in capsys.readouterr().err.splitlines() if "rows/s" in line]
    assert [line.split()[1] for line in lines] == ["10/1,200", "1,200/1,200"]


def test_lines_of_a_run_of_a_day(
    history_progress: History, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step and one log each second for a day: a few hundred lines, close together at first."""
    clock = [1000.0]
    monkeypatch.setattr(stages.time, "perf_counter", lambda: clock[0])
    lines, state = Lines(Plan(**{**asdict(PLAN_PROGRESS), "max_steps": 86_400})), State()
    history_progress.on_fit_start(state)
    lines.on_fit_start(state)
    for _ in range(86_400):
        clock[0] += 1.0
        state.step += 1
        state.history[:] = [{"step": state.step, "epoch": 0.0, "loss": 0.5, "learning_rate": 1e-5}]
        lines.on_log(state, [[0.5, 1.0]])
    shown = [int(line.split("/")[0].split()[1].replace(",", "")) for line in capsys.readouterr().err.splitlines()]
    assert shown[:4] == [1, 6, 11, 16]
    assert 200 < len(shown) < 500
    assert shown[-1] == 86_400


# --- the bar -----------------------------------------------------------------------------------------------------


def test_the_bar_goes_to_the_end_and_evaluations_stay_above_it(
    history_progress: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "120")
    bar = Bar(PLAN_PROGRESS)
    run_through_progress(bar, history_progress, 1200)
    assert (bar.bar.n, bar.bar.total) == (1200, 1200)
    shown = screen.getvalue()
    assert "step 1,200  epoch 2.00  loss 0.4012  f1_macro 0.5000\n" in shown
    assert re.search(r"epoch 2\.00, loss 0\.5000, lr 5\.00e-05, \d+ rows/s", shown)


def test_a_bar_of_80_columns_is_whole(history_progress: History, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setattr(Pace, "per_second", lambda pace: 2957.0)  # thirty steps of nothing have any pace
    run_through_progress(Bar(Plan(**{**asdict(PLAN_PROGRESS), "max_steps": 120_000})), history_progress, 30)
    drawn = [part for part in re.split("[\r\n]", screen.getvalue()) if "%|" in part]
    assert all(len(part) <= 80 for part in drawn)
    last = drawn[-1]
    assert re.fullmatch(r" +\d+%\|.{4,}\| 30/120000 \[[\d:]+<[\d:]+, epoch 0\.05, loss 0\.5000, 2957 rows/s\]", last)


def test_a_bar_starts_where_the_run_does(history_progress: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    bar = Bar(PLAN_PROGRESS)
    bar.on_fit_start(State(step=700))
    assert bar.bar.n == 700
    bar.on_fit_end(State())


# --- figures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        ({"eval_loss": 0.40123, "eval_accuracy": 0.84309}, "loss 0.4012  accuracy 0.8431"),
        (METRICS, "loss 0.4012  f1_macro 0.5000"),
        ({"eval_runtime": 1.0}, ""),
        ({}, ""),
    ],
)
def test_described(metrics: dict[str, float], text: str) -> None:
    assert evaluation_line(State(), PLAN, metrics, str) == f"step 0  epoch 0.00  {text}"


def test_pace_counts_rows_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([100.0, 102.0])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(seconds))
    pace = Pace()
    pace.num_rows += 64
    assert pace.per_second() == 32.0


# --- several runs ------------------------------------------------------------------------------------------------


def runs_under_way(folder: Path) -> dict[int, Path]:
    for seed, step in ((42, 10), (43, 5), (44, 0)):
        (folder / str(seed)).mkdir()
        if step:
            (folder / str(seed) / "history.jsonl").write_text(f'{{"step": {step}}}\n')
    return {seed: folder / str(seed) for seed in (42, 43, 44)}


def test_a_plain_line_now_and_then_over_several_runs(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "UPDATE_SECONDS", 0.0)
    shown = SeedsProgress(runs_under_way(tmp_path), 1, 10, plain=False)
    shown.update(ended=[42])
    assert capsys.readouterr().err == "", "not before half a minute"
    shown.last_line -= progress.SEEDS_LINE_SECONDS
    shown.update(ended=[42])
    shown.update(ended=[42])
    shown.line("a\x1bline")
    shown.close()
    assert capsys.readouterr().err == "62% done; seed 43: 50%\na\\x1bline\n"


def test_one_bar_over_several_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "UPDATE_SECONDS", 0.0)
    assert SeedsProgress({}, 2, 10, plain=False).bar is None
    assert SeedsProgress(runs_under_way(tmp_path), 0, 10, plain=True).bar is None
    shown = SeedsProgress({seed: tmp_path / str(seed) for seed in (42, 43, 44)}, 1, 10, plain=False)
    shown.update(ended=[42])
    shown.line("seed 42 ends")
    shown.close()
    assert shown.bar.n == 62.5
    assert " 62%|" in terminal.getvalue()
    assert "43: 50%" in terminal.getvalue()
    assert "seed 42 ends\n" in terminal.getvalue()


def test_names_of_figures_cannot_control_the_terminal() -> None:
    assert evaluation_line(State(), PLAN, {"eval_f1 of \x1b[31m": 0.5}, str).endswith(r"  f1 of \x1b[31m 0.5000")
