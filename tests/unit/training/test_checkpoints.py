"""A checkpoint holds everything, is complete or refused, says what is wrong with it, and knows what a training is."""

from __future__ import annotations

import errno
import json
import os
import random
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import tiny_model
from safetensors.torch import save_file
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR
from transformers import AutoModelForSequenceClassification

from glassloop.base.errors import ModelError, ResourceError
from glassloop.base.records import sealed
from glassloop.runs.record import checkpoints_in, step_of
from glassloop.training import checkpoints as module
from glassloop.training.checkpoints import MANIFEST, CheckpointFolder, Snapshot, differences, identified, open_checkpoint

CPU = torch.device("cpu")


def stepped(model: torch.nn.Module, fused: bool = True) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def change_manifest(path: Path, **values: Any) -> None:
    manifest = json.loads((path / MANIFEST).read_text()) | values
    (path / MANIFEST).write_text(json.dumps(sealed(manifest)))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A checkpoint of step 3."""
    model = tiny_model()
    optimizer, plain = module.optimizer_tensors(model, stepped(model))
    tensors, plain_random = module.random_tensors(CPU)
    content: Any = {"state": {"step": 3}, "optimizer": plain, "random": [plain_random]}
    snapshot = Snapshot(model.state_dict(), optimizer, {}, [tensors], torch.arange(5), content, {"seed": 1})
    path = tmp_path / "checkpoint-3"
    module.write_checkpoint(path, snapshot, lambda folder, weights: model.save_pretrained(folder, state_dict=weights))
    return path


def test_weights_load_as_an_ordinary_model_folder_and_every_damage_is_found(written: Path) -> None:
    loaded = AutoModelForSequenceClassification.from_pretrained(written).state_dict()
    assert all(torch.equal(value, loaded[name]) for name, value in open_checkpoint(written).weights().items())
    assert {path.suffix for path in written.rglob("*") if path.is_file()} == {".safetensors", ".json"}
    files = [path for path in written.rglob("*") if path.is_file() and path.name != MANIFEST]
    assert {str(path.relative_to(written)) for path in files} == set(json.loads((written / MANIFEST).read_text())["files"])
    for name in (".DS_Store", "state.json~", ".#config.json", "pytorch_model.bin"):
        (written / name).write_bytes(b"x")  # ignored: it is not in the manifest
    (written / "notes").mkdir()
    assert open_checkpoint(written).manifest["step"] == 3
    for path in files:
        content = path.read_bytes()
        for damage in (content[:-1], content[:10] + bytes([content[10] ^ 1]) + content[11:], None):
            path.unlink() if damage is None else path.write_bytes(damage)
            with pytest.raises(ModelError, match=path.name) as caught:
                open_checkpoint(written)
            assert caught.value.exit_code == 4
            path.write_bytes(content)


def test_damaged_newer_and_foreign_checkpoints_are_refused_by_name(written: Path, tmp_path: Path) -> None:
    whole = (written / MANIFEST).read_text()
    for files in [{"state.json": None}, {"state.json": {"size": 1}}, ["state.json"], {"a\0b": {"size": 1, "sha256": ""}}]:
        change_manifest(written, files=files)
        with pytest.raises(ModelError):
            open_checkpoint(written)
        (written / MANIFEST).write_text(whole)
    for content in (None, "", "{", "[]", '{"files": {}}', '{"files": {}, "format": 99}', Path("/dev/zero")):
        (written / MANIFEST).unlink(missing_ok=True)
        if isinstance(content, Path):
            (written / MANIFEST).symlink_to(content)  # reading a device would never end
        elif content is not None:
            (written / MANIFEST).write_text(content)
        with pytest.raises(ModelError, match="format 99" if "99" in str(content) else r"manifest\.json is missing or damaged"):
            open_checkpoint(written)
    (written / MANIFEST).unlink()
    manifest = json.loads(whole) | {"format": module.FORMAT + 1, "sum": "another way"}
    (written / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ModelError, match=f"format {module.FORMAT + 1} by a newer version of Glassloop") as caught:
        open_checkpoint(written)
    assert caught.value.remedy == "update Glassloop"
    (tmp_path / "optimizer.pt").touch()
    with pytest.raises(ModelError, match="was written by transformers' Trainer, which cannot be resumed exactly") as caught:
        open_checkpoint(tmp_path)
    assert caught.value.remedy == f"start a new training from its model: model={tmp_path}"


@pytest.mark.parametrize("change", [lambda value: value, lambda value: value + 1, lambda value: value.half()])
def test_weights_are_written_beside_a_model_that_does_not_hold_them(tmp_path: Path, change: Any) -> None:
    snapshot = Snapshot({"weight": torch.ones(3)}, {}, {}, [], torch.arange(2), {"state": {"step": 1}}, {}, {"a.txt": "mine"})
    path, changed = tmp_path / "checkpoint-1", {"weight": change(torch.ones(3))}
    module.write_checkpoint(path, snapshot, lambda folder, given: save_file(changed, folder / "model.safetensors"))
    found = open_checkpoint(path)
    assert torch.equal(found.weights()["weight"], torch.ones(3))
    same = changed["weight"].dtype == torch.float32 and torch.equal(changed["weight"], torch.ones(3))
    assert (path / "weights.safetensors").exists() == (not same)
    assert "a.txt" in found.manifest["files"]


def test_optimizer_and_random_states_come_back_bit_for_bit_but_not_those_of_another_model() -> None:
    for fused in [True, False]:
        first, second = tiny_model(), tiny_model()
        one, two = stepped(first, fused), torch.optim.AdamW(second.parameters(), lr=0.5, fused=fused)
        second.load_state_dict(first.state_dict())
        tensors, plain = module.optimizer_tensors(first, one)
        module.restore_optimizer(second, two, tensors, json.loads(json.dumps(plain)))
        for model, optimizer in ((first, one), (second, two)):
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, 0.3)
            optimizer.step()
        for name, value in first.state_dict().items():
            assert torch.equal(value, second.state_dict()[name]), name
    tensors, plain = module.random_tensors(CPU)
    expected = (random.random(), np.random.rand(), torch.rand(3).tolist())
    module.restore_random(tensors, json.loads(json.dumps(plain)), CPU)
    assert (random.random(), np.random.rand(), torch.rand(3).tolist()) == expected
    unlike = {"exp_avg/unknown": "does not belong to a parameter of the model", "exp_avg/classifier.bias": "has the shape"}
    for name, problem in unlike.items():
        model = tiny_model()
        with pytest.raises(ModelError, match=f"{name} {problem}"):
            module.restore_optimizer(model, stepped(model), {name: torch.zeros(7)}, {"groups": []})


def save_model(folder: Path, weights: dict[str, Any]) -> None:
    save_file(weights, folder / "model.safetensors")


def snapshot(step: int, best_step: int | None = None) -> Snapshot:
    plain: Any = {"state": {"step": step, "best_step": best_step}}
    weights, random_states = {"weight": torch.full((4,), float(step))}, [{"torch": torch.get_rng_state()}]
    return Snapshot(weights, {}, {}, random_states, torch.arange(3), plain, {"seed": 1})


def filled(folder: Path, *steps: int, keep: int | None = None) -> tuple[CheckpointFolder, list[str]]:
    """Checkpoints of another process, and what is reported about them."""
    first = CheckpointFolder(folder, print, save_model)
    for step in steps:
        first.save(snapshot(step), in_background=False)
    said: list[str] = []
    return CheckpointFolder(folder, said.append, save_model, keep), said


def steps(folder: Path) -> list[int]:
    return [step_of(path) for path in checkpoints_in(folder)]


def damage(folder: Path, *numbers: int) -> None:
    for number in numbers:
        (folder / f"checkpoint-{number}" / "state.json").write_text("{")


def test_rotation_spares_newest_best_and_intact_and_reads_unknown_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a resume from an earlier one; later ones wait until training has passed them."""
    checkpoints, _ = filled(tmp_path, 5, 10, 15, keep=1)
    checkpoints.save(snapshot(7), in_background=False)
    assert steps(tmp_path) == [15, 10, 7]
    checkpoints.save(snapshot(16, best_step=10), in_background=False)
    assert steps(tmp_path) == [16, 10], "10 is that of the best evaluation"
    folder = tmp_path / "numbers"
    checkpoints, _ = filled(folder, 9, 10, keep=2)
    read: list[str] = []
    monkeypatch.setattr(module, "open_checkpoint", lambda path: read.append(path.name) or open_checkpoint(path))
    for step in (11, 99, 100, 101):
        checkpoints.save(snapshot(step), in_background=False)
    assert steps(folder) == [101, 100]
    assert read == ["checkpoint-10", "checkpoint-9"]
    # The new one is of a lower step than the damaged ones: it used to be counted as the oldest, and removed.
    folder = tmp_path / "damaged"
    checkpoints, said = filled(folder, 20, 30, 40, keep=2)
    damage(folder, 30, 40)
    for step, left in ((21, [40, 30, 21, 20]), (22, [40, 30, 22, 21]), (50, [50, 40, 30, 22])):
        checkpoints.save(snapshot(step), in_background=False)
        assert steps(folder) == left, "two that are intact, and what cannot be read"
    assert len(said) == 2, "each is reported once"
    assert all("state.json is damaged" in line for line in said)


@pytest.mark.parametrize("kind", ["damaged", "newer", "a file"])
def test_what_cannot_be_read_is_moved_aside_not_overwritten(tmp_path: Path, kind: str) -> None:
    checkpoints, said = filled(tmp_path, 3)
    path = tmp_path / ("checkpoint-4" if kind == "a file" else "checkpoint-3")
    if kind == "a file":
        path.write_text("mine")
    elif kind == "damaged":
        damage(tmp_path, 3)
    else:
        change_manifest(path, format=99)
    before = path.read_text() if path.is_file() else (path / MANIFEST).read_text()
    for _ in range(2):
        checkpoints.save(snapshot(step_of(path)), in_background=False)
    aside = tmp_path / f"{path.name}.kept-1"
    assert (aside.read_text() if aside.is_file() else (aside / MANIFEST).read_text()) == before
    assert open_checkpoint(path).manifest["step"] == step_of(path)
    assert [line for line in said if "moved aside" in line] == [f"moved aside: {path} is now {aside.name}"]
    assert not list(tmp_path.glob("*.kept-2")), "an intact one is replaced"


def test_the_newest_intact_one_is_used_and_a_restart_moves_all_aside_those_of_an_earlier_version_too(tmp_path: Path) -> None:
    checkpoints, said = filled(tmp_path, 3, 6, 9)
    damage(tmp_path, 9)
    (tmp_path / "checkpoint-12").mkdir()
    (tmp_path / "step-7").mkdir()
    assert checkpoints.newest().path.name == "checkpoint-6"
    first, second = said
    assert "manifest.json is missing" in first
    assert "state.json is damaged" in second
    assert CheckpointFolder(tmp_path / "none", said.append, save_model).newest() is None
    unusable = tmp_path / "unusable"
    checkpoints, _ = filled(unusable, 3, 6)
    damage(unusable, 3)
    change_manifest(unusable / "checkpoint-6", format=module.FORMAT + 1)
    with pytest.raises(ModelError) as caught:
        checkpoints.newest()
    for part in ("2 checkpoints", "checkpoint-3: state.json is damaged", "checkpoint-6: written in format 2 by a newer"):
        assert part in caught.value.problem
    assert "--restart" in caught.value.remedy
    assert caught.value.exit_code == 4
    early = tmp_path / "early"
    checkpoints, said = filled(early, 3)
    checkpoints.restart()
    assert steps(early / "checkpoints.kept-1") == [3]
    checkpoints.restart()
    assert len(said) == 1
    (early / "checkpoints" / "step-00000003").mkdir(parents=True)
    with pytest.raises(ModelError, match="checkpoints/step-00000003 was written by an earlier version"):
        checkpoints.newest()
    checkpoints.restart()
    assert checkpoints.newest() is None
    assert (early / "checkpoints.kept-2" / "step-00000003").is_dir()


def test_snapshots_are_written_in_order_while_training_continues_and_rotated_but_not_the_best(tmp_path: Path) -> None:
    checkpoints = CheckpointFolder(tmp_path, print, save_model, keep=2)
    for step in range(1, 6):
        checkpoints.save(snapshot(step, best_step=1))
    checkpoints.wait()
    assert steps(tmp_path) == [5, 4, 1]
    assert open_checkpoint(tmp_path / "checkpoint-5").weights()["weight"].tolist() == [5.0] * 4
    gate = threading.Event()

    def slow(folder: Path, weights: dict[str, Any]) -> None:
        gate.wait(10)
        save_model(folder, weights)

    folder = tmp_path / "slow"
    checkpoints = CheckpointFolder(folder, print, slow)
    checkpoints.save(snapshot(1))
    assert steps(folder) == []
    gate.set()
    checkpoints.wait()
    assert steps(folder) == [1]


def test_a_full_disk_is_reported_with_path_and_bytes_and_leaves_nothing(tmp_path: Path) -> None:
    def full(folder: Path, weights: dict[str, Any]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    checkpoints = CheckpointFolder(tmp_path, print, full)
    checkpoints.save(snapshot(1))
    with pytest.raises(ResourceError) as caught:
        checkpoints.wait()
    assert caught.value.exit_code == 6
    for part in (str(tmp_path), "No space left", "40 bytes needed", "free", "--resume"):  # 16 of weights, 24 of row hashes
        assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    checkpoints.wait()  # raised once


GAMMA = 2.0


def focal(logits: torch.Tensor, labels: torch.Tensor, power: float = 1.0) -> torch.Tensor:
    costs = functional.cross_entropy(logits, labels, reduction="none")
    return costs * (1 - torch.exp(-costs)) ** (GAMMA * power)


def made(scale: float) -> Any:
    return lambda logits, labels: scale * focal(logits, labels)


class Scaled:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.scale * focal(logits, labels)


class Weighted(torch.nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(scale))

    forward = Scaled.__call__


def test_a_function_is_known_by_its_code_and_the_values_and_constants_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in [made, Scaled, Weighted, lambda scale: partial(focal, power=scale), lambda scale: Scaled(scale).__call__]:
        assert identified(kind(2.0)) == identified(kind(2.0))
        assert identified(kind(2.0)) != identified(kind(3.0))
    before = identified(focal)
    assert before.startswith("focal (")
    monkeypatch.setitem(globals(), "GAMMA", 3.0)
    assert identified(focal) != before
    assert identified(torch.nn.CrossEntropyLoss(reduction="sum")) != identified(torch.nn.CrossEntropyLoss(reduction="none"))
    assert identified(functional.cross_entropy).startswith("cross_entropy (")
    assert identified(torch.sigmoid) != identified(torch.tanh)

    def loop(number: int) -> Any:
        return loop(number - 1)

    holder = Scaled(1.0)
    holder.scale = holder  # type: ignore[assignment]
    assert identified(loop) == identified(loop)
    assert identified(holder) == identified(holder)


def test_weights_optimizers_and_schedules_are_known_by_what_changes_the_numbers() -> None:
    model, again = tiny_model(), tiny_model()
    found = module.weights_fingerprint(model)
    assert found == module.weights_fingerprint(again)
    with torch.no_grad():
        again.classifier.bias[1] += 1e-6
    assert found != module.weights_fingerprint(again)
    assert module.weights_fingerprint(model.to(torch.bfloat16)) != found
    model = tiny_model()

    def changes(optimizer: torch.optim.Optimizer) -> list[str]:
        first = module.optimizer_values(model, torch.optim.SGD(model.parameters(), lr=0.1))
        return differences(first, module.optimizer_values(model, optimizer))

    assert changes(torch.optim.SGD(model.parameters(), lr=0.1)) == []
    assert changes(torch.optim.SGD(model.parameters(), lr=0.2)) == ["groups.0.lr: 0.1 then, 0.2 now"]
    (line,) = changes(torch.optim.SGD(model.classifier.parameters(), lr=0.1))
    assert line.startswith("groups.0.weights: 41 (")
    assert "2 (" in line
    assert "class: SGD then, Adam now" in changes(torch.optim.Adam(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule, other = LambdaLR(optimizer, lambda step: 1 / (1 + step)), LambdaLR(stepped(model), lambda step: 1 / (2 + step))
    before = (module.schedule_values(schedule), module.optimizer_values(model, optimizer))
    optimizer.step()
    schedule.step()
    assert (module.schedule_values(schedule), module.optimizer_values(model, optimizer)) == before
    assert differences(before[0], module.schedule_values(other))
    assert differences(*(module.schedule_values(CosineAnnealingLR(optimizer, T_max=number)) for number in (5, 6)))


def test_differences_are_shown_and_other_settings_and_rows_refused_but_not_rows_that_were_not_read() -> None:
    for stored, now, lines in [
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": 1, "b": 2}, {"a": 2}, ["a: 1 then, 2 now", "b: 2 then, None now"]),
        ({"a": {"b": {"c": 1}}}, {"a": {"b": {"c": 2}}}, ["a.b.c: 1 then, 2 now"]),
        ({"a": ["x", "y"]}, {"a": ["y", "x"]}, ["a: ['x', 'y'] then, ['y', 'x'] now"]),
        ({"a": []}, {"a": [*"abcdefghij"]}, ["a: 0 then (all), 10 now (a, b, c and 7 more)"]),
        ({"a": None}, {"a": {"b": 1}}, ["a: None then, {'b': 1} now"]),
    ]:
        assert differences(stored, now) == lines
    for after, text in [
        ([1, 2, 3, 4], "3 rows then, 4 now (1 added)"),
        ([1, 2], "3 rows then, 2 now (1 removed)"),
        ([1, 3, 2], "the same rows in another order (from row 2 on)"),
        ([1, 9, 3], "1 rows edited (first row 2)"),
    ]:
        assert module.row_changes(torch.tensor([1, 2, 3]), torch.tensor(after)) == text
    for found, text in [
        ({}, "the tensor a is missing"),
        ({"a": torch.zeros(3)}, r"the tensor a is \(3,\) torch.float32, not \(2,\) torch.float32"),
        ({"a": torch.zeros(2, dtype=torch.float16)}, "torch.float16, not"),
        ({"a": torch.zeros(2), "b": torch.zeros(1)}, "the tensor b is unknown"),
    ]:
        with pytest.raises(ModelError, match=text):
            module.refuse_other_tensors({"a": "(2,) torch.float32"}, found, "model")
    rows = torch.tensor([1, 0, 3])
    module.refuse_other_identity({"seed": 1}, {"seed": 1}, rows, torch.tensor([1, 2, 3]))
    with pytest.raises(ModelError, match=r"learning_rate: 0.1 then, 0.2 now; seed: 1 then, None now"):
        module.refuse_other_identity({"learning_rate": 0.1, "seed": 1}, {"learning_rate": 0.2}, rows, rows)
    with pytest.raises(ModelError, match="1 rows edited"):
        module.refuse_other_identity({}, {}, rows, torch.tensor([1, 2, 4]))
