"""A first signal is noted, a second one ends the process, and a terminal that is gone ends nothing."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from glassloop.training.callbacks import STOPPING, State, leave, listening

STOPPED = """
import signal, sys, time
from pathlib import Path
from glassloop.training.callbacks import listening
from glassloop.training.callbacks import State
state = State()
with listening(state):
    print("ready", flush=True)
    until = time.monotonic() + 20
    while not state.asked_to_stop and time.monotonic() < until:
        time.sleep(0.01)
    print("saving", flush=True)
    Path(sys.argv[1]).write_text(str(state.asked_to_stop))
"""


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_asks_and_the_handlers_come_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    state = State()
    with listening(state):
        signal.raise_signal(number)
        assert state.asked_to_stop == number
    assert signal.getsignal(number) == before


def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        state = State()
        with listening(state):
            signal.raise_signal(signal.SIGHUP)
        assert state.asked_to_stop == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_is_gone_does_not_end_the_run(tmp_path: Path) -> None:
    """It sends a SIGHUP, and after that every line written to it fails."""
    process, master = pty.fork()
    if process == 0:
        os.execv(sys.executable, [sys.executable, "-c", STOPPED, str(tmp_path / "saved")])
    assert os.read(master, 5) == b"ready"
    os.close(master)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert (tmp_path / "saved").read_text() == str(int(signal.SIGHUP))


def test_a_second_signal_ends_at_once() -> None:
    script = STOPPED.replace("time.sleep(0.01)", "[signal.raise_signal(signal.SIGHUP) for _ in range(2)]")
    ended = subprocess.run([sys.executable, "-c", script, "nowhere"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (-signal.SIGHUP, "ready\n")


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    found: list[Any] = []

    def inside() -> None:
        with listening(State()):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, SystemExit(143)), (signal.SIGHUP, SystemExit(129))])
def test_the_exit_status_names_the_signal(number: int, error: SystemExit) -> None:
    with pytest.raises(SystemExit) as caught:
        leave(number)
    assert caught.value.code == error.code
    with pytest.raises(KeyboardInterrupt):
        leave(signal.SIGINT)
