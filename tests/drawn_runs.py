"""Run folders with drawn predictions, for tests of what reads and compares runs: nothing is trained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from sample_record import RECORD

from glassloop.runs.history import write_history
from glassloop.runs.record import FINISHED, Columns, SplitFacts, write_run
from glassloop.runs.seeds import SeedRecord, SeedsRecord, write_seeds
from glassloop.scores.intervals import ScoredRows
from glassloop.scores.metrics import decide
from glassloop.settings.fields import CLASSES, SCORE
from glassloop.settings.file import RunSettings
from glassloop.training.results import label_of

LABELS = ("different", "equivalent")


def drawn_rows(
    number: int = 200,
    skill: float = 1.0,
    seed: int = 0,
    task: str = CLASSES,
    labels: Sequence[str] = LABELS,
    data_seed: int = 99,
) -> ScoredRows:
    """Return drawn predictions. Rows are drawn with `data_seed`; the higher the skill, the better the predictions."""
    fixed, drawn, width = np.random.default_rng(data_seed), np.random.default_rng(seed + 1000), len(labels)
    if task == SCORE:
        references = fixed.normal(size=number)
        logits = (references * skill + drawn.normal(size=number))[:, None]
        return ScoredRows(task, (), logits[:, 0], references, logits)
    difficulty = fixed.normal(size=(number, width))
    if task == CLASSES:
        references = fixed.integers(0, width, number)
        wanted = np.eye(width)[references]
    else:
        references = fixed.integers(0, 2, (number, width))
        wanted = references - 0.5
    logits = skill * wanted + 0.5 * difficulty + 0.5 * drawn.normal(size=(number, width))
    return ScoredRows(task, tuple(labels), decide(logits, task), references, logits)


def write_drawn_run(
    folder: Path, rows: ScoredRows, seed: int = 1, texts: Sequence[str] | None = None, **settings: object
) -> Path:
    """Write the run folder of a finished run with these predictions."""
    texts = texts or [f"text {row}" for row in range(len(rows))]
    names = rows.labels or None
    folder.mkdir(parents=True)
    lines = []
    for row, text in enumerate(texts):
        entry = {"row": row, "prediction": label_of(rows.predictions[row].tolist(), names)}
        entry |= {"label": label_of(rows.references[row].tolist(), names), "logits": rows.logits[row].tolist(), "text": text}
        lines.append(json.dumps(entry))
    (folder / "validation-predictions.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    fingerprint = sha256(repr((texts, rows.references.tolist())).encode()).hexdigest()
    data = replace(
        RECORD.data,
        task=rows.task,
        labels=names,
        columns=Columns("text", None, ("label",)),
        splits={"train": SplitFacts(27, fingerprint="abc"), "validation": SplitFacts(len(rows), fingerprint=fingerprint)},
    )
    keys = {CLASSES: ("accuracy", "f1"), SCORE: ("pearson", "mse")}.get(rows.task, ("f1_micro", "exact_match"))
    record = replace(
        RECORD,
        status=FINISHED,
        data=data,
        settings=replace(RECORD.settings, seed=seed, output_dir=str(folder), **settings),  # type: ignore[arg-type]
        metrics=keys,
        positive_label=rows.labels[1] if rows.task == CLASSES else None,
        evaluation={"eval_loss": 0.5, **{f"eval_{key}": 0.75 for key in keys}},
        baseline={"accuracy": 0.5},
        seconds=12.5,
    )
    write_run(folder, record)
    steps = range(1, 9)
    history: list[dict[str, float | int]] = [{"step": step, "loss": 1 / (step + seed / 10)} for step in steps]
    history += [{"step": step, "eval_loss": 0.9 / step, **{f"eval_{key}": 0.1 * step for key in keys}} for step in (4, 8)]
    write_history(folder, history)
    return folder


def write_drawn_seeds(folder: Path, seeds: dict[int, ScoredRows], **settings: object) -> Path:
    """Write a folder of several finished seeds with these predictions."""
    entries = {}
    for seed, rows in seeds.items():
        write_drawn_run(folder / f"seed-{seed}", rows, seed, **settings)  # type: ignore[arg-type]
        entries[seed] = SeedRecord(FINISHED, folder=f"seed-{seed}", seconds=3.0, metrics={"accuracy": 0.5 + seed / 100})
    write_seeds(SeedsRecord(RunSettings(), entries, folder, FINISHED))
    return folder
