"""Run folders as a training leaves them, and what they hold, written without training: for tests of what reads them."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from families import VOCABULARY, WITH_TOKEN_TYPES, tiny_model

from glassloop import Predictor
from glassloop.models.pooled import HEAD_KEY, PooledClassifier, Pooling
from glassloop.runs import record as records
from glassloop.runs.history import END, RESUME, START, note_moment, write_history
from glassloop.runs.record import FINISHED, Columns, Gain, SplitFacts, write_run
from glassloop.runs.study import SeedRecord, SeedsRecord, write_seeds
from glassloop.scores.metrics import decide, default_measures
from glassloop.scores.result import constant_baseline, label_of, rows_of, verdict_on
from glassloop.scores.statistics import ScoredRows
from glassloop.settings.file import RunSettings
from glassloop.settings.training import CLASSES, SCORE, SEVERAL, DataSettings, TrainingArguments

RECORD = records.RunRecord(
    status=records.RUNNING,
    data=records.DataRecord(
        source="rows.csv",
        task="single_label_classification",
        columns=Columns("text", None, ("label",)),
        splits={"train": SplitFacts(27, {"a": 20, "b": 7}, fingerprint="abc")},
        settings=DataSettings(labels=("a", "b, c")),
        labels=("a", "b, c"),
        notes=("a note",),
    ),
    model=records.ModelRecord("quickstart", "bert", 1000),
    settings=TrainingArguments("out", learning_rate=1e-4, num_train_epochs=2),
    plan=records.Plan(8, 4, 4, 1, 0, 10, 4, 4),
    max_length=64,
    class_weights=(0.5, 1.5),
    savings=("packed batches",),
    versions={"torch": "2"},
)


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
    entries = answers(rows.predictions, rows.references, rows.logits, names)
    write_lines(folder, [entry | {"text": text} for entry, text in zip(entries, texts, strict=True)])
    fingerprint = sha256(repr((texts, rows.references.tolist())).encode()).hexdigest()
    data = replace(
        RECORD.data,
        task=rows.task,
        labels=names,
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
    history: list[dict[str, float | int]] = [{"step": step, "loss": 1 / (step + seed / 10)} for step in range(1, 9)]
    history += [{"step": step, "eval_loss": 0.9 / step, **{f"eval_{key}": 0.1 * step for key in keys}} for step in (4, 8)]
    write_history(folder, history)
    return folder


def write_drawn_seeds(folder: Path, seeds: dict[int, ScoredRows], **settings: object) -> Path:
    """Write a folder of several finished seeds with these predictions."""
    entries = {}
    for seed, rows in seeds.items():
        write_drawn_run(folder / f"seed-{seed}", rows, seed, **settings)  # type: ignore[arg-type]
        entries[seed] = SeedRecord(seed=seed, status=FINISHED, seconds=3.0, validation={"accuracy": 0.5 + seed / 100})
    write_seeds(SeedsRecord(RunSettings(), entries, folder, FINISHED))
    return folder


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
) -> records.RunRecord:
    """Write a run folder with predictions that are mostly right, and return its record."""
    random = np.random.default_rng(0)
    names = tuple(f"{label} {number}" for number in range(num_labels)) if task != SCORE else None
    references, logits = drawn_answers(random, task, num_rows, num_labels, signal)
    measures = default_measures(task, names or ())
    scores = measures.scores(logits, references, task, names or ["score"])
    counts = {} if names is None else {name: num_rows - place for place, name in enumerate(names)}
    scored = rows_of(logits, references, task, names or ())
    verdict = verdict_on(scored, [constant_baseline(scored, {CLASSES: 0, SCORE: 3.0}.get(task, 1))]).sentence
    baseline = {"accuracy": 0.5} if task == CLASSES else {"mse": 1.0} if task == SCORE else {}
    train = SplitFacts(num_rows, counts, fingerprint="abc")
    data = replace(
        RECORD.data,
        task=task,
        labels=names,
        columns=Columns("first", "second", (label,)),
        splits={"train": train, "validation": replace(train, num_duplicates=3, fingerprint="abd")},
        notes=(f"a note on {text}",),
    )
    record = replace(
        RECORD,
        status=status,
        data=data,
        metrics=measures.keys,
        positive_label=measures.positive,
        lengths={"train": records.LengthFacts(20.5, 20, 48, 2, 70, (1, 5, 9, 3))},
        evaluation={f"eval_{key}": value for key, value in scores.items()} | {"eval_loss": 0.4, "eval_runtime": 1.5},
        baseline=baseline,
        classes={name: records.ClassRecord(None, 0.5, 0.5, 3) for name in names or ()},
        verdict=verdict,
        best_step=20,
        seconds=9.0,
        machine="a machine, 2 cores",
        padding=0.1,
    )
    if status != FINISHED:
        record = replace(record, evaluation=None, baseline=None, classes=None, verdict=None, best_step=None, seconds=None)
    folder.mkdir(parents=True, exist_ok=True)
    write_run(folder, record)
    history: list[dict[str, object]] = []
    for step in range(1, 61):
        place, loss = {"step": step, "epoch": step / 20}, 0.7 / step**0.5
        history.append({**place, "loss": loss, "grad_norm": 1 + loss, "learning_rate": 1e-4 * (1 - step / 61)})
        if step % 20 == 0:
            history.append({**place, "eval_loss": loss, **{f"eval_{key}": 0.7 for key in measures.keys}})
    write_history(folder, history)
    if status == FINISHED:
        entries = answers(decide(logits, task), references, logits, names)
        for row, entry in enumerate(entries):
            first = f"{text}, row {row}"
            entry |= {"first": first, "second": " ".join([f"{row}"] * (row % 7))}
            if tokens:
                entry |= {"tokens": 10 + row % 30} | ({"kept": {"first": [0, len(first) - 2]}} if row % 5 == 0 else {})
        write_lines(folder, entries)
    return record


def drawn_answers(
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


def answers(predictions: Any, references: Any, logits: Any, names: Sequence[str] | None) -> list[dict[str, object]]:
    """Return the stored predictions of rows, without their texts."""
    rows = zip(predictions.tolist(), references.tolist(), logits.tolist(), strict=True)
    return [
        {"row": row, "prediction": label_of(chosen, names), "label": label_of(true, names), "logits": outputs}
        for row, (chosen, true, outputs) in enumerate(rows)
    ]


def write_lines(folder: Path, entries: Sequence[dict[str, object]]) -> None:
    text = "".join(json.dumps(entry) + "\n" for entry in entries)
    (folder / records.predictions_name("validation")).write_text(text, encoding="utf-8")


WEIGHTS = b"weights"
FOUND = records.Calibration(
    temperature=2.0,
    thresholds={"label 1": 0.25},
    target=records.Target("f1"),
    positive_label="label 1",
    split="validation",
    num_rows=60,
    fingerprint="abc",
    predictions="",
    folds=10,
    gains=(Gain("loss", 0.5, 0.4, -0.2, -0.05), Gain("calibration error", 0.1, 0.05), Gain("f1", 0.8, 0.85, -0.01, 0.1)),
    written="2026-01-01T00:00:00+00:00",
)


def write_run_with_model(folder: Path, task: str = CLASSES, **given: Any) -> Path:
    """Write a run folder with a model of a few bytes and return it."""
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text("{}", encoding="utf-8")
    (folder / "model" / "model.safetensors").write_bytes(WEIGHTS)
    write_fake_run(folder, task, **{"num_rows": 120, "signal": 0.7, **given})
    return folder


STRANGE = """<img src=x onerror="document.title='owned'">'&\u202e"""


def write_watched(folder: Path, steps: int = 4, *, finished: bool = False, resumed: int = 0, **more: Any) -> Path:
    """Write a run that has logged some steps. Its process has ended; `lock_as` makes it another one."""
    folder.mkdir(parents=True)
    result: dict[str, Any] = {"evaluation": {"eval_loss": 0.4, "eval_accuracy": 0.75}, "seconds": 75.0} if finished else {}
    result |= {"status": FINISHED if finished else records.RUNNING, "started": "2026-11-17T09:00:00+00:00"}
    write_run(folder, replace(RECORD, **{"metrics": ("accuracy",), **result, **more}))
    note_moment(folder, START, 0, 8)
    if resumed:
        note_moment(folder, RESUME, resumed, 8)
    os.utime(folder / records.SESSIONS_NAME, (1000.0, 1000.0))
    log_steps(folder, steps)
    os.utime(folder / records.HISTORY_NAME, (1000.0 + 2 * (steps - resumed),) * 2)  # two seconds a step
    if finished:
        note_moment(folder, END, steps, 8)
    return folder


def log_steps(folder: Path, last: int) -> None:
    """Write a history up to a step, with an evaluation after every second one."""
    entries: list[dict[str, Any]] = []
    for step in range(1, last + 1):
        entries.append({"step": step, "epoch": step / 4, "loss": 1 / step, "grad_norm": 2.0, "learning_rate": 1e-4})
        if step % 2 == 0:
            entries.append({"step": step, "epoch": step / 4, "eval_loss": 0.9 / step, "eval_accuracy": step / 8})
    write_history(folder, entries)


def lock_as(folder: Path, process: int, machine: str) -> None:
    """Write the lock file of a process."""
    (folder / ".lock").write_text(json.dumps({"process": process, "machine": machine}))


WORDS = "the a is was good bad film story very not and of to in on it this that first second".split()
METRICS = {CLASSES: ("accuracy", "f1_macro"), SEVERAL: ("f1_micro", "exact_match"), SCORE: ("pearson", "mse")}


def sentence(number: int) -> str:
    return " ".join(WORDS[(number * step + step) % len(WORDS)] for step in range(1, 3 + number % 9))


def make_run(
    folder: Path, family: str = "bert", task: str = CLASSES, labels: int = 2, *, pairs: bool = False, rows: int = 24,
    pooling: Pooling | None = None,
) -> Path:  # fmt: skip
    """Write a finished run, and return its folder. Every third label is not what the model answers."""
    from transformers import BertTokenizerFast

    names = [f"label {number}" for number in range(labels)] if task != SCORE else ["LABEL_0"]
    model = tiny_model(family, num_labels=len(names), problem_type=task, initializer_range=0.3)
    model.config.id2label, model.config.label2id = dict(enumerate(names)), {name: place for place, name in enumerate(names)}
    if pooling is not None:
        model = pooled_model(model, pooling)
    model.save_pretrained(folder / "model")
    inputs = ["input_ids", *(["token_type_ids"] if family in WITH_TOKEN_TYPES else []), "attention_mask"]
    vocabulary = {word: number for number, word in enumerate(VOCABULARY)}
    BertTokenizerFast(vocab=vocabulary, model_max_length=64, model_input_names=inputs).save_pretrained(folder / "model")
    columns = Columns("text", "second" if pairs else None, ("label",))
    data = records.DataRecord("rows.csv", task, columns, RECORD.data.splits, labels=None if task == SCORE else tuple(names))
    settings = TrainingArguments("out", max_length=32)
    record = replace(RECORD, status=FINISHED, data=data, settings=settings, max_length=32, metrics=METRICS[task])
    found = replace(RECORD.model, name=str(folder / "model"), type=family, pooling=asdict(pooling) if pooling else None)
    write_run(folder, replace(record, model=found))
    write_rows(folder, columns, rows)
    return folder


def pooled_model(model: Any, pooling: Pooling) -> PooledClassifier:
    """Return the encoder of a classifier with a pooled head whose answers differ from text to text."""
    config = copy.deepcopy(model.config)
    setattr(config, HEAD_KEY, asdict(pooling))
    torch.manual_seed(14)
    found = PooledClassifier(config).eval()
    found.base_model.load_state_dict(model.base_model.state_dict(), strict=False)  # without a pooler
    torch.nn.init.normal_(found.head.weight, std=0.3)
    torch.nn.init.normal_(found.head.bias)
    return found


def write_rows(folder: Path, columns: Columns, number: int) -> None:
    """Write the predictions of the model in a run folder for some rows."""
    predictor = Predictor(folder, device="cpu")
    texts = [[sentence(row + 7 * place) for row in range(number)] for place in range(len(columns.texts))]
    entries = []
    for row, found in enumerate(predictor.predict(*texts)):
        label = found.label
        if row % 3 == 0:
            wrong = predictor.names[row % len(predictor.names)]
            label = label + 1.0 if isinstance(label, float) else [wrong] if isinstance(label, list) else wrong
        entry = {"row": row, "prediction": found.label, "label": label, "logits": found.logits, "tokens": 9}
        entries.append(entry | {name: column[row] for name, column in zip(columns.texts, texts, strict=True)})
    write_lines(folder, entries)


def with_baselines(folder: Path, *, worse: bool = False, note: str = "") -> records.RunRecord:
    """Give a run two baselines, its probabilities, which may be worse than the class frequencies, and its time."""

    def scores(accuracy: float, loss: float) -> dict[str, records.MetricRecord]:
        right = {"accuracy": records.MetricRecord(accuracy, accuracy - 0.1, accuracy + 0.1)}
        return right | {"log_loss": records.MetricRecord(loss, loss - 0.05, loss + 0.05)}

    record = records.read_run(folder)
    each = [("class frequencies", 0.5125, 0.6935, 0.0), ("frozen encoder", 0.7325, 0.5615, 0.4)]
    baselines = tuple(records.BaselineRecord(name, scores(*values), 30, spent, note) for name, *values, spent in each)
    after = {"log_loss": records.MetricRecord(0.8125 if worse else 0.4375, 0.3, 0.9)}
    after |= {"calibration_error": records.MetricRecord(0.0625)}
    likely = records.ProbabilityRecord(60, 1.5, {"log_loss": 0.9, "calibration_error": 0.125}, after, 0.6935)
    record = replace(record, baselines=baselines, probabilities=likely, training_seconds=12.25)
    write_run(folder, record)
    return record
