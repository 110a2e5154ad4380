"""Several processes as one: signals reach all, one failure ends all, and there is one error with its exit status."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from glassloop.base import children
from glassloop.base.errors import GlassloopError, ResourceError
from glassloop.training import processes
from glassloop.training.processes import ERROR_FILE, launch, report

pytestmark = pytest.mark.slow  # trains, or starts processes: make test runs it, make test-fast does not
CHILD = """
import json, os, pathlib, signal, sys, time
from glassloop.base.errors import DataError, DivergedError, LostProcessError
from glassloop.training.processes import report
rank, folder = int(os.environ["RANK"]), pathlib.Path(sys.argv[1])
(folder / f"started-{rank}").write_text(json.dumps([sys.argv[2:], os.environ["WORLD_SIZE"], os.environ["MASTER_PORT"]]))
does = sys.argv[2].split(",")[rank]

EMPTY, LOST = DataError("row 3 is empty", "fill it"), LostProcessError("another process has ended", "see its output")
NAN = DivergedError("the loss is nan", "lower the learning rate")
# "follow" ends before "late", its cause
ENDS = {"data": (0, EMPTY), "late": (0.3, EMPTY), "diverge": (0, NAN), "lose": (0.1, LOST), "follow": (0, LOST)}
if does in ENDS:
    seconds, error = ENDS[does]
    time.sleep(seconds)
    report(error)
    sys.exit(error.exit_code)
if does == "bug":
    raise ZeroDivisionError("a bug")
if does == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if does == "hang":
    time.sleep(60)
if does == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)
if does == "stop":
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    (folder / f"ready-{rank}").touch()
    time.sleep(60)
print(f"words of {rank}", file=sys.stderr)
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """`run("data,lose")`: exit code and standard error of two processes that do that."""

    def start(does: str, *more: str, patience: float = 0.3) -> tuple[int, str]:
        monkeypatch.setattr(children, "COMMAND", [sys.executable, "-c", CHILD, str(tmp_path)])
        monkeypatch.setattr(processes, "TERM_SECONDS", patience)
        monkeypatch.setattr(processes, "KILL_SECONDS", patience + 0.7)
        before = signal.getsignal(signal.SIGTERM)
        with pytest.raises((SystemExit, GlassloopError)) as left:
            launch([does, *more], len(does.split(",")))
        assert signal.getsignal(signal.SIGTERM) == before
        code = left.value.code if isinstance(left.value, SystemExit) else left.value.exit_code
        said = capfd.readouterr().err
        return code, said if isinstance(left.value, SystemExit) else f"{said}{left.value}"

    return start


def test_each_process_runs_the_same_command_and_the_cause_may_end_after_what_followed_from_it(run, tmp_path: Path) -> None:
    assert run("fine,fine", "--seed", "2") == (0, "words of 0\n")
    first, second = ((tmp_path / f"started-{rank}").read_text() for rank in (0, 1))
    assert first == second
    assert first.startswith('[["fine,fine", "--seed", "2"], "2", ')
    assert run("follow,late", patience=30.0) == (3, DATA)


DATA, DIVERGED = "data: row 3 is empty\ntry:  fill it", "diverged: the loss is nan\ntry:  lower the learning rate"


@pytest.mark.parametrize(
    ("does", "code", "said"),
    [
        ("data,data", 3, DATA),
        ("data,lose", 3, DATA),
        ("lose,data", 3, DATA),
        ("diverge,diverge", 5, DIVERGED),
        ("data,hang", 3, DATA),
        ("hang,data", 3, DATA),
        ("data,deaf", 3, DATA),
        ("lose,lose", 6, "resources: another process has ended\ntry:  see its output"),
    ],
)
def test_one_error_and_its_code(run, does: str, code: int, said: str) -> None:
    assert run(does) == (code, said)


def test_a_bug_is_a_traceback_and_a_process_that_was_killed_is_named(run) -> None:
    for does in ["bug,lose", "lose,bug"]:
        code, said = run(does)
        assert code == 1
        assert said.count("ZeroDivisionError: a bug") == said.count("Traceback") == 1
        assert "another process" not in said
    for does, rank in [("die,lose", 1), ("lose,die", 2)]:
        code, said = run(does)
        assert code == ResourceError.exit_code
        assert f"({rank} of 2) was killed by SIGKILL\n" in said
        assert "another process" not in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_all(run, tmp_path: Path, number: int) -> None:
    def send() -> None:
        while not all((tmp_path / f"ready-{rank}").exists() for rank in (0, 1)):
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    assert run("stop,stop") == (128 + number, "")
    sender.join()


def test_a_process_alone_prints_its_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ERROR_FILE, raising=False)
    assert report(ResourceError("full", "make room"))
    assert capsys.readouterr().err == "resources: full\ntry:  make room\n"
