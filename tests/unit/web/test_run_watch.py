"""Runs are followed from their files: status, progress, time left; unchanged files are not read again."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from run_folders import lock_as, log_steps, write_watched

from glassloop.base.files import locked
from glassloop.runs import status as summary
from glassloop.runs.history import END, START, note_moment
from glassloop.web import watch
from glassloop.web.watch import Watcher


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SCAN_SECONDS", -1.0)
    monkeypatch.setattr(watch, "REFRESH_SECONDS", -1.0)


def test_a_run_that_trains(tmp_path: Path) -> None:
    run = write_watched(tmp_path / "a", steps=2)
    with locked(run, print):
        (found,) = Watcher(tmp_path).runs()
    assert (found.name, found.status, found.step, found.max_steps, found.epoch) == ("a", "running", 2, 8, 0.5)
    assert (found.step_seconds, found.seconds_left) == (2.0, 12.0)
    assert found.latest["eval_accuracy"] == 0.25
    assert found.started.startswith("2026-11-17")


def test_killed_resumed_and_finished(tmp_path: Path) -> None:
    watcher, run = Watcher(tmp_path), write_watched(tmp_path / "a", steps=4)
    lock_as(run, 2**22 + 1, platform.node())
    assert watcher.runs()[0].status == "killed"
    (run / ".lock").unlink()
    shutil.rmtree(run)
    write_watched(run, steps=4, resumed=2)
    with locked(run, print):
        (found,) = watcher.runs()
        assert (found.status, found.resumed, found.step_seconds) == ("running", (2,), 2.0)
    shutil.rmtree(run)
    write_watched(run, steps=8, finished=True)
    assert watcher.runs()[0].status == "finished"


def test_a_trainer_writes_no_record(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    note_moment(tmp_path / "t", START, 0, 8)
    log_steps(tmp_path / "t", 4)
    watcher = Watcher(tmp_path)
    with locked(tmp_path / "t", print):
        (found,) = watcher.runs()
        assert (found.status, found.step, found.max_steps, found.record) == ("running", 4, 8, None)
    assert watcher.runs()[0].status == "failed"
    note_moment(tmp_path / "t", END, 8, 8)
    assert watcher.runs()[0].status == "finished"


def test_a_run_of_another_machine_is_silent_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process cannot be asked, and its clock may be wrong: only what is seen to change counts."""
    run = write_watched(tmp_path / "a", steps=4)
    lock_as(run, 1, "far-away")
    now = [1e6]
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(watch.time, "time", lambda: 500.0)  # before the history was written, says this clock
    watcher = Watcher(tmp_path)
    assert (watcher.runs()[0].status, watcher.runs()[0].silent) == ("running", 0.0)
    now[0] += 1000.0
    assert watcher.runs()[0].silent == 960.0
    log_steps(run, 6)
    os.utime(run / "history.jsonl", (1012.0, 1012.0))
    assert watcher.runs()[0].silent == 0.0
    monkeypatch.setattr(watch.time, "time", lambda: 1012.0 + 7200.0)
    assert Watcher(tmp_path).runs()[0].silent == 7200.0, "a page that is opened later knows it from the file"


def test_unchanged_files_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        write_watched(tmp_path / f"run-{number}")
    watcher = Watcher(tmp_path)
    first = watcher.runs()
    monkeypatch.setattr(watch, "summary_of", Mock(side_effect=AssertionError))
    assert watcher.runs() == first
    assert [run.version for run in watcher.runs()] == [run.version for run in first]


def test_a_removed_run_is_forgotten(tmp_path: Path) -> None:
    run, watcher = write_watched(tmp_path / "a"), Watcher(tmp_path)
    found = watcher.run("a")
    assert found is not None
    assert watcher.curves(found).step == 4
    shutil.rmtree(run)
    assert watcher.curves(found).step == 0
    assert watcher.run("a") is None
    assert (watcher.runs(), watcher.seen, len(watcher.followed)) == ([], {}, 0)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"status": "finished"}', "\x00" * 50, "[" * 100_000])
def test_a_damaged_record_is_a_status(content: str, tmp_path: Path) -> None:
    run = write_watched(tmp_path / "a")
    (run / "run.json").write_text(content)
    (found,) = Watcher(tmp_path).runs()
    assert (found.status, found.record, found.step) == ("damaged", None, 4)
    assert "run.json" in found.problem


def test_special_files_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    for name in ("run.json", "history.jsonl", "sessions.jsonl", ".lock"):
        os.mkfifo(tmp_path / "a" / name)
    (found,) = Watcher(tmp_path).runs()
    assert (found.status, found.problem) == ("damaged", "run.json is not a regular file")
    assert Watcher(tmp_path).curves(found).points == {}
    write_watched(tmp_path / "b")
    monkeypatch.setattr(summary, "MOST_RECORD_BYTES", 100)
    assert Watcher(tmp_path).run("b").problem == "run.json is too large"  # type: ignore[union-attr]


def test_the_curves_of_few_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MOST_FOLLOWED", 2)
    for number in range(4):
        write_watched(tmp_path / f"run-{number}")
    watcher = Watcher(tmp_path)
    assert all(watcher.curves(run).step == 4 for run in watcher.runs())
    assert len(watcher.followed) == 2


def test_runs_that_train_come_first(tmp_path: Path) -> None:
    for name, steps in (("old", 2), ("new", 6), ("live", 1)):
        write_watched(tmp_path / name, steps=steps)
    with locked(tmp_path / "live", print):
        assert [run.name for run in Watcher(tmp_path).runs()] == ["live", "new", "old"]
