"""Check that all ways of training give equal results on the user's model and data."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from glassloop.base.errors import SettingsError
from glassloop.data.batches import Batches, PaddingCollator
from glassloop.data.encoding import encode
from glassloop.data.interfaces import Model
from glassloop.data.sources import load_examples
from glassloop.models.interface import longest_input
from glassloop.models.loading import load_config, load_model, load_tokenizer, quiet_transformers
from glassloop.models.pooled import Pooling
from glassloop.runs.history import read_history
from glassloop.runs.record import checkpoints_in
from glassloop.settings.file import GivenSettings
from glassloop.settings.training import DataSettings, TrainingArguments
from glassloop.study.run import SharedParts, chosen_settings, examples_for, pooling_for
from glassloop.trainer import Trainer

STEPS, BATCH = 6, 8
CHECKPOINT_STEP, WAITING_STEP = 3, 4  # the step of the checkpoint, and the step after which a run waits to be killed
SETTINGS: dict[str, object] = {
    "max_steps": STEPS, "per_device_train_batch_size": BATCH, "logging_steps": 1, "device": "cpu", "precision": "fp32",
    "save_strategy": "no", "disable_tqdm": True, "backend": "plain",
}  # fmt: skip
ROUNDING = 1e-4  # allowed for a loss or a gradient norm if sums are computed in another order
CHILD = """
import json, sys, time
import torch
from datasets import Dataset
from glassloop import Callback, Trainer, TrainingArguments, load_model, load_tokenizer
folder, threads, waiting_step, resume, settings = json.loads(sys.argv[1])
class Wait(Callback):
    def on_step(self, state, batches):
        if state.step == waiting_step:
            time.sleep(60)  # until it is killed
torch.set_num_threads(threads)
rows = Dataset.from_parquet(folder + "/rows.parquet", cache_dir=folder)
model, tokenizer = load_model(folder + "/model"), load_tokenizer(folder + "/model")
args = TrainingArguments(folder + "/run", **settings)
trainer = Trainer(model, args, train_dataset=rows, processing_class=tokenizer, callbacks=[Wait()])
trainer.train(resume_from_checkpoint=resume)
trainer.save_model(folder + "/end")
"""


@dataclass(frozen=True)
class Claim:
    """Two ways to train that should give equal results, and the largest difference found between them."""

    name: str
    difference: float
    allowed: float

    @property
    def holds(self) -> bool:
        return self.difference <= self.allowed


class Trial:
    """Short trainings of one model on one data set, all from the same initial weights."""

    def __init__(
        self, data: str, model: str, settings: DataSettings, folder: Path, pooling: Pooling | None = None
    ) -> None:  # fmt: skip
        self.examples = load_examples(data, **asdict(settings))
        self.tokenizer = load_tokenizer(model)
        config = load_config(model)
        longest, towers = longest_input(self.tokenizer, config), pooling is not None and pooling.towers
        rows = encode(self.examples, self.tokenizer, longest, towers=towers)["train"].rows
        self.rows = rows.select(range(min(len(rows), STEPS * BATCH + 3)))  # the last group is short
        dropouts = [name for name, value in vars(config).items() if "dropout" in name and isinstance(value, float)]
        self.no_dropout: dict[str, Any] = dict.fromkeys(dropouts, 0.0)
        self.model, self.folder, self.pooling = model, folder, pooling
        self.number = 0

    def initial_model(self, dropout: bool = True) -> Model:
        examples, options = self.examples, {} if dropout else self.no_dropout
        head: dict[str, Any] = {"new_head": True, "seed": 1, "pooling": self.pooling}
        return load_model(self.model, labels=examples.labels, task=examples.task, **head, **options)

    def train(self, *, dropout: bool = True, **settings: object) -> tuple[torch.Tensor, Model]:
        """Return loss and gradient norm of each step, and the trained model."""
        network = self.initial_model(dropout)
        self.number += 1
        args = TrainingArguments(self.folder / str(self.number), **{**SETTINGS, **settings})
        trainer = Trainer(network, args, train_dataset=self.rows, processing_class=self.tokenizer, quiet=True)
        trainer.train()
        return torch.tensor([[entry["loss"], entry["grad_norm"]] for entry in trainer.state.history]), network

    def write_program(self, name: str, *, dropout: bool) -> Path:
        """Write model, rows and a program that trains them to a new folder, and return the folder."""
        folder = self.folder / name
        folder.mkdir()
        with quiet_transformers():
            self.initial_model(dropout).save_pretrained(folder / "model")
            self.tokenizer.save_pretrained(folder / "model")
        pq.write_table(self.rows.with_format("arrow")[:], folder / "rows.parquet")
        (folder / "child.py").write_text(CHILD, encoding="utf-8")
        return folder


def usual_pooling(data: str, model: str, settings: dict[str, object]) -> Pooling | None:
    """Return how `glassloop train` would pool tokens on these data; None for the head of the model's family."""
    given, shared = GivenSettings(data, model, {}, settings), SharedParts()
    config, declared = shared.config(model), shared.declared(model)
    examples = examples_for(given, config, shared)
    args = chosen_settings(given, TrainingArguments(), examples, config, 1, declared).settings
    return pooling_for(args, declared, examples, given, config)


def check_claims(data: str, model: str, settings: DataSettings, pooling: Pooling | None = None) -> list[Claim]:
    """Train in all ways and return one claim for each pair of them, with the largest difference found.

    Args:
        data: The data to train on.
        model: The model to start from.
        settings: How the data is read.
        pooling: How its new head pools tokens; None for the head of its family.
    """
    with tempfile.TemporaryDirectory() as scratch:
        trial = Trial(data, model, settings, Path(scratch), pooling)
        network, second, accelerated = (trial.train(backend=backend)[1] for backend in ("plain", "plain", "accelerate"))
        equal = {
            "the same run twice: weights": weight_difference(network, second),
            "plain loop and Accelerate: weights": weight_difference(network, accelerated),
            "Trainer and a hand-written loop: weights": weight_difference(network, train_by_hand(trial)),
            "killed and resumed: weights": killed_and_resumed(trial, network),
        }
        whole, _ = trial.train(dropout=False)
        rounded = {}
        for accumulate in (2, 4, 8):
            sizes = {"per_device_train_batch_size": BATCH // accumulate, "gradient_accumulation_steps": accumulate}
            parts, _ = trial.train(dropout=False, **sizes)
            rounded[f"{BATCH}x1 and {BATCH // accumulate}x{accumulate}: loss and gradient norm"] = parts - whole
        packed, _ = trial.train(dropout=False, backend="packed")
        rounded["padded and packed: loss and gradient norm"] = packed - whole
        rounded["1 process and 2: loss"] = two_processes(trial) - whole[:, 0]
    claims = [Claim(name, difference, 0.0) for name, difference in equal.items()]
    return claims + [Claim(name, float(difference.abs().max()), ROUNDING) for name, difference in rounded.items()]


def train_by_hand(trial: Trial) -> Model:
    """Train with a loop in plain torch that shares only the initial weights and the order of the rows, and return the model."""
    network = trial.initial_model()
    collate = PaddingCollator(trial.tokenizer)
    order = Batches(trial.rows, collate, BATCH, seed=42).order
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-5, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, (STEPS - step) / STEPS))
    network.train()
    torch.manual_seed(42)
    for numbers in islice(chain.from_iterable(map(order, count())), STEPS):
        network(**collate([trial.rows[int(number)] for number in numbers])).loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return network


def start_program(
    folder: Path, *launcher: str, threads: int, waiting_step: int = 0, resume: bool = False, **settings: object
) -> subprocess.Popen[str]:
    """Start the program in a folder. It waits after `waiting_step`, to be killed."""
    what = json.dumps([str(folder), threads, waiting_step, resume, {**SETTINGS, **settings}])
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, *launcher, str(folder / "child.py"), what]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)


def wait_for(process: subprocess.Popen[str], what: str, code: int = 0) -> str:
    """Wait for a process and return its messages. Raise `SettingsError` if it ends with another exit code."""
    messages = str(process.communicate()[1])
    if process.returncode != code:
        reason = (messages.strip() or "no message").splitlines()[-1][:200]
        raise SettingsError(f"{what} failed on this machine: {reason}", "check the machine with glassloop doctor")
    return messages


def killed_and_resumed(trial: Trial, network: Model) -> float:
    """Kill a run after its first checkpoint and resume it. Return the largest difference of its weights from `network`."""
    folder = trial.write_program("killed", dropout=True)
    threads = torch.get_num_threads()
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": CHECKPOINT_STEP}
    process = start_program(folder, threads=threads, waiting_step=WAITING_STEP, **saving)
    try:
        while process.poll() is None and not checkpoints_in(folder / "run"):
            time.sleep(0.02)
    finally:
        process.kill()
    wait_for(process, "a run to be killed", -signal.SIGKILL)
    messages = wait_for(start_program(folder, threads=threads, resume=True), "a resumed run")
    resumed = f"resuming after step {CHECKPOINT_STEP} " in messages  # a run from step 0 would end with the same weights
    return weight_difference(network, load_model(str(folder / "end"))) if resumed else math.inf


def two_processes(trial: Trial) -> torch.Tensor:
    folder = trial.write_program("two", dropout=False)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    process = start_program(folder, *launcher, threads=1, backend="auto", per_device_train_batch_size=BATCH // 2)
    wait_for(process, "a run in two processes")
    return torch.tensor([entry["loss"] for entry in read_history(folder / "run")])


def weight_difference(first: torch.nn.Module, second: torch.nn.Module) -> float:
    others = second.state_dict()
    return max(float((value.float() - others[name].float()).abs().max()) for name, value in first.state_dict().items())
