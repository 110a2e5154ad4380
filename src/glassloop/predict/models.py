"""Open the folder of a run, of a model or of an export, in full precision or in int8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from glassloop.backends.choose import choose_backend, choose_device, choose_precision
from glassloop.backends.packed import PackedBackend, supported_backend, why_not_int8
from glassloop.backends.plain import PlainBackend
from glassloop.base.errors import ModelError, SettingsError, counted, listed
from glassloop.base.output import LOADING, say, stage
from glassloop.base.records import collection_paused
from glassloop.data.encoding import EncodedText, EncodedTexts
from glassloop.data.interfaces import Model, Texts, Tokenizer
from glassloop.models.exported import device_of, load_exported
from glassloop.models.interface import refuse_unknown_tokens
from glassloop.models.light import load_light
from glassloop.models.loading import load_model, load_tokenizer
from glassloop.predict.answers import Answering
from glassloop.runs.export import ExportRecord, is_export, read_export
from glassloop.runs.record import RunRecord, is_run, model_of_run, predicted_splits, predictions_name, read_predictions
from glassloop.scores.intervals import scored_rows
from glassloop.scores.metrics import LOWER_IS_BETTER, one_of, recorded_measures
from glassloop.settings.training import SCORE, TrainingArguments
from glassloop.training.interfaces import Backend

Item = TypeVar("Item")
PRECISIONS = ("auto", "fp32", "bf16", "fp16", "int8")
MEASURED_ROWS = 64  # whose values set the ranges of the quantized layers
COMPARED_ROWS = 1_000
ALLOWED_DROP = 0.01  # of a metric
USE_FP32 = "use precision fp32"


class Quantizable(Protocol):
    """What is quantized: a predictor, and how it tells rows from answers."""

    model: Model
    run: RunRecord | None
    task: str
    names: list[str]
    answering: Answering
    backend: Backend

    def encoded(self, columns: Texts) -> EncodedTexts:
        """Return texts as token ids."""

    def forward(self, rows: Sequence[EncodedText]) -> np.ndarray:
        """Return the logits of encoded texts."""

    def use(self, backend: Backend) -> None:
        """Run forward passes on a backend from now on."""


@dataclass(frozen=True)
class Agreement:
    """How the predictions of a quantized model agree with those that its run stored.

    Attributes:
        split: The split.
        rows: The number of rows that were compared.
        changed: The number of rows with another answer; None if the model predicts a score.
        difference: The largest difference of a logit.
        metrics: Each metric of these rows: as stored, and in int8.
    """

    split: str
    rows: int
    changed: int | None
    difference: float
    metrics: dict[str, tuple[float, float]]

    def __str__(self) -> str:
        scores = ", ".join(f"{name} {before:.4f} → {after:.4f}" for name, (before, after) in self.metrics.items())
        rows = f"{counted(self.rows, 'stored prediction', 'stored predictions')} for {self.split}"
        changed = f"{self.changed:,} of {rows} changed" if self.changed is not None else rows
        return f"int8: {changed}, logits by up to {self.difference:.2g}; {scores}"

    @property
    def dropped(self) -> list[str]:
        """The metrics that are worse than allowed. Errors have no fixed scale; the correlations beside them have."""
        kept = {name: pair for name, pair in self.metrics.items() if name not in LOWER_IS_BETTER}
        return [name for name, (before, after) in kept.items() if not after >= before - ALLOWED_DROP]


def is_int8(precision: str) -> bool:
    """Return whether predictions in this precision are quantized. Raise `SettingsError` if they do not have it."""
    one_of(precision, PRECISIONS, "precision of predictions")
    return precision == "int8"


def precision_of(run: RunRecord | None, device: str, wanted: str) -> str:
    """Return the precision of a model before it is quantized: auto is that of the run on a GPU that has it, else fp32."""
    if is_int8(wanted):
        return "fp32"
    if wanted != "auto" or run is None or (found := choose_device(device)) != "cuda":
        return "fp32" if wanted == "auto" else wanted
    return run.precision if run.precision in ("fp16", choose_precision("auto", found)) else "fp32"


def quantize(predictor: Quantizable, folder: Path) -> Agreement:
    """Let a predictor run in int8 from now on, and return how its predictions agree with those of its run.

    Raises:
        ModelError: If the model or the CPU has no int8 form, or if a metric drops by more than a point.
        SettingsError: If the device is no CPU, or if there are no stored predictions to compare with.
    """
    # Answers are what counts, so a metric has a limit and logits have none. There is no option to skip the comparison:
    # a model whose answers nobody compared is not worth its speed.
    if (device := predictor.backend.device.type) != "cpu":
        raise SettingsError(f"precision int8 needs a CPU, but the device is {device}", f"use device cpu, or {USE_FP32}")
    if (reason := why_not_int8(predictor.model)) is not None:
        raise ModelError(f"precision int8: {reason}", USE_FP32)
    record, splits = predictor.run, predicted_splits(folder) if is_run(folder) else []
    if record is None or not splits:
        problem = f"precision int8: {folder} has no stored predictions to compare with"
        raise SettingsError(problem, f"name the folder of a finished run, or {USE_FP32}")
    split = next((name for name in splits if name.startswith("validation")), splits[0])
    entries = spread(read_predictions(folder, split), COMPARED_ROWS)
    labels = None if predictor.task == SCORE else predictor.names
    stored = scored_rows(entries, predictor.task, labels, folder / predictions_name(split))
    rows = predictor.encoded([[str(entry.get(name, "")) for entry in entries] for name in record.data.columns.texts]).rows
    backend = PackedBackend(int8=True)
    predictor.use(backend)
    predictor.forward(spread(rows, MEASURED_ROWS))
    if predictor.backend is not backend:
        raise ModelError("precision int8: the packed layers of this model differ from the plain ones", USE_FP32)
    backend.quantize()
    predictor.use(backend)
    logits = predictor.forward(rows)
    before, after = (np.asarray(predictor.answering.choices(values)) for values in (stored.logits, logits))
    changed = None if predictor.task == SCORE else int((before != after).reshape(len(rows), -1).any(1).sum())
    measures = recorded_measures(record.metrics, record.positive_label, predictor.task, predictor.names)
    metric = measures.metric(predictor.task, predictor.names)
    old, new = (metric.compute(predictions=answers, references=stored.references) for answers in (before, after))
    metrics = {measures.title(name): (old[name], new[name]) for name in measures.keys}
    found = Agreement(split, len(rows), changed, float(np.abs(logits - stored.logits).max()), metrics)
    if found.dropped:
        raise ModelError(f"{found}: {listed(found.dropped)} dropped by more than a point", USE_FP32)
    say(str(found))
    return found


def spread(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most so many items, evenly spread over all of them."""
    return [items[int(place)] for place in np.unique(np.linspace(0, len(items) - 1, min(most, len(items))).astype(int))]


@dataclass(frozen=True)
class OpenedModel:
    """A model that is ready to predict.

    Attributes:
        folder: The folder with its files.
        run: The record of the run it comes from; None without a run.
        tokenizer: Its tokenizer.
        model: The model.
        backend: How forward passes are run.
    """

    folder: Path
    run: RunRecord | None
    tokenizer: Tokenizer
    model: Model
    backend: Backend


def open_model(folder: Path, device: str, precision: str = "auto", *, light: bool = False) -> OpenedModel:
    """Return the model of a folder.

    Args:
        folder: A run folder, a folder with a model and its tokenizer, or an exported folder.
        device: "auto", "cpu", "cuda" or "mps".
        precision: "auto", "fp32", "bf16", "fp16" or "int8"; an exported folder has its own.
        light: Load a known model of a run without transformers, unless it will be quantized.

    Raises:
        ModelError: If there is no model, or its files are damaged.
        SettingsError: If a precision is asked of an exported folder.
    """
    if not folder.is_dir():
        raise ModelError(f"{folder}: there is no such folder", "name the folder of a finished run, or of a model")
    light = not is_int8(precision) and light
    if is_export(folder):
        if precision != "auto":
            raise SettingsError(f"{folder}: an exported model has its own precision, not {precision}", "omit the precision")
        return open_export(folder, read_export(folder), device)
    model_dir, run = model_of_run(folder) if is_run(folder) else (folder, None)
    backend = choose_backend(TrainingArguments(device=device, precision=precision_of(run, device, precision)))
    with stage(LOADING), collection_paused():
        found = load_light(model_dir, run, backend.device) if light and run else None
        tokenizer = found[0] if found else load_tokenizer(model_dir)
        model = found[1] if found else load_model(model_dir).to(backend.device).eval()
        refuse_unknown_tokens(tokenizer, model)
    return OpenedModel(model_dir, run, tokenizer, model, supported_backend(backend, model))


def open_export(folder: Path, record: ExportRecord, device: str) -> OpenedModel:
    """Return the model of an exported folder, run by its own runtime on sorted and padded batches."""
    backend = PlainBackend(choose_backend(TrainingArguments(device=device_of(record, device), precision="fp32")).device)
    with stage(LOADING), collection_paused():
        model = load_exported(folder, record, backend.device)
        backend.name = model.runtime
        return OpenedModel(folder, record.run, load_tokenizer(folder), model, backend)
