"""Reports are made once for each version of a run, and never fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from watched_runs import write_watched

from glassloop.web import watch as reports
from glassloop.web.watch import Report, Reports, Watcher, made


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
