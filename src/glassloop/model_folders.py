"""Open the folder of a run, of a model or of an export: its tokenizer, its model, and the backend that runs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from glassloop.arguments import TrainingArguments
from glassloop.backends.admission import supported_backend
from glassloop.backends.choose import choose_backend
from glassloop.backends.plain import PlainBackend
from glassloop.collection import collection_paused
from glassloop.engine.interfaces import Backend
from glassloop.errors import ModelError, SettingsError
from glassloop.int8 import is_int8, precision_of
from glassloop.models.exported import device_of, load_exported
from glassloop.models.inputs import refuse_unknown_tokens
from glassloop.models.light import load_light
from glassloop.models.loading import load_model, load_tokenizer
from glassloop.run_folder.export_json import ExportRecord, is_export, read_export
from glassloop.run_folder.layout import is_run
from glassloop.run_folder.record import RunRecord
from glassloop.run_folder.run_json import model_of_run
from glassloop.stages import LOADING, stage
from glassloop.transformers_types import Model, Tokenizer


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
