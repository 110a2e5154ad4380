"""Predictions a second on a CPU in fp32: Glassloop against onnxruntime and transformers on padded batches sorted by length.

    python benchmarks/predictions.py RUN [--rounds 5] [--threads 2] [--int8]

All get the same texts, and tokenizing counts. They take turns, and the logits of all must agree. `--int8` adds Glassloop with
precision int8 and onnxruntime's dynamic quantization, and says how many answers differ from fp32. Speeds are medians, and so
are the ratios of one round.
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
from glassloop.runs.record import predicted_splits, read_predictions
from glassloop.scores.metrics import decide

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


def quantized(path: Path) -> Path:
    """Return an exported model whose matrix multiplications onnxruntime has quantized, with ranges of each batch."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(path)
    del model.graph.value_info[:]  # shapes of the example, which its shape inference rejects
    onnx.save(model, path.with_name("plain.onnx"))
    target = path.with_name("int8.onnx")
    quantize_dynamic(path.with_name("plain.onnx"), target, weight_type=QuantType.QInt8, per_channel=True)
    return target


def main() -> None:
    """Measure all in turn and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--int8", action="store_true")
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
        paths = [path, *([quantized(path)] if args.int8 else [])]
        sessions = [onnxruntime.InferenceSession(str(one), options, providers=["CPUExecutionProvider"]) for one in paths]

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
        "onnxruntime": lambda: collected(lambda inputs: sessions[0].run(None, inputs)[0]),
        "transformers": lambda: collected(with_torch),
    }
    wanted = {name: run() for name, run in contenders.items()}
    for name, logits in wanted.items():
        np.testing.assert_allclose(logits, wanted["transformers"], atol=1e-4, err_msg=name)
    if args.int8:
        fast = Predictor(args.run, device="cpu", precision="int8")
        added: dict[str, Callable[[], np.ndarray]] = {
            "glassloop int8": lambda: fast.logits(first, second),
            "onnxruntime int8": lambda: collected(lambda inputs: sessions[1].run(None, inputs)[0]),
        }
        for name, run in added.items():
            logits = run()
            changed = int((decide(logits, predictor.task) != decide(wanted["transformers"], predictor.task)).sum())
            apart = np.abs(logits - wanted["transformers"]).max()
            print(f"{name}: {changed} of {len(first)} answers differ from fp32, logits by up to {apart:.3f}")
        contenders |= added
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(args.rounds):
        for name, run in contenders.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    speeds = {name: len(first) / statistics.median(values) for name, values in seconds.items()}
    for name, speed in speeds.items():
        print(f"{name:16} {speed:7.1f} predictions/s")
    pairs = [("glassloop", "onnxruntime")]
    if args.int8:
        pairs += [(name, "glassloop") for name in added] + [("glassloop int8", "onnxruntime int8")]
    for name, other in pairs:
        ratios = [theirs / ours for ours, theirs in zip(seconds[name], seconds[other], strict=True)]
        print(f"{name} over {other}: {statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})")
    print(json.dumps(speeds))


if __name__ == "__main__":
    main()
