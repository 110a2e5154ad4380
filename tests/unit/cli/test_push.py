"""Test `glassloop push`: the files it lists, and the folders it refuses. The upload is tested in sharing/test_upload.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_folders import write_run_with_model

from glassloop.base.errors import ModelError, ResourceError
from glassloop.cli.push import push
from glassloop.runs.record import RUNNING


def test_a_dry_run_lists_the_files_and_an_edited_card_is_uploaded_as_it_is(tmp_path: Path, capsys) -> None:
    run = write_run_with_model(tmp_path / "run")
    (run / "report.html").write_text("texts")
    content = push(str(run), "me/it", dry_run=True).content
    assert [*content["files"]] == ["README.md", "config.json", "model.safetensors"]
    assert content["address"] is None
    assert "model.safetensors  7 bytes" in capsys.readouterr().out
    assert [*push(str(run), "me/it", with_report=True, dry_run=True).content["files"]][-1] == "report.html"
    assert [*push(str(run / "model"), "me/it", dry_run=True).content["files"]] == [*content["files"]]
    (run / "model" / "README.md").write_text("mine")
    assert push(str(run), "me/it", dry_run=True).content["files"]["README.md"] == 4


def test_what_cannot_be_uploaded(says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with says('"me/it/more" is not the name of a repository', "use owner/name, such as me/mrpc"):
        push(str(tmp_path), "me/it/more")
    with says(f"{tmp_path}/none: there is no such folder", None, ModelError):
        push(str(tmp_path / "none"), "me/it")
    with says(f"{tmp_path}: there is no model to upload", None, ModelError):
        push(str(tmp_path), "me/it")
    run = write_run_with_model(tmp_path / "running", status=RUNNING)
    with says(f"{run}: the run is not finished", f"train it to the end: glassloop train --resume {run}", ModelError):
        push(str(run), "me/it")
    run = write_run_with_model(tmp_path / "run")
    with says(f"{run}/report.html: there is no report to upload", f"write it first: glassloop report {run}", ModelError):
        push(str(run), "me/it", with_report=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with says("the model hub cannot be reached: HF_HUB_OFFLINE is set", None, ResourceError):
        push(str(run), "me/it")
