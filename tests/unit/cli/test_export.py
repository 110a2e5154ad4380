"""`glassloop export`: what is refused before any work, and where the folder is written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from run_folders import make_run

from glassloop.base.errors import ModelError
from glassloop.cli.export import export
from glassloop.share import conversion

pytestmark = pytest.mark.slow  # builds a model


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("made") / "run")


@pytest.fixture
def nothing_written(run: Path):
    yield
    assert [path.name for path in run.parent.iterdir()] == ["run"]


@pytest.mark.usefixtures("nothing_written")
def test_what_is_refused(says, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = '--to is "onnx_int8", not onnx, onnx-int8, torch or script; did you mean "onnx-int8"?'
    with says(problem, "use --to onnx|onnx-int8|torch|script"):
        export(str(run), "onnx_int8")
    gone = run.parent / "gone"
    with says(f"{gone}: there is no such folder", "name the folder of a finished run, or of a model", ModelError):
        export(str(gone), "torch")
    problem = f"{run / 'model'} is a model without a run: an export is compared with the run on its validation rows"
    with says(problem, "name the folder of a run, which glassloop train writes"):
        export(str(run / "model"), "torch")
    with says(f"{tmp_path} is not a run folder: run.json is missing", None, ModelError):
        export(str(tmp_path), "torch", str(tmp_path / "out"))
    (tmp_path / "file").touch()
    with says(f"{tmp_path} is not empty", "choose a new folder with --out"):
        export(str(run), "torch", str(tmp_path))
    monkeypatch.setattr(conversion, "find_spec", lambda name: None if name == "onnxscript" else name)
    with says("an export to onnx needs the package onnxscript", 'pip install "glassloop[onnx]"'):
        export(str(run), "onnx")


def test_a_changed_model(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "model" / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="changed since the run wrote it"):
        export(str(tmp_path / "run"), "torch")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_result_and_its_folder(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied = shutil.copytree(run, tmp_path / "mrpc")
    found = json.loads(str(export(str(copied), "torch")))
    out = tmp_path / "mrpc-torch"
    assert (found["out"], found["format"], found["rows"], found["flipped"]) == (str(out), "torch", 24, [])
    assert {"metrics", "num_bytes", "rows_per_second", "threads", "largest_difference"} <= {*found}
    assert f"torch → {out}" in capsys.readouterr().out.replace("\n", "")
    names = {"README.md", "config.json", "export.json", "model.pt2", "reference.jsonl", "tokenizer.json"}
    names |= {"tokenizer_config.json"}
    assert {path.name for path in out.iterdir()} == names
    with pytest.raises(Exception, match="is an export already"):
        export(str(out), "torch")
