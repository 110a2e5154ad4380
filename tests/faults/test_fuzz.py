"""A slice of benchmarks/fuzz.py below the command: damaged files are refused with an error of ours, or read as they are."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders import RECORD

from glassloop import load_examples
from glassloop.base.cache import open_or_build
from glassloop.base.errors import DataError, GlassloopError, ModelError
from glassloop.base.records import sealed
from glassloop.report.source import read_answers
from glassloop.runs.export import ExportCheck, ExportRecord, MetricChange, checksums, read_export, write_export
from glassloop.runs.record import RUN_NAME, read_run, write_run
from glassloop.settings.training import CLASSES

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))

from fuzzing.cases import Case
from fuzzing.data_files import compare_examples, write_file
from fuzzing.mutations import damage_file, damage_folder, json_bytes, mutated_json
from fuzzing.plain_readers import NotReadableError, plain_rows

SEED = 20


def case_of(number: int, folder: Path) -> Case:
    case = Case(str(number), folder / str(number), random.Random(f"{SEED}/{number}"))
    case.folder.mkdir()
    return case


def error_of(read: Callable[[], object], number: int, what: object, kind: type[GlassloopError] = ModelError) -> Any:
    """The error of ours that reading raises, or None; any other error fails with the way to this case."""
    try:
        read()
    except kind as error:
        return error
    except Exception as error:
        raise AssertionError(f"seed {SEED}, case {number}: {what}") from error
    return None


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".json", ".jsonl", ".parquet"])
def test_data_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setenv("GLASSLOOP_CACHE", str(tmp_path / "cache"))
    refused, accepted = 0, 0
    for number in range(40):
        case = case_of(number, tmp_path)
        path = case.folder / f"data{suffix}"
        write_file(path, case)
        try:
            expected = plain_rows(path) if path.is_file() else None
        except NotReadableError:
            expected = None
            case.note("no independent reading")
        if error_of(lambda path=path: load_examples(str(path)), number, case.done, DataError):
            refused += 1
        else:
            compare_examples(case, path, expected)
            accepted += 1
    assert refused > 5
    assert accepted > 5


def test_records_of_runs(tmp_path: Path) -> None:
    """An edit is found by the checksum; where somebody has made that good again, by the kinds of the entries, or it is read."""
    refused, forged = 0, 0
    for number in range(300):
        folder = case_of(number, tmp_path).folder
        chance = random.Random(f"{SEED}/{number}")
        write_run(folder, RECORD)
        before = json.loads((folder / RUN_NAME).read_text())
        what = damage_file(folder / RUN_NAME, chance)
        try:
            assert read_run(folder) == RECORD, f"seed {SEED}, case {number}: {what}"
        except ModelError:
            refused += 1
        try:
            found = json.loads((folder / RUN_NAME).read_bytes())
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and found != before:
            (folder / RUN_NAME).write_bytes(json_bytes(sealed(found)))
            forged += error_of(lambda folder=folder: read_run(folder), number, what) is None
    assert refused > 200
    assert forged > 20


def test_forged_predictions(tmp_path: Path) -> None:
    """Values of any kind as logits, labels and texts: an error with the file, or rows that can be computed with."""
    data = replace(RECORD.data, task=CLASSES, labels=("a", "b"))
    path = tmp_path / "validation-predictions.jsonl"
    sound = {"row": 0, "prediction": "a", "label": "a", "logits": [1.5, -0.5], "text": "good", "tokens": 4}
    refused, accepted = list[ModelError](), 0
    for number in range(200):
        changed, what = mutated_json(sound, random.Random(f"{SEED}/{number}"))
        path.write_bytes(b"\n".join(json_bytes(line).replace(b"\n", b"") for line in (sound, changed)) + b"\n")
        if error := error_of(lambda: read_answers(tmp_path, "validation", data), number, what):
            refused.append(error)
        else:
            rows, _ = read_answers(tmp_path, "validation", data)
            assert rows is not None
            assert np.isfinite(np.square(rows.logits)).all()
            accepted += 1
    assert all(str(path) in error.problem and error.remedy == "restore the file, or train again" for error in refused)
    assert len(refused) > 50
    assert accepted > 50


def test_forged_exports(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"model")
    check = ExportCheck("validation", 2, 0.1, 0, (1,), {"f1": MetricChange(0.5, 0.6, 0.1, 0.0, 0.2, 0.3, "t")}, {}, {}, 1)
    files = checksums(tmp_path)
    record = ExportRecord("onnx", CLASSES, ("a", "b"), 64, ("input_ids",), "run", RECORD, files=files, check=check)
    write_export(tmp_path, record)
    before, errors = json.loads((tmp_path / "export.json").read_bytes()), list[ModelError | None]()
    for number in range(150):
        changed, what = mutated_json(before, random.Random(f"{SEED}/{number}"))
        forged = sealed(changed) if isinstance(changed, dict) else changed
        (tmp_path / "export.json").write_bytes(json_bytes(forged))
        errors.append(error_of(lambda: read_export(tmp_path), number, what))
    refused = [error for error in errors if error]
    assert all(str(tmp_path) in error.problem and error.remedy for error in refused)
    assert len(refused) > 25


def test_cache_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASSLOOP_CACHE", str(tmp_path))

    def build(folder: Path) -> None:
        (folder / "rows").write_bytes(bytes(range(256)))
        (folder / "facts.json").write_text('{"rows": 1}')

    def load(folder: Path) -> tuple[bytes, str]:
        return (folder / "rows").read_bytes(), (folder / "facts.json").read_text()

    for number in range(100):
        expected = open_or_build("data", f"{number:032x}", build, load)
        what = damage_folder(tmp_path / "data" / f"{number:032x}", random.Random(f"{SEED}/{number}"))
        assert open_or_build("data", f"{number:032x}", build, load) == expected, f"seed {SEED}, case {number}: {what}"
