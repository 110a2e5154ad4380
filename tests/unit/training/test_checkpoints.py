"""A checkpoint holds everything, is complete or refused, and says what is wrong with it."""

from __future__ import annotations

import errno
import json
import os
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import tiny_model
from safetensors.torch import save_file

from glassloop.base.errors import ModelError, ResourceError
from glassloop.base.records import sealed
from glassloop.runs.record import checkpoints_in, step_of
from glassloop.training.checkpoints import (
    FORMAT,
    MANIFEST,
    CheckpointFolder,
    Saver,
    Snapshot,
    open_checkpoint,
    optimizer_tensors,
    random_tensors,
    refuse_other_identity,
    refuse_other_tensors,
    restore_optimizer,
    restore_random,
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
        ({"a": torch.zeros(2), "b": torch.zeros(1)}, "the tensor b is unknown"),
    ],
)
def test_other_tensors_are_named(found: dict, text: str) -> None:
    with pytest.raises(ModelError, match=text):
        refuse_other_tensors({"a": "(2,) torch.float32"}, found, "model")


def test_changed_settings_stand_side_by_side() -> None:
    rows = torch.arange(3)
    refuse_other_identity({"seed": 1}, {"seed": 1}, rows, rows)
    with pytest.raises(ModelError, match=r"learning_rate: 0.1 then, 0.2 now; seed: 1 then, None now"):
        refuse_other_identity({"learning_rate": 0.1, "seed": 1}, {"learning_rate": 0.2}, rows, rows)


def test_rows_that_a_run_had_not_read_are_not_compared() -> None:
    stored = torch.tensor([1, 0, 3])
    refuse_other_identity({}, {}, stored, torch.tensor([1, 2, 3]))
    with pytest.raises(ModelError, match="1 rows edited"):
        refuse_other_identity({}, {}, stored, torch.tensor([1, 2, 4]))


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


# --- Which checkpoint is the newest, which make room, and that nothing unreadable is overwritten, counted or removed.


def save_model(folder: Path, weights: dict[str, Any]) -> None:
    save_file(weights, folder / "model.safetensors")


def snapshot(step: int) -> Snapshot:
    plain = {"state": {"step": step, "best_step": None}}
    return Snapshot({"weight": torch.full((4,), float(step))}, {}, {}, [], torch.arange(3), plain, {"seed": 1})


def filled(folder: Path, *steps: int) -> tuple[CheckpointFolder, list[str]]:
    """A checkpoints of another process, and what it reports."""
    first = CheckpointFolder(folder, print)
    for step in steps:
        first.write(snapshot(step), save_model)
    said: list[str] = []
    return CheckpointFolder(folder, said.append), said


def steps(folder: Path) -> list[int]:
    return [step_of(path) for path in checkpoints_in(folder)]


def damage(folder: Path, *numbers: int) -> None:
    for number in numbers:
        (folder / f"checkpoint-{number}" / "state.json").write_text("{")


def test_a_damaged_checkpoint_makes_no_good_one_go(tmp_path: Path) -> None:
    """The new one is of a lower step than the damaged ones: it used to be counted as the oldest, and removed."""
    checkpoints, said = filled(tmp_path, 20, 30, 40)
    damage(tmp_path, 30, 40)
    written = checkpoints.write(snapshot(21), save_model)
    checkpoints.rotate(written, 2, None)
    assert steps(tmp_path) == [40, 30, 21, 20]
    written = checkpoints.write(snapshot(22), save_model)
    checkpoints.rotate(written, 2, None)
    assert steps(tmp_path) == [40, 30, 22, 21], "two that are intact, and what cannot be read"
    written = checkpoints.write(snapshot(50), save_model)
    checkpoints.rotate(written, 2, None)
    assert steps(tmp_path) == [50, 40, 30, 22]
    assert len(said) == 2, "each is reported once"
    assert all("state.json is damaged" in line for line in said)


def test_the_one_just_written_is_never_removed(tmp_path: Path) -> None:
    """After a resume from an earlier one; later ones wait until training has passed them."""
    checkpoints, _ = filled(tmp_path, 5, 10, 15)
    written = checkpoints.write(snapshot(7), save_model)
    checkpoints.rotate(written, 1, None)
    assert steps(tmp_path) == [15, 10, 7]
    written = checkpoints.write(snapshot(16), save_model)
    checkpoints.rotate(written, 1, 10)
    assert steps(tmp_path) == [16, 10], "10 is that of the best evaluation"
    checkpoints.rotate(written, None, None)
    assert steps(tmp_path) == [16, 10]


def test_rotation_reads_only_what_it_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints, _ = filled(tmp_path, 1, 2)
    read: list[str] = []
    monkeypatch.setattr(
        "glassloop.training.checkpoints.open_checkpoint", lambda path: read.append(path.name) or open_checkpoint(path)
    )
    for step in range(3, 8):
        checkpoints.rotate(checkpoints.write(snapshot(step), save_model), 2, None)
    assert steps(tmp_path) == [7, 6]
    assert read == ["checkpoint-2", "checkpoint-1"]


@pytest.mark.parametrize("kind", ["damaged", "newer", "a file"])
def test_what_cannot_be_read_is_moved_aside_not_overwritten(tmp_path: Path, kind: str) -> None:
    checkpoints, said = filled(tmp_path, 3)
    path = tmp_path / "checkpoint-3"
    if kind == "a file":
        path = tmp_path / "checkpoint-4"
        path.write_text("mine")
    elif kind == "damaged":
        damage(tmp_path, 3)
    else:
        manifest = json.loads((path / MANIFEST).read_text()) | {"format": 99}
        (path / MANIFEST).write_text(json.dumps(sealed(manifest)))
    before = path.read_text() if path.is_file() else (path / MANIFEST).read_text()
    for _ in range(2):
        checkpoints.write(snapshot(step_of(path)), save_model)
    kept = tmp_path / f"{path.name}.kept-1"
    assert (kept.read_text() if kept.is_file() else (kept / MANIFEST).read_text()) == before
    assert open_checkpoint(path).manifest["step"] == step_of(path)
    assert [line for line in said if "moved aside" in line] == [f"moved aside: {path} is now {kept.name}"]
    assert not list(tmp_path.glob("*.kept-2")), "an intact one is replaced"


def test_the_newest_intact_one_is_used_and_others_are_reported(tmp_path: Path) -> None:
    checkpoints, said = filled(tmp_path, 3, 6, 9)
    damage(tmp_path, 9)
    (tmp_path / "checkpoint-12").mkdir()
    (tmp_path / "step-7").mkdir()
    (tmp_path / "checkpoint-6" / ".DS_Store").write_bytes(b"x")
    found = checkpoints.newest()
    assert found is not None
    assert found.path.name == "checkpoint-6"
    assert ["manifest.json is missing" in said[0], "state.json is damaged" in said[1], len(said)] == [True, True, 2]
    assert CheckpointFolder(tmp_path / "none", said.append).newest() is None


def test_none_that_can_be_used_is_an_error_with_every_reason(tmp_path: Path) -> None:
    checkpoints, _ = filled(tmp_path, 3, 6)
    damage(tmp_path, 3)
    manifest = json.loads((tmp_path / "checkpoint-6" / MANIFEST).read_text()) | {"format": FORMAT + 1}
    (tmp_path / "checkpoint-6" / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ModelError) as caught:
        checkpoints.newest()
    for part in ("2 checkpoints", "checkpoint-3: state.json is damaged", "checkpoint-6: written in format 2 by a newer"):
        assert part in caught.value.problem
    assert "--restart" in caught.value.remedy
    assert caught.value.exit_code == 4


def test_a_restart_moves_all_of_them_aside(tmp_path: Path) -> None:
    checkpoints, said = filled(tmp_path, 3)
    checkpoints.restart()
    assert steps(tmp_path / "checkpoints.kept-1") == [3]
    checkpoints.restart()
    assert len(said) == 1
    checkpoints.write(snapshot(3), save_model)
    checkpoints.restart()
    assert steps(tmp_path / "checkpoints.kept-2") == [3]


def test_the_newest_has_the_highest_number_not_the_last_name(tmp_path: Path) -> None:
    checkpoints, _ = filled(tmp_path, 9, 10, 100)
    assert [path.name for path in checkpoints_in(tmp_path)] == ["checkpoint-100", "checkpoint-10", "checkpoint-9"]
    checkpoints.rotate(tmp_path / "checkpoint-100", 2, None)
    assert steps(tmp_path) == [100, 10]


def test_checkpoints_of_an_earlier_version_are_reported_and_moved_by_a_restart(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step-00000003").mkdir(parents=True)
    checkpoints = CheckpointFolder(tmp_path, print)
    with pytest.raises(ModelError, match="checkpoints/step-00000003 was written by an earlier version"):
        checkpoints.newest()
    checkpoints.restart()
    assert checkpoints.newest() is None
    assert (tmp_path / "checkpoints.kept-1" / "step-00000003").is_dir()


# --- Checkpoints are written behind the next steps: in order, and an error is raised at the next call.


def snapshot_saver(step: int, best_step: int | None = None) -> Snapshot:
    weights = {"weight": torch.full((4,), float(step))}
    plain = {"state": {"step": step, "best_step": best_step}}
    return Snapshot(weights, {}, {}, [{"torch": torch.get_rng_state()}], torch.arange(3), plain, {"seed": 1})


def save_model_saver(folder: Path, weights: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    save_file(weights, folder / "model.safetensors")


def test_snapshots_are_written_in_order_and_rotated_but_not_the_best(tmp_path: Path) -> None:
    saver = Saver(CheckpointFolder(tmp_path, print), 2, save_model_saver)
    for step in range(1, 6):
        saver.save(snapshot_saver(step, best_step=1))
    saver.wait()
    assert [path.name for path in checkpoints_in(tmp_path)] == ["checkpoint-5", "checkpoint-4", "checkpoint-1"]
    assert open_checkpoint(tmp_path / "checkpoint-5").weights()["weight"].tolist() == [5.0] * 4


def test_training_continues_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    gate = threading.Event()

    def slow(folder: Path, weights: dict[str, Any]) -> None:
        gate.wait(10)
        save_model_saver(folder, weights)

    saver = Saver(CheckpointFolder(tmp_path, print), None, slow)
    saver.save(snapshot_saver(1))
    assert checkpoints_in(tmp_path) == []
    gate.set()
    saver.wait()
    assert len(checkpoints_in(tmp_path)) == 1


def test_a_full_disk_is_reported_with_path_and_bytes_and_leaves_nothing(tmp_path: Path) -> None:
    def full(folder: Path, weights: dict[str, Any]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    saver = Saver(CheckpointFolder(tmp_path, print), None, full)
    saver.save(snapshot_saver(1))
    with pytest.raises(ResourceError) as caught:
        saver.wait()
    assert caught.value.exit_code == 6
    for part in (str(tmp_path), "No space left", "bytes needed", "free", "--resume"):
        assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    saver.wait()  # raised once


# --- The states of an optimizer and of random generators are restored bit for bit.


@pytest.mark.parametrize("fused", [True, False])
def test_the_optimizer_comes_back_bit_for_bit(fused: bool) -> None:
    first, second = tiny_model(), tiny_model()
    one, two = stepped(first, fused), torch.optim.AdamW(second.parameters(), lr=0.5, fused=fused)
    second.load_state_dict(first.state_dict())
    tensors, plain = optimizer_tensors(first, one)
    restore_optimizer(second, two, tensors, json.loads(json.dumps(plain)))
    for model, optimizer in ((first, one), (second, two)):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.3)
        optimizer.step()
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_random_states_come_back() -> None:
    tensors, plain = random_tensors(CPU)
    expected = (random.random(), np.random.rand(), torch.rand(3).tolist())
    restore_random(tensors, json.loads(json.dumps(plain)), CPU)
    assert (random.random(), np.random.rand(), torch.rand(3).tolist()) == expected


def test_the_step_and_the_size_of_a_snapshot() -> None:
    weights = {"a": torch.zeros(3), "b": torch.zeros(2, dtype=torch.int64)}
    snapshot = Snapshot(weights, {"c": torch.zeros(1)}, {}, [], torch.zeros(5), {"state": {"step": 7}}, {})
    assert (snapshot.step, snapshot.num_bytes) == (7, 12 + 16 + 4 + 20)


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({"exp_avg/unknown": torch.zeros(2)}, "exp_avg/unknown does not belong to a parameter of the model"),
        ({"exp_avg/classifier.bias": torch.zeros(7)}, "exp_avg/classifier.bias has the shape"),
    ],
)
def test_the_state_of_another_models_optimizer_is_refused(tensors: dict[str, torch.Tensor], problem: str) -> None:
    model = tiny_model()
    with pytest.raises(ModelError, match=problem):
        restore_optimizer(model, stepped(model), tensors, {"groups": []})
