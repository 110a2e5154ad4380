"""Examples a second of `Predictor` over transformers' pipeline on one device: same model, texts and truncation.

    python benchmarks/pipeline_predictions.py RUN [--device cuda] [--rows 8000] [--rounds 3] [--precision auto]

The pipeline runs as it does by default (one text at a time) and with its best of several batch sizes. Tokenizing counts.
They take turns, and probabilities must agree.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from transformers import pipeline

from glassloop import Predictor
from glassloop.runs.record import predicted_splits, read_predictions

BATCH_SIZES = (1, 32, 128, 512)
ALLOWED = {"fp32": 1e-3}  # of probabilities; others differ by the rounding of their precision
ALLOWED_OTHERS = 0.05


def main() -> None:
    """Measure all in turn and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, default=8_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", nargs="+", default=["auto"])
    args = parser.parse_args()
    predictors = {
        f"glassloop {precision}": Predictor(args.run, device=args.device, precision=precision) for precision in args.precision
    }
    first = next(iter(predictors.values()))
    stored = read_predictions(args.run, predicted_splits(args.run)[0])
    columns = first.run.data.columns.texts  # type: ignore[union-attr]
    known = [tuple(str(row[name]) for name in columns) for row in stored]
    pairs = [known[place % len(known)] for place in range(args.rows)]
    classify = pipeline("text-classification", model=str(args.run / "model"), device=args.device, top_k=None)
    dicts = [{"text": one, "text_pair": two} for one, two in pairs]

    def with_pipeline(size: int, number: int) -> np.ndarray:
        found = classify(dicts[:number], batch_size=size, truncation=True, max_length=first.max_length)
        return np.array([[{one["label"]: one["score"] for one in row}[name] for name in first.names] for row in found])

    def with_glassloop(predictor: Predictor) -> np.ndarray:
        return np.array([[found.scores[name] for name in predictor.names] for found in predictor.predict(pairs)])

    contenders: dict[str, tuple[int, Callable[[], np.ndarray]]] = {
        f"pipeline {size}": (number, lambda size=size, number=number: with_pipeline(size, number))
        for size, number in ((size, min(args.rows, 400 if size == 1 else args.rows)) for size in BATCH_SIZES)
    }
    contenders |= {
        name: (args.rows, lambda predictor=predictor: with_glassloop(predictor)) for name, predictor in predictors.items()
    }
    wanted = with_pipeline(1, 400)
    for name, (_, run) in contenders.items():
        apart = float(np.abs(run()[:400] - wanted).max())
        print(f"{name:16} largest difference of a probability {apart:.1e}", flush=True)
        precision = predictors[name].backend.precision if name in predictors else "fp32"
        if apart > ALLOWED.get(precision, ALLOWED_OTHERS):
            raise SystemExit(f"{name} differs")
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(args.rounds):
        for name, (_, run) in contenders.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    speeds = {name: contenders[name][0] / statistics.median(values) for name, values in seconds.items()}
    best = max(speed for name, speed in speeds.items() if name.startswith("pipeline"))
    for name, speed in speeds.items():
        over = f" {speed / speeds['pipeline 1']:.1f}x the pipeline, {speed / best:.1f}x its best batch size"
        print(f"{name:16} {speed:9.1f} examples/s{over if name in predictors else ''}")
    print(json.dumps(speeds))


if __name__ == "__main__":
    main()
