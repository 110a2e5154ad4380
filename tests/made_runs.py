"""Run folders that no training wrote: a tiny model, its record, and its own predictions for some rows with labels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from families import VOCABULARY, WITH_TOKEN_TYPES, tiny_model
from sample_record import RECORD

from glassloop import Predictor
from glassloop.runs.record import FINISHED, Columns, DataRecord, write_run
from glassloop.settings.fields import CLASSES, SCORE, SEVERAL
from glassloop.settings.training import TrainingArguments

WORDS = "the a is was good bad film story very not and of to in on it this that first second".split()
METRICS = {CLASSES: ("accuracy", "f1_macro"), SEVERAL: ("f1_micro", "exact_match"), SCORE: ("pearson", "mse")}


def sentence(number: int) -> str:
    return " ".join(WORDS[(number * step + step) % len(WORDS)] for step in range(1, 3 + number % 9))


def make_run(
    folder: Path, family: str = "bert", task: str = CLASSES, labels: int = 2, *, pairs: bool = False, rows: int = 24
) -> Path:
    """Write a finished run, and return its folder. Every third label is not what the model answers."""
    from transformers import BertTokenizerFast

    names = [f"label {number}" for number in range(labels)] if task != SCORE else ["LABEL_0"]
    model = tiny_model(family, num_labels=len(names), problem_type=task, initializer_range=0.3)
    model.config.id2label, model.config.label2id = dict(enumerate(names)), {name: place for place, name in enumerate(names)}
    model.save_pretrained(folder / "model")
    inputs = ["input_ids", *(["token_type_ids"] if family in WITH_TOKEN_TYPES else []), "attention_mask"]
    vocabulary = {word: number for number, word in enumerate(VOCABULARY)}
    BertTokenizerFast(vocab=vocabulary, model_max_length=64, model_input_names=inputs).save_pretrained(folder / "model")
    columns = Columns("text", "second" if pairs else None, ("label",))
    data = DataRecord("rows.csv", task, columns, RECORD.data.splits, labels=None if task == SCORE else tuple(names))
    settings = TrainingArguments("out", max_length=32)
    record = replace(RECORD, status=FINISHED, data=data, settings=settings, max_length=32, metrics=METRICS[task])
    write_run(folder, record)
    write_rows(folder, columns, rows)
    return folder


def write_rows(folder: Path, columns: Columns, number: int) -> None:
    """Write the predictions of the model in a run folder for some rows."""
    predictor = Predictor(folder, device="cpu")
    texts = [[sentence(row + 7 * place) for row in range(number)] for place in range(len(columns.texts))]
    lines = []
    for row, found in enumerate(predictor.predict(*texts)):
        label = found.label
        if row % 3 == 0:
            wrong = predictor.names[row % len(predictor.names)]
            label = label + 1.0 if isinstance(label, float) else [wrong] if isinstance(label, list) else wrong
        entry = {"row": row, "prediction": found.label, "label": label, "logits": found.logits, "tokens": 9}
        lines.append(entry | {name: column[row] for name, column in zip(columns.texts, texts, strict=True)})
    path = folder / "validation-predictions.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
