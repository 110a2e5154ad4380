"""A checkpoint holds everything, is complete or refused, and says what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from families import tiny_model
from safetensors.torch import save_file

from glassloop.base.errors import ModelError
from glassloop.base.records import sealed
from glassloop.training.checkpoints import (
    FORMAT,
    MANIFEST,
    Snapshot,
    open_checkpoint,
    optimizer_tensors,
    random_tensors,
    refuse_other_identity,
    refuse_other_tensors,
    row_changes,
    write_checkpoint,
)

CPU = torch.device("cpu")


def stepped(model: torch.nn.Module, fused: bool = True) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A checkpoint of step 3."""
    model = tiny_model()
    optimizer, plain = optimizer_tensors(model, stepped(model))
    tensors, plain_random = random_tensors(CPU)
    content = {"state": {"step": 3}, "optimizer": plain, "random": [plain_random]}
    snapshot = Snapshot(model.state_dict(), optimizer, {}, [tensors], torch.arange(5), content, {"seed": 1})
    write_checkpoint(
        tmp_path / "checkpoint-3", snapshot, lambda folder, weights: model.save_pretrained(folder, state_dict=weights)
    )
    return tmp_path / "checkpoint-3"


def test_weights_load_as_an_ordinary_model_folder(written: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    loaded = AutoModelForSequenceClassification.from_pretrained(written)
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in open_checkpoint(written).weights().items())
    assert {path.suffix for path in written.rglob("*") if path.is_file()} == {".safetensors", ".json"}


def test_every_file_is_in_the_manifest_and_every_damage_is_found(written: Path) -> None:
    files = [path for path in written.rglob("*") if path.is_file() and path.name != MANIFEST]
    assert {str(path.relative_to(written)) for path in files} == set(json.loads((written / MANIFEST).read_text())["files"])
    for path in files:
        content = path.read_bytes()
        for damage in (content[:-1], content[:10] + bytes([content[10] ^ 1]) + content[11:], None):
            path.unlink() if damage is None else path.write_bytes(damage)
            with pytest.raises(ModelError, match=path.name) as caught:
                open_checkpoint(written)
            assert caught.value.exit_code == 4
            path.write_bytes(content)


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"files": {}}', '{"files": {}, "format": 99}'])
def test_a_damaged_manifest_is_refused(written: Path, content: str | None) -> None:
    (written / MANIFEST).unlink() if content is None else (written / MANIFEST).write_text(content)
    with pytest.raises(ModelError):
        open_checkpoint(written)


def test_a_device_in_place_of_the_manifest_is_refused(written: Path) -> None:
    """Reading it would never end."""
    (written / "manifest.json").unlink()
    (written / "manifest.json").symlink_to("/dev/zero")
    with pytest.raises(ModelError, match=r"manifest\.json is missing or damaged"):
        open_checkpoint(written)


def test_files_that_are_not_in_the_manifest_are_ignored(written: Path) -> None:
    for name in (".DS_Store", "state.json~", ".#config.json", "pytorch_model.bin"):
        (written / name).write_bytes(b"x")
    (written / "notes").mkdir()
    assert open_checkpoint(written).manifest["step"] == 3


def test_a_newer_format_is_reported_as_such(written: Path) -> None:
    manifest = json.loads((written / MANIFEST).read_text()) | {"format": FORMAT + 1, "sum": "another way"}
    (written / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ModelError, match=f"format {FORMAT + 1} by a newer version of Glassloop") as caught:
        open_checkpoint(written)
    assert caught.value.remedy == "update Glassloop"


@pytest.mark.parametrize(
    "files", [{"state.json": None}, {"state.json": {"size": 1}}, ["state.json"], {"a\0b": {"size": 1, "sha256": ""}}]
)
def test_a_manifest_of_other_types_is_damaged(written: Path, files: object) -> None:
    manifest = json.loads((written / MANIFEST).read_text()) | {"files": files}
    (written / MANIFEST).write_text(json.dumps(sealed(manifest)))
    with pytest.raises(ModelError):
        open_checkpoint(written)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({}, "the tensor a is missing"),
        ({"a": torch.zeros(3)}, r"the tensor a is \(3,\) torch.float32, not \(2,\) torch.float32"),
        ({"a": torch.zeros(2, dtype=torch.float16)}, "torch.float16, not"),
        ({"a": torch.zeros(2), "b": torch.zeros(1)}, "the tensor b does not belong to the model"),
    ],
)
def test_other_tensors_are_named(found: dict, text: str) -> None:
    with pytest.raises(ModelError, match=text):
        refuse_other_tensors({"a": torch.zeros(2)}, found, "model")


def test_changed_settings_stand_side_by_side() -> None:
    rows = torch.arange(3)
    refuse_other_identity({"seed": 1}, {"seed": 1}, rows, rows)
    with pytest.raises(ModelError, match=r"learning_rate: 0.1 then, 0.2 now; seed: 1 then, None now"):
        refuse_other_identity({"learning_rate": 0.1, "seed": 1}, {"learning_rate": 0.2}, rows, rows)


@pytest.mark.parametrize(
    ("after", "text"),
    [
        ([1, 2, 3, 4], "3 rows then, 4 now (1 added)"),
        ([1, 2], "3 rows then, 2 now (1 removed)"),
        ([1, 3, 2], "the same rows in another order (from row 2 on)"),
        ([1, 9, 3], "1 rows edited (first row 2)"),
    ],
)
def test_what_happened_to_the_rows_is_reported(after: list[int], text: str) -> None:
    assert row_changes(torch.tensor([1, 2, 3]), torch.tensor(after)) == text


def test_a_checkpoint_of_transformers_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "optimizer.pt").touch()
    with pytest.raises(ModelError) as caught:
        open_checkpoint(tmp_path)
    assert (
        caught.value.problem == f"checkpoint {tmp_path} was written by transformers' Trainer, which cannot be resumed exactly"
    )
    assert caught.value.remedy == f"start a new training from its model: model={tmp_path}"


@pytest.mark.parametrize(
    ("change", "beside"), [(lambda value: value, False), (lambda value: value + 1, True), (lambda value: value.half(), True)]
)
def test_weights_are_written_beside_a_model_that_does_not_hold_them(tmp_path: Path, change: Any, beside: bool) -> None:
    weights = {"weight": torch.ones(3)}
    snapshot = Snapshot(weights, {}, {}, [], torch.arange(2), {"state": {"step": 1}}, {}, {"words.txt": "mine"})
    write_checkpoint(
        tmp_path / "checkpoint-1",
        snapshot,
        lambda folder, given: save_file({"weight": change(given["weight"])}, folder / "model.safetensors"),
    )
    found = open_checkpoint(tmp_path / "checkpoint-1")
    assert torch.equal(found.weights()["weight"], weights["weight"])
    assert (found.path / "weights.safetensors").exists() == beside
    assert "words.txt" in found.manifest["files"]
