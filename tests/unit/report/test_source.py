"""Test what a report reads from run folders, complete or not."""

from __future__ import annotations

from pathlib import Path

import pytest
from reported_runs import write_fake_run

from glassloop.base.errors import ModelError
from glassloop.report.source import UNKNOWN, ordered_splits, read_source
from glassloop.runs.history import write_history
from glassloop.runs.record import RUNNING
from glassloop.runs.status import RESUME, note_moment


def test_a_finished_run_has_everything(tmp_path: Path) -> None:
    record = write_fake_run(tmp_path)
    note_moment(tmp_path, RESUME, 7, 60)
    found = read_source(tmp_path)
    assert (found.record, found.status, [*found.resumes]) == (record, "finished", [7])
    assert [result.name for result in found.results] == ["validation"]
    assert len(found.results[0].rows) == 60
    assert found.text_columns == ("first", "second")


def test_an_unfinished_run_is_stopped_unless_a_process_holds_it(tmp_path: Path) -> None:
    write_fake_run(tmp_path, status=RUNNING)
    assert read_source(tmp_path).status == "stopped"


def test_damaged_predictions_become_a_problem(tmp_path: Path) -> None:
    write_fake_run(tmp_path)
    (tmp_path / "validation-predictions.jsonl").write_text("{", encoding="utf-8")
    found = read_source(tmp_path)
    assert not found.results
    assert "validation-predictions.jsonl, line 1" in found.problems[0]


def test_the_folder_of_a_trainer_has_only_a_history(tmp_path: Path) -> None:
    write_history(tmp_path, [{"step": 1, "loss": 0.5}])
    found = read_source(tmp_path)
    assert (found.record, found.status, len(found.history)) == (None, UNKNOWN, 1)


def test_any_other_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a run folder"):
        read_source(tmp_path)


def test_the_split_of_the_training_comes_first(tmp_path: Path) -> None:
    for name in ("test", "validation_mismatched", "validation"):
        (tmp_path / f"{name}-predictions.jsonl").touch()
    assert ordered_splits(tmp_path) == ["validation", "validation_mismatched", "test"]
