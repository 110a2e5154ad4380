"""What the cases start from: tiny data, a tiny model, a finished run, a stopped one, caches, and what commands say of them."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import trials
from families import WORDS, tiny_model, tiny_tokenizer

from fuzzing.cases import FAILED, Case, Ran, command, in_child

SETTINGS = {
    "num_train_epochs": 2, "per_device_train_batch_size": 8, "learning_rate": 1e-3, "logging_steps": 2,
    "save_strategy": "steps",
    "save_steps": 2, "save_total_limit": 3, "eval_strategy": "steps", "eval_steps": 3, "device": "cpu", "precision": "fp32",
    "disable_tqdm": True,
}  # fmt: skip
SHORT = {"max_steps": 2, "num_train_epochs": 1, "save_strategy": "no", "save_steps": 1}
TEXT = " ".join([*WORDS, "abcdefg hijklmn opqrst uvwxyz", "012 3456 789"])  # nearly all tokens


@dataclass(frozen=True)
class Answers:
    """What the commands answer for the finished run as it was written."""

    predict: str
    logits: list[list[float]]  # the command prints four digits
    evaluate: str
    ejected: str


class Bench:
    """Everything is made once; cases copy what they damage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o755)  # cases run as other users too
        self.data = trials.write_data(folder / "data", 23, 9)
        self.model = folder / "model"
        model = tiny_model(hidden_size=16, intermediate_size=32, num_hidden_layers=1, max_position_embeddings=64)
        model.base_model.save_pretrained(self.model)
        tiny_tokenizer().save_pretrained(self.model)
        (self.model / "model.safetensors").chmod(0o644)
        self.cache = folder / "cache"
        os.environ["GLASSLOOP_CACHE"] = str(self.cache)
        torch.set_num_threads(1)
        self.reference, self.finished, self.stopped = folder / "reference", folder / "finished", folder / "stopped"
        for run in (self.reference, self.finished):  # in this process: the children find everything imported
            must(command(self.train(run)))
        for path in self.finished.glob("checkpoint-*"):
            shutil.rmtree(path)
        with answered() as logits:
            must(command(self.predict(self.finished)))
        self.answers = Answers(
            logits=logits,
            predict=must(command(self.predict(self.finished))).out,
            evaluate=must(command(self.evaluate(self.finished))).out,
            ejected=self.ejected(self.finished, folder / "ejected"),
        )
        self.in_child("stop", self.stop)
        self.from_run = folder / "from-run"
        must(command(self.train(self.from_run, model=self.finished, **SHORT)))
        self.caches = {name: self.cache_of(name) for name in self.cached_commands(folder)}  # and their answers

    def train(self, run: Path, **more: object) -> list[str]:
        return ["train", str(self.data), *trials.flags(**{"model": self.model, "output_dir": run, **SETTINGS, **more})]

    def predict(self, run: Path) -> list[str]:
        return ["predict", str(run), TEXT, "--device", "cpu"]

    def evaluate(self, run: Path) -> list[str]:
        return ["evaluate", str(run), "--device", "cpu"]

    def ejected(self, run: Path, out: Path) -> str:
        must(command(["eject", str(run), "--out", str(out)]))
        return (out / "train.py").read_text()

    def cached_commands(self, folder: Path) -> dict[str, list[str]]:
        """The commands that use the cache."""
        return {
            "data": ["data", str(self.data), "--model", str(self.model)],
            "evaluate": self.evaluate(self.finished),
            "train": self.train(folder / "run", max_steps=2, num_train_epochs=1),
        }

    def stop(self, case: Case) -> None:
        trials.install([trials.Hook(trials.STEP, 5, trials.TERM)])
        ran = command(self.train(self.stopped))
        case.equal("the exit code of the stopped run", ran.code, 143)

    def cache_of(self, name: str) -> str:
        """Fill a cache with one command alone; return what the command then answers."""

        def fill(case: Case) -> None:
            os.environ["GLASSLOOP_CACHE"] = str(self.folder / f"cache-{name}")
            for attempt in ("filled", "used"):
                ran = must(command(self.cached_commands(self.folder / f"{attempt}-{name}")[name]))
            (self.folder / f"answer-{name}").write_text(ran.out)

        self.in_child(name, fill)
        return (self.folder / f"answer-{name}").read_text()

    def in_child(self, name: str, work: Callable[[Case], None]) -> None:
        verdict = in_child(Case(name, self.folder / f"case-{name}", random.Random(0)), work)
        if verdict.outcome == FAILED:
            raise RuntimeError(f"{name}: {verdict.detail}")


@contextmanager
def answered() -> Iterator[list[list[float]]]:
    """Collects the logits of all predictions made meanwhile, with all their digits."""
    from glassloop.predictor import Predictor

    found: list[list[float]] = []
    logits = Predictor.logits

    def watched(*arguments: Any, **options: Any) -> Any:
        given = logits(*arguments, **options)
        found.extend(given.tolist())
        return given

    Predictor.logits = watched  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Predictor.logits = logits  # type: ignore[method-assign]


def must(ran: Ran) -> Ran:
    if ran.code:
        raise RuntimeError(f"exit code {ran.code} before anything was damaged:\n{ran.err}")
    return ran
