"""Damage or change a checkpoint in sixteen ways, and compare how transformers' Trainer and Glassloop resume.

python benchmarks/damages.py
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import platform
import re
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import torch
from families import tiny_model, tiny_tokenizer, weights_hash
from trials import write_data

import glassloop

EPOCHS, BATCH, RATE, SEED = 3, 8, 1e-3, 42
SILENT = "different, silent"


RULES = """\
Both train the same tiny model (dropout 0.1) on the same 61 rows for three epochs and save after each. The third checkpoint is
removed, as if the run had been stopped after the second epoch. Then the newest checkpoint is damaged, or the data or a setting
are changed, and both resume with resume_from_checkpoint=True. The final weights are compared, by a hash, with those of an
uninterrupted run. Resuming without damage is checked first and must end with the same weights.

refused               an error of any kind before any further step
error later           an error after further steps
skipped, same weights a message, and the same weights at the end
same, silent          no message, and the same weights at the end
different, reported   a message, and different weights
different, silent     no message, and different weights

A message is any line of output, log or warning, at default levels, that resuming without damage does not print, apart from
numbers, paths and progress bars. A byte is flipped (all its bits inverted) at eight evenly spaced positions of the file; the
row shows all outcomes and counts as "different, silent" if one of the eight is. Glassloop has no separate file for the
scheduler, so its state.json, which contains the scheduler, is used.
"""


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(part: int) -> Callable[[Path], None]:
    """Invert the byte in the middle of the n-th eighth of a file."""

    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[len(content) * (2 * part + 1) // 16] ^= 255
        path.write_bytes(content)

    return flip


FLIPS = [flipped(part) for part in range(8)]


def half_json(path: Path) -> None:
    path.write_text(path.read_text()[:-40])


FILES = {  # ours, theirs
    "weights": ("model.safetensors", "model.safetensors"),
    "optimizer": ("optimizer.safetensors", "optimizer.pt"),
    "scheduler": ("state.json", "scheduler.pt"),
    "random state": ("random-0.safetensors", "rng_state.pth"),
    "trainer state": ("state.json", "trainer_state.json"),
}
DAMAGES: dict[str, tuple[str, list[Callable[[Path], None]]]] = {
    "weights truncated": ("weights", [truncated]),
    "weights, one byte flipped": ("weights", FLIPS),
    "weights missing": ("weights", [Path.unlink]),
    "optimizer truncated": ("optimizer", [truncated]),
    "optimizer, one byte flipped": ("optimizer", FLIPS),
    "optimizer missing": ("optimizer", [Path.unlink]),
    "scheduler missing": ("scheduler", [Path.unlink]),
    "random state missing": ("random state", [Path.unlink]),
    "trainer state damaged": ("trainer state", [half_json]),
    "trainer state missing": ("trainer state", [Path.unlink]),
}
CHANGES: dict[str, dict[str, Any]] = {
    "a training row edited": {"rows": "edited"},
    "a training row removed": {"rows": "removed"},
    "training rows reordered": {"rows": "reordered"},
    "learning rate changed": {"learning_rate": 3e-3},
    "seed changed": {"seed": 7},
    "batch size changed": {"per_device_train_batch_size": 4},
}
NAMES = ("theirs", "ours")
NUMBERS = re.compile(r"[-+]?\d[\d.,e+-]*|\bnan\b|\binf\b|[\w./-]*/[\w./-]*")


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder, self.tokenizer = folder, tiny_tokenizer()
        examples = glassloop.load_examples(str(write_data(folder / "data")))
        rows = glassloop.encode(examples, self.tokenizer, 64)["train"].rows
        self.rows = {
            None: rows,
            "edited": rows.map(lambda row, number: {"labels": 1 - row["labels"]} if number == 3 else row, with_indices=True),
            "removed": rows.select(range(1, len(rows))),
            "reordered": rows.select([*range(len(rows) - 1, -1, -1)]),
        }  # made here, so that no bar of `map` counts as a message

    def settings(self, run: Path, changed: dict[str, Any]) -> dict[str, Any]:
        settings = {
            "output_dir": str(run), "num_train_epochs": EPOCHS, "per_device_train_batch_size": BATCH, "learning_rate": RATE,
            "seed": SEED, "save_strategy": "epoch", "save_total_limit": None, "logging_steps": 4, "report_to": "none",
            "disable_tqdm": True,
        }  # fmt: skip
        return settings | {name: value for name, value in changed.items() if name != "rows"}

    def ours(self, run: Path, resume: bool, **changed: Any) -> str:
        args = glassloop.TrainingArguments(**self.settings(run, changed), device="cpu", precision="fp32")
        trainer = glassloop.Trainer(
            tiny_model(), args, train_dataset=self.rows[changed.get("rows")], processing_class=self.tokenizer
        )
        self.trainer = trainer
        trainer.train(resume_from_checkpoint=resume)
        return weights_hash(trainer.model)

    def theirs(self, run: Path, resume: bool, **changed: Any) -> str:
        from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

        args = TrainingArguments(**self.settings(run, changed), use_cpu=True)
        trainer = Trainer(
            tiny_model(), args, train_dataset=self.rows[changed.get("rows")], processing_class=self.tokenizer,
            data_collator=DataCollatorWithPadding(self.tokenizer),
        )  # fmt: skip
        self.trainer = trainer
        trainer.train(resume_from_checkpoint=resume)
        return weights_hash(trainer.model)

    def stop(self, whose: str) -> None:
        """A run and its end; then its last checkpoint is taken away, as if it had been stopped before."""
        self.ends[whose] = getattr(self, whose)(self.folder / whose, False)
        found = [*(self.folder / whose).glob("checkpoint-*")]
        assert len(found) == EPOCHS
        shutil.rmtree(max(found, key=lambda path: int(path.name.partition("-")[2])))

    def go_on(self, whose: str, damage: Callable[[Path], None] | None, changed: dict[str, Any]) -> tuple[str, set[str]]:
        """The hash of the end, or how it failed; and all that was said, without numbers and paths."""
        run = self.folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(self.folder / whose, run)
        if damage is not None:
            damage(run / "checkpoint-16")
        said = io.StringIO()
        handler = logging.StreamHandler(said)
        logging.getLogger("transformers").addHandler(handler)
        self.trainer = None
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said), warnings.catch_warnings():
                warnings.simplefilter("always")
                end = getattr(self, whose)(run, True, **changed)
        except Exception as error:
            state = self.trainer.state if self.trainer else None
            later = (state.step if whose == "ours" else state.global_step) > 16 if state else False
            end = f"{'error later' if later else 'refused'} ({type(error).__name__})"
        finally:
            logging.getLogger("transformers").removeHandler(handler)
        return end, {NUMBERS.sub("#", line).strip() for line in said.getvalue().splitlines() if "%|" not in line}

    def outcome(self, name: str, whose: str, damage: Callable[[Path], None] | None, changed: dict[str, Any]) -> str:
        end, lines = self.go_on(whose, damage, changed)
        if end.startswith(("refused", "error")):
            return end
        new = sorted(lines - self.usual[whose])
        self.messages += [f"{name} ({whose}): {line[:200]}" for line in new]
        if end == self.ends[whose]:
            return "skipped, same weights" if new else "same, silent"
        return "different, reported" if new else SILENT

    def cell(self, name: str, whose: str, damages: list[Any], changed: dict[str, Any]) -> str:
        found = Counter(self.outcome(name, whose, damage, changed) for damage in damages)
        return next(iter(found)) if len(damages) == 1 else "; ".join(f"{number} of 8: {what}" for what, number in found.items())

    def compare(self) -> list[tuple[str, ...]]:
        self.ends: dict[str, str] = {}
        self.usual: dict[str, set[str]] = {}
        self.messages: list[str] = []
        for whose in NAMES:
            self.stop(whose)
            end, self.usual[whose] = self.go_on(whose, None, {})
            if end != self.ends[whose]:
                raise SystemExit(f"{whose}: going on without damage does not end like the run never stopped: {end}")
        table = []
        for name, (about, damages) in DAMAGES.items():
            ours, theirs = FILES[about]
            files = {"ours": ours, "theirs": theirs}
            table.append(
                (name, *(self.cell(name, whose, [at(files[whose], damage) for damage in damages], {}) for whose in NAMES))
            )
        for name, changed in CHANGES.items():
            table.append((name, *(self.cell(name, whose, [None], changed) for whose in NAMES)))
        return table


def at(file: str, damage: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda checkpoint: damage(checkpoint / file)


def main() -> None:
    torch.set_num_threads(1)
    import transformers

    print(RULES)
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} cores\n",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            table = bench.compare()
    print(f"| damage or change | transformers {transformers.__version__} | glassloop {glassloop.__version__} |\n|---|---|---|")
    for row in table:
        print("| " + " | ".join(row) + " |")
    counts = [sum(SILENT in row[column] for row in table) for column in (1, 2)]
    print(f"| {SILENT} | {counts[0]} of {len(table)} | {counts[1]} of {len(table)} |")
    print("\nWhat was said beside the usual:", *bench.messages, sep="\n")


if __name__ == "__main__":
    main()
