"""Trains tiny models of some families for two epochs and writes each step's loss and gradient norm; a test starts it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from families import rows_for, tiny_model, tiny_tokenizer

from glassloop import Trainer, TrainingArguments, encode, load_examples

BATCH = 6  # sixty-one rows: the last batch of an epoch holds one row, fewer than there are processes
LOW, HIGH = 1e-5, 1e-3  # at the high rate the weights of two runs drift apart by rounding alone: ModernBERT's norms show it


def train_all(folder: Path, num_processes: int, families: Sequence[str]) -> dict[str, list[list[float]]]:
    """Loss and norm of every step, then accuracy and F1, by "family rate"."""
    tokenizer = tiny_tokenizer()
    encoded = encode(load_examples("quickstart", rows=61, split_seed=3), tokenizer, 64)
    figures = {}
    for family, rate in product(families, (LOW, HIGH)):
        args = TrainingArguments(
            folder / f"{family}-{rate}", num_train_epochs=2, per_device_train_batch_size=BATCH // num_processes,
            logging_steps=1, learning_rate=rate, precision="fp32", device="cpu", disable_tqdm=True, save_strategy="no",
        )  # fmt: skip
        splits = {"train_dataset": "train", "eval_dataset": "validation"}
        rows = {name: rows_for(family, encoded[split].rows) for name, split in splits.items()}
        trainer = Trainer(tiny_model(family, dropout=0.0), args, processing_class=tokenizer, **rows)
        trainer.train()
        evaluation = trainer.evaluate()
        history = [[entry["loss"], entry["grad_norm"]] for entry in trainer.state.history if "loss" in entry]
        figures[f"{family} {rate}"] = [*history, [evaluation["eval_accuracy"], evaluation["eval_f1"]]]
    return figures


if __name__ == "__main__":
    import os

    found = train_all(Path(sys.argv[1]), int(os.environ["WORLD_SIZE"]), sys.argv[2:])
    if os.environ["RANK"] == "0":
        (Path(sys.argv[1]) / "figures.json").write_text(json.dumps(found), encoding="utf-8")
