"""Several seeds and studies as rows of the list: their state, their progress and their main result."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from fake_study import drawn_study
from run_folders import drawn_rows, write_drawn_seeds, write_watched

from glassloop.base.files import locked
from glassloop.runs.status import summary_of
from glassloop.runs.study import write_study
from glassloop.study.conclusions import conclude
from glassloop.web import watch as reports
from glassloop.web.watch import Report, Reports, Watcher, group_of, made


def test_several_seeds(tmp_path: Path) -> None:
    folder = write_drawn_seeds(tmp_path / "seeds", {seed: drawn_rows(10) for seed in (9, 10)})
    runs = [summary_of(f"seeds/seed-{seed}", folder / f"seed-{seed}") for seed in (10, 9)]
    found = group_of("seeds", folder, runs)
    assert (found.kind, found.status, found.progress, found.value) == ("seeds", "finished", "2 of 2 runs", 0.75)
    assert found.result == "accuracy 0.7500 ± 0.0000"
    assert found.runs == ("seeds/seed-9", "seeds/seed-10")
    assert group_of("seeds", folder, runs).version == found.version
    (folder / "seeds.json").write_text("{")
    again = group_of("seeds", folder, runs)
    assert (again.status, "seeds.json" in again.problem) == ("damaged", True)
    assert again.version != found.version


def test_a_study(tmp_path: Path) -> None:
    record = drawn_study(tmp_path)
    write_study(tmp_path, replace(record, status="running"))
    assert group_of("study", tmp_path, []).status == "stopped"
    with locked(tmp_path, print):
        running = group_of("study", tmp_path, [])
    assert (running.status, running.progress, running.value, running.result) == ("running", "6 of 8 runs", None, "")
    write_study(tmp_path, conclude(tmp_path, record, print))
    found = group_of("study", tmp_path, [])
    assert (found.kind, found.status, found.source, found.model) == ("study", "finished", "data.csv", "tiny")
    assert found.result.startswith("accuracy 0.")
    (tmp_path / "study.json").write_text("[]")
    assert group_of("study", tmp_path, []).status == "damaged"


# --- Reports are made once for each version of a run, and never fail.


def test_a_report_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(reports, "made", lambda *folders: (asked.extend(folders), Report("html"))[1])
    write_watched(tmp_path / "a", finished=True)
    (run,) = Watcher(tmp_path).runs()
    kept = Reports()
    assert kept.of(run) is kept.of(run)
    assert asked == [tmp_path / "a"]
    for _ in range(20):
        kept.of(Watcher(tmp_path).runs()[0])
    assert len(kept.kept) <= reports.MOST_KEPT


def test_special_files_are_not_opened(tmp_path: Path) -> None:
    run = write_watched(tmp_path / "a", finished=True)
    os.mkfifo(run / "validation-predictions.jsonl")
    assert made(run).problem == "There is no report: validation-predictions.jsonl is a link, a pipe or a device."


def test_a_removed_folder_is_a_sentence(tmp_path: Path) -> None:
    assert "cannot be made" in made(tmp_path / "missing").problem
