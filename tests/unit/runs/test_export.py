"""export.json: read back as it was written, and refused if it or a file beside it is not as the export left it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from run_folders import RECORD

from glassloop.base.errors import ModelError
from glassloop.runs import export
from glassloop.runs.export import RESTORE, read_export, read_reference, write_export

CHANGE = export.MetricChange(0.5, 0.6, 0.1, 0.0, 0.2, 0.3, "t")
CHECK = export.ExportCheck("validation", 2, 0.1, 0, (1,), {"f1": CHANGE}, {}, {}, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.onnx").write_bytes(b"weights")
    (tmp_path / "README.md").write_text("may change")
    record = export.ExportRecord("onnx", RECORD.data.task, ("a", "b, c"), 64, ("input_ids",), "mrpc", RECORD, check=CHECK)
    write_export(tmp_path, replace(record, files=export.checksums(tmp_path)))
    return tmp_path


def test_it_is_read_as_it_was_written_and_the_readme_may_be_edited(folder: Path) -> None:
    (folder / "README.md").write_text("other words")
    record = read_export(folder)
    assert (record.check, record.run, record.labels, [*record.files]) == (CHECK, RECORD, ("a", "b, c"), ["model.onnx"])
    assert (export.is_export(folder), export.is_export(folder / "model.onnx"), record.precision) == (True, False, "fp32")
    assert replace(record, kind="onnx-int8").precision == "int8"


def test_a_file_that_is_not_as_the_export_left_it(says, folder: Path) -> None:
    record, model = read_export(folder), folder / "model.onnx"
    model.write_bytes(b"others")
    with says(f"{model}: changed since the export (its checksum differs)", RESTORE, ModelError):
        read_export(folder)
    model.unlink()
    with says(f"{model}: missing", RESTORE, ModelError):
        read_export(folder)
    write_export(folder, replace(record, files={}))
    with says(f"{folder / 'export.json'}: there is no checksum of model.onnx", RESTORE, ModelError):
        read_export(folder)
    write_export(folder, replace(record, check=None))
    with says(f"{folder}: the export was interrupted", "export the run again", ModelError):
        read_export(folder)


def test_an_edited_record_and_reference_rows(folder: Path) -> None:
    assert read_reference(folder) == []
    (folder / "reference.jsonl").write_text('{"row": 3}\n')
    assert read_reference(folder) == [{"row": 3}]
    (folder / "reference.jsonl").write_text("{")
    with pytest.raises(ModelError):
        read_reference(folder)
    path = folder / "export.json"
    stored = json.loads(path.read_text())
    for change, problem, remedy in [
        ({"max_length": 65}, "cannot be read: its checksum differs, so it was edited or damaged", RESTORE),
        ({"max_length": "long"}, 'cannot be read: max_length is "long", not a whole number', RESTORE),
        ({"kind": "openvino"}, "cannot be read: : the kind is not onnx, onnx-int8 or torch", RESTORE),
        ({"format": 2}, "has format 2", "update Glassloop"),
    ]:
        path.write_text(json.dumps(stored | change))
        with pytest.raises(ModelError) as caught:
            read_export(folder)
        assert caught.value.problem.startswith(f"{path}: ")
        assert problem in caught.value.problem
        assert caught.value.remedy == remedy
