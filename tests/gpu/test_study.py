"""A run of a study on a GPU: paused twice and continued, it ends with the weights of a run that was not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from trials import write_data

from glassloop.settings.file import GivenSettings
from glassloop.study.tasks import Task
from glassloop.study.worker import train_part

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
TRAINING = {
    "max_steps": 40, "per_device_train_batch_size": 8, "learning_rate": 1e-3, "device": "cuda", "save_strategy": "no",
    "disable_tqdm": True, "seed": 3,
}  # fmt: skip


def task_in(folder: Path, data: Path, model: Path, seed: int = 3) -> Task:
    settings = {**TRAINING, "seed": seed, "output_dir": str(folder)}
    return Task(folder.name, GivenSettings(str(data), str(model), settings, {"selection_fold": "1/5"}))


def test_a_paused_run_ends_like_one_that_was_not(tmp_path: Path, lively_dir: Path) -> None:
    data = write_data(tmp_path / "data", 200, 40)
    paused = task_in(tmp_path / "paused", data, lively_dir)
    for fraction in (0.25, 0.5):
        assert train_part(replace(paused, fraction=fraction)).status == "paused"
        train_part(task_in(tmp_path / f"between-{fraction}", data, lively_dir, seed=7))  # another run of the same worker
    ended, whole = train_part(paused), train_part(task_in(tmp_path / "whole", data, lively_dir))
    assert ended.metrics == whole.metrics
    for name in ("model/model.safetensors", "validation-predictions.jsonl"):
        assert (tmp_path / "paused" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
