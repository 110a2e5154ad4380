"""The run folder: its names, the record of a run with its model, its calibration and its predictions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from run_folders import FOUND, RECORD, write_run_with_model

from glassloop.base.errors import ModelError, SettingsError
from glassloop.base.files import sha256_of
from glassloop.base.records import sealed
from glassloop.runs import record as records
from glassloop.runs.record import FINISHED, MODEL_NAME, RUN_NAME, Columns, model_of_run, read_calibration, read_run, write_run
from glassloop.settings.training import DataSettings, TrainingArguments


# --- the names in a run folder -----------------------------------------------------------------------------------
def test_names_columns_and_settings_of_a_run() -> None:
    assert (records.checkpoint_name(500), records.seed_name(42)) == ("checkpoint-500", "seed-42")
    assert records.predictions_name("validation_matched") == "validation_matched-predictions.jsonl"
    assert Columns("a", None, ("label",)).texts == ("a",)
    assert Columns("a", "b", ("x", "y")).texts == ("a", "b")
    assert Columns("a", None, ("class",)).label_name == "class"
    assert Columns("a", None, ("x", "y")).label_name == "labels"
    given = RECORD.data.given()
    assert given["labels"] == ("a", "b, c")
    assert None not in given.values()
    then = {"train": records.SplitFacts(3, fingerprint="a" * 16), "validation": records.SplitFacts(2, fingerprint="b" * 16)}
    assert records.split_changes(then, then, then) == []
    now = {"train": records.SplitFacts(4, fingerprint="c" * 16)}
    assert records.split_changes(then, now, ["train", "validation", "unknown"]) == [
        "train: 3 rows (aaaaaaaa) then, 4 rows (cccccccc) now",
        "validation: 2 rows (bbbbbbbb) then, none now",
    ]
    for name in (*records.TIMINGS, "eval_runtime", "eval_mismatched_samples_per_second", "train_steps_per_second"):
        assert records.is_timing(name)
    for name in ("loss", "eval_f1", "eval_seconds", "second"):
        assert not records.is_timing(name)


LEFTOVERS = (
    *(".checkpoint-10.abcd_123", ".run.json.abcd_123", ".model.old", ".model.abcd_123.old", ".x-predictions.jsonl.abcd_123"),
)
OTHERS = (".notes.abcd_123", ".lock", "run.json", ".run.json.swp", ".gitignore", "checkpoint-10.kept-1")


def test_leftovers_are_removed_and_named_and_files_of_others_stay(tmp_path: Path) -> None:
    for name in (*LEFTOVERS, *OTHERS):
        (tmp_path / name).mkdir() if "checkpoint" in name else (tmp_path / name).touch()
    assert records.remove_leftovers(tmp_path) == sorted(LEFTOVERS)
    assert records.remove_leftovers(tmp_path) == []
    assert {path.name for path in tmp_path.iterdir()} == {*OTHERS}


def test_checkpoints_are_found_newest_first(tmp_path: Path) -> None:
    assert records.checkpoints_in(tmp_path / "missing") == []
    for name in ("checkpoint-10.kept-1", ".checkpoint-20.abcd_123", "checkpoint-07", "checkpoint-x", "other"):
        (tmp_path / name).mkdir()
    assert not records.has_checkpoint(tmp_path), "one that was moved aside is not used"
    for name in ("checkpoint-3", "checkpoint-12"):
        (tmp_path / name).mkdir()
    assert [path.name for path in records.checkpoints_in(tmp_path)] == ["checkpoint-12", "checkpoint-3"]
    assert records.has_checkpoint(tmp_path)
    (tmp_path / "other" / records.TRAINED_NAME).touch()
    assert records.has_checkpoint(tmp_path / "other")


def test_runs_and_types_are_read_without_the_heavy_libraries() -> None:
    modules = [f"glassloop.runs.{name}" for name in ("record", "history", "status", "study", "export")]
    modules.append("glassloop.data.interfaces")  # the types of rows and models in signatures are free to import
    heavy = ("torch", "transformers", "numpy", "rich", "pyarrow", "datasets")
    code = f"import sys, {', '.join(modules)}; print([name for name in {heavy!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


# --- run.json: what is written is read again, and whatever else is in its place is one error that says what is wrong.
def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    stages = {"starting": 1.0, "other steps": 0.25, "everything else": 0.25}
    ended = replace(RECORD, status=FINISHED, evaluation={"eval_loss": 0.5}, best_step=4, seconds=1.5)
    for record in (RECORD, replace(ended, stages=stages, resumed=True)):
        write_run(tmp_path, record)
        assert read_run(tmp_path) == record
        assert [*read_run(tmp_path).stages] == [*record.stages], "in their order"
        assert record.finished is (record.status == FINISHED)
    assert [path.name for path in tmp_path.iterdir()] == [RUN_NAME]
    write_run(tmp_path, RECORD)
    with pytest.raises(ValueError, match="Out of range"):
        write_run(tmp_path, replace(RECORD, seconds=float("nan")))
    assert read_run(tmp_path) == RECORD
    write_run(tmp_path, RECORD)
    found = json.loads((tmp_path / RUN_NAME).read_text())
    (tmp_path / RUN_NAME).write_text(json.dumps(dict(reversed(found.items())), indent=3))
    assert read_run(tmp_path) == RECORD
    kept = ("status", "data", "model", "settings", "plan", "max_length")
    found = {name: value for name, value in asdict(RECORD).items() if name in kept}
    found["settings"] = {"output_dir": "out"}
    for name in ("notes", "settings"):
        del found["data"][name]
    (tmp_path / RUN_NAME).write_text(json.dumps(sealed(found)))
    record = read_run(tmp_path)
    assert record.settings == TrainingArguments("out")
    assert record.data.settings == DataSettings()
    assert (record.processes, record.savings, record.evaluation) == (1, (), None)
    assert (record.stages, record.resumed) == ({}, False), "a record of an earlier version"


def changed(*path: str, value: Any = "…") -> bytes:
    """The record with the entry at `path` replaced, or removed."""
    found: Any = json.loads(json.dumps(asdict(RECORD)))
    entry = found
    for name in path[:-1]:
        entry = entry[name]
    if value == "…":
        del entry[path[-1]]
    else:
        entry[path[-1]] = value
    return json.dumps(found).encode()


WHOLE = json.dumps(asdict(RECORD)).encode()


DAMAGE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not JSON"),
    "half a file": (WHOLE[: len(WHOLE) // 2], "not JSON"),
    "not text": (b"\x80\x81", "not UTF-8"),
    "another encoding": (WHOLE.decode().encode("utf-16"), "not UTF-8"),
    "not a number": (WHOLE.replace(b"1000", b"NaN"), "NaN"),
    "a float beyond all": (WHOLE.replace(b"0.0001", b"1e999"), "settings.learning_rate"),
    "deep nesting": (b'{"a":' * 200_000, "nested too deeply"),
    "a list": (b"[]", "the file is a list of 0, not an object"),
    "an empty object": (b"{}", "status is missing"),
    "no data": (changed("data"), "data is missing"),
    "no plan": (changed("plan", "max_steps"), "plan.max_steps is missing"),
    "data as a list": (changed("data", value=[1]), "data is a list of 1, not an object"),
    "a fingerprint as a number": (changed("data", "splits", "train", "fingerprint", value=1), "fingerprint is 1, not text"),
    "a label twice": (changed("data", "labels", value=["a", "b", "a"]), 'data: the label "a" appears twice'),
    "no labels": (changed("data", "labels", value=None), "data: there are no labels"),
    "an unknown task": (changed("data", "task", value="chess"), 'data: the task is "chess"'),
    "columns without a text": (changed("data", "columns", value={}), "data.columns.text is missing"),
    "a setting of another kind": (changed("settings", "seed", value="x"), 'settings.seed is "x", not a whole number'),
    "an impossible setting": (changed("settings", "learning_rate", value=-1), "settings.learning_rate is -1.0, not 0 or more"),
    "an impossible data setting": (changed("data", "settings", "task", value="chess"), "data.settings.task is"),
    "half a character": (changed("model", "name", value="\ud800"), "model.name is"),
    "code in a number's place": (changed("max_length", value="__import__('os')"), "max_length is"),
    "a key of any length": (changed("result", value={"x" * 70_000: "low"}), "x… is"),
    "a stage without seconds": (
        changed("stages", value={"starting": "long"}),
        'stages.starting is "long", not a finite number',
    ),
    "a format that is none": (changed("format", value="1"), "format is"),
}


def test_damage_is_one_error_that_says_what_is_wrong(tmp_path: Path, says) -> None:
    for content, problem in DAMAGE.values():
        (tmp_path / RUN_NAME).write_bytes(content)
        with pytest.raises(ModelError) as caught:
            read_run(tmp_path)
        assert caught.value.problem.startswith(f"{tmp_path / RUN_NAME}: the record of the run cannot be read: ")
        assert problem in caught.value.problem
        assert len(caught.value.problem) < 600
        assert caught.value.remedy == "restore the file from a copy, or start a new run"
    (tmp_path / RUN_NAME).write_text(json.dumps({"format": records.FORMAT + 1, "everything": "else"}))
    problem = f"{tmp_path / RUN_NAME}: has format 2, but this version of Glassloop reads formats up to 1"
    with says(problem, "update Glassloop", ModelError):
        read_run(tmp_path)


def test_a_record_that_somebody_edited_is_refused(says, tmp_path: Path) -> None:
    problem = f"{tmp_path / RUN_NAME}: the record of the run cannot be read: its checksum differs, so it was edited or damaged"
    for path, value in [
        (("max_length",), 32),
        (("settings", "max_length"), 8),
        (("data", "label_order"), ["b, c", "a"]),
        (("status",), FINISHED),
        (("versions", "torch"), "3"),
        (("unknown",), 1),
    ]:
        write_run(tmp_path, RECORD)
        found = entry = json.loads((tmp_path / RUN_NAME).read_text())
        for name in path[:-1]:
            entry = entry[name]
        entry[path[-1]] = value
        (tmp_path / RUN_NAME).write_text(json.dumps(found))
        with says(problem, "restore the file from a copy, or start a new run", ModelError):
            read_run(tmp_path)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """The folder of a finished run whose model has two files."""
    (tmp_path / MODEL_NAME / "adapter").mkdir(parents=True)
    (tmp_path / MODEL_NAME / "config.json").write_text("{}")
    (tmp_path / MODEL_NAME / "adapter" / "weights").write_bytes(b"abc")
    write_run(tmp_path, replace(RECORD, status=FINISHED))
    return tmp_path


def test_the_model_of_a_finished_run_whose_card_and_calibration_may_change(finished: Path, tmp_path: Path) -> None:
    folder, record = model_of_run(finished)
    assert folder == finished / MODEL_NAME
    assert {*record.files} == {"config.json", "adapter/weights"}
    (folder / ".DS_Store").touch()
    (folder / "notes.txt").touch()
    assert model_of_run(finished) == (folder, record)
    run = write_run_with_model(tmp_path / "run")
    for name in ("README.md", "calibration.json"):
        (run / "model" / name).write_text("first")
    write_run(run, read_run(run))
    assert {*read_run(run).files} == {"config.json", "model.safetensors"}
    (run / "model" / "README.md").write_text("edited")
    assert model_of_run(run)[0] == run / "model"


def test_the_checksum_of_a_trained_model_is_that_of_the_moment_when_it_was_written(tmp_path: Path) -> None:
    """So a file that has changed until the run is finished is noticed, and large files are read once."""
    run = write_run_with_model(tmp_path / "run")
    files = {"model/model.safetensors": {"size": 3, "sha256": "ab" * 32}, "other": {"size": 3, "sha256": "cd" * 32}}
    for content in (json.dumps({"files": files}), "[]", '{"files": {"model/config.json": 3}}', "{"):
        (run / records.TRAINED_NAME).write_text(content)
        write_run(run, read_run(run))
        found = read_run(run).files
        assert found["config.json"] == sha256_of(run / "model" / "config.json")
        known = "ab" * 32 if "other" in content else sha256_of(run / "model" / "model.safetensors")
        assert found["model.safetensors"] == known


@pytest.mark.parametrize(
    ("name", "damage", "what"),
    [
        ("config.json", lambda path: path.write_text("{ }"), "changed since the run wrote it (its checksum differs)"),
        ("adapter/weights", lambda path: path.write_bytes(b"abd"), "changed since the run wrote it (its checksum differs)"),
        ("config.json", Path.unlink, "missing"),
        ("config.json", lambda path: (path.unlink(), path.mkdir()), "missing"),
        ("config.json", lambda path: (path.unlink(), os.mkfifo(path)), "missing"),
        ("config.json", lambda path: (path.unlink(), path.symlink_to(path)), "missing"),
    ],
)
def test_a_model_that_has_changed_is_refused(says, finished: Path, name: str, damage: Callable[[Path], Any], what: str) -> None:
    model = finished / MODEL_NAME
    damage(model / name)
    with says(f"{model / name}: {what}", f"restore the file, or use the model as it is now: name {model} instead", ModelError):
        model_of_run(finished)


@pytest.mark.parametrize("method", ["stat", "lstat", "read_text"])
def test_the_run_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    write_run(tmp_path, RECORD)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuse) if method == "lstat" else None  # who may not look may not read either
    monkeypatch.setattr(Path, method, refuse)
    assert records.is_run(tmp_path)
    with pytest.raises(ModelError, match=r"the record of the run cannot be read: Permission denied\ntry:  check its owner"):
        read_run(tmp_path)


def test_no_run_and_something_else_in_its_place(tmp_path: Path) -> None:
    for name in ["gone", "a\0b", "x" * 5000]:
        assert not records.is_run(tmp_path / name)
        with pytest.raises(ModelError, match=r"is not a run folder: run\.json is missing"):
            read_run(tmp_path / name)
    for target in [None, "gone", RUN_NAME]:  # a folder, a dangling link, a link to itself
        folder = tmp_path / f"to {target}"
        folder.mkdir()
        (folder / RUN_NAME).symlink_to(folder / target) if target else (folder / RUN_NAME).mkdir()
        assert records.is_run(folder)
        with pytest.raises(ModelError, match="the record of the run cannot be read: "):
            read_run(folder)


# --- calibration.json: written whole, read with every check, and refused for other weights.
@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    records.write_calibration(tmp_path, replace(FOUND, weights=records.weights_of(tmp_path)))
    return tmp_path


def test_the_calibration_of_other_weights_is_refused(says, model: Path) -> None:
    stored = replace(FOUND, weights=records.weights_of(model))
    assert read_calibration(model) == stored
    assert read_calibration(model, {"model.safetensors": sha256_of(model / "model.safetensors")}) == stored
    assert sorted(path.name for path in model.iterdir()) == ["calibration.json", "model.safetensors"]
    (model / "model.safetensors").write_bytes(b"others")
    with pytest.raises(ModelError) as caught:
        read_calibration(model)
    assert caught.value.problem == f"{model}/calibration.json: was fitted for other weights than those in {model}"
    assert "glassloop calibrate RUN --remove" in caught.value.remedy
    (model / "model.safetensors").rename(model / "model-00001.safetensors")
    with pytest.raises(ModelError, match="fitted for other weights"):
        read_calibration(model)
    (model / "model-00001.safetensors").unlink()
    assert read_calibration(model) is not None, "an export has other files"
    (model / "calibration.json").unlink()
    assert read_calibration(model) is None


def test_a_damaged_calibration_is_refused(model: Path) -> None:
    path = model / "calibration.json"
    stored = json.loads(path.read_text())
    for change, problem in [
        ({"temperature": 3.0}, "its checksum differs, so it was edited or damaged"),
        ({"temperature": 0}, "the temperature is 0.0, not a positive number"),
        ({"thresholds": {"a": 1.5}}, "a threshold is 1.5, not a probability"),
        ({"gains": "many"}, 'gains is "many", not a list'),
        ({"format": 9}, "has format 9, but this version of Glassloop reads formats up to 1"),
        (None, "the calibration cannot be read: not JSON"),
    ]:
        path.write_text("{" if change is None else json.dumps(stored | change))
        with pytest.raises(ModelError) as caught:
            read_calibration(model)
        assert problem in caught.value.problem
    assert str(records.Target("f1")) == "highest F1"
    assert str(records.Target("precision", 0.9)) == "highest precision at a recall of 0.9 or more"
    assert str(records.Target("cost", None, 1, 5)) == "least cost (false positive 1, false negative 5)"
    assert records.Gain("f1", 0.5, 0.75).change == 0.25


# --- predictions: every row is read back as it was written, and damage is reported with its line.
ROWS = [{"row": 0, "prediction": "a\u2028b", "logits": [1.0], "text": "x\x85y"}, {"row": 1, "prediction": "c", "logits": [2.0]}]


def test_rows_with_any_line_separator_are_read_and_damage_is_reported_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match='no predictions for the split "test"\ntry:  train it to its end'):
        records.read_predictions(tmp_path, "test")
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
    (tmp_path / "validation-predictions.jsonl").write_text(text, encoding="utf-8")
    assert records.predicted_splits(tmp_path) == ["validation"]
    assert records.read_predictions(tmp_path, "validation") == ROWS
    with pytest.raises(SettingsError, match=r'no predictions for the split "\.\./x"\ntry:  use one of validation'):
        records.read_predictions(tmp_path, "../x")
    for damaged in ["{\n", "[]\n", '{"a": 1}\nx', "\n", '{"a": 1},{"b": 2}\n']:
        (tmp_path / "validation-predictions.jsonl").write_text('{"row": 0}\n' + damaged)
        with pytest.raises(ModelError, match=r"validation-predictions\.jsonl, line [23]: "):
            records.read_predictions(tmp_path, "validation")
