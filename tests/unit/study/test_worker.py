"""A worker of a study: trains to a fraction, pauses, continues exactly, and answers with what went wrong."""

from __future__ import annotations

import io
import json
import os
import queue
import sys
import threading
import weakref
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from trials import write_data

from glassloop.base import files
from glassloop.base.errors import ModelError
from glassloop.base.files import locked
from glassloop.base.records import decoded
from glassloop.runs.record import checkpoints_in
from glassloop.runs.study import SeedRecord
from glassloop.settings.file import GivenSettings
from glassloop.settings.study import StudySettings
from glassloop.study import worker as study_worker
from glassloop.study.run import SharedParts
from glassloop.study.tasks import Check, Checked, Task, error_of
from glassloop.study.worker import checked, drop_damaged_checkpoints, lock_awaited, read_tasks, train_part

pytestmark = pytest.mark.slow
TRAINING = {
    "max_steps": 8, "per_device_train_batch_size": 8, "learning_rate": 1e-3, "device": "cpu", "precision": "fp32",
    "save_strategy": "no", "disable_tqdm": True, "seed": 3, "logging_steps": 2,
}  # fmt: skip
WILD = {"learning_rate": 1e30, "max_grad_norm": 0.0}  # diverges


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"), 90, 20)


def task_in(folder: Path, data: Path, model: Path, fraction: float, **training: object) -> Task:
    settings = {**TRAINING, **training, "output_dir": str(folder)}
    return Task(folder.name, GivenSettings(str(data), str(model), settings, {"selection_fold": "1/5"}), fraction)


def test_a_run_that_was_paused_or_lost_its_checkpoint_ends_like_one_that_was_not(tmp_path, data, lively_dir) -> None:
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
    assert ended.metrics == whole.metrics
    assert "validation_accuracy" in ended.metrics
    for name in ("model/model.safetensors", "validation-predictions.jsonl", "selection-predictions.jsonl"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert not checkpoints_in(tmp_path / "parts")
    assert [*ended.rungs] == ["0.25", "0.5"]
    # A run whose checkpoint did not reach the disk starts again.
    run = tmp_path / "run"
    assert train_part(task_in(run, data, lively_dir, 0.5)).status == "paused"
    (weights,) = run.glob("checkpoint-*/optimizer.safetensors")
    weights.write_bytes(b"")
    assert train_part(task_in(run, data, lively_dir, 1.0)).status == "finished"
    found, wanted = files_of(run), files_of(tmp_path / "whole")
    assert [name for name, content in wanted.items() if found[name] != content] == []


def test_what_is_wrong_is_answered(tmp_path: Path, data: Path, lively_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = train_part(task_in(tmp_path / "a", data / "none.csv", lively_dir, 1.0))
    assert (missing.status, missing.exit_code) == ("failed", 3)
    assert "there is no such file" in missing.error[0]
    diverged = train_part(task_in(tmp_path / "b", data, lively_dir, 1.0, **WILD))
    assert (diverged.status, diverged.exit_code) == ("failed", 5), diverged.error

    def bug(*given: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(study_worker, "assemble", bug)
    found = train_part(task_in(tmp_path / "c", data, lively_dir, 1.0))
    assert (found.exit_code, found.error) == (1, ("ZeroDivisionError: a bug",))


def files_of(run: Path) -> dict[str, bytes]:
    """Every file of a run but those that name times or the folder."""
    named = {path.relative_to(run).as_posix(): path for path in run.rglob("*") if path.is_file()}
    timed = (".lock", "run.json", "sessions.jsonl", "calibration.json")
    return {name: path.read_bytes() for name, path in named.items() if not name.endswith(timed)}


def test_runs_of_one_worker_are_those_of_workers_of_their_own(tmp_path: Path, data: Path, lively_dir: Path) -> None:
    """After other seeds, a pause, a run that diverged and one whose data is missing, each file is bit-identical."""
    shared = SharedParts(keeps=True)

    def trained(name: str, parts: SharedParts | None, fraction: float = 1.0, **training: object) -> SeedRecord:
        return train_part(task_in(tmp_path / name, data, lively_dir, fraction, **training), parts)

    other = {"seed": 4, "weight_decay": 0.1, "per_device_train_batch_size": 4}
    assert trained("paused", shared, 0.5).status == "paused"
    assert trained("diverged", shared, **WILD).exit_code == 5
    assert train_part(task_in(tmp_path / "none", data / "none.csv", lively_dir, 1.0), shared).exit_code == 3
    for name, training in (("other", other), ("paused", {}), ("again", other)):
        assert trained(name, shared, **training).status == "finished"
    for name, training in (("paused", {}), ("again", other)):
        assert trained(f"{name}-alone", None, **training).status == "finished"
        found, wanted = files_of(tmp_path / name), files_of(tmp_path / f"{name}-alone")
        found.pop("rungs.json", None)
        assert {*found} == {*wanted}
        assert [path for path, content in wanted.items() if found[path] != content] == []
    assert trained("diverged-alone", None, **WILD).error == trained("diverged-again", shared, **WILD).error


def test_what_was_checked_is_kept_for_the_runs(tmp_path: Path, data: Path, lively_dir: Path, monkeypatch) -> None:
    """The first run of the worker loads nothing again, and ends like a run alone."""
    shared = SharedParts(keeps=True)
    monkeypatch.chdir(data)
    given = GivenSettings("train.csv", str(lively_dir), {**TRAINING, "output_dir": "run"})
    found = checked(Check(given, chooses=True), shared)
    assert (found.error, found.device, found.num_gpus, found.num_steps) == ((), "cpu", 0, 8)
    assert found.given.training["pooling"] == "mean", "the rule has chosen"
    assert {*data.iterdir()} == {data / "train.csv", data / "validation.csv"}, "a check writes no run"

    def task_of(name: str) -> Task:
        training = {**found.given.training, "output_dir": str(tmp_path / name)}
        return Task(name, replace(found.given, source=str(data / "train.csv"), training=training), alone=True, report=False)

    with monkeypatch.context() as patched:
        for name in (
            "load_examples",
            "load_config",
            "load_tokenizer",
            "load_model",
            "encode",
            "fitted_head",
            "fitted_baselines",
        ):
            patched.setattr(f"glassloop.study.run.{name}", pytest.fail)
        assert train_part(task_of("kept"), shared).status == "finished"
    assert train_part(task_of("alone"), None).status == "finished"
    kept, alone = files_of(tmp_path / "kept"), files_of(tmp_path / "alone")
    assert {*kept} == {*alone}
    assert [name for name in alone if kept[name] != alone[name] and not name.endswith("README.md")] == []


def test_the_check_of_a_study_reads_each_model_once_with_the_largest_batch(data: Path, lively_dir: Path) -> None:
    given = GivenSettings(str(data), str(lively_dir), {**TRAINING, "per_device_train_batch_size": 4})
    del given.training["per_device_train_batch_size"]  # type: ignore[attr-defined]
    settings = StudySettings({"per_device_train_batch_size": "4,16"}, seeds=2)
    small, large = (
        checked(Check(given, study=replace(settings, vary={"per_device_train_batch_size": sizes})), SharedParts(keeps=True))
        for sizes in ("4,8", "4,16")
    )
    assert (small.error, large.error) == ((), ())
    assert large.need > small.need
    assert (large.validation_rows, large.study[0].seeds) == (20, (3, 4))
    assert {name: facts.rows for name, facts in large.facts.items()} == {str(lively_dir): 81}


def test_a_check_answers_with_what_is_wrong(tmp_path: Path, lively_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedParts(keeps=True)
    missing = checked(Check(GivenSettings(str(tmp_path / "none.csv"), str(lively_dir)), chooses=True), shared)
    assert (missing.kind, "there is no such file" in missing.error[0], len(missing.error)) == ("DataError", True, 2)

    def bug(*given: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(study_worker, "check_run", bug)
    found = checked(Check(GivenSettings(str(tmp_path / "none.csv"), str(lively_dir))), shared)
    assert (found.kind, found.error) == ("", ("ZeroDivisionError: a bug",))
    error = error_of(decoded(Checked, json.loads(json.dumps(asdict(found)))))
    assert (type(error), str(error)) == (RuntimeError, "ZeroDivisionError: a bug")
    assert "in bug" in error.__notes__[0]


def test_damaged_checkpoints_are_dropped_only_if_none_is_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not drop_damaged_checkpoints(tmp_path)
    for step in (2, 4):
        (tmp_path / f"checkpoint-{step}").mkdir()

    def opened(path: Path) -> None:
        if path.name == "checkpoint-4":
            raise ModelError("damaged", "drop it")

    monkeypatch.setattr(study_worker, "open_checkpoint", opened)
    assert not drop_damaged_checkpoints(tmp_path)
    (tmp_path / "checkpoint-2").rmdir()
    assert drop_damaged_checkpoints(tmp_path)
    assert not [*tmp_path.iterdir()]


def test_only_parts_that_end_with_a_pause_are_not_synced(tmp_path: Path, data: Path, lively_dir: Path, monkeypatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(files, "fault_point", lambda what, path: synced.append(path.name) if files.SYNCING.wanted else None)
    train_part(task_in(tmp_path / "run", data, lively_dir, 0.5))
    assert "checkpoint-4" not in synced
    assert {"run.json", "rungs.json"} <= {name.lstrip(".").partition(".tmp")[0] for name in synced} | {*synced}
    train_part(task_in(tmp_path / "run", data, lively_dir, 1.0))
    assert "model" in synced
    assert files.SYNCING.wanted


def test_the_memory_of_a_run_is_freed(tmp_path: Path, data: Path, lively_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[weakref.ref[object]] = []
    original = study_worker.assemble

    def noted(*words: object) -> object:
        run = original(*words)
        models.append(weakref.ref(run.trainer.model))
        return run

    monkeypatch.setattr(study_worker, "assemble", noted)
    shared = SharedParts(keeps=True)
    train_part(task_in(tmp_path / "a", data, lively_dir, 0.25), shared)
    train_part(task_in(tmp_path / "b", data, lively_dir, 1.0, **WILD), shared)
    assert [model() for model in models] == [None, None]


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
