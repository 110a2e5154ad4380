"""Runs are found below a folder; links that leave it are not followed, and nothing in it is an error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from glassloop.runs import listing as scan
from glassloop.runs.listing import find_runs


def make(folder: Path, name: str = "run.json") -> Path:
    folder.mkdir(parents=True)
    (folder / name).write_text("{}")
    return folder


def test_runs_of_a_command_of_a_trainer_and_of_seeds(tmp_path: Path) -> None:
    make(tmp_path / "mrpc")
    make(tmp_path / "trainer", "history.jsonl")
    make(tmp_path / "study" / "small" / "seed-1")
    make(tmp_path / ".hidden")
    make(tmp_path / "mrpc" / "inside")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    assert {*find_runs(tmp_path).runs} == {"mrpc", "trainer", "study/small/seed-1"}
    assert [*find_runs(tmp_path / "mrpc").runs] == ["mrpc"], "the folder itself is a run"
    assert find_runs(tmp_path / "missing").runs == {}


def test_folders_of_seeds_and_studies_are_groups(tmp_path: Path) -> None:
    make(tmp_path / "seeds", "seeds.json")
    make(tmp_path / "seeds" / "seed-1")
    make(tmp_path / "deep" / "study", "study.json")
    make(tmp_path / "trained", "trainer.json")
    found = find_runs(tmp_path)
    assert {*found.groups} == {"seeds", "deep/study"}
    assert {*found.runs} == {"seeds/seed-1", "trained"}
    assert [*find_runs(tmp_path / "seeds").groups] == ["seeds"], "the folder itself is one"


def test_a_link_that_leaves_the_folder_is_counted_and_not_followed(tmp_path: Path) -> None:
    outside, root = make(tmp_path / "outside"), tmp_path / "runs"
    make(root / "real")
    (root / "link").symlink_to(outside)
    (root / "circle").symlink_to(root)
    (root / "broken").symlink_to(root / "nowhere")
    found = find_runs(root)
    assert found.links == 1
    assert "link" not in found.runs
    assert "real" in found.runs


def test_names_with_any_bytes(tmp_path: Path) -> None:
    make(tmp_path / os.fsdecode(b"\xff\n<b>"))
    make(tmp_path / ("x" * 255))
    assert len(find_runs(tmp_path).runs) == 2


def test_too_many_folders_end_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "MOST_RUNS", 3)
    for number in range(5):
        make(tmp_path / f"run-{number}")
    found = find_runs(tmp_path)
    assert (len(found.runs), found.complete) == (3, False)
