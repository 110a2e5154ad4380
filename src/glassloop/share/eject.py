"""`glassloop export --to script`: a run as one plain PyTorch script without Glassloop that ends with the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from pprint import pformat

import torch
from markupsafe import Markup
from safetensors.torch import load_file, save_file

from glassloop.base.errors import DataError, ModelError, ResourceError, SettingsError
from glassloop.base.files import write_text
from glassloop.data.columns import LabelSet
from glassloop.data.interfaces import Config
from glassloop.data.sources import load_examples
from glassloop.markup.templates import rendered
from glassloop.models.loading import find_model, load_config, load_model
from glassloop.models.pooled import (
    HEAD_KEY,
    OF_COSINE,
    OF_ONE_TEXT,
    PooledClassifier,
    decoded_pooling,
    encoder_options,
)
from glassloop.runs.record import START_HEAD_NAME, RunRecord, held_out_splits, read_run, split_changes
from glassloop.settings.training import NO_ADAPTER

SCRIPT_NAME = "train.py"


def eject_run(run_dir: Path, target: Path) -> Path:
    """Write the script and the rows it reads to `target`, and return the path of the script."""
    run = read_run(run_dir)
    if run.processes > 1 or run.precision != "fp32":
        what = f"{run.processes} processes" if run.processes > 1 else run.precision
        problem = f"the run used {what}, but an ejected script trains in one process in fp32"
        raise SettingsError(problem, "train with --processes 1 --precision fp32 first")
    unsupported = {
        "loaded its best weights at the end": (run.settings.load_best_model_at_end, "train without load_best_model_at_end"),
        "stopped before its last step": (run.stop_reason, "train without early stopping"),
        "trained an adapter": (run.settings.adapter != NO_ADAPTER, "train without an adapter"),
        "replaced the head of its model": (run.model.new_head, "train without --new_head"),
    }
    for what, (happened, remedy) in unsupported.items():
        if happened:
            raise SettingsError(f"the run {what}, so an ejected script would end with different weights", f"{remedy} first")
    refuse_full(target)
    outputs = LabelSet(run.data.labels) if run.data.labels else None
    examples = load_examples(run.data.source, outputs=outputs, **run.data.given())
    if changed := split_changes(run.data.splits, examples.facts, run.data.splits):
        raise DataError(f"the data has changed since the run: {'; '.join(changed)}", "restore the data of the run")
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(f"{target}: {error.strerror}", "choose a folder that can be written to") from error
    columns, classes = examples.columns, range(len(run.data.labels or ()))
    for split, rows in examples.rows.items():
        lines = []
        for row in rows:
            label = row[columns.label_name]
            # The script reads an id, a score, or 0 or 1 for each label.
            label = [1.0 if number in label else 0.0 for number in classes] if isinstance(label, list) else label
            texts = {name: row[name] for name in columns.texts}
            lines.append(json.dumps({**texts, "label": label}, ensure_ascii=False))
        write_text(target / f"{split}.jsonl", "\n".join(lines) + "\n")
    if run.model.pooling is not None:
        save_file(start_head(run_dir, run), target / START_HEAD_NAME)
    write_text(target / SCRIPT_NAME, script_of(run))
    return target / SCRIPT_NAME


def start_head(run_dir: Path, run: RunRecord) -> dict[str, torch.Tensor]:
    """Return weight and bias of the head that a training on pooled tokens started from."""
    path = run_dir / START_HEAD_NAME
    if path.is_file():
        return load_file(path)
    model = load_model(run.model.name)  # trained before, with this head
    if not isinstance(model, PooledClassifier) or model.pooling != decoded_pooling(run.model.pooling):
        raise ModelError(f"{path}: missing", "restore the file, or train the run again")
    return dict(model.head.state_dict())


def refuse_full(target: Path) -> None:
    """Raise `SettingsError` if the folder to write is a file, or contains anything."""
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise SettingsError(f"{target} is {'not empty' if target.is_dir() else 'a file'}", "choose a new folder with --out")


def script_of(run: RunRecord) -> str:
    """Return the script of a run. Its template writes every value as a literal, never as code."""
    trains = run.plan.max_steps > 0
    weights = f"torch.tensor({[*run.class_weights]!r}, device=logits.device)" if run.class_weights and trains else "None"
    pooling = decoded_pooling(run.model.pooling) if run.model.pooling is not None else None
    return rendered(
        "share/train.py.j2",
        run=run,
        settings=run.settings,
        model=find_model(run.model.name).name,
        labels=Markup(pformat(run.data.labels and [*run.data.labels], width=110, compact=True)),
        texts=[*run.data.columns.texts],
        weights=Markup(weights),
        schedule_options=json.loads(run.settings.lr_scheduler_kwargs or "{}"),
        savings=Markup(", ".join(map(repr, run.savings))),
        trains=trains,
        split=next(iter(held_out_splits(run.data.splits)), "train"),
        pooling=pooling,
        **(head_values(load_config(run.model.name)) if pooling is not None else {}),
    )


def head_values(config: Config) -> dict[str, object]:
    """Return what the script of a run with a pooled head contains besides its pooling."""
    names = {"head_key": HEAD_KEY, "head_name": START_HEAD_NAME, "of_one_text": OF_ONE_TEXT, "of_cosine": OF_COSINE}
    return {**names, "has_pooler": not encoder_options(config)}
