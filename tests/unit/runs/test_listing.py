"""The list of runs: every status, seeds as one entry, and folders that nobody expects."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from run_folders import RECORD, drawn_rows, write_drawn_run, write_drawn_seeds

from glassloop.base.files import LOCK_NAME, locked
from glassloop.runs import status as scan
from glassloop.runs.history import note_moment
from glassloop.runs.record import write_run
from glassloop.runs.status import ListedRun, amount, duration, find_runs, listed_runs, size_of
from glassloop.runs.study import SeedRecord, read_seeds, write_seeds


def by_name(root: Path) -> dict[str, ListedRun]:
    return {entry.name: entry for entry in listed_runs(root).entries}


def test_every_status_and_the_newest_run_first(tmp_path: Path) -> None:
    write_drawn_run(tmp_path / "done", drawn_rows(10))
    for name in ("running", "stopped", "failed", "killed"):
        (tmp_path / name).mkdir()
        write_run(tmp_path / name, RECORD)
        note_moment(tmp_path / name, "start", 0, 8)
    note_moment(tmp_path / "stopped", "stop", 4, 8)
    (tmp_path / "killed" / LOCK_NAME).write_text(json.dumps({"process": 2**22 + 1, "machine": os.uname().nodename}))
    with locked(tmp_path / "running", lambda line: None):
        found = by_name(tmp_path)
    statuses = {name: entry.status for name, entry in found.items()}
    assert statuses == {"done": "finished", **{name: name for name in ("running", "stopped", "failed", "killed")}}
    assert found["done"].metrics == {"accuracy": 0.75, "f1": 0.75, "loss": 0.5}
    assert (found["done"].seconds, found["done"].step, found["done"].max_steps) == (12.5, 8, 8)
    assert found["done"].size == sum(path.stat().st_size for path in (tmp_path / "done").iterdir())
    assert found["stopped"].max_steps == 8
    for name, started in (("old", "2026-01-01"), ("new", "2026-02-01")):
        (tmp_path / "ages" / name).mkdir(parents=True)
        write_run(tmp_path / "ages" / name, replace(RECORD, started=started))
    assert [entry.name for entry in listed_runs(tmp_path / "ages").entries] == ["new", "old"]


def test_seeds_are_one_entry(tmp_path: Path) -> None:
    folder = write_drawn_seeds(tmp_path / "seeds", {seed: drawn_rows(10) for seed in (9, 10)})
    (entry,) = listed_runs(tmp_path).entries
    assert (entry.name, entry.status, entry.seconds) == ("seeds", "finished", 25.0)
    assert [seed.name for seed in entry.seeds] == ["seeds/seed-9", "seeds/seed-10"]
    assert entry.metrics["accuracy"] == 0.75
    assert entry.deviation["accuracy"] == 0.0
    assert listed_runs(folder).entries[0].name == "seeds", "the folder itself holds seeds"
    stored = read_seeds(folder)
    write_seeds(replace(stored, seeds={**stored.seeds, 11: SeedRecord()}))
    (entry,) = listed_runs(tmp_path).entries
    assert (entry.status, entry.seeds[-1].status) == ("waiting", "waiting")
    (folder / "seeds.json").write_text("{")
    (entry,) = listed_runs(tmp_path).entries
    assert entry.status == "damaged"
    assert "seeds.json" in entry.problem


def test_awkward_folders_never_end_it(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    for name, content in {"half": '{"form', "empty": "", "list": "[]", "binary": "\udcff"}.items():
        (root / name).mkdir(parents=True)
        (root / name / "run.json").write_text(content, encoding="utf-8", errors="surrogateescape")
    (root / "pipe").mkdir()
    os.mkfifo(root / "pipe" / "run.json")
    (root / "folder" / "run.json").mkdir(parents=True)
    (root / "dangling").symlink_to(root / "nowhere")
    (root / "circle").symlink_to("circle")
    (root / "inside").symlink_to(root)
    (root / "outside").symlink_to(tmp_path)
    (root / "file").write_text("")
    (root / "loose").mkdir()
    (root / "loose" / "run.json").symlink_to(root / "nowhere")
    write_drawn_run(root / "good", drawn_rows(5)).rename(root / "new\nline")
    found = listed_runs(root)
    statuses = {entry.name: entry.status for entry in found.entries}
    damaged = ("half", "empty", "list", "binary", "pipe", "folder", "loose")
    assert statuses == {**dict.fromkeys(damaged, "damaged"), "new\nline": "finished"}
    assert all(entry.problem for entry in found.entries if entry.status == "damaged")
    assert found.links == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_folders_that_may_not_be_read_are_skipped(tmp_path: Path) -> None:
    write_drawn_run(tmp_path / "closed", drawn_rows(5)).chmod(0)
    assert listed_runs(tmp_path).entries == ()
    (tmp_path / "closed").chmod(0o700)


# --- Runs are found below a folder; links that leave it are not followed, and nothing in it is an error.
def make(folder: Path, name: str = "run.json") -> Path:
    folder.mkdir(parents=True)
    (folder / name).write_text("{}")
    return folder


def test_runs_of_a_command_of_a_trainer_and_of_seeds(tmp_path: Path) -> None:
    make(tmp_path / "mrpc")
    make(tmp_path / "mrpc" / "inside")
    make(tmp_path / "history", "history.jsonl")
    make(tmp_path / "trainer", "trainer.json")
    make(tmp_path / "seeds", "seeds.json")
    make(tmp_path / "seeds" / "seed-1")
    make(tmp_path / "deep" / "study", "study.json")
    make(tmp_path / "deep" / "study" / "runs" / "x")
    make(tmp_path / "a" / "b" / "c" / "d" / "too deep")
    for name in (".hidden", "model", "checkpoint-3"):
        make(tmp_path / name)
    found = find_runs(tmp_path)
    assert {*found.runs} == {"mrpc", "history", "trainer", "seeds/seed-1", "deep/study/runs/x"}
    assert {*found.groups} == {"seeds", "deep/study"}
    assert [*find_runs(tmp_path / "mrpc").runs] == ["mrpc"], "the folder itself is a run"
    assert [*find_runs(tmp_path / "seeds").groups] == ["seeds"]
    assert find_runs(tmp_path / "missing").runs == {}


def test_names_with_any_bytes_and_too_many_folders_end_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / os.fsdecode(b"\xff\n<b>"))
    make(tmp_path / ("x" * 255))
    assert len(find_runs(tmp_path).runs) == 2
    monkeypatch.setattr(scan, "MOST_RUNS", 3)
    for number in range(5):
        make(tmp_path / f"run-{number}")
    found = find_runs(tmp_path)
    assert (len(found.runs), found.complete) == (3, False)


def test_durations_amounts_and_sizes_without_links(tmp_path: Path) -> None:
    told = {0: "0 s", -5: "0 s", 0.4: "0 s", 45: "45 s", 60: "1 min", 200: "3 min 20 s", 1000: "16 min", 3600: "1 h"}
    told |= {7500: "2 h 5 min", 90_000: "1 d 1 h", 86_400 * 40: "40 d"}
    assert {seconds: duration(seconds) for seconds in told} == told
    assert [amount(size) for size in (12, 2_000, 3_400_000, 1_250_000_000)] == ["12 B", "2 kB", "3 MB", "1.2 GB"]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file").write_bytes(b"12345")
    (tmp_path / "in" / "again").symlink_to(tmp_path / "in")
    assert size_of(tmp_path) == 5
    assert size_of(tmp_path / "missing") == 0
