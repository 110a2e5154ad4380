"""The README of an export: the lines fit the task, nothing of the data is in it, and the figures are those of the check."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest
from sample_record import RECORD

from glassloop.runs.export import MODEL_FILES, ExportCheck, ExportRecord, MetricChange
from glassloop.settings.fields import CLASSES, SCORE, SEVERAL
from glassloop.share.export import example_code, readme_text

CHECK = ExportCheck(
    "validation",
    408,
    0.21,
    7,
    (7, 90),
    {"accuracy": MetricChange(0.85, 0.845, -0.005, -0.01, 0.002, 0.5, "exact McNemar test")},
    {"exported": 10, "run": 40},
    {"exported": 140.2, "glassloop": 117.0, "transformers": 103.0},
    2,
)


def record_of(kind: str = "onnx", task: str = CLASSES) -> ExportRecord:
    return ExportRecord(kind, task, ("a", "b, c"), 64, ("input_ids",), "mrpc", RECORD)


@pytest.mark.parametrize("kind", MODEL_FILES)
@pytest.mark.parametrize("task", [CLASSES, SEVERAL, SCORE])
@pytest.mark.parametrize("calibrated", [True, False])
def test_the_lines_are_python_without_glassloop(kind: str, task: str, calibrated: bool) -> None:
    code = example_code(record_of(kind, task), calibrated=calibrated)
    ast.parse(code)
    assert "glassloop" not in code
    assert "__" not in code
    assert ("calibration.json" in code) == (calibrated and task != SCORE)
    assert len([line for line in code.splitlines() if line and not line.startswith(("import", "from"))]) <= 10


def test_pairs_are_shown_for_a_model_of_pairs() -> None:
    columns = replace(RECORD.data.columns, text_pair="second")
    record = replace(record_of(), run=replace(RECORD, data=replace(RECORD.data, columns=columns)))
    assert '(["a text"], ["a second text"], ' in example_code(record, calibrated=False)
    assert '(["a text"], truncation' in example_code(record_of(), calibrated=False)


def test_the_figures_are_in_it() -> None:
    text = readme_text(record_of("onnx-int8"), CHECK, calibrated=False, has_reference=True)
    assert "| accuracy | 0.8500 | 0.8450 | -0.0050 | -0.0100 to +0.0020 |" in text
    assert "2 of 408 answers changed" in text
    assert "- this model: 140 rows per second" in text
    assert "reference.jsonl" in text
    assert "calibration.json" not in text
    assert "reference.jsonl" not in readme_text(record_of(), CHECK, calibrated=True, has_reference=False)


def test_only_the_program_of_torch_speaks_of_aotinductor() -> None:
    texts = {kind: readme_text(record_of(kind), CHECK, calibrated=True, has_reference=True) for kind in MODEL_FILES}
    assert [kind for kind, text in texts.items() if "AOTInductor" in text] == ["torch"]
