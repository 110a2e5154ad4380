"""Run: a run folder read from Python, without torch, and shown in a notebook."""

from __future__ import annotations

import json
import subprocess
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
    record = replace(
        RECORD,
        status=FINISHED,
        metrics=("accuracy",),
        evaluation={"eval_loss": 0.6, "eval_accuracy": 0.8, "eval_runtime": 2.0},
        baseline={"accuracy": 0.7},
        classes={"a": ClassRecord(0.9, 0.8, 0.85, 5)},
    )
    write_run(tmp_path, record)
    write_history(tmp_path, HISTORY)
    (tmp_path / "validation-predictions.jsonl").write_text(json.dumps(PREDICTION) + "\n", encoding="utf-8")
    return tmp_path


def test_everything_in_the_folder_can_be_read(folder: Path) -> None:
    run = Run(str(folder))
    assert run.folder == folder
    assert run.status == "finished"
    assert run.record.model.name == "quickstart"
    assert run.settings.learning_rate == 1e-4
    assert run.metrics == {"loss": 0.6, "accuracy": 0.8}
    assert run.baseline == {"accuracy": 0.7}
    assert run.classes["a"].support == 5
    assert run.history == HISTORY
    assert run.predicted_splits == ["validation"]
    assert run.predictions() == [PREDICTION]
    assert run.model_dir == folder / "model"
    assert repr(run) == f"Run({str(folder)!r}): finished"


def test_a_notebook_shows_the_results(folder: Path) -> None:
    shown = Run(folder)._repr_html_()
    assert all(part in shown for part in ("0.8000", "0.7000", "iframe srcdoc", "&lt;svg", "finished", "rows.csv"))


def test_history_and_predictions_as_frames(folder: Path) -> None:
    run = Run(folder)
    assert run.history_frame()["loss"].tolist()[:2] == [0.9, 0.5]
    assert run.predictions_frame("validation")["text"].tolist() == ["one"]


def test_history_and_predictions_as_arrow_tables(folder: Path) -> None:
    run = Run(folder)
    assert run.history_table()["loss"].to_pylist()[:2] == [0.9, 0.5]
    assert run.predictions_table("validation")["text"].to_pylist() == ["one"]


def test_without_pandas_the_install_command_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SettingsError, match=r"pandas is not installed\ntry:  pip install 'glassloop\[pandas\]'"):
        Run(folder).history_frame()


def test_a_run_without_results_is_running_or_stopped(tmp_path: Path) -> None:
    write_run(tmp_path, RECORD)
    run = Run(tmp_path)
    assert run.status == "stopped"
    with locked(tmp_path, lambda line: None):
        assert run.status == "running"
    assert (run.metrics, run.baseline, run.classes, run.history, run.predicted_splits) == ({}, {}, {}, [], [])
    assert "stopped" in run._repr_html_()


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is not a run folder: run\.json is missing"):
        Run(tmp_path)


def test_torch_is_not_loaded(folder: Path) -> None:
    code = f"import sys, glassloop; run = glassloop.Run({str(folder)!r}); run._repr_html_(); run.predictions()"
    out = subprocess.run([sys.executable, "-c", f"{code}; print(*sys.modules)"], capture_output=True, text=True, check=True)
    assert not {*out.stdout.split()} & {"torch", "transformers", "datasets", "pandas", "rich"}
