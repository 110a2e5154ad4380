"""How far a run has come, from its folder: finished, paused with scores, or not far enough."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sample_record import RECORD

from glassloop.base.errors import ModelError
from glassloop.runs.record import write_run
from glassloop.study import trials as reached
from glassloop.study.trials import (
    add_rung,
    drop_checkpoints,
    drop_damaged_checkpoints,
    drop_later_checkpoints,
    found_done,
    record_of,
)


def test_nothing_is_reached_without_scores(tmp_path: Path) -> None:
    assert found_done(tmp_path / "none", "a", 0.25) is None
    write_run(tmp_path, replace(RECORD, status="running"))
    assert found_done(tmp_path, "a", 0.25) is None


def test_a_paused_run_has_the_scores_of_its_rungs(tmp_path: Path) -> None:
    write_run(tmp_path, replace(RECORD, status="running"))
    add_rung(tmp_path, 0.25, {"accuracy": 0.5})
    add_rung(tmp_path, 0.5, {"accuracy": 0.6})
    found = found_done(tmp_path, "a", 0.25)
    assert found is not None
    assert (found.status, found.rungs) == ("paused", {"0.25": {"accuracy": 0.5}, "0.5": {"accuracy": 0.6}})
    assert found_done(tmp_path, "a", 1.0) is None


def test_a_finished_run_has_its_evaluation_without_timings(tmp_path: Path) -> None:
    evaluation = {"eval_loss": 0.4, "eval_runtime": 3.0}
    write_run(tmp_path, replace(RECORD, status="finished", evaluation=evaluation, seconds=9.0))
    found = found_done(tmp_path, "a", 0.25)
    assert found is not None
    assert (found.status, found.evaluation, found.seconds) == ("finished", {"loss": 0.4}, 9.0)


def test_a_damaged_record_is_none(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    assert record_of(tmp_path) is None


def test_checkpoints_whose_scores_were_lost_are_removed(tmp_path: Path) -> None:
    for step in (3, 5, 9):
        (tmp_path / f"checkpoint-{step}").mkdir()
    drop_later_checkpoints(tmp_path, 5)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-3"]
    drop_checkpoints(tmp_path)
    assert not [*tmp_path.glob("checkpoint-*")]


def test_damaged_checkpoints_are_dropped_only_if_none_is_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not drop_damaged_checkpoints(tmp_path)
    for step in (2, 4):
        (tmp_path / f"checkpoint-{step}").mkdir()

    def opened(path: Path) -> None:
        if path.name == "checkpoint-4":
            raise ModelError("damaged", "drop it")

    monkeypatch.setattr(reached, "open_checkpoint", opened)
    assert not drop_damaged_checkpoints(tmp_path)
    (tmp_path / "checkpoint-2").rmdir()
    assert drop_damaged_checkpoints(tmp_path)
    assert not [*tmp_path.iterdir()]
