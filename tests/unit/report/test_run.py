"""Run: a run folder read from Python, and shown in a notebook."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from run_folders import RECORD

from glassloop import Run
from glassloop.base.errors import ModelError, SettingsError
from glassloop.base.files import locked
from glassloop.runs.history import write_history
from glassloop.runs.record import FINISHED, ClassRecord, write_run

HISTORY = [{"step": 1, "loss": 0.9}, {"step": 2, "loss": 0.5}, {"step": 2, "eval_loss": 0.6}]
PREDICTION = {"row": 0, "prediction": "a", "label": "b, c", "logits": [0.5, 0.25], "text": "one"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished run."""
    evaluation = {"eval_loss": 0.6, "eval_accuracy": 0.8, "eval_runtime": 2.0}
    record = replace(RECORD, status=FINISHED, metrics=("accuracy",), evaluation=evaluation, baseline={"accuracy": 0.7})
    write_run(tmp_path, replace(record, classes={"a": ClassRecord(0.9, 0.8, 0.85, 5)}))
    write_history(tmp_path, HISTORY)  # type: ignore[arg-type]
    (tmp_path / "validation-predictions.jsonl").write_text(json.dumps(PREDICTION) + "\n", encoding="utf-8")
    return tmp_path


def test_everything_in_the_folder_can_be_read_as_frames_and_tables_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(str(folder))
    assert (run.folder, run.model_dir, run.status) == (folder, folder / "model", "finished")
    assert (run.record.model.name, run.settings.learning_rate) == ("quickstart", 1e-4)
    assert (run.metrics, run.baseline) == ({"loss": 0.6, "accuracy": 0.8}, {"accuracy": 0.7})
    assert run.classes["a"].support == 5
    assert run.history == HISTORY
    assert (run.predicted_splits, run.predictions()) == (["validation"], [PREDICTION])
    assert repr(run) == f"Run({str(folder)!r}): finished"
    html = run._repr_html_()
    assert all(part in html for part in ("0.8000", "0.7000", "iframe srcdoc", "&lt;svg", "finished", "rows.csv"))
    assert run.history_table()["loss"].to_pylist()[:2] == run.history_frame()["loss"].tolist()[:2] == [0.9, 0.5]
    frame, table = run.predictions_frame("validation"), run.predictions_table("validation")
    assert frame["text"].tolist() == table["text"].to_pylist() == ["one"]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SettingsError, match=r"pandas is not installed\ntry:  pip install 'glassloop\[pandas\]'"):
        run.history_frame()


def test_a_run_without_results_is_running_or_stopped(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is not a run folder: run\.json is missing"):
        Run(tmp_path)
    write_run(tmp_path, RECORD)
    run = Run(tmp_path)
    assert run.status == "stopped"
    with locked(tmp_path, lambda line: None):
        assert run.status == "running"
    assert (run.metrics, run.baseline, run.classes, run.history, run.predicted_splits) == ({}, {}, {}, [], [])
    assert "stopped" in run._repr_html_()
