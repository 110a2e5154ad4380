"""The exported folder: what it takes from the run, and that a failure leaves nothing. tests/contract has the formats."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import make_run

from glassloop.base.errors import ModelError, SettingsError
from glassloop.share import export as folders
from glassloop.share.export import export_run, refuse_other_folders, versions_of


def test_versions() -> None:
    assert [*versions_of("torch")] == ["torch", "transformers"]
    pytest.importorskip("onnxscript")
    assert [*versions_of("onnx")] == ["torch", "transformers", "onnx", "onnxscript", "onnxruntime"]


def test_folders_that_are_no_run(tmp_path: Path) -> None:
    refuse_other_folders(tmp_path / "gone")  # opening it reports that
    with pytest.raises(ModelError, match="is not a run folder"):
        refuse_other_folders(tmp_path)
    (tmp_path / "config.json").touch()
    with pytest.raises(SettingsError, match="is a model without a run"):
        refuse_other_folders(tmp_path)
    (tmp_path / "export.json").touch()
    with pytest.raises(SettingsError, match="is an export already"):
        refuse_other_folders(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["write_model", "compared", "readme_text"])
def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    run = make_run(tmp_path / "run", rows=3)

    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(folders, step, fail)
    if step == "compared":
        monkeypatch.setattr(folders, "write_model", lambda *_: None)
    if step == "readme_text":
        monkeypatch.setattr(folders, "write_model", lambda *_: None)
        monkeypatch.setattr(folders, "compared", lambda *_, **__: pytest.importorskip("types").SimpleNamespace(check=None))
    with pytest.raises(KeyboardInterrupt):
        export_run(run, "torch", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
