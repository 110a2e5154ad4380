"""How stages look: lines in a log, a bar that vanishes in a terminal of any width."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from commands import environment

from glassloop.base.output import CHOSEN, advance, say, show_on, stage
from glassloop.training import progress as stages
from glassloop.training.callbacks import Interval
from glassloop.training.progress import StageBar, StageLines, choose_display, show_lines, starting


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def hidden_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in stages.RANKS:
        monkeypatch.delenv(name, raising=False)
    yield
    show_on(None)


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal of 80 columns and 24 lines; not a fixture, because pytest captures standard error after those."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    return screen


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(stages.time, "perf_counter", lambda: now[0])
    return now


# --- which one ---------------------------------------------------------------------------------------------------


def test_a_bar_in_a_terminal_unless_lines_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    open_terminal(monkeypatch)
    choose_display()
    assert isinstance(CHOSEN.display, StageBar)
    show_lines()
    assert isinstance(CHOSEN.display, StageLines)
    choose_display(plain=True, lines=False)
    assert isinstance(CHOSEN.display, StageLines)


def test_lines_without_a_terminal_if_they_are_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    choose_display()
    assert isinstance(CHOSEN.display, StageLines)
    choose_display(lines=False)
    assert CHOSEN.display is None
    show_lines()
    assert CHOSEN.display is None


@pytest.mark.parametrize("name", stages.RANKS)
def test_one_of_several_processes_shows_stages(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "0")
    choose_display()
    assert CHOSEN.display is not None
    monkeypatch.setenv(name, "1")
    choose_display()
    assert CHOSEN.display is None


# --- lines -------------------------------------------------------------------------------------------------------


def test_lines_are_lines(capsys: pytest.CaptureFixture[str], clock: list[float]) -> None:
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


def test_a_long_stage_does_not_flood_a_log(clock: list[float]) -> None:
    """One row a second for a day."""
    interval, lines = Interval(), 0
    for _ in range(86_400):
        clock[0] += 1.0
        lines += interval.is_over()
    assert 200 < lines < 500


def test_the_first_line_may_be_due_at_once(clock: list[float]) -> None:
    interval = Interval(due=True)
    assert [interval.is_over(), interval.is_over()] == [True, False]


# --- the bar -----------------------------------------------------------------------------------------------------


def test_a_bar_fits_and_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_rows_are_counted_if_their_number_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    choose_display()
    with stage("reading rows.csv"):
        advance(1_000)
        CHOSEN.display.bar.refresh()
    assert "\rreading rows.csv … 1000 rows" in terminal.getvalue()


def test_a_line_does_not_begin_behind_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    choose_display()
    with stage("reading"):
        say("a note")
    before, _, after = terminal.getvalue().partition("glassloop: a note\n")
    assert before.endswith("\r")
    assert before.split("\r")[-2].strip() == ""
    assert after.endswith("\r")


# --- the command -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("command", [("train", "nothing.csv"), ("evaluate", "nothing"), ("data", "nothing.csv")], ids=str)
def test_the_first_line_comes_before_torch(command: tuple[str, str], tmp_path) -> None:
    """What Python imports is listed in the same stream, so the order does not depend on the clock."""
    arguments = [sys.executable, "-X", "importtime", "-m", "glassloop", *command]
    done = subprocess.run(arguments, cwd=tmp_path, env=environment(), capture_output=True, encoding="utf-8", check=False)
    assert done.returncode != 0
    before, found, _ = done.stderr.partition("\nstarting\n")
    assert found
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in before.splitlines()}
    assert not imported & {"torch", "numpy", "pyarrow", "transformers", "datasets"}
