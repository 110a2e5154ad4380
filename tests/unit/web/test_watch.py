"""Runs, seeds and studies are followed from their files; unchanged files are not read again, and reports never fail."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from fake_study import drawn_study
from run_folders import drawn_rows, lock_as, log_steps, write_drawn_seeds, write_watched

from glassloop.base.files import locked
from glassloop.runs import status as summary
from glassloop.runs.history import END, START, note_moment
from glassloop.runs.status import RunSummary, summary_of
from glassloop.runs.study import write_study
from glassloop.study.conclusions import conclude
from glassloop.web import watch
from glassloop.web.watch import Latest, Watcher, group_of, made


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SCAN_SECONDS", -1.0)
    monkeypatch.setattr(watch, "REFRESH_SECONDS", -1.0)


def only_run(folder: Path) -> RunSummary:
    (run,) = Watcher(folder).runs()
    return run


def test_runs_that_train_are_killed_resumed_and_finished_also_those_of_a_trainer(tmp_path: Path) -> None:
    with locked(write_watched(tmp_path / "a", steps=2), print):
        run = only_run(tmp_path)
    assert (run.name, run.status, run.step, run.max_steps, run.epoch) == ("a", "running", 2, 8, 0.5)
    assert (run.step_seconds, run.seconds_left) == (2.0, 12.0)
    assert run.latest["eval_accuracy"] == 0.25
    assert run.started.startswith("2026-11-17")
    shutil.rmtree(run.folder)
    watcher, folder = Watcher(tmp_path), write_watched(tmp_path / "a", steps=4)
    lock_as(folder, 2**22 + 1, platform.node())
    assert watcher.runs()[0].status == "killed"
    shutil.rmtree(folder)
    write_watched(folder, steps=4, resumed=2)
    with locked(folder, print):
        (run,) = watcher.runs()
        assert (run.status, run.resumed, run.step_seconds) == ("running", (2,), 2.0)
    shutil.rmtree(folder)
    write_watched(folder, steps=8, finished=True)
    assert watcher.runs()[0].status == "finished"
    shutil.rmtree(folder)
    (tmp_path / "t").mkdir()  # a Trainer writes no record
    note_moment(tmp_path / "t", START, 0, 8)
    log_steps(tmp_path / "t", 4)
    with locked(tmp_path / "t", print):
        run = only_run(tmp_path)
        assert (run.status, run.step, run.max_steps, run.record) == ("running", 4, 8, None)
    assert only_run(tmp_path).status == "failed"
    note_moment(tmp_path / "t", END, 8, 8)
    assert only_run(tmp_path).status == "finished"


def test_a_run_of_another_machine_is_silent_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process cannot be asked, and its clock may be wrong: only what is seen to change counts."""
    folder = write_watched(tmp_path / "a", steps=4)
    lock_as(folder, 1, "far-away")
    now = [1e6]
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(watch.time, "time", lambda: 500.0)  # before the history was written, says this clock
    watcher = Watcher(tmp_path)
    assert (watcher.runs()[0].status, watcher.runs()[0].silent) == ("running", 0.0)
    now[0] += 1000.0
    assert watcher.runs()[0].silent == 960.0
    log_steps(folder, 6)
    os.utime(folder / "history.jsonl", (1012.0, 1012.0))
    assert watcher.runs()[0].silent == 0.0
    monkeypatch.setattr(watch.time, "time", lambda: 1012.0 + 7200.0)
    assert only_run(tmp_path).silent == 7200.0, "a page that is opened later knows it from the file"


def test_unchanged_files_are_not_read_again_and_live_runs_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, steps in (("old", 2), ("new", 6), ("live", 1)):
        write_watched(tmp_path / name, steps=steps)
    with locked(tmp_path / "live", print):
        watcher = Watcher(tmp_path)
        first = watcher.runs()
        assert [run.name for run in first] == ["live", "new", "old"]
        monkeypatch.setattr(watch, "summary_of", Mock(side_effect=AssertionError))
        assert watcher.runs() == first
        assert [run.version for run in watcher.runs()] == [run.version for run in first]


def test_a_removed_run_is_forgotten_and_the_curves_of_few_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, watcher = write_watched(tmp_path / "a"), Watcher(tmp_path)
    run = watcher.run("a")
    assert run is not None
    assert watcher.curves(run).step == 4
    shutil.rmtree(folder)
    assert watcher.curves(run).step == 0
    assert watcher.run("a") is None
    assert (watcher.runs(), watcher.seen, len(watcher.followed)) == ([], {}, 0)
    monkeypatch.setattr(watch, "MOST_FOLLOWED", 2)
    for number in range(4):
        write_watched(tmp_path / f"run-{number}")
    watcher = Watcher(tmp_path)
    assert all(watcher.curves(run).step == 4 for run in watcher.runs())
    assert len(watcher.followed) == 2


def test_damaged_special_and_very_large_files_are_a_status_and_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = write_watched(tmp_path / "a") / "run.json"
    for content in ["", "{", "[]", "{}", '{"status": "finished"}', "\x00" * 50, "[" * 100_000]:
        record.write_text(content)
        run = only_run(tmp_path)
        assert (run.status, run.record, run.step) == ("damaged", None, 4)
        assert "run.json" in run.problem
    for name in ("run.json", "history.jsonl", "sessions.jsonl", ".lock"):
        (tmp_path / "a" / name).unlink(missing_ok=True)
        os.mkfifo(tmp_path / "a" / name)
    run = only_run(tmp_path)
    assert (run.status, run.problem) == ("damaged", "run.json is not a regular file")
    assert Watcher(tmp_path).curves(run).points == {}
    write_watched(tmp_path / "b")
    monkeypatch.setattr(summary, "MOST_RECORD_BYTES", 100)
    assert Watcher(tmp_path).run("b").problem == "run.json is too large"  # type: ignore[union-attr]


def test_seeds_and_a_study_are_groups(tmp_path: Path) -> None:
    folder = write_drawn_seeds(tmp_path / "seeds", {seed: drawn_rows(10) for seed in (9, 10)})
    runs = [summary_of(f"seeds/seed-{seed}", folder / f"seed-{seed}") for seed in (10, 9)]
    group = group_of("seeds", folder, runs)
    assert (group.kind, group.status, group.progress, group.value) == ("seeds", "finished", "2 of 2 runs", 0.75)
    assert group.result == "accuracy 0.7500 ± 0.0000"
    assert group.runs == ("seeds/seed-9", "seeds/seed-10")
    assert group_of("seeds", folder, runs).version == group.version
    (folder / "seeds.json").write_text("{")
    again = group_of("seeds", folder, runs)
    assert (again.status, "seeds.json" in again.problem) == ("damaged", True)
    assert again.version != group.version
    study = tmp_path / "study"
    record = drawn_study(study)
    write_study(study, replace(record, status="running"))
    assert group_of("study", study, []).status == "stopped"
    with locked(study, print):
        running = group_of("study", study, [])
    assert (running.status, running.progress, running.value, running.result) == ("running", "6 of 8 runs", None, "")
    write_study(study, conclude(study, record, print))
    group = group_of("study", study, [])
    assert (group.kind, group.status, group.source, group.model) == ("study", "finished", "data.csv", "tiny")
    assert group.result.startswith("accuracy 0.")
    (study / "study.json").write_text("[]")
    assert group_of("study", study, []).status == "damaged"


def test_an_answer_is_made_once_for_each_version_and_one_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    latest, make = Latest[int](2), Mock(side_effect=range(10))
    assert [latest.of("a", version, make) for version in (1, 1, 2, 2)] == [0, 0, 1, 1]
    assert [latest.of(page, 1, make) for page in ("b", "c", "a")] == [2, 3, 4], "of three pages, two are kept"
    assert len(latest.known) == 2
    os.mkfifo(write_watched(tmp_path / "a", finished=True) / "validation-predictions.jsonl")
    problem = "There is no report: validation-predictions.jsonl is a link, a pipe or a device."
    assert made(tmp_path / "a").problem == problem
    assert "cannot be made" in made(tmp_path / "missing").problem
