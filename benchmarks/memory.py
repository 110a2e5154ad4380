"""Measure what stays in memory after each training, evaluation and prediction in one process, with a random BERT model.

python benchmarks/memory.py --device cuda --trainings 6 --library glassloop transformers
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

SIZES = {
    "base": {},
    "mini": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
}


def in_memory(device: str) -> float:
    """Return the megabytes of this process: allocated on the GPU, or resident."""
    if device == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated() / 1e6
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def measure(library: str, device: str, trainings: int, size: str, steps: int) -> None:
    """Print the memory before the first training and after each."""
    import transformers
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast, DataCollatorWithPadding

    import glassloop

    chosen = glassloop if library == "glassloop" else transformers
    rows = [{"input_ids": [101, *range(1000 + row, 1020 + row + row % 40), 102], "labels": row % 2} for row in range(256)]
    tokenizer = BertTokenizerFast(
        vocab={word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])}
    )
    pad = DataCollatorWithPadding(tokenizer)
    found = [in_memory(device)]
    for _ in range(trainings):
        with tempfile.TemporaryDirectory() as folder:
            model = BertForSequenceClassification(BertConfig(**SIZES[size])).to(device)
            args = chosen.TrainingArguments(
                folder, max_steps=steps, per_device_train_batch_size=32, save_strategy="no", disable_tqdm=True, report_to="none"
            )
            trainer = chosen.Trainer(model, args, pad, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer)
            trainer.train()
            trainer.evaluate()
            trainer.predict(rows)
        del trainer, model
        gc.collect()
        found.append(in_memory(device))
    print(f"{library}, {size}, {device}: " + ", ".join(f"{each:,.0f}" for each in found) + " MB", flush=True)


def main() -> None:
    """Measure each library in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", nargs="+", default=["glassloop", "transformers"], choices=["glassloop", "transformers"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--trainings", type=int, default=6)
    parser.add_argument("--size", default="base", choices=[*SIZES])
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    if len(args.library) == 1:
        measure(args.library[0], args.device, args.trainings, args.size, args.steps)
        return
    for library in args.library:
        options = [f"--{name}={getattr(args, name)}" for name in ("device", "trainings", "size", "steps")]
        subprocess.run([sys.executable, __file__, "--library", library, *options], check=True)


if __name__ == "__main__":
    main()
