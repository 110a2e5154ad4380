"""What a run found out, for a person: its scores beside the baseline as a table, and its predictions as a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from glassloop.data.examples import Examples
from glassloop.engine.evaluate import Evaluation
from glassloop.errors import printable
from glassloop.files import write_text
from glassloop.metrics import decide, metrics_for


def majority_baseline(examples: Examples, split: str) -> dict[str, float]:
    """The metrics of always answering what is most frequent in training (for scores: their mean)."""
    references = labels_of(examples, split)
    train = np.asarray(labels_of(examples, "train"))
    if examples.task == "regression":
        guess: Any = float(train.mean())
    elif examples.task == "multi_label_classification":
        guess = (train.mean(axis=0) >= 0.5).astype(int)
    else:
        guess = int(np.bincount(train).argmax())
    predictions = np.broadcast_to(guess, np.shape(references))
    return metrics_for(examples.task, examples.num_labels).compute(predictions=predictions, references=references)


def labels_of(examples: Examples, split: str) -> np.ndarray:
    """The labels of a split as numbers, scores, or rows of 0 and 1."""
    cells = examples.splits[split].with_format("arrow")[:][examples.columns.label_name]
    if examples.task != "multi_label_classification":
        return np.asarray(cells.to_numpy())
    rows = np.zeros((len(cells), examples.num_labels), dtype=np.int64)
    for row, numbers in enumerate(cells.to_pylist()):
        rows[row, numbers] = 1
    return rows


def write_predictions(path: Path, examples: Examples, split: str, found: Evaluation) -> None:
    """One line a row: texts, label, prediction and logits, from which every reported figure can be computed again."""
    decided = decide(found.logits, examples.task)
    names = examples.labels.names if examples.labels else None
    lines = []
    for row, (logits, choice) in enumerate(zip(found.logits.tolist(), decided.tolist(), strict=True)):
        entry: dict[str, Any] = {"row": row, "prediction": named(choice, names)}
        if found.labels is not None:
            entry["label"] = named(found.labels[row].tolist(), names)
        texts = {name: examples.splits[split][row][name] for name in examples.columns.texts}
        lines.append(json.dumps({**entry, "logits": logits, **texts}, ensure_ascii=False, allow_nan=False))
    write_text(path, "\n".join(lines) + "\n")


def named(choice: Any, names: tuple[str, ...] | None) -> Any:
    """A number, a score or a row of 0 and 1 as a person reads it."""
    if names is None:
        return choice
    if isinstance(choice, list):
        return [name for name, there in zip(names, choice, strict=True) if there]
    return names[choice]


def results_table(metrics: dict[str, float], baseline: dict[str, float], split: str) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in (split, "this run", "majority baseline"):
        table.add_column(Text(printable(name)), justify="left" if name == split else "right")
    for name, value in metrics.items():
        short = name.partition("_")[2]
        if short in ("runtime", "samples_per_second"):
            continue
        table.add_row(Text(printable(short)), f"{value:.4f}", f"{baseline[short]:.4f}" if short in baseline else "")
    return table
