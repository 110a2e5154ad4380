"""The comparison of an export with its run: differences, changed answers, metrics with intervals, and speed in turns."""

from __future__ import annotations

import ast
import io
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from run_folders import RECORD, make_run

from glassloop.base.errors import ModelError, SettingsError
from glassloop.predict.answers import Answering
from glassloop.runs.export import MODEL_FILES, ExportCheck, ExportRecord, MetricChange
from glassloop.runs.record import read_run
from glassloop.settings.training import CLASSES, SCORE, SEVERAL
from glassloop.share import export as folders
from glassloop.share.export import FlippedRow, readme_text, refuse_other_folders, validation_rows, versions_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("made") / "run", labels=3)


def compared(folder: Path, task: str, change: Any, **thresholds: float) -> Any:
    run = read_run(folder)
    rows = validation_rows(folder, run)
    before = np.array([entry["logits"] for entry in rows.entries])
    after = before.copy()
    change(after)
    names = run.data.labels or ("LABEL_0",)
    return folders.changes(rows, run, Answering(task, tuple(names), 1.0, thresholds), before, after)


def test_what_the_same_logits_a_changed_answer_and_thresholds_change(folder: Path) -> None:
    found = compared(folder, CLASSES, lambda after: None)
    assert (found.largest, found.flipped) == (0.0, ())
    for one in found.metrics.values():
        assert one.run == one.exported
        assert one.low < one.difference == 0 < one.high, "other rows could still differ"
    found = compared(folder, CLASSES, lambda after: np.negative(after[4], out=after[4]))
    assert (found.flipped, found.largest_row) == ((4,), 4)
    assert [*found.metrics] == ["accuracy", "f1_macro"]
    accuracy = found.metrics["accuracy"]
    assert accuracy.difference == pytest.approx(accuracy.exported - accuracy.run) == pytest.approx(-1 / 24)
    assert accuracy.test == "exact McNemar test"
    plain = compared(folder, CLASSES, lambda after: after.__iadd__(np.array([1e-9, 0, 0])))
    strict = compared(folder, CLASSES, lambda after: None, **{"label 0": 0.0})
    assert plain.flipped == ()
    assert strict.metrics["accuracy"].run < plain.metrics["accuracy"].run, "label 0 is always chosen"


@pytest.mark.parametrize("task", [CLASSES, SEVERAL, SCORE])
@pytest.mark.parametrize("rows", [1, 2, 24])
def test_every_task_and_few_rows_have_finite_figures(task: str, rows: int, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", task=task, labels=3, rows=rows)
    for sign in (1, -1):
        found = compared(run, task, lambda after, sign=sign: after.__imul__(sign))
        figures = [value for one in found.metrics.values() for value in vars(one).values() if isinstance(value, float)]
        assert np.isfinite(figures).all()
        assert all(one.low <= one.high for one in found.metrics.values())
    assert found.largest > 0
    assert len(found.flipped) == (0 if task == SCORE else rows)


def test_runs_without_predictions_or_texts_are_refused_and_rows_spread_evenly(says, folder: Path, tmp_path: Path) -> None:
    problem = f"{tmp_path}: the run has no stored predictions for validation rows, which an export is compared with"
    with says(problem, "train it again with validation rows, for example with --validation_share 0.1"):
        validation_rows(tmp_path, read_run(folder))
    path = tmp_path / "validation-predictions.jsonl"
    lines = [json.loads(line) for line in (folder / path.name).read_text().splitlines()]
    del lines[2]["text"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with says(f"{path}, line 3: there is no text or no label", "restore the file, or train the run again", ModelError):
        validation_rows(tmp_path, read_run(folder))
    for number, places in ((101, [0, 25, 50, 75, 100]), (3, [0, 1, 2])):
        assert folders.StoredRows("validation", [{"text": "a"}] * number, ("text",), Path("file")).spread(5) == places


def measured(seconds: float, rounds: int) -> tuple[dict[str, float], list[str]]:
    now, calls = [0.0], []

    def forward(rows: object, name: str) -> None:
        calls.append(name)
        now[0] += seconds

    predictors = {name: SimpleNamespace(forward=partial(forward, name=name)) for name in ("one", "other")}
    return folders.speeds(predictors, [None] * 6, rounds=rounds, clock=lambda: now[0]), calls


def test_predictors_are_measured_in_turns_after_a_warm_up_and_slow_ones_once() -> None:
    assert measured(2.0, 2) == ({"one": 3.0, "other": 3.0}, ["one", "other"] * 3)
    assert measured(100.0, 9) == ({"one": 0.06, "other": 0.06}, ["one", "other"] * 2)


def test_versions_and_folders_that_are_no_run(tmp_path: Path) -> None:
    refuse_other_folders(tmp_path / "gone")  # opening it reports that
    with pytest.raises(ModelError, match="is not a run folder"):
        refuse_other_folders(tmp_path)
    (tmp_path / "config.json").touch()
    with pytest.raises(SettingsError, match="is a model without a run"):
        refuse_other_folders(tmp_path)
    (tmp_path / "export.json").touch()
    with pytest.raises(SettingsError, match="is an export already"):
        refuse_other_folders(tmp_path)
    assert [*versions_of("torch")] == ["torch", "transformers"]
    pytest.importorskip("onnxscript")
    assert [*versions_of("onnx")] == ["torch", "transformers", "onnx", "onnxscript", "onnxruntime"]


@pytest.mark.slow
@pytest.mark.parametrize("step", ["write_model", "compared", "readme_text"])
def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    run = make_run(tmp_path / "run", rows=3)

    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(folders, "write_model", lambda *_: None)
    monkeypatch.setattr(folders, "compared", lambda *_, **__: SimpleNamespace(check=None))
    monkeypatch.setattr(folders, step, fail)
    with pytest.raises(KeyboardInterrupt):
        folders.export_run(run, "torch", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


CHANGED = MetricChange(0.85, 0.845, -0.005, -0.0101, 0.002, 0.5, "exact McNemar test")
SIZES = {"exported": 22_900_000, "run": 90_900_000}
SPEEDS = {"exported": 150.0, "glassloop": 120.0, "transformers": 100.0}
CHECK = ExportCheck("validation", 408, 0.2143, 7, (7, 90), {"accuracy": CHANGED}, SIZES, SPEEDS, 2)


def record_of(kind: str = "onnx", task: str = CLASSES) -> ExportRecord:
    return ExportRecord(kind, task, ("a", "b, c"), 64, ("input_ids",), "mrpc", RECORD)


def example_code(record: ExportRecord, *, calibrated: bool) -> str:
    """Return the Python in the README that predicts without Glassloop."""
    text = readme_text(record, CHECK, calibrated=calibrated, has_reference=False)
    return text.partition("```python\n")[2].partition("```")[0]


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


def test_the_readme_has_the_lines_and_figures_of_its_model_and_names_are_text() -> None:
    texts = {kind: readme_text(record_of(kind), CHECK, calibrated=True, has_reference=True) for kind in MODEL_FILES}
    assert [kind for kind, text in texts.items() if "AOTInductor" in text] == ["torch"]
    columns = replace(RECORD.data.columns, text_pair="second")
    record = replace(record_of(), run=replace(RECORD, data=replace(RECORD.data, columns=columns)))
    assert '(["a text"], ["a second text"], ' in example_code(record, calibrated=False)
    assert '(["a text"], truncation' in example_code(record_of(), calibrated=False)
    text = readme_text(record_of("onnx-int8"), CHECK, calibrated=False, has_reference=True)
    assert "| accuracy | 0.8500 | 0.8450 | -0.0050 | -0.0101 to +0.0020 |" in text
    assert "2 of 408 answers changed" in text
    assert "- this model: 150 rows per second" in text
    assert "reference.jsonl" in text
    assert "calibration.json" not in text
    assert "reference.jsonl" not in readme_text(record_of(), CHECK, calibrated=True, has_reference=False)
    hostile = "<script>alert(1)</script> | [x](http://a.b)"
    record = replace(record_of(), name=hostile, run=replace(RECORD, metrics=("f1",), positive_label=hostile))
    check = replace(CHECK, metrics={"f1": CHECK.metrics["accuracy"]})
    text = readme_text(record, check, calibrated=False, has_reference=False)
    assert "<script>" not in text
    assert "http://" not in text
    assert len(next(line for line in text.splitlines() if "0.8500" in line).replace("\\|", "").split("|")) == 7


ROWS = tuple(FlippedRow(row, "a", "a", "b, c", ("first\x1b[31m text", "second")) for row in (7, 90))


def shown(task: str = CLASSES, flipped: tuple[FlippedRow, ...] = ROWS) -> str:
    stream, folder = io.StringIO(), Path("runs/mrpc-onnx-int8")
    exported = folders.Exported(folder, record_of("onnx-int8", task), CHECK, flipped)
    folders.show_export(Console(file=stream, width=120), exported)
    return stream.getvalue()


def test_every_figure_is_shown() -> None:
    text = shown()
    assert "validation, 408 rows" in text
    assert text.splitlines()[1].split() == ["accuracy", "0.8500", "0.8450", "-0.0050", "-0.0101..+0.0020"]
    assert "largest difference of logits: 0.21 (row 7)" in text
    assert "answers that changed: 2 of 408" in text
    assert "  row 7 [a] a → b, c: first\\x1b[31m text | second" in text
    assert "size: 22.9 MB (25% of the run's 90.9 MB)" in text
    assert "rows per second with 2 threads: 150\n  1.25x Glassloop (120), 1.50x transformers (100)\n" in text
    assert all(len(line) <= 80 for line in text.splitlines() if "row 7" in line)
    assert text.rstrip().endswith("onnx-int8 → runs/mrpc-onnx-int8")
    assert "answers" not in shown(SCORE, ())
    many = tuple(replace(ROWS[0], row=row) for row in range(13))
    assert "  and 3 more; --json lists all" in shown(flipped=many)
