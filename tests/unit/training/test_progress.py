"""What a person sees of a run, of the stages of a command and of several seeds: a bar in a terminal, lines elsewhere."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from commands import environment

from glassloop.base.output import CHOSEN, advance, say, show_on, stage
from glassloop.data.batches import Batch
from glassloop.runs.record import Plan
from glassloop.training import progress
from glassloop.training.callbacks import History, State
from glassloop.training.progress import (
    Notebook,
    Pace,
    Progress,
    SeedsProgress,
    StageBar,
    StageLines,
    choose_display,
    progress_for,
    show_lines,
    starting,
)

PLAN = Plan(
    max_steps=1200, steps_per_epoch=600, batches_per_epoch=600, accumulate=1, warmup_steps=0, log_every=10, eval_every=0,
    save_every=0,
)  # fmt: skip
BATCH = Batch({}, None, [0] * 8, 8)  # type: ignore[arg-type]
METRICS = {"eval_loss": 0.40123, "eval_f1_macro": 0.5, "eval_runtime": 1.5, "eval_samples_per_second": 99.0}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch, columns: int = 80) -> Terminal:
    """A terminal of 24 lines; not a fixture, because pytest captures standard error after those."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "24")
    return screen


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    return now


def run_through(watching: Any, steps: int, log_every: int = 10, eval_every: int = 0) -> State:
    """A run as the loop tells it, with an evaluation at its end."""
    state, history = State(), History(None, lambda: 5e-5, watching.plan)
    for listener in (history, watching):
        listener.on_fit_start(state)
    for step in range(1, steps + 1):
        state.step = state.batch = step
        watching.on_step(state, [BATCH])
        events = [("on_log", [[5 / step, 1.0]])] if step % log_every == 0 else []
        events += [("on_evaluate", METRICS)] if step % (eval_every or steps) == 0 else []
        for event, facts in events:
            for listener in (history, watching):
                getattr(listener, event)(state, facts)
    watching.on_fit_end(state)
    return state


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """IPython, as far as it is used, nothing but `display` and `HTML`: all states of each output."""
    displayed: list[list[str]] = []

    def display(content: str, display_id: bool) -> SimpleNamespace:
        assert display_id
        displayed.append([content])
        return SimpleNamespace(update=displayed[-1].append)

    module = ModuleType("IPython.display")
    vars(module).update(display=display, HTML=str)
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return displayed


def test_one_output_with_a_table_of_evaluations(outputs: list[list[str]]) -> None:
    plan, hostile = replace(PLAN, max_steps=20, batches_per_epoch=10), "f1 (<b>same</b>)"
    run_through(Notebook(plan, lambda name: hostile if name == "f1_macro" else name), 20, log_every=5, eval_every=10)
    ((first, *_, last),) = outputs
    assert "<table" not in first
    assert '<progress value="0" max="20"' in first
    assert '<progress value="20" max="20"' in last
    assert "step 20/20, epoch 2.00, loss 0.2500" in last
    rows = ElementTree.fromstring(f"<div>{last}</div>").iter("tr")
    assert [[cell.text for cell in row] for row in rows] == [
        ["step", "epoch", "training loss", "loss", hostile],
        ["10", "1.00", "0.5000", "0.4012", "0.5000"],
        ["20", "2.00", "0.2500", "0.4012", "0.5000"],
    ]
    assert "<b>" not in last


def test_steps_do_not_flood_the_notebook(outputs: list[list[str]], clock: list[float]) -> None:
    watching, state = Notebook(replace(PLAN, max_steps=20, batches_per_epoch=10)), State()
    watching.on_fit_start(state)
    for step in range(1, 17):
        clock[0] += 0.125
        state.step = state.batch = step
        watching.on_step(state, [BATCH])
    assert len(outputs[0]) == 1 + 4
    assert "step 13/20, epoch 1.30, 1 s left" in outputs[0][-1]


def test_lines_of_a_resumed_run_and_of_a_run_of_a_day(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    """A run resumed after step 1,100 that takes 1 s a step has 90 s left after ten more."""
    lines, state = Progress(PLAN, lines=True), State(step=1100)
    lines.on_fit_start(state)
    for _ in range(10):
        clock[0] += 1.0
        state.step += 1
        lines.on_step(state, [BATCH])
    state.history.append({"step": state.step, "epoch": 1.0, "loss": 0.5, "learning_rate": 1e-5})
    lines.on_log(state, [[0.5, 1.0]])
    assert capsys.readouterr().err.endswith("  8 rows/s  90 s left\n")
    # One step and one log each second for a day: a few hundred lines, close together at first, and one for the last step.
    lines, state = Progress(replace(PLAN, max_steps=86_400), lines=True), State()
    lines.on_fit_start(state)
    for step in range(1, 86_401):
        clock[0] += 1.0
        state.step = step
        state.history[:] = [{"step": step, "epoch": 0.0, "loss": 0.5, "learning_rate": 1e-5}]
        lines.on_log(state, [[0.5, 1.0]])
    shown = [int(line.split("/")[0].split()[1].replace(",", "")) for line in capsys.readouterr().err.splitlines()]
    assert shown[:4] == [1, 6, 11, 16]
    assert 200 < len(shown) < 500
    assert shown[-1] == 86_400


def test_lines_are_lines_and_an_evaluation_is_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    run_through(Progress(PLAN, lines=True), 1200, log_every=600)
    out, err = capsys.readouterr()
    assert out == ""
    assert not {*"\r\x1b"} & {*err}
    first, second, third = err.splitlines()
    rest = r"loss 0\.00\d\d  lr 5\.00e-05  \d+ rows/s  \d+ s left"
    assert re.fullmatch(rf"step 600/1,200  epoch 1\.00  {rest}", first)
    assert re.fullmatch(rf"step 1,200/1,200  epoch 2\.00  {rest}", second)
    assert second.endswith(" 0 s left")
    assert third == "step 1,200  epoch 2.00  loss 0.4012  f1_macro 0.5000"
    for metrics, text in [
        ({"eval_loss": 0.40123, "eval_accuracy": 0.84309}, "loss 0.4012  accuracy 0.8431"),
        ({"eval_runtime": 1.0}, ""),
        ({"eval_f1 of \x1b[31m": 0.5}, r"f1 of \x1b[31m 0.5000"),
    ]:
        Progress(PLAN, lines=True).on_evaluate(State(), metrics)
        assert capsys.readouterr().err == f"step 0  epoch 0.00  {text}\n"


def test_the_bar_goes_to_the_end_below_its_evaluations_and_is_whole_in_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = open_terminal(monkeypatch, 120)
    bar = Progress(PLAN, lines=False)
    run_through(bar, 1200)
    assert (bar.bar.n, bar.bar.total) == (1200, 1200)
    assert "step 1,200  epoch 2.00  loss 0.4012  f1_macro 0.5000\n" in screen.getvalue()
    assert re.search(r"epoch 2\.00, loss 0\.0042, lr 5\.00e-05, \d+ rows/s", screen.getvalue())
    bar.on_fit_start(State(step=700))
    assert bar.bar.n == 700, "a resumed run starts there"
    bar.on_fit_end(State())
    screen = open_terminal(monkeypatch)
    monkeypatch.setattr(Pace, "per_second", lambda pace: 2957.0)  # thirty steps of nothing have any pace
    run_through(Progress(replace(PLAN, max_steps=120_000), lines=False), 30)
    drawn = [part for part in re.split("[\r\n]", screen.getvalue()) if "%|" in part]
    assert all(len(part) <= 80 for part in drawn)
    assert re.fullmatch(r" +\d+%\|.{4,}\| 30/120000 \[[\d:]+<[\d:]+, epoch 0\.05, loss 0\.1667, 2957 rows/s\]", drawn[-1])


@pytest.fixture(autouse=True)
def stages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in progress.RANKS:
        monkeypatch.delenv(name, raising=False)
    yield
    show_on(None)


def test_a_bar_in_a_terminal_html_in_a_notebook_lines_elsewhere_and_only_in_one_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choose_display()
    assert isinstance(CHOSEN.display, StageLines)
    choose_display(lines=False)
    show_lines()
    assert CHOSEN.display is None
    open_terminal(monkeypatch)
    choose_display()
    assert isinstance(CHOSEN.display, StageBar)
    show_lines()
    assert isinstance(CHOSEN.display, StageLines)
    choose_display(plain=True, lines=False)
    assert isinstance(CHOSEN.display, StageLines)
    for name in progress.RANKS:
        monkeypatch.setenv(name, "0")
        choose_display()
        assert CHOSEN.display is not None
        monkeypatch.setenv(name, "1")
        choose_display()
        assert CHOSEN.display is None
        monkeypatch.delenv(name)
    for stream, has_lines in ((io.StringIO(), True), (Terminal(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        assert progress_for(PLAN, False).lines is has_lines
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert isinstance(progress_for(PLAN, False), Notebook)
    assert progress_for(PLAN, True).lines, "if they are wanted"


def test_lines_of_stages(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
    with starting():
        pass
    for _ in range(3):
        with stage("tokenizing train", 10_000):
            for _ in range(10):
                clock[0] += 2.0
                advance(1_000)
    with stage("reading a\x1bfile"):
        clock[0] += 6.0
        advance(1_234)
    part = ["3,000 of 10,000 rows (30%)", "6,000 of 10,000 rows (60%)", "9,000 of 10,000 rows (90%)"]
    expected = ["starting", "tokenizing train (10,000 rows)", *(f"tokenizing train: {text}" for text in part * 3)]
    expected += [r"reading a\x1bfile", r"reading a\x1bfile: 1,234 rows"]
    assert capsys.readouterr().err.splitlines() == expected


def test_a_bar_of_stages_fits_vanishes_counts_rows_and_leaves_lines_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    with starting():
        pass
    with stage("tokenizing " + "a long name " * 9, 1_000_000):
        advance(250_000)
        CHOSEN.display.bar.refresh()
    drawn = terminal.getvalue().split("\r")
    assert drawn[1] == "starting …"
    assert any(re.fullmatch(r"tokenizing [a-z ]{14}…:  25%\|.+\| 250000/1000000 rows \[00:00<00:00\]", part) for part in drawn)
    assert all(len(part) <= 80 for part in drawn)
    assert drawn[-2:] == [" " * len(drawn[-2]), ""]
    assert "\n" not in terminal.getvalue()
    terminal = open_terminal(monkeypatch)
    choose_display()
    with stage("reading rows.csv"):
        advance(1_000)
        CHOSEN.display.bar.refresh()
        say("a note")
    assert "\rreading rows.csv … 1000 rows" in terminal.getvalue()
    before, _, after = terminal.getvalue().partition("glassloop: a note\n")
    assert before.endswith("\r")
    assert before.split("\r")[-2].strip() == ""
    assert after.endswith("\r")


UNTIL_TORCH = """
import os, runpy, sys

class End:
    def find_spec(self, name, *_):
        if name in ("torch", "numpy", "pyarrow", "transformers", "datasets"):
            os._exit(77)

sys.meta_path.insert(0, End())
sys.argv[0] = "glassloop"
runpy.run_module("glassloop", run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", [("train", "nothing.csv"), ("evaluate", "nothing"), ("data", "nothing.csv")], ids=str)
def test_the_first_line_comes_before_torch(command: tuple[str, str], tmp_path: Path) -> None:
    """The process ends where it imports the first heavy package."""
    arguments = [sys.executable, "-c", UNTIL_TORCH, *command]
    done = subprocess.run(arguments, cwd=tmp_path, env=environment(), capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stderr) == (77, "starting\n")


def test_several_runs_have_a_line_now_and_then_or_one_bar(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of ten steps: one is finished, one is half way, one has not begun. Half a line does not count."""
    monkeypatch.setattr(progress, "UPDATE_SECONDS", 0.0)
    runs = {seed: tmp_path / str(seed) for seed in (42, 43, 44)}
    for folder, text in zip(runs.values(), ('{"step": 10}\n', '{"step": 5}\n{"step": 9, "los', ""), strict=True):
        folder.mkdir()
        (folder / "history.jsonl").write_text(text)
    shown = SeedsProgress(runs, 1, 10, plain=False)
    shown.update(ended=[42])
    assert capsys.readouterr().err == "", "not before half a minute"
    shown.lines.last -= progress.SEEDS_LINE_SECONDS
    shown.update(ended=[42])
    shown.update(ended=[42])
    shown.line("a\x1bline")
    shown.close()
    assert capsys.readouterr().err == "62% done; seed 43: 50%\na\\x1bline\n"
    terminal = open_terminal(monkeypatch)
    assert SeedsProgress({}, 2, 10, plain=False).bar is SeedsProgress(runs, 0, 10, plain=True).bar is None
    shown = SeedsProgress(runs, 1, 10, plain=False)
    shown.update(ended=[42])
    shown.line("seed 42 ends")
    shown.close()
    assert shown.bar.n == 62.5
    for text in (" 62%|", "43: 50%", "seed 42 ends\n"):
        assert text in terminal.getvalue()
