"""What the check against the plain model costs: its time beside that of a short training, on a CPU or a GPU.

    python benchmarks/check.py --device cpu --steps 300
    python benchmarks/check.py --device cuda --sizes minilm,base --steps 1377

Models have random weights in the sizes of MiniLM and BERT-base; rows have lengths like those of MRPC. The check is run three
times; the first one pays for what a process pays once (kernels, libraries), the median is its own cost.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from statistics import median
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

from glassloop import Trainer, TrainingArguments

SIZES = {
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}


def rows_like_mrpc(number: int) -> Dataset:
    source = np.random.default_rng(5)
    lengths = np.clip(source.normal(53, 13, number), 20, 100).astype(int)
    ids = [source.integers(1000, 30000, length).tolist() for length in lengths]
    return Dataset.from_dict({"input_ids": ids, "labels": source.integers(0, 2, number).tolist()})


def measure(size: str, device: str, steps: int, batch_size: int) -> dict[str, Any]:
    torch.manual_seed(1)
    model = BertForSequenceClassification(BertConfig(num_labels=2, **SIZES[size]))
    tokenizer = BertTokenizerFast(vocab={"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4})
    rows = rows_like_mrpc(3668)
    folder = tempfile.mkdtemp()
    quiet = {"save_strategy": "no", "disable_tqdm": True, "logging_steps": steps}
    args = TrainingArguments(folder, device=device, max_steps=steps, per_device_train_batch_size=batch_size, **quiet)
    trainer = Trainer(model, args, train_dataset=rows, processing_class=tokenizer)
    seconds = []
    for _ in range(3):
        trainer.backend.differences.clear()
        began = time.perf_counter()
        trainer._prove()
        seconds.append(time.perf_counter() - began)
    proof = trainer.backend.differences.get(model)
    began = time.perf_counter()
    trainer.train()
    training = time.perf_counter() - began
    return {
        "model": size,
        "device": device,
        "backend": trainer.backend.name,
        "precision": trainer.backend.precision,
        "difference": str(proof),
        "check_seconds": [round(value, 4) for value in seconds],
        "training_seconds": round(training, 3),
        "steps": steps,
        "share": round(median(seconds) / (training + seconds[0]), 5),
        "share_with_first_use": round(seconds[0] / (training + seconds[0]), 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", default="minilm")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch_size", type=int, default=8)
    given = parser.parse_args()
    for size in given.sizes.split(","):
        print(json.dumps(measure(size, given.device, given.steps, given.batch_size), indent=1), flush=True)


if __name__ == "__main__":
    main()
