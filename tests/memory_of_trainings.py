"""Train, evaluate and predict several times in one process, and print what stays after each round as JSON lines.

Called as `python memory_of_trainings.py ROUNDS DEVICE BACKEND FAMILY [leaks]`; with `leaks`, each round leaves things behind.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from itertools import pairwise
from pathlib import Path

import torch
from commands import environment
from datasets import Dataset
from families import tiny_model, tiny_tokenizer

from glassloop import Trainer, TrainingArguments

WORDS = 30_522


def memory_after_each(
    rounds: int, backend: str, family: str, device: str = "cpu", *, leaks: bool = False
) -> list[dict[str, int]]:
    """Return what stays after each round of training, evaluation and prediction in a process of its own."""
    command = [sys.executable, __file__, str(rounds), device, backend, family, *(["leaks"] if leaks else [])]
    done = subprocess.run(command, env=environment(), capture_output=True, encoding="utf-8", timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def tensors_in_memory() -> int:
    """Return the bytes of all tensors that Python knows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # looking at every object touches deprecated ones
        return sum(found.nbytes for found in gc.get_objects() if isinstance(found, torch.Tensor))


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def grown(found: list[dict[str, int]]) -> set[str]:
    """Return what every round after the second has left behind. The first ones still load code."""
    counts = {name: [each[name] for each in found[1:]] for name in found[0]}
    return {name for name, values in counts.items() if all(after > before for before, after in pairwise(values))}


LEFT: list[object] = []


def leak(trainer: Trainer) -> None:
    """Leave behind a tensor, an object, a thread and an open file."""
    LEFT.extend([[], os.dup(0), *(weight.detach() for weight in trainer.model.parameters())])
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def main(rounds: int, device: str, backend: str, family: str, leaks: str = "") -> None:
    """Print one line after each round."""
    tokenizer = tiny_tokenizer()
    ids = [[101, *((row * 31 + place * 7) % 20_000 + 1_000 for place in range(4 + row % 9)), 102] for row in range(32)]
    rows = Dataset.from_dict({"input_ids": ids, "labels": [row % 2 for row in range(32)]})
    for _ in range(rounds):
        model = tiny_model(family, vocab_size=WORDS, hidden_size=128, intermediate_size=256, pooler_hidden_size=128)
        with tempfile.TemporaryDirectory() as folder:
            args = TrainingArguments(
                folder, max_steps=4, device=device, backend=backend, save_strategy="no", disable_tqdm=True, logging_steps=4
            )
            trainer = Trainer(model, args, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer)
            trainer._quiet = True
            trainer.train()
            trainer.evaluate()
            trainer.predict(rows)
        if leaks:
            leak(trainer)
        del trainer, model
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
        on_device = torch.cuda.memory_allocated() if device == "cuda" else 0
        found = {
            "tensors": tensors_in_memory(),
            "resident": resident(),
            "on_device": on_device,
            "objects": len(gc.get_objects()),
            "threads": len([*Path("/proc/self/task").iterdir()]),
            "files": len([*Path("/proc/self/fd").iterdir()]),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
