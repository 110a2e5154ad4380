"""MRPC over seeds: the settings of the course notes, a search on training data alone, and its best recipe. Many runs at once.

    python benchmarks/mrpc.py --data_dir GLUE --model quickstart --out results.json [--workers 6]

The search never sees the validation split: each candidate is trained on a part of the training rows and scored on the rest.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

NOTES = {"num_train_epochs": 3, "learning_rate": 5e-5, "per_device_train_batch_size": 8}
GRID = {
    "num_train_epochs": [4, 8],
    "learning_rate": [5e-5, 1e-4, 2e-4],
    "per_device_train_batch_size": [16, 32],
    "warmup_steps": [0.1],
    "weight_decay": [0.01],
}
CUTS = (101, 102, 103)


def run_one(job: dict[str, Any]) -> dict[str, Any]:
    """Train once and score; `cut` trains on part of the training rows and scores on the rest of them."""
    import torch

    torch.set_num_threads(2)
    from glassloop import Trainer, TrainingArguments, encode, load_examples, load_metric, load_model, load_tokenizer

    began = time.perf_counter()
    examples = load_examples("glue/mrpc", data_dir=job["data_dir"])
    if job["cut"] is not None:
        rows = [
            {key: row[key] for key in ("sentence1", "sentence2")} | {"label": str(row["label"])}
            for row in examples.splits["train"]
        ]
        names = list(examples.labels.names) if examples.labels else []
        examples = load_examples(rows, split_seed=job["cut"], validation_share=0.15, labels=names)
    tokenizer = load_tokenizer(job["model"])
    encoded = encode(examples, tokenizer, 128)
    model = load_model(job["model"], labels=examples.labels, seed=job["seed"])
    metric = load_metric("glue", "mrpc")

    def scores(found: Any) -> dict[str, float]:
        logits, labels = found
        return metric.compute(predictions=logits.argmax(axis=-1), references=labels)

    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(folder, seed=job["seed"], precision=job["precision"], disable_tqdm=True, **job["settings"])
        trainer = Trainer(
            model,
            args,
            train_dataset=encoded["train"].rows,
            processing_class=tokenizer,
            compute_metrics=scores,
        )
        trained = trainer.train()
        figures = {split: trainer.evaluate(encoded[split].rows) for split in encoded if split != "train"}
    shown = {split: {key: found[f"eval_{key}"] for key in ("accuracy", "f1")} for split, found in figures.items()}
    return {**job, "steps": trained.global_step, "seconds": time.perf_counter() - began, "scores": shown}


def run_all(jobs: list[dict[str, Any]], workers: int) -> list[dict[str, Any]]:
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(run_one, jobs))


def summary(runs: list[dict[str, Any]], split: str = "validation") -> str:
    parts = []
    for key in ("accuracy", "f1"):
        values = [run["scores"][split][key] for run in runs]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        parts.append(f"{key} {statistics.mean(values):.4f} ± {spread:.4f} ({', '.join(f'{value:.4f}' for value in values)})")
    return "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--model", default="quickstart")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    common = {"data_dir": given.data_dir, "model": given.model}
    found: dict[str, Any] = {}

    for precision in ("fp32", "auto"):
        jobs = [{**common, "cut": None, "seed": seed, "precision": precision, "settings": NOTES} for seed in range(given.seeds)]
        found[f"notes {precision}"] = run_all(jobs, given.workers)
        print(f"notes, {precision}: {summary(found[f'notes {precision}'])}", flush=True)
        print(f"  test: {summary(found[f'notes {precision}'], 'test')}", flush=True)

    candidates = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]
    jobs = [
        {**common, "cut": cut, "seed": cut, "precision": "auto", "settings": settings}
        for settings in candidates
        for cut in CUTS
    ]
    runs = run_all(jobs, given.workers)
    ranked = []
    for place, settings in enumerate(candidates):
        mine = runs[place * len(CUTS) : (place + 1) * len(CUTS)]
        ranked.append((statistics.mean(run["scores"]["validation"]["accuracy"] for run in mine), settings, mine))
    ranked.sort(key=lambda entry: -entry[0])
    for score, settings, _ in ranked:
        print(f"search: {score:.4f} {settings}", flush=True)
    found["search"] = [{"score": score, "settings": settings} for score, settings, _ in ranked]

    best = ranked[0][1]
    jobs = [{**common, "cut": None, "seed": seed, "precision": "auto", "settings": best} for seed in range(given.seeds)]
    found["best"] = run_all(jobs, given.workers)
    print(f"best {best}: {summary(found['best'])}\n  test: {summary(found['best'], 'test')}", flush=True)
    given.out.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
