"""A small study that is killed at random moments, alone or with its workers, and what then differs from an undisturbed one."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from families import tiny_model, tiny_tokenizer
from trials import differences, sha, write_data

TREE, STUDY, WORKER = "study and workers", "study alone", "one worker"
KINDS = (TREE, STUDY, WORKER)
WORDS = [
    *("--vary", "learning_rate=1e-3,3e-3,1e30", "--vary", "max_grad_norm=0", "--strategy", "halving", "--seeds", "2"),
    *("--max_steps", "16", "--per_device_train_batch_size", "8", "--device", "cpu", "--precision", "fp32", "--at_once", "2"),
]
COMPARED = ("runs", "tried", "rounds", "chosen", "results", "test_evaluations", "status", "data", "metric", "seeds")
TIMES = ("seconds", "preparing")


class StudyBench:
    """Starts studies of a tiny model on small data, and kills them.

    Args:
        folder: An empty folder.
        seed: Random seed of the moments.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.chance = folder, random.Random(seed)
        write_data(folder / "data", 90, 30)
        (folder / "data" / "test.csv").write_bytes((folder / "data" / "validation.csv").read_bytes())
        tiny_model(max_position_embeddings=64).base_model.save_pretrained(folder / "model")
        tiny_tokenizer().save_pretrained(folder / "model")

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """Start a study, or continue it."""
        words = ["study", "data", "--model", "model", *WORDS, "--output_dir", name]
        environment = {**os.environ, "GLASSLOOP_CACHE": str(self.folder / "cache"), "CUDA_VISIBLE_DEVICES": ""}
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "glassloop", *words], cwd=self.folder, env=environment, stdout=log, stderr=log
            )

    def to_the_end(self, name: str) -> float:
        """Run a study to its end, and return the seconds it took."""
        began = time.monotonic()
        code = self.start(name).wait(600)
        if code:
            raise RuntimeError(f"exit status {code}\n{(self.folder / f'{name}.log').read_text()[-2000:]}")
        return time.monotonic() - began

    def kill(self, name: str, kind: str, seconds: float) -> bool:
        """Start a study, kill it or a worker at a random moment, and return whether there was something to kill."""
        process = self.start(name)
        time.sleep(self.chance.uniform(0.0, seconds))
        while not (workers := children_of(process.pid)) and kind == WORKER and process.poll() is None:
            time.sleep(0.05)  # the first worker has not started yet
        victims = {TREE: [process.pid, *workers], STUDY: [process.pid], WORKER: workers[:1]}[kind]
        if process.poll() is not None or not victims:
            process.wait(600)
            return False
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        process.wait(600)
        return True


def children_of(parent: int) -> list[int]:
    """The child processes of a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
        except OSError:
            continue
    return sorted(found)


def compared(folder: Path) -> dict[str, Any]:
    """What study.json says, without timings."""
    record = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    for run in record["runs"].values():
        for name in TIMES:
            run.pop(name)
    return {name: record[name] for name in COMPARED}


def study_differences(first: Path, second: Path) -> list[str]:
    """What two finished studies do not have in common: record, tables, and each run with its weights and predictions."""
    one, other = compared(first), compared(second)
    found = [f"study.json: {name}" for name in one if one[name] != other[name]]
    found += [name for name in ("study.md", "study.tex") if (first / name).read_bytes() != (second / name).read_bytes()]
    folders = [sorted(path.name for path in (study / "runs").iterdir() if path.is_dir()) for study in (first, second)]
    if folders[0] != folders[1]:
        return [*found, "other runs"]
    for name in folders[0]:
        pair = first / "runs" / name, second / "runs" / name
        status = one["runs"][name]["status"]
        if status == "finished":
            found += [f"{name}: {text}" for text in differences(*pair)]
            continue
        files = [sorted(path.relative_to(run) for path in run.rglob("*.safetensors")) for run in pair]
        same = files[0] == files[1] and all(sha(pair[0] / path) == sha(pair[1] / path) for path in files[0])
        found += [] if same and (status == "failed" or files[0]) else [f"{name}: checkpoints"]
    return found
