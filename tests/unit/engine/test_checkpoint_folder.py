"""Which checkpoint is the newest, which make room, and that nothing unreadable is overwritten, counted or removed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from glassloop.base.errors import ModelError
from glassloop.base.records import sealed
from glassloop.runs.layout import checkpoints_in, step_of
from glassloop.training.checkpoints import FORMAT, MANIFEST, CheckpointFolder, Snapshot, open_checkpoint


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
