"""Run folders that no training has written, for tests of reports: every task, any number of rows and classes, any texts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from sample_record import RECORD

from glassloop.runs.history import write_history
from glassloop.runs.layout import predictions_name
from glassloop.runs.record import FINISHED, ClassRecord, Columns, LengthFacts, RunRecord, SplitFacts, write_run
from glassloop.scores.measures import Measures, default_measures
from glassloop.scores.metrics import decide
from glassloop.settings.fields import CLASSES, SCORE, SEVERAL

HOSTILE = "</script><script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">'\"&{{x}}"


def write_fake_run(
    folder: Path,
    task: str = CLASSES,
    *,
    num_rows: int = 60,
    num_labels: int = 2,
    status: str = FINISHED,
    text: str = "a text",
    label: str = "label",
    signal: float = 1.5,
    tokens: bool = True,
) -> RunRecord:
    """Write a run folder with predictions that are mostly right, and return its record."""
    random = np.random.default_rng(0)
    names = tuple(f"{label} {number}" for number in range(num_labels)) if task != SCORE else None
    references, logits = drawn_rows(random, task, num_rows, num_labels, signal)
    measures = default_measures(task, names or ())
    scores = scores_of(measures, logits, references, task, names)
    counts = {} if names is None else {name: num_rows - place for place, name in enumerate(names)}
    baseline = {"accuracy": 0.5} if task == CLASSES else {"mse": 1.0} if task == SCORE else {}
    data = replace(
        RECORD.data,
        task=task,
        labels=names,
        columns=Columns("first", "second", (label,)),
        splits={
            "train": SplitFacts(num_rows, counts, fingerprint="abc"),
            "validation": SplitFacts(num_rows, counts, num_duplicates=3, fingerprint="abd"),
        },
        notes=(f"a note on {text}",),
    )
    record = replace(
        RECORD,
        status=status,
        data=data,
        metrics=measures.keys,
        positive_label=measures.positive,
        lengths={"train": LengthFacts(20.5, 20, 48, 2, 70, (1, 5, 9, 3))},
        evaluation={f"eval_{key}": value for key, value in scores.items()} | {"eval_loss": 0.4, "eval_runtime": 1.5},
        baseline=baseline,
        classes={name: ClassRecord(None, 0.5, 0.5, 3) for name in names or ()},
        verdict="a verdict",
        best_step=20,
        seconds=9.0,
        machine="a machine, 2 cores",
        padding=0.1,
    )
    if status != FINISHED:
        record = replace(record, evaluation=None, baseline=None, classes=None, verdict=None, best_step=None, seconds=None)
    folder.mkdir(parents=True, exist_ok=True)
    write_run(folder, record)
    write_history(folder, history_of(measures))
    if status == FINISHED:
        write_rows(folder, task, names, references, logits, text, tokens)
    return record


def drawn_rows(
    random: np.random.Generator, task: str, num_rows: int, num_labels: int, signal: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return true labels, and logits that follow them."""
    if task == SCORE:
        references = random.normal(3, 1, num_rows)
        return references, (references + random.normal(0, 0.4, num_rows))[:, None]
    if task == SEVERAL:
        several = random.integers(0, 2, (num_rows, num_labels))
        return several, random.normal(0, 1, several.shape) + signal * (2 * several - 1)
    classes = random.integers(0, num_labels, num_rows)
    return classes, random.normal(0, 1, (num_rows, num_labels)) + signal * np.eye(num_labels)[classes]


def scores_of(
    measures: Measures, logits: np.ndarray, references: np.ndarray, task: str, names: tuple[str, ...] | None
) -> dict[str, float]:
    return measures.scores(logits, references, task, names or ["score"])


def history_of(measures: Measures) -> list[dict[str, object]]:
    """Return sixty logged steps and three evaluations."""
    entries: list[dict[str, object]] = []
    for step in range(1, 61):
        loss = 0.7 / step**0.5
        entries.append(
            {"step": step, "epoch": step / 20, "loss": loss, "grad_norm": 1 + loss, "learning_rate": 1e-4 * (1 - step / 61)}
        )
        if step % 20 == 0:
            entries.append(
                {"step": step, "epoch": step / 20, "eval_loss": loss, **{f"eval_{key}": 0.7 for key in measures.keys}}
            )
    return entries


def write_rows(
    folder: Path, task: str, names: tuple[str, ...] | None, references: np.ndarray, logits: np.ndarray, text: str, tokens: bool
) -> None:
    """Write the predictions of the validation split."""
    lines = []
    for row, choice in enumerate(decide(logits, task).tolist()):
        first = f"{text}, row {row}"
        entry = {"row": row, "prediction": named(choice, names), "label": named(references[row].tolist(), names)}
        entry |= {"logits": logits[row].tolist(), "first": first, "second": " ".join([f"{row}"] * (row % 7))}
        if tokens:
            entry |= {"tokens": 10 + row % 30} | ({"kept": {"first": [0, len(first) - 2]}} if row % 5 == 0 else {})
        lines.append(json.dumps(entry))
    (folder / predictions_name("validation")).write_text("\n".join(lines) + "\n", encoding="utf-8")


def named(choice: float | list[int], names: tuple[str, ...] | None) -> object:
    if names is None:
        return choice
    return [name for name, one in zip(names, choice, strict=True) if one] if isinstance(choice, list) else names[int(choice)]
