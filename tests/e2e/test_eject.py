"""`glassloop eject`: the run as one plain PyTorch file, with no import of ours, that ends in the same weights bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import run_forked
from families import tiny_model, weights_hash
from trials import Servers

from glassloop import load_model
from glassloop.models.pooled import HEAD_KEY, PooledClassifier

CSV = "text,label\n" + "".join(
    f"{'good' if number % 3 else 'bad'} {'film ' * (number % 7 + 1)}number {number},{'pos' if number % 3 else 'neg'}\n"
    for number in range(60)
)
MULTI = "text,label\n" + "".join(
    f"a {'good ' * (number % 5)}film {number},{'|'.join(['fun', 'long', 'old'][: number % 4])}\n" for number in range(40)
)
SCORES = "text,label\n" + "".join(
    f"a {'good ' * (number % 5)}film {number},{number % 5 + number / 100}\n" for number in range(40)
)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("content", "flags"),
    [
        (CSV, ["--gradient_accumulation_steps", "3", "--warmup_steps", "0.2", "--weight_decay", "0.01"]),
        (CSV, "--group_by_length --label_smoothing_factor 0.1 --class_weights balanced --max_grad_norm 0.5".split()),
        (
            CSV,
            [
                "--pooling",
                "head",
                "--dataloader_drop_last",
                "--lr_scheduler_type",
                "cosine",
                "--data_seed",
                "7",
                "--pad_to_multiple_of",
                "8",
            ],
        ),
        (MULTI, ["--label_separator", "|", "--empty", "keep"]),
        (SCORES, ["--task", "regression", "--optim", "adamw_torch"]),
    ],
)
def test_the_ejected_file_ends_in_the_same_weights(
    content: str, flags: list[str], tiny_model_dir: Path, tmp_path: Path, write, servers: Servers, session_cache: Path
) -> None:
    write("rows.csv", content)
    common = ["--model", str(tiny_model_dir), "--output_dir", "run", "--num_train_epochs", "2", "--learning_rate", "1e-3"]
    training = ["train", "rows.csv", *common, "--backend", "plain", "--device", "cpu", *flags]
    ejecting = ["eject", "run", "--out", "plain"]
    for ended in run_forked(servers, training, ejecting, folder=tmp_path, GLASSLOOP_CACHE=str(session_cache)):
        assert ended.code == 0, ended.err
    script = tmp_path / "plain" / "train.py"
    words = script.read_text().replace("glassloop eject", "").replace(f'"{HEAD_KEY}"', "").replace(f".{HEAD_KEY} =", "")
    assert "glassloop" not in words, "but for what a config calls the settings of a head"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    how = {"cwd": script.parent, "env": environment, "capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run([sys.executable, "train.py"], check=False, **how)
    assert done.returncode == 0, done.stderr
    ours, ejected = (load_model(str(tmp_path / place / "model")) for place in ("run", "plain"))
    assert isinstance(ours, PooledClassifier) == ("--pooling" not in flags)
    assert weights_hash(ours) == weights_hash(ejected)
    assert ours.config.id2label == ejected.config.id2label
    trained, before = ours.base_model.encoder.state_dict(), tiny_model().base_model.encoder.state_dict()
    assert not any(torch.equal(value, before[name]) for name, value in trained.items())
