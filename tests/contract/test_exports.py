"""Exports: every family and task in each format has the answers of its run, through Glassloop and through its own README."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from families import FAMILIES
from run_folders import make_run, sentence

from glassloop import Predictor
from glassloop.base.errors import ModelError, SettingsError
from glassloop.models.pooled import Pooling
from glassloop.predictor import Wanted, evaluate_run
from glassloop.runs.export import MODEL_FILES, checksums, read_record, write_export
from glassloop.runs.record import Calibration, read_run, weights_of, write_calibration, write_run
from glassloop.serve.hosted import load_hosted
from glassloop.settings.file import GivenSettings
from glassloop.settings.training import CLASSES, POOLING_MODES, SCORE, SEVERAL
from glassloop.share.export import Exported, export_run
from glassloop.study.run import train_run

TASKS = {"two": (CLASSES, 2), "many": (CLASSES, 150), "several": (SEVERAL, 4), "score": (SCORE, 1)}
ALLOWED = {"onnx": 1e-4, "torch": 1e-4, "onnx-int8": 0.5}  # of logits that are about 1 in random models of 32 numbers
has_onnx = find_spec("onnx") is not None and find_spec("onnxruntime") is not None
needs_onnx = pytest.mark.skipif(not has_onnx, reason="onnx or onnxruntime is not installed: pip install 'glassloop[onnx]'")
KINDS = [pytest.param(kind, marks=[] if kind == "torch" else needs_onnx) for kind in MODEL_FILES]


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
@pytest.mark.sample(1)
def test_every_family(kind: str, family: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", family, pairs=True, rows=8)
    found = exported(run, kind)
    logits_agree(run, found, pairs=True)
    assert found.check.largest_difference <= ALLOWED[kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TASKS)
@pytest.mark.sample(3)
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
    if kind != "torch":
        any_runtime_knows(found.folder / "model.onnx", record.inputs, kind)
    logits_agree(run, found, pairs=False)
    (hosted,) = load_hosted([str(found.folder)], "cpu")
    assert hosted.checked == 16
    if kind != "onnx-int8":  # whose README has the lines of "onnx"
        assert readme_answers(found.folder) == answers_of(found.folder)


def any_runtime_knows(file: Path, inputs: Sequence[str], kind: str) -> None:
    """Standard operators only, inputs by name, free sizes, integers only if asked for, and no path of this machine."""
    import onnx

    graph = onnx.load(file).graph
    onnx.checker.check_model(file)
    assert [entry.name for entry in graph.input] == [*inputs]
    assert [entry.name for entry in graph.output] == ["logits"]
    assert {node.domain for node in graph.node} <= {"", "ai.onnx"}
    assert all(size.dim_param for size in graph.input[0].type.tensor_type.shape.dim), "rows and tokens are free"
    assert ("MatMulInteger" in {node.op_type for node in graph.node}) == (kind == "onnx-int8")
    assert b"site-packages" not in file.read_bytes()


def readme_answers(folder: Path) -> object:
    """What the lines in the README print, in a process that cannot import Glassloop."""
    return rounded(json.loads(run_lines(folder, python_blocks(folder)[0])))


def python_blocks(folder: Path) -> list[str]:
    """The lines of Python in the README of an export."""
    return re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)


def run_lines(folder: Path, code: str) -> str:
    """What some lines print in a folder, in a process that cannot import Glassloop."""
    guard = "import sys; sys.modules['glassloop'] = None\n"
    done = subprocess.run([sys.executable, "-c", guard + code], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


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


LOADED = """
from transformers import AutoTokenizer
model, tokenizer = torch._inductor.aoti_load_package("compiled.pt2"), AutoTokenizer.from_pretrained(".")
for texts in (["good"], ["bad", "a very very good film"]):
    batch = tokenizer(texts, padding=True, return_attention_mask=True)
    print(json.dumps(model(*(torch.tensor(batch[name]) for name in record["inputs"])).tolist()))
"""


@pytest.mark.exhaustive  # twenty seconds of compiling; test_every_task runs the other lines of the same README
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")
def test_the_lines_for_aotinductor_compile_the_program(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "bert", rows=8)
    folder = exported(run, "torch").folder
    printed = [json.loads(line) for line in run_lines(folder, python_blocks(folder)[1] + LOADED).splitlines()]
    predictor = Predictor(run, device="cpu")
    for texts, logits in zip((["good"], ["bad", "a very very good film"]), printed, strict=True):
        np.testing.assert_allclose(predictor.logits(texts), logits, atol=1e-4)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory, session_cache: Path) -> Path:
    """An export whose run was calibrated so that the most likely class of "a text" is not chosen."""
    run = make_run(tmp_path_factory.mktemp("calibrated") / "run", "bert", CLASSES, 3)
    scores = Predictor(run, device="cpu").predict("a text")[0].scores
    likely = max(scores, key=lambda name: scores[name])
    found = Calibration(2.0, {likely: 0.99}, None, None, "validation", 24, "", "", 5, (), weights_of(run / "model"))
    write_calibration(run / "model", found)
    return exported(run, "torch").folder


def test_the_calibration_is_used_with_and_without_glassloop(calibrated: Path) -> None:
    (likely,) = json.loads((calibrated / "calibration.json").read_text())["thresholds"]
    predictor = Predictor(calibrated, device="cpu")
    assert (predictor.answering.temperature, predictor.answering.thresholds) == (2.0, {likely: 0.99})
    assert readme_answers(calibrated) == answers_of(calibrated)
    assert predictor.predict("a text")[0].label != likely


def test_a_server_refuses_an_export_that_answers_otherwise(calibrated: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(calibrated, tmp_path / "changed")
    lines = [json.loads(line) for line in (folder / "reference.jsonl").read_text().splitlines()]
    lines[3]["logits"][0] += 0.1
    (folder / "reference.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_export(folder, replace(read_record(folder), files=checksums(folder)))
    with pytest.raises(ModelError) as caught:
        load_hosted([str(folder)], "cpu")
    assert "does not repeat its own predictions for reference rows (rows " in caught.value.problem


def test_an_export_has_its_own_precision(calibrated: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        Predictor(calibrated, device="cpu", precision="bf16")
    assert caught.value.problem == f"{calibrated}: an exported model has its own precision, not bf16"


def test_evaluate_predict_and_files_take_an_export(calibrated: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\n" + "".join(f"{sentence(row)},label {row % 3}\n" for row in range(9)))
    found = evaluate_run(str(calibrated), Wanted(str(rows), device="cpu"))
    assert {"eval_accuracy", "eval_f1_macro"} <= {*found.metrics}
    assert Predictor(calibrated, device="cpu").predict_file(rows, tmp_path / "out.csv") == 9


def test_texts_may_be_left_out(tmp_path: Path) -> None:
    found = exported(make_run(tmp_path / "run", rows=8), "torch", stores_texts=False)
    written = "".join(path.read_text() for path in found.folder.iterdir() if path.suffix in (".json", ".jsonl", ".md"))
    assert sentence(5) not in written
    (hosted,) = load_hosted([str(found.folder)], "cpu")
    assert hosted.checked == 0


def test_nothing_of_this_machine_is_in_the_model(calibrated: Path) -> None:
    with zipfile.ZipFile(calibrated / "model.pt2") as archive:
        assert not [name for name in archive.namelist() if b"site-packages" in archive.read(name)]


# --- pooled heads, on single texts, on pairs as one sequence, and on pairs in two towers
TEXTS = [*(sentence(row) for row in range(13)), "very " * 60, "good"]


def pooled_export_agrees(run: Path, kind: str, pairs: bool) -> None:
    """The export has the logits of its run for several batches, one row, and rows that are cut; so do the README's lines."""
    found = exported(run, kind)
    ours, theirs = Predictor(run, device="cpu"), Predictor(found.folder, device="cpu", batch_size=5)
    for texts in (TEXTS, ["good"], ["very " * 60], ["very " * 60, "a"]):
        columns = [texts, texts[::-1]] if pairs else [texts]
        np.testing.assert_allclose(theirs.logits(*columns), ours.logits(*columns), atol=ALLOWED[kind])
    assert found.check.largest_difference <= ALLOWED[kind]
    assert not [path for path in found.folder.iterdir() if path.is_dir() or path.name == "modules.json"]
    (hosted,) = load_hosted([str(found.folder)], "cpu")
    assert hosted.checked == 16
    if kind != "onnx-int8":
        assert readme_answers(found.folder) == answers_of(found.folder)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", POOLING_MODES)
@pytest.mark.parametrize("pair_form", ["one text", "one sequence", "two towers"])
@pytest.mark.sample(4)
def test_every_pooling(kind: str, mode: str, pair_form: str, tmp_path: Path) -> None:
    pooling = Pooling(mode, normalize=mode in ("mean", "last"), towers=pair_form == "two towers")
    pairs = pair_form != "one text"
    pooled_export_agrees(make_run(tmp_path / "run", labels=3, pairs=pairs, pooling=pooling), kind, pairs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sample(1)
def test_a_frozen_encoder_exports_and_is_served(kind: str, lively_dir: Path, tmp_path: Path) -> None:
    lines = [f"{sentence(row)},{sentence(row + 5)},label {row % 3}" for row in range(90)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,text_pair,label", *lines]))
    settings = {"method": "frozen", "output_dir": str(tmp_path / "run"), "device": "cpu", "disable_tqdm": True}
    given = GivenSettings(str(tmp_path / "rows.csv"), str(lively_dir), settings, {"validation_share": 0.2})
    run = train_run(given, with_report=False)
    assert load_hosted([str(run)], "cpu")[0].checked == 16, "the server checks it on rows of the run"
    pooled_export_agrees(run, kind, pairs=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("towers", [False, True])
@pytest.mark.sample(1)
def test_pooled_heads_of_every_family(kind: str, family: str, towers: bool, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", family, pairs=True, pooling=Pooling("mean", towers=towers))
    pooled_export_agrees(run, kind, pairs=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", [SEVERAL, SCORE])
@pytest.mark.sample(1)
def test_two_towers_of_every_task(kind: str, task: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", task=task, labels=4, pairs=True, pooling=Pooling("mean", towers=True))
    pooled_export_agrees(run, kind, pairs=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sample(1)
def test_both_texts_of_two_towers_may_be_as_long_as_the_model_takes(kind: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", pairs=True, rows=8, pooling=Pooling("mean", towers=True))
    record = read_run(run)
    write_run(run, replace(record, max_length=64, settings=replace(record.settings, max_length=64)))
    columns = [["very " * 90, "a"], ["good " * 90, "good"]]
    ours, theirs = Predictor(run, device="cpu"), Predictor(exported(run, kind).folder, device="cpu")
    assert ours.encoded(columns).rows[0].num_tokens == 128, "more than the 80 positions that the model has"
    np.testing.assert_allclose(theirs.logits(*columns), ours.logits(*columns), atol=ALLOWED[kind])
