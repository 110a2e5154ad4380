"""Trains every tiny family for one epoch and writes each step's loss and gradient norm; started under torchrun by a test."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from families import FAMILIES, rows_for, tiny_model, tiny_tokenizer

from glassloop import Trainer, TrainingArguments, encode, load_examples

BATCH = 6  # sixty-one rows: the last batch of an epoch holds one row, fewer than there are processes


def train_all(folder: Path, num_processes: int, families: tuple[str, ...] = FAMILIES) -> dict[str, list[list[float]]]:
    tokenizer = tiny_tokenizer()
    encoded = encode(load_examples("quickstart", rows=61, seed=3), tokenizer, 64)
    figures = {}
    for family in families:
        args = TrainingArguments(
            folder / family, num_train_epochs=2, per_device_train_batch_size=BATCH // num_processes, logging_steps=1,
            learning_rate=1e-3, precision="fp32", device="cpu", disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(
            tiny_model(family, dropout=0.0),
            args,
            train_dataset=rows_for(family, encoded["train"].rows),
            eval_dataset=rows_for(family, encoded["validation"].rows),
            processing_class=tokenizer,
        )
        trainer.train()
        evaluation = trainer.evaluate()
        history = [[entry["loss"], entry["grad_norm"]] for entry in trainer.state.history]
        figures[family] = [*history, [evaluation["eval_accuracy"], evaluation["eval_f1"]]]
    return figures


if __name__ == "__main__":
    import os

    found = train_all(Path(sys.argv[1]), int(os.environ["WORLD_SIZE"]))
    if os.environ["RANK"] == "0":
        (Path(sys.argv[1]) / "figures.json").write_text(json.dumps(found), encoding="utf-8")
