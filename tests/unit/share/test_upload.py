"""Which files are uploaded, and the upload itself, to a small hub on this machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fake_hub import TOKEN, Hub, fake_hub
from run_folders import RECORD

from glassloop.base.errors import ModelError, ResourceError, SettingsError
from glassloop.runs.export import ExportCheck, ExportRecord, checksums, read_export, write_export
from glassloop.share.upload import published_files, pushed, upload


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with everything that may lie beside a model."""
    folder = tmp_path / "model"
    named = {
        **{"config.json": "{}", "model.safetensors": "x" * 5000, "tokenizer.json": '{"/a/b/c": 1}', "vocab.txt": "a"},
        **{"README.md": "---\nlibrary_name: transformers\n---\n# it\n", "calibration.json": "{}"},
        **dict.fromkeys(("adapter/adapter_config.json", "run.json", "trainer_state.json", "checkpoint-3/config.json"), "{}"),
        **dict.fromkeys(("optimizer.pt", "training_args.bin", "history.jsonl", "report.html", ".hidden/config.json"), ""),
        "validation-predictions.jsonl": "",
    }
    for name, text in named.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "link.json").symlink_to(folder / "run.json")
    return folder


NAMES = ["README.md", "adapter/adapter_config.json", "calibration.json", "config.json", "model.safetensors", "tokenizer.json"]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch):
    from huggingface_hub import constants

    with fake_hub() as found:
        for name, value in {"ENDPOINT": found.address, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setenv("HF_ENDPOINT", found.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield found


def test_only_what_belongs_to_a_model_is_uploaded_and_local_paths_are_shortened(model: Path, tmp_path: Path) -> None:
    assert [file.name for file in published_files(model)] == [*NAMES, "vocab.txt"]
    more = published_files(model, {"report.html": model / "report.html"})
    assert more[-1].name == "report.html"
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="there is no model to upload"):
        published_files(tmp_path / "empty")
    (model / "config.json").write_text(json.dumps({"_name_or_path": "/home/me/base", "list": ["/a/b/c", "/"], "n": 1}))
    found = {file.name: file for file in published_files(model)}
    assert json.loads(found["config.json"].content or b"") == {"_name_or_path": "base", "list": ["c", "/"], "n": 1}
    assert found["tokenizer.json"].content is None, "the words of a tokenizer are kept"
    (model / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json: cannot be read"):
        published_files(model)


def test_the_record_of_an_export_is_uploaded_without_local_paths(tmp_path: Path) -> None:
    """And without the stored texts. What arrives is a whole export."""
    folder, arrived = tmp_path / "export", tmp_path / "arrived"
    folder.mkdir()
    arrived.mkdir()
    for name, text in {"config.json": '{"_name_or_path": "/home/me/bert"}', "model.onnx": "x", "reference.jsonl": "{}"}.items():
        (folder / name).write_text(text)
    data = replace(RECORD.data, source="/home/me/secret/rows.csv", labels=("/a/b/c", "d"))
    run = replace(RECORD, data=data, model=replace(RECORD.model, name="/home/me/bert"))
    check = ExportCheck("validation", 1, 0.0, 0, (), {}, {}, {}, 1)
    record = ExportRecord("onnx", data.task, data.labels, 64, ("input_ids",), "run", run, files=checksums(folder), check=check)
    write_export(folder, record)
    for file in published_files(folder):
        (arrived / file.name).write_bytes(file.path.read_bytes() if file.content is None else file.content)
    assert sorted(path.name for path in arrived.iterdir()) == ["config.json", "export.json", "model.onnx"]
    assert not any(b"/home/me" in path.read_bytes() for path in arrived.iterdir())
    found = read_export(arrived).run
    assert (found.data.source, found.model.name, found.data.labels) == ("rows.csv", "bert", ("/a/b/c", "d"))


def test_a_model_arrives_on_the_hub(model: Path, hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    (model / "config.json").write_text(json.dumps({"_name_or_path": "/home/me/base"}))
    assert upload(model, "me/it", "first", private=True) == f"{hub.address}/me/it"
    assert hub.created["me/it"]["name"] == "it"
    assert "private" in json.dumps(hub.created["me/it"])
    assert sorted(hub.files) == [*NAMES, "vocab.txt"]
    assert hub.files["model.safetensors"] == b"x" * 5000
    assert json.loads(hub.files["config.json"]) == {"_name_or_path": "base"}
    assert hub.messages == ["main: first"]
    assert "config.json: local paths are shortened to their last parts" in capsys.readouterr().err
    upload(model, "me/it", "second", revision="v2")
    assert hub.messages == ["main: first", "v2: second"]


def test_errors_of_the_hub_say_what_to_do_and_name_the_folder(model: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.refuses = 403
    with pytest.raises(ResourceError) as caught:
        upload(model, "me/it", "first")
    assert caught.value.problem.startswith("the upload of me/it failed: ")
    assert "You have read access only." in caught.value.problem
    with pytest.raises(ResourceError, match=r"failed: .*401"):
        upload(model, "me/it", "first", token="hf_wrong")
    assert "hf_wrong" not in str(caught.value)
    hub.refuses = 0
    with pytest.raises(ResourceError, match="the upload of me/it failed: Server disconnected"):
        upload(model, "me/it", "first")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(ResourceError) as caught:
        upload(model, "me/it", "first")
    assert caught.value.problem == "there is no access token for the model hub"
    assert caught.value.remedy.startswith("run hf auth login, or set HF_TOKEN; the model is saved in ")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ResourceError) as caught:
        upload(model, "me/model", "End of training")
    assert caught.value.problem == "the model hub cannot be reached: HF_HUB_OFFLINE is set"
    assert str(model) in caught.value.remedy
    said = pushed(lambda: upload(model, "me/model", ""))
    assert said.startswith("the model was not uploaded: the model hub cannot be reached")
    with pytest.raises(SettingsError, match='"a b" is not the name of a repository'):
        upload(model, "a b", "")
