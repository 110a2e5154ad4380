"""The equivalence certificate: on the user's own model and data, the doors, accumulation, processes, kill and resume agree."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassloop.arguments import TrainingArguments
from glassloop.data.encoding import encode
from glassloop.data.sources import load_examples
from glassloop.errors import SettingsError, printable
from glassloop.files import user_path
from glassloop.models.inputs import longest_input
from glassloop.models.loading import load_config, load_model, load_tokenizer, quiet_transformers
from glassloop.run_folder.history import read_history
from glassloop.run_folder.layout import CHECKPOINTS_NAME, checkpoints_in, is_run
from glassloop.run_folder.run_json import read_run
from glassloop.trainer import Trainer

STEPS, BATCH = 6, 8
SAVED, HELD = 3, 4  # the last step in a checkpoint, and the one after which a run waits to be killed
SETTINGS: dict[str, Any] = {
    "max_steps": STEPS, "per_device_train_batch_size": BATCH, "logging_steps": 1, "device": "cpu", "precision": "fp32",
    "save_strategy": "no", "disable_tqdm": True, "backend": "plain",
}  # fmt: skip
ROUNDING = 1e-4  # of a loss or a gradient norm, where sums are taken in another order

CHILD = """
import json, sys, time
import torch
from datasets import Dataset
from glassloop import Callback, Trainer, TrainingArguments, load_model, load_tokenizer
folder, threads, held, resume, settings = json.loads(sys.argv[1])
class Hold(Callback):
    def on_step(self, state, batches):
        if state.step == held:
            time.sleep(60)  # to be killed in
torch.set_num_threads(threads)
rows = Dataset.from_parquet(folder + "/rows.parquet", cache_dir=folder)
model, tokenizer = load_model(folder + "/model"), load_tokenizer(folder + "/model")
args = TrainingArguments(folder + "/run", **settings)
trainer = Trainer(model, args, train_dataset=rows, processing_class=tokenizer, callbacks=[Hold()])
trainer.train(resume_from_checkpoint=resume)
trainer.save_model(folder + "/end")
"""


@dataclass(frozen=True)
class Claim:
    """One line of the certificate."""

    name: str
    difference: float
    allowed: float

    @property
    def holds(self) -> bool:
        return self.difference <= self.allowed


class Trial:
    """Short trainings of one model on one data set, each from the same start."""

    def __init__(self, data: Any, model: str, given: dict[str, Any], folder: Path) -> None:
        examples = load_examples(data, **given)
        tokenizer = load_tokenizer(model)
        config = load_config(model)
        rows = encode(examples, tokenizer, longest_input(tokenizer, config))["train"].rows
        self.rows = rows.select(range(min(len(rows), STEPS * BATCH + 3)))  # the last group is short
        self.examples, self.tokenizer, self.model, self.folder = examples, tokenizer, model, folder
        self.number = 0

    def start(self, dropout: bool = True) -> Any:
        """The model before its first step."""
        options = {} if dropout else no_dropout(self.model)
        examples = self.examples
        return load_model(self.model, labels=examples.labels, task=examples.task, new_head=True, seed=1, **options)

    def train(self, *, dropout: bool = True, **settings: Any) -> tuple[torch.Tensor, Any]:
        """Loss and gradient norm of each step, and the model at the end."""
        network = self.start(dropout)
        self.number += 1
        args = TrainingArguments(str(self.folder / str(self.number)), **SETTINGS | settings)
        trainer = Trainer(network, args, train_dataset=self.rows, processing_class=self.tokenizer)
        trainer.quiet = True
        trainer.train()
        figures = [[entry["loss"], entry["grad_norm"]] for entry in trainer.state.history]
        return torch.tensor(figures), network


def certificate(data: Any, model: str, given: dict[str, Any]) -> list[Claim]:
    """All claims, each with the largest difference found."""
    with tempfile.TemporaryDirectory() as scratch:
        trial = Trial(data, model, given, Path(scratch))
        _, network = trial.train()
        _, second = trial.train()
        claims = [Claim("the same run twice: weights", weight_difference(network, second), 0.0)]
        _, through = trial.train(backend="accelerate")
        claims.append(Claim("plain loop and Accelerate: weights", weight_difference(network, through), 0.0))
        by_hand = hand_written(trial)
        claims.append(Claim("Trainer and a hand-written loop: weights", weight_difference(network, by_hand), 0.0))
        claims.append(Claim("killed and resumed: weights", killed_and_resumed(trial, network), 0.0))
        whole, _ = trial.train(dropout=False)
        for accumulate in (2, 4, 8):
            sizes = {"per_device_train_batch_size": BATCH // accumulate, "gradient_accumulation_steps": accumulate}
            parts, _ = trial.train(dropout=False, **sizes)
            name = f"{BATCH}x1 and {BATCH // accumulate}x{accumulate}: loss and gradient norm"
            claims.append(Claim(name, float((parts - whole).abs().max()), ROUNDING))
        packed, _ = trial.train(dropout=False, backend="packed")
        claims.append(Claim("padded and packed: loss and gradient norm", float((packed - whole).abs().max()), ROUNDING))
        two = two_processes(trial)
        claims.append(Claim("1 process and 2: loss", float((two - whole[:, 0]).abs().max()), ROUNDING))
    return claims


def hand_written(trial: Trial) -> Any:
    """The notes' loop in plain torch, with nothing of ours but the order of the rows and the start."""
    from glassloop.data.batches import Batches
    from glassloop.data.collator import PaddingCollator

    network = trial.start()
    collate = PaddingCollator(trial.tokenizer)
    order = Batches(trial.rows, collate, BATCH, seed=42).order
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-5, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, (STEPS - step) / STEPS))
    network.train()
    torch.manual_seed(42)
    step = epoch = 0
    while step < STEPS:
        for numbers in order(epoch):
            network(**collate([trial.rows[int(number)] for number in numbers])).loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            if step == STEPS:
                break
        epoch += 1
    return network


def written(trial: Trial, folder: Path, *, dropout: bool) -> Path:
    """A folder with the model, the rows and the program that trains it: all that a process of its own needs."""
    folder.mkdir()
    with quiet_transformers():
        trial.start(dropout).save_pretrained(folder / "model")
        trial.tokenizer.save_pretrained(folder / "model")
    pq.write_table(trial.rows.with_format("arrow")[:], folder / "rows.parquet")
    (folder / "child.py").write_text(CHILD, encoding="utf-8")
    return folder


def started(folder: Path, *launcher: str, threads: int, held: int = 0, resume: bool = False, **settings: Any) -> Any:
    """A process that trains what `written` wrote, waiting after the step `held`."""
    what = json.dumps([str(folder), threads, held, resume, SETTINGS | settings])
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, *launcher, str(folder / "child.py"), what]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)


def ended(process: Any, what: str, code: int = 0) -> str:
    """What a process said until it ended, which it did with this code."""
    said = str(process.communicate()[1])
    if process.returncode != code:
        raise SettingsError(
            f"{what} does not run here: {(said.strip() or 'no word').splitlines()[-1][:200]}", "glassloop doctor"
        )
    return said


def killed_and_resumed(trial: Trial, network: Any) -> float:
    """How far a run ends from `network` whose process got SIGKILL after its first checkpoint; another process went on."""
    folder = written(trial, trial.folder / "killed", dropout=True)
    threads = torch.get_num_threads()
    process = started(folder, threads=threads, held=HELD, save_strategy="steps", save_steps=SAVED)
    try:
        while process.poll() is None and not checkpoints_in(folder / "run" / CHECKPOINTS_NAME):
            time.sleep(0.02)
    finally:
        process.kill()
    ended(process, "a run to be killed", -signal.SIGKILL)
    said = ended(started(folder, threads=threads, resume=True), "a resumed run")
    went_on = f"resuming after step {SAVED} " in said  # started again, it would end in the same weights
    return weight_difference(network, load_model(str(folder / "end"))) if went_on else math.inf


def two_processes(trial: Trial) -> torch.Tensor:
    """The losses of the same run, without dropout, in two processes of their own."""
    folder = written(trial, trial.folder / "two", dropout=False)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    ended(started(folder, *launcher, threads=1, backend="auto", per_device_train_batch_size=BATCH // 2), "a pair of processes")
    return torch.tensor([entry["loss"] for entry in read_history(folder / "run")])


def no_dropout(model: str) -> dict[str, float]:
    """The settings that switch a model's dropout off."""
    return {name: 0.0 for name, value in vars(load_config(model)).items() if "dropout" in name and isinstance(value, float)}


def weight_difference(first: Any, second: Any) -> float:
    """The largest difference of any weight."""
    others = second.state_dict()
    return max(float((value.float() - others[name].float()).abs().max()) for name, value in first.state_dict().items())


def verify(what: str, model: str | None, given: dict[str, Any]) -> bool:
    """Print the certificate for a run or a data set; return whether every claim holds."""
    data = what
    if is_run(user_path(what)):
        run = read_run(user_path(what))
        data, model, given = run.data.source, model or run.model.name, {**run.data.given(), **given}
    model = model or "quickstart"
    console = Console()
    console.print(Text(f"{printable(data)} with {printable(model)}: {STEPS} steps of {BATCH} rows on the CPU, in fp32"))
    claims = certificate(data, model, given)
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("", "claim", "largest difference", "allowed"):
        table.add_column(name, justify="right" if name in ("largest difference", "allowed") else "left")
    for claim in claims:
        allowed = "none" if claim.allowed == 0 else f"{claim.allowed:.0e}"
        shown = "none" if claim.difference == 0 else f"{claim.difference:.1e}"
        table.add_row("[green]✓[/green]" if claim.holds else "[red]✗[/red]", claim.name, shown, allowed)
    console.print(table)
    return all(claim.holds for claim in claims)
