"""Predictions a second on a CPU in fp32: Glassloop against onnxruntime and transformers on padded batches sorted by length.

    python benchmarks/predictions.py RUN [--rounds 5] [--threads 2]

All get the same texts, and tokenizing counts. They take turns, and the logits of all must agree.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from glassloop import Predictor
from glassloop.run_folder.predictions import predicted_splits, read_predictions

BATCH = 32
NAMES = ["input_ids", "attention_mask", "token_type_ids"]


def padded_batches(predictor: Predictor, first: list[str], second: list[str]) -> list[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Return the rows of each batch, sorted by length, with its padded inputs. Each text is tokenized once."""
    encoded = predictor.tokenizer(first, second, truncation=True, max_length=predictor.max_length, return_attention_mask=True)
    order = np.argsort([len(ids) for ids in encoded["input_ids"]], kind="stable")
    found = []
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        longest = len(encoded["input_ids"][rows[-1]])
        inputs = {name: np.zeros((len(rows), longest), dtype=np.int64) for name in NAMES}
        for name, padded in inputs.items():
            for place, row in enumerate(rows):
                cells = encoded[name][row]
                padded[place, : len(cells)] = cells
        found.append((rows, inputs))
    return found


def exported(model: torch.nn.Module, inputs: dict[str, np.ndarray], folder: Path) -> Path:
    """Export a model with any number of rows and tokens."""
    path = folder / "model.onnx"
    rows, tokens = torch.export.Dim("rows", min=1, max=4096), torch.export.Dim("tokens", min=2, max=512)
    given = tuple(torch.from_numpy(inputs[name]) for name in NAMES)
    shapes = tuple({0: rows, 1: tokens} for _ in NAMES)
    model.config.return_dict = False
    torch.onnx.export(model, given, str(path), input_names=NAMES, output_names=["logits"], dynamic_shapes=shapes, dynamo=True)
    model.config.return_dict = True
    return path


def main() -> None:
    """Measure all in turn and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=400)
    args = parser.parse_args()
    import onnxruntime

    torch.set_num_threads(args.threads)
    predictor = Predictor(args.run, device="cpu")
    rows = read_predictions(args.run, predicted_splits(args.run)[0])[: args.rows]
    first, second = ([str(row[name]) for row in rows] for name in predictor.run.data.columns.texts)  # type: ignore[union-attr]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = args.threads
    with tempfile.TemporaryDirectory() as folder:
        path = exported(predictor.model, padded_batches(predictor, first[:4], second[:4])[0][1], Path(folder))
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def collected(run: Callable[[dict[str, np.ndarray]], np.ndarray]) -> np.ndarray:
        found = np.zeros((len(first), len(predictor.names)))
        for numbers, inputs in padded_batches(predictor, first, second):
            found[numbers] = run(inputs)
        return found

    def with_torch(inputs: dict[str, np.ndarray]) -> np.ndarray:
        with torch.inference_mode():
            return np.asarray(predictor.model(**{name: torch.from_numpy(part) for name, part in inputs.items()}).logits)

    contenders: dict[str, Callable[[], np.ndarray]] = {
        "glassloop": lambda: predictor.logits(first, second),
        "onnxruntime": lambda: collected(lambda inputs: session.run(None, inputs)[0]),
        "transformers": lambda: collected(with_torch),
    }
    wanted = {name: run() for name, run in contenders.items()}
    for name, logits in wanted.items():
        np.testing.assert_allclose(logits, wanted["transformers"], atol=1e-4, err_msg=name)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(args.rounds):
        for name, run in contenders.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    speeds = {name: len(first) / statistics.median(values) for name, values in seconds.items()}
    for name, speed in speeds.items():
        print(f"{name:12} {speed:7.1f} predictions/s")
    print(f"glassloop over onnxruntime: {speeds['glassloop'] / speeds['onnxruntime']:.2f}x")
    print(json.dumps(speeds))


if __name__ == "__main__":
    main()
