"""A worker of a study: trains to a fraction, pauses, continues exactly, and answers with what went wrong."""

from __future__ import annotations

import io
import json
import os
import queue
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from trials import write_data

from glassloop.commands import study_worker
from glassloop.commands.study_worker import lock_awaited, read_tasks, train_part
from glassloop.lock import locked
from glassloop.run_folder.layout import checkpoints_in
from glassloop.study.trials import Task

pytestmark = pytest.mark.slow
TRAINING = {
    "max_steps": 8, "per_device_train_batch_size": 8, "learning_rate": 1e-3, "device": "cpu", "precision": "fp32",
    "save_strategy": "no", "disable_tqdm": True, "seed": 3, "logging_steps": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"), 90, 20)


def task_in(folder: Path, data: Path, model: Path, fraction: float, **training: object) -> Task:
    settings = {**TRAINING, **training, "output_dir": str(folder)}
    return Task(folder.name, str(folder), str(data), str(model), settings, {"selection_fold": "1/5"}, False, fraction)


def test_a_paused_run_ends_like_one_that_was_not(tmp_path: Path, data: Path, lively_dir: Path) -> None:
    parts = task_in(tmp_path / "parts", data, lively_dir, 0.25)
    first = train_part(parts)
    assert (first.status, [*first.rungs]) == ("paused", ["0.25"])
    assert {"accuracy", "loss"} <= {*first.rungs["0.25"]}
    assert [path.name for path in checkpoints_in(tmp_path / "parts")] == ["checkpoint-2"]
    assert train_part(parts).rungs == first.rungs, "found, not trained again"
    (tmp_path / "parts" / "rungs.json").unlink()
    assert train_part(parts).rungs == first.rungs, "killed before the scores were stored: the same again"
    assert train_part(replace(parts, fraction=0.5)).status == "paused"
    ended = train_part(replace(parts, fraction=1.0))
    whole = train_part(task_in(tmp_path / "whole", data, lively_dir, 1.0))
    assert ended.status == whole.status == "finished"
    assert ended.evaluation == whole.evaluation
    assert "validation_accuracy" in ended.evaluation
    for name in ("model/model.safetensors", "validation-predictions.jsonl", "selection-predictions.jsonl"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert not checkpoints_in(tmp_path / "parts")
    assert [*ended.rungs] == ["0.25", "0.5"]


def test_what_is_wrong_is_answered(tmp_path: Path, data: Path, lively_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = train_part(task_in(tmp_path / "a", data / "none.csv", lively_dir, 1.0))
    assert (missing.status, missing.exit_code) == ("failed", 3)
    assert "there is no such file" in missing.error[0]
    diverged = train_part(task_in(tmp_path / "b", data, lively_dir, 1.0, learning_rate=1e30, max_grad_norm=0.0))
    assert (diverged.status, diverged.exit_code) == ("failed", 5), diverged.error

    def bug(*given: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(study_worker, "assemble", bug)
    found = train_part(task_in(tmp_path / "c", data, lively_dir, 1.0))
    assert (found.exit_code, found.error) == (1, ("ZeroDivisionError: a bug",))


def test_a_lock_is_awaited(tmp_path: Path) -> None:
    held = locked(tmp_path, print)
    held.__enter__()
    threading.Timer(0.3, lambda: held.__exit__(None, None, None)).start()
    with lock_awaited(tmp_path):
        assert (tmp_path / ".lock").exists()


def test_the_end_of_the_input_stops_a_run_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number))
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({"name": "a"}) + "\n"))
    tasks: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    busy = threading.Event()
    read_tasks(tasks, busy)
    assert (json.loads(tasks.get() or ""), tasks.get(), sent) == ({"name": "a"}, None, [])
    busy.set()
    read_tasks(tasks, busy)
    assert sent == [15]
