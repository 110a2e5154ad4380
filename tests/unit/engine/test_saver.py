"""Checkpoints are written behind the next steps: in order, and an error is raised at the next call."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from glassloop.base.errors import ResourceError
from glassloop.runs.layout import checkpoints_in
from glassloop.training.checkpoints import CheckpointFolder, Saver, Snapshot, open_checkpoint


def snapshot(step: int, best_step: int | None = None) -> Snapshot:
    weights = {"weight": torch.full((4,), float(step))}
    plain = {"state": {"step": step, "best_step": best_step}}
    return Snapshot(weights, {}, {}, [{"torch": torch.get_rng_state()}], torch.arange(3), plain, {"seed": 1})


def save_model(folder: Path, weights: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    save_file(weights, folder / "model.safetensors")


def test_snapshots_are_written_in_order_and_rotated_but_not_the_best(tmp_path: Path) -> None:
    saver = Saver(CheckpointFolder(tmp_path, print), 2, save_model)
    for step in range(1, 6):
        saver.save(snapshot(step, best_step=1))
    saver.wait()
    assert [path.name for path in checkpoints_in(tmp_path)] == ["checkpoint-5", "checkpoint-4", "checkpoint-1"]
    assert open_checkpoint(tmp_path / "checkpoint-5").weights()["weight"].tolist() == [5.0] * 4


def test_training_continues_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    gate = threading.Event()

    def slow(folder: Path, weights: dict[str, Any]) -> None:
        gate.wait(10)
        save_model(folder, weights)

    saver = Saver(CheckpointFolder(tmp_path, print), None, slow)
    saver.save(snapshot(1))
    assert checkpoints_in(tmp_path) == []
    gate.set()
    saver.wait()
    assert len(checkpoints_in(tmp_path)) == 1


def test_a_full_disk_is_reported_with_path_and_bytes_and_leaves_nothing(tmp_path: Path) -> None:
    def full(folder: Path, weights: dict[str, Any]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    saver = Saver(CheckpointFolder(tmp_path, print), None, full)
    saver.save(snapshot(1))
    with pytest.raises(ResourceError) as caught:
        saver.wait()
    assert caught.value.exit_code == 6
    for part in (str(tmp_path), "No space left", "bytes needed", "free", "--resume"):
        assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    saver.wait()  # raised once
