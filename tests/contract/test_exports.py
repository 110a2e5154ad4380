"""Exports: every family and task in each format has the answers of its run, through Glassloop and through its own README."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from families import FAMILIES
from made_runs import make_run, sentence

from glassloop import Predictor
from glassloop.errors import ModelError
from glassloop.exporting.folder import Exported, export_run
from glassloop.run_folder.export_json import MODEL_FILES, read_record
from glassloop.serving.hosted import load_hosted
from glassloop.settings import CLASSES, SCORE, SEVERAL

TASKS = {"two": (CLASSES, 2), "many": (CLASSES, 150), "several": (SEVERAL, 4), "score": (SCORE, 1)}
ALLOWED = {"onnx": 1e-4, "torch": 1e-4, "onnx-int8": 0.5}  # of logits that are about 1 in random models of 32 numbers
has_onnx = find_spec("onnx") is not None and find_spec("onnxruntime") is not None
KINDS = [pytest.param(kind, marks=[] if has_onnx or kind == "torch" else pytest.mark.skip("onnx")) for kind in MODEL_FILES]


def exported(folder: Path, kind: str, **options: bool) -> Exported:
    return export_run(folder, kind, folder.with_name(f"{folder.name}-{kind}"), **options)


def logits_agree(run: Path, found: Exported, pairs: bool) -> None:
    """Batches of other sizes than the example, with padding, one row, and the longest row."""
    ours, theirs = Predictor(run, device="cpu"), Predictor(found.folder, device="cpu", batch_size=5)
    for texts in ([sentence(row) for row in range(13)], ["good"], ["very " * 60]):
        columns = [texts, [*reversed(texts)]] if pairs else [texts]
        np.testing.assert_allclose(theirs.logits(*columns), ours.logits(*columns), atol=ALLOWED[found.record.kind])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.sample(4)
def test_every_family(kind: str, family: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", family, pairs=True, rows=8)
    found = exported(run, kind)
    logits_agree(run, found, pairs=True)
    assert found.check.largest_difference <= ALLOWED[kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TASKS)
@pytest.mark.sample(4)
def test_every_task(kind: str, name: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "bert", *TASKS[name])
    found = exported(run, kind)
    check, record = found.check, read_record(found.folder)
    assert (check.rows, check.split, record.check) == (24, "validation", check)
    assert {*check.rows_per_second} == {"exported", "glassloop", "transformers"}
    assert [row.row for row in found.flipped] == [*check.flipped]
    if kind != "onnx-int8":
        assert check.flipped == ()
        assert all(abs(one.difference) < 1e-4 and one.low <= one.difference <= one.high for one in check.metrics.values())
    logits_agree(run, found, pairs=False)
    (hosted,) = load_hosted([str(found.folder)], "cpu")
    assert hosted.checked == 16
    assert readme_answers(found.folder) == answers_of(found.folder)


def readme_answers(folder: Path) -> object:
    """What the lines in the README print, in a process that cannot import Glassloop."""
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    guard = "import sys; sys.modules['glassloop'] = None\n"
    done = subprocess.run([sys.executable, "-c", guard + code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return rounded(json.loads(done.stdout))


def answers_of(folder: Path) -> object:
    predictor = Predictor(folder, device="cpu")
    pairs = predictor.run is not None and predictor.run.data.columns.text_pair is not None
    (found,) = predictor.predict(["a text"], ["a second text"] if pairs else None)
    return rounded({"scores": [found.label]} if predictor.task == SCORE else {"label": found.label, "scores": found.scores})


def rounded(value: object) -> object:
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    return (
        [rounded(part) for part in value] if isinstance(value, list) else round(value, 4) if isinstance(value, float) else value
    )


@pytest.mark.parametrize("task", [CLASSES, SEVERAL])
def test_the_readme_uses_the_calibration(task: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "bert", task, 3)
    (text,) = Predictor(run, device="cpu").predict("a text")
    likely = max(text.scores, key=lambda name: text.scores[name])
    calibration = {"temperature": 2.0, "thresholds": {likely: 0.99}}
    record = json.loads((run / "run.json").read_text())
    (run / "model" / "calibration.json").write_text(json.dumps(calibration))
    assert record["files"], "a finished run lists its files, and may have others beside them"
    found = exported(run, "torch")
    assert json.loads((found.folder / "calibration.json").read_text()) == calibration
    answers = readme_answers(found.folder)
    careful = Predictor(found.folder, device="cpu", temperature=2.0, thresholds={likely: 0.99}).predict("a text")[0]
    assert answers == rounded({"label": careful.label, "scores": careful.scores})
    assert careful.label != likely
    assert likely not in careful.label


def test_texts_may_be_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    found = exported(run, "torch", stores_texts=False)
    written = "".join(path.read_text() for path in found.folder.iterdir() if path.suffix in (".json", ".jsonl", ".md"))
    assert sentence(5) not in written
    (hosted,) = load_hosted([str(found.folder)], "cpu")
    assert hosted.checked == 0


def test_a_server_refuses_an_export_that_answers_otherwise(tmp_path: Path) -> None:
    found = exported(make_run(tmp_path / "run"), "torch")
    other = exported(make_run(tmp_path / "other", "roberta"), "torch")
    mixed = tmp_path / "mixed"
    shutil.copytree(found.folder, mixed)
    from dataclasses import replace

    from glassloop.run_folder.export_json import checksums, write_export

    lines = [json.loads(line) for line in (mixed / "reference.jsonl").read_text().splitlines()]
    lines[3]["logits"][0] += 0.1
    (mixed / "reference.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_export(mixed, replace(read_record(mixed), files=checksums(mixed)))
    with pytest.raises(ModelError) as caught:
        load_hosted([str(mixed)], "cpu")
    assert "does not repeat its own predictions for reference rows (rows " in caught.value.problem
    assert other.record.name == "other"
