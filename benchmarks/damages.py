"""Sixteen damages and changes of a checkpoint, done to transformers' Trainer and to ours: who notices?

    python benchmarks/damages.py

Both train the same tiny model on the same rows and are stopped after the second of three epochs; then something is damaged or
changed, and both go on from the newest checkpoint with what they offer for it. The outcome is compared with going on unchanged:

    refused                 an error, and nothing trained
    passed over, same end   a message, and the same weights in the end (from the checkpoint before)
    other end, told         a message that names it, and other weights
    OTHER END, SILENT       other weights and no word about it
    same end, silent        taken, and the same weights in the end
"""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import torch
from families import tiny_model, tiny_tokenizer, weights_hash
from safetensors.torch import load_file
from trials import write_data

import glassloop

EPOCHS, BATCH, RATE, SEED = 3, 8, 1e-3, 42


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path: Path) -> None:
    """Flip one high bit of the largest number of the largest tensor: not in a header, in padding or in an unused row."""
    if path.suffix == ".safetensors":
        tensors = list(load_file(path).values())
    else:
        state = torch.load(path, weights_only=True)["state"]
        tensors = [value for entry in state.values() for value in entry.values() if isinstance(value, torch.Tensor)]
    largest = max(tensors, key=torch.Tensor.numel).contiguous()
    content = bytearray(path.read_bytes())
    place = content.index(largest.numpy().tobytes()) + int(largest.abs().argmax()) * 4 + 3
    content[place] ^= 4
    path.write_bytes(content)


def half_json(path: Path) -> None:
    path.write_text(path.read_text()[:-40])


FILES = {  # ours, theirs
    "weights": ("model/model.safetensors", "model.safetensors"),
    "optimizer": ("optimizer.safetensors", "optimizer.pt"),
    "scheduler": ("state.json", "scheduler.pt"),
    "random state": ("random-0.safetensors", "rng_state.pth"),
    "trainer state": ("state.json", "trainer_state.json"),
}
DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "weights truncated": ("weights", truncated),
    "weights, one bit flipped": ("weights", flipped),
    "weights missing": ("weights", Path.unlink),
    "optimizer truncated": ("optimizer", truncated),
    "optimizer, one bit flipped": ("optimizer", flipped),
    "optimizer missing": ("optimizer", Path.unlink),
    "scheduler missing": ("scheduler", Path.unlink),
    "random state missing": ("random state", Path.unlink),
    "trainer state damaged": ("trainer state", half_json),
    "trainer state missing": ("trainer state", Path.unlink),
}
CHANGES: dict[str, dict[str, Any]] = {
    "a training row edited": {"rows": "edited"},
    "a training row removed": {"rows": "removed"},
    "training rows reordered": {"rows": "reordered"},
    "learning rate changed": {"learning_rate": 3e-3},
    "seed changed": {"seed": 7},
    "batch size changed": {"per_device_train_batch_size": 4},
}
WORDS = {  # a message tells of a change if it holds one of these
    "weights": ("model.safetensors", "weights"), "optimizer": ("optimizer",), "scheduler": ("scheduler", "state.json"),
    "random state": ("rng", "random"), "trainer state": ("trainer_state", "state.json"), "rows": ("rows", "data"),
    "learning_rate": ("learning_rate", "learning rate"), "seed": ("seed",),
    "per_device_train_batch_size": ("batch_size", "batch size"),
}  # fmt: skip


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder, self.tokenizer = folder, tiny_tokenizer()
        examples = glassloop.load_examples(str(write_data(folder / "data")))
        self.encoded = glassloop.encode(examples, self.tokenizer, 64)["train"].rows

    def rows(self, change: str | None) -> Any:
        if change == "edited":
            return self.encoded.map(
                lambda row, number: {"labels": 1 - row["labels"]} if number == 3 else row, with_indices=True
            )
        if change == "removed":
            return self.encoded.select(range(1, len(self.encoded)))
        if change == "reordered":
            return self.encoded.select([*range(len(self.encoded) - 1, -1, -1)])
        return self.encoded

    def settings(self, run: Path, changed: dict[str, Any]) -> dict[str, Any]:
        settings = {
            "output_dir": str(run), "num_train_epochs": EPOCHS, "per_device_train_batch_size": BATCH, "learning_rate": RATE,
            "seed": SEED, "save_strategy": "epoch", "save_total_limit": 3, "logging_steps": 4, "report_to": "none",
            "disable_tqdm": True,
        }  # fmt: skip
        return settings | {name: value for name, value in changed.items() if name != "rows"}

    def ours(self, run: Path, resume: bool, **changed: Any) -> str:
        args = glassloop.TrainingArguments(**self.settings(run, changed), device="cpu", precision="fp32")
        trainer = glassloop.Trainer(
            tiny_model(), args, train_dataset=self.rows(changed.get("rows")), processing_class=self.tokenizer
        )
        trainer.train(resume_from_checkpoint=resume)
        return weights_hash(trainer.model)

    def theirs(self, run: Path, resume: bool, **changed: Any) -> str:
        from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

        args = TrainingArguments(**self.settings(run, changed), use_cpu=True)
        trainer = Trainer(
            tiny_model(), args, train_dataset=self.rows(changed.get("rows")), processing_class=self.tokenizer,
            data_collator=DataCollatorWithPadding(self.tokenizer),
        )  # fmt: skip
        trainer.train(resume_from_checkpoint=resume)
        return weights_hash(trainer.model)

    def outcome(self, whose: str, damage: Callable[[Path], None] | None, about: str, changed: dict[str, Any]) -> str:
        """What going on does after the damage, beside going on without it."""
        train = getattr(self, whose)
        stopped = self.folder / whose
        if not stopped.exists():
            train(stopped, False)
            newest = sorted((stopped / "checkpoints").iterdir()) if whose == "ours" else sorted(
                stopped.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))  # fmt: skip
            shutil.rmtree(newest[-1])  # as if it had been stopped after the second epoch
        run = self.folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(stopped, run)
        if damage is not None:
            damage(self.newest(whose, run))
        said = io.StringIO()
        handler = logging.StreamHandler(said)
        logging.getLogger("transformers").addHandler(handler)
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said), warnings.catch_warnings():
                warnings.simplefilter("always")
                end = train(run, True, **changed)
        except Exception as error:
            return f"refused ({type(error).__name__})"
        finally:
            logging.getLogger("transformers").removeHandler(handler)
        lines = [line.lower() for line in said.getvalue().splitlines() if "grad_norm" not in line and "runtime" not in line]
        told = any(word in line for word in WORDS[about] for line in lines)  # figures that are logged tell of nothing
        same = end == self.expected[whose]
        return {
            (True, True): "passed over, same end", (True, False): "same end, silent",
            (False, True): "other end, told", (False, False): "OTHER END, SILENT",
        }[(same, told)]  # fmt: skip

    def newest(self, whose: str, run: Path) -> Path:
        return run / "checkpoints" / "step-00000016" if whose == "ours" else run / "checkpoint-16"

    def compare(self) -> list[tuple[str, str, str]]:
        self.expected = {"ours": "", "theirs": ""}
        for whose in self.expected:
            self.outcome(whose, None, "weights", {})
            shutil.rmtree(self.folder / "run")
            shutil.copytree(self.folder / whose, self.folder / "run")
            self.expected[whose] = getattr(self, whose)(self.folder / "run", True)
        table = []
        for name, (about, damage) in DAMAGES.items():
            cells = [
                self.outcome(whose, lambda path, place=place: damage(path / FILES[about][place]), about, {})  # noqa: B023
                for place, whose in enumerate(("ours", "theirs"))
            ]
            table.append((name, *reversed(cells)))
        for name, changed in CHANGES.items():
            cells = [self.outcome(whose, None, next(iter(changed)), changed) for whose in ("ours", "theirs")]
            table.append((name, *reversed(cells)))
        return table


def main() -> None:
    torch.set_num_threads(1)
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            table = bench.compare()
    print(f"| damage or change | transformers {transformers.__version__} | glassloop {glassloop.__version__} |\n|---|---|---|")
    for row in table:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
