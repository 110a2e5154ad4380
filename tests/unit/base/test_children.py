"""Child processes: they get their arguments and signals, and none is left behind."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from glassloop.base import children
from glassloop.base.children import Child, Children

CODE = """
import os, signal, sys, time
does = sys.argv[1]
print(does, os.environ.get("CHILD_TEST", "inherited"), flush=True)
if does == "wait":
    time.sleep(60)
if does == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready", flush=True)
    time.sleep(60)
sys.exit(3 if does == "fail" else 0)
"""


@pytest.fixture(autouse=True)
def command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "COMMAND", [sys.executable, "-S", "-c", CODE])


def wait_for(group: Children) -> list[Child]:
    ended: list[Child] = []
    while group.running:
        ended += group.poll()
        time.sleep(0.01)
    return ended


def test_arguments_environment_log_exit_status_and_each_signal_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    with Children([]) as group:
        group.start(7, ["fail"], log, {"CHILD_TEST": "given"})
        (child,) = wait_for(group)
    assert (child.number, child.exit_code) == (7, 3)
    assert log.read_text() == "before\nfail given\n"
    signals: list[int] = []
    with Children(signals) as group:
        group.start(1, ["wait"], tmp_path / "1")
        group.start(2, ["wait"], tmp_path / "2")
        assert group.poll() == []
        signals.append(signal.SIGTERM)
        ended = wait_for(group)
    assert sorted(child.number for child in ended) == [1, 2]
    assert {child.exit_code for child in ended} == {128 + signal.SIGTERM}
    assert group.num_forwarded == 1


def test_leaving_the_block_or_killing_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "GRACE_SECONDS", 0.2)
    with Children([]) as group:
        started = [group.start(1, ["wait"], tmp_path / "1"), group.start(2, ["deaf"], tmp_path / "2")]
        while "ready" not in (tmp_path / "2").read_text():
            time.sleep(0.01)
    assert [child.exit_code for child in started] == [128 + signal.SIGTERM, 128 + signal.SIGKILL]
    with Children([]) as group:
        child = group.start(1, ["wait"], tmp_path / "1")
        group.kill()
        assert (group.running, child.exit_code) == ([], 128 + signal.SIGKILL)
