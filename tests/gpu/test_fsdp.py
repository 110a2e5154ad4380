"""FSDP on a GPU: one process of it trains as a plain one does, in the precision of accelerate's config. Skipped elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import environment
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent.parent / "e2e"))

import train_split
from train_split import figures_of, make_trainer, with_own_optimizer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


def close(found: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    for name in ("steps", "evaluations", "many", "few"):
        mine, other = torch.tensor(found[name]), torch.tensor(expected[name])
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("offload", ["false", "true"])
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 3e-2)])
def test_a_split_process_trains_as_a_plain_one(precision: str, tolerance: float, offload: str, tmp_path: Path) -> None:
    """With the environment that `accelerate launch` makes of a config file; checkpoints go both ways."""
    settings: dict[str, Any] = {"backend": "plain", "device": "cuda", "precision": precision}
    plain = make_trainer(tmp_path / "plain", **settings)
    plain.train()
    expected = figures_of(plain)
    config = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
              "FSDP_OFFLOAD_PARAMS": offload, "ACCELERATE_MIXED_PRECISION": precision.replace("fp32", "no"),
              "TRAIN_DEVICE": "cuda"}  # fmt: skip
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "1"]
    done = subprocess.run(
        [*launcher, str(train_split.__file__), str(tmp_path), str(tmp_path / "plain/checkpoint-4")],
        env=environment(**config), capture_output=True, encoding="utf-8", timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    found = json.loads((tmp_path / "found-0.json").read_text())
    assert found["kind"] == ["FSDPBackend", "BertForSequenceClassification", precision]
    assert found["plain"] == ["Parameter"]
    close(found["still"], expected, tolerance)
    close(found["from plain"], expected, tolerance)
    assert len(found["stopped"]) == 6  # it stopped after five steps and went on to the end
    own = with_own_optimizer(tmp_path / "own-plain", device="cuda", precision=precision)
    own.train()
    close(found["own"], figures_of(own), tolerance)
    kinds = {value.dtype for value in load_file(tmp_path / "final/model.safetensors").values()}
    assert kinds == {torch.float32}
    back = make_trainer(tmp_path / "back", **settings)
    back.train(resume_from_checkpoint=tmp_path / "still/checkpoint-4")
    close(figures_of(back), expected, tolerance)
