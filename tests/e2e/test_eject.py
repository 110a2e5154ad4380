"""`glassloop export --to script`: one plain PyTorch file, with no import of ours, that ends in the same weights bit for bit."""

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
PAIRS = "text,text_pair,label\n" + "".join(
    f"film number {number},a {'good' if number % 3 else 'bad'} {'film ' * (number % 5 + 1)},{'ab'[number % 2]}\n"
    for number in range(60)
)
STEPS = ["--num_train_epochs", "2", "--learning_rate", "1e-3"]
MULTI = "text,label\n" + "".join(
    f"a {'good ' * (number % 5)}film {number},{'|'.join(['fun', 'long', 'old'][: number % 4])}\n" for number in range(40)
)
SCORES = "text,label\n" + "".join(
    f"a {'good ' * (number % 5)}film {number},{number % 5 + number / 100}\n" for number in range(40)
)


@pytest.mark.sample(3)
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
        (PAIRS, ["--pair_form", "two_towers"]),
        (PAIRS, ["--pair_form", "one_sequence", "--pooling", "max"]),
        (PAIRS, ["--method", "frozen"]),
        (CSV, ["--method", "frozen", "--pooling", "max"]),
    ],
)
def test_the_ejected_file_ends_in_the_same_weights(
    content: str, flags: list[str], tiny_model_dir: Path, tmp_path: Path, write, servers: Servers, session_cache: Path
) -> None:
    write("rows.csv", content)
    steps = [] if "frozen" in flags else STEPS
    common = ["--model", str(tiny_model_dir), "--output_dir", "run", *steps]
    training = ["train", "rows.csv", *common, "--backend", "plain", "--device", "cpu", *flags]
    ejecting = ["export", "run", "--to", "script", "--out", "plain"]
    for ended in run_forked(servers, training, ejecting, folder=tmp_path, GLASSLOOP_CACHE=str(session_cache)):
        assert ended.code == 0, ended.err
    script = tmp_path / "plain" / "train.py"
    words = script.read_text().replace("glassloop export", "").replace(f'"{HEAD_KEY}"', "").replace(f".{HEAD_KEY} =", "")
    assert "glassloop" not in words, "but for what a config calls the settings of a head"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    how = {"cwd": script.parent, "env": environment, "capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run([sys.executable, "train.py"], check=False, **how)
    assert done.returncode == 0, done.stderr
    ours, ejected = (load_model(str(tmp_path / place / "model")) for place in ("run", "plain"))
    assert isinstance(ours, PooledClassifier) == ("head" not in flags)
    assert weights_hash(ours) == weights_hash(ejected)
    assert ours.config.id2label == ejected.config.id2label
    if not steps:
        return
    trained, before = ours.base_model.encoder.state_dict(), tiny_model().base_model.encoder.state_dict()
    assert not any(torch.equal(value, before[name]) for name, value in trained.items())
