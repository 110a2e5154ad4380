"""Export a run into a new folder: convert, compare with the run, describe. Until the last step the folder has another name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from glassloop.backends.plain import PlainBackend
from glassloop.data.collator import PaddingCollator
from glassloop.errors import ModelError, SettingsError
from glassloop.exporting.check import SPEED_ROWS, StoredRows, changes, speeds, validation_rows
from glassloop.exporting.conversion import (
    ONNX_PACKAGES,
    PACKAGES,
    refuse_missing_packages,
    refuse_unknown_family,
    write_model,
)
from glassloop.exporting.readme import readme_text
from glassloop.files import replacing_dir, write_text
from glassloop.models.files import CONFIG_NAME
from glassloop.predictor import Predictor
from glassloop.run_folder.export_json import (
    MODEL_FILES,
    README_NAME,
    REFERENCE_NAME,
    TORCH,
    ExportCheck,
    ExportRecord,
    checksums,
    is_export,
    write_export,
)
from glassloop.run_folder.layout import CALIBRATION_NAME, is_run
from glassloop.run_folder.run_json import read_run
from glassloop.serving.hosted import CHECKED_ROWS, check_predictions
from glassloop.settings import SCORE
from glassloop.stages import stage

WEIGHTS = (".safetensors", ".safetensors.index.json", ".md")  # what an exported folder does not take from the model's


@dataclass(frozen=True)
class FlippedRow:
    """A row whose answer changed: its label, both answers, and its texts."""

    row: int
    label: object
    before: object
    after: object
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Exported:
    """A finished export: its folder, its record, and the rows whose answer changed."""

    folder: Path
    record: ExportRecord
    check: ExportCheck
    flipped: tuple[FlippedRow, ...]


def export_run(folder: Path, kind: str, target: Path, *, stores_texts: bool = True) -> Exported:
    """Export the model of a run, and compare it with the run on the stored validation rows.

    Args:
        folder: The run folder.
        kind: The format: "onnx", "onnx-int8" or "torch".
        target: The folder to write, which must not exist or be empty.
        stores_texts: Whether to store some validation rows, with which a server checks the model at its start.

    Raises:
        SettingsError: If `folder` is not a run with validation rows, or a package is missing.
        ModelError: If the model is damaged, or cannot be exported.
    """
    refuse_missing_packages(kind)
    refuse_other_folders(folder)
    plain = Predictor(folder, device="cpu")
    if plain.run is None:
        raise ModelError(f"{folder}: the record of the run is missing", "name the folder of a run")
    rows = validation_rows(folder, plain.run)
    plain.use(PlainBackend("cpu"))
    first = plain.encoded([column[:1] for column in rows.columns]).rows
    inputs = tuple(PaddingCollator(plain.tokenizer)([row.inputs for row in first]))
    refuse_unknown_family(plain.model.config, inputs)
    ours = Predictor(folder, device="cpu")
    check_predictions(folder, ours)
    labels = None if plain.task == SCORE else tuple(plain.names)
    record = ExportRecord(
        kind, plain.task, labels, plain.max_length, inputs, folder.resolve().name, plain.run, versions=versions_of(kind)
    )
    with replacing_dir(target) as writing:
        with stage(f"exporting to {kind}"):
            for path in sorted(plain.model_dir.iterdir()):
                if path.is_file() and not path.name.endswith(WEIGHTS):
                    shutil.copyfile(path, writing / path.name)
            write_model(plain.model, inputs, kind, writing)
        write_export(writing, replace(record, files=checksums(writing)))
        found = compared(record, rows, writing, {"glassloop": ours, "transformers": plain}, stores_texts=stores_texts)
        calibrated = (writing / CALIBRATION_NAME).exists()
        text = readme_text(record, found.check, calibrated=calibrated, has_reference=stores_texts)
        write_text(writing / README_NAME, text)
        record = replace(record, check=found.check, files=checksums(writing))
        write_export(writing, record)
    return replace(found, folder=target, record=record)


def compared(
    record: ExportRecord, rows: StoredRows, folder: Path, others: Mapping[str, Predictor], *, stores_texts: bool
) -> Exported:
    """Return how the model in `folder` compares with the predictors of its run, and store some rows with its logits."""
    exported, ours = Predictor(folder, device="cpu"), others["glassloop"]
    before, after = ours.logits(*rows.columns), exported.logits(*rows.columns)
    found = changes(rows, record.run, ours.answering, before, after)
    timed = ours.encoded([[column[place] for place in rows.spread(SPEED_ROWS)] for column in rows.columns]).rows
    per_second = speeds({"exported": exported, **others}, timed)
    sizes = {
        "exported": sum(path.stat().st_size for path in folder.glob(f"{MODEL_FILES[record.kind]}*")),
        "run": sum(path.stat().st_size for path in ours.model_dir.glob("*.safetensors")),
    }
    check = ExportCheck(
        rows.split,
        len(rows.entries),
        found.largest,
        found.largest_row,
        found.flipped,
        found.metrics,
        sizes,
        per_second,
        torch.get_num_threads(),
    )
    if stores_texts:
        write_reference(folder, rows, exported)
    flipped = []
    for row in found.flipped:
        entry, answers = rows.entries[row], ours.answering.describe(np.stack([before[row], after[row]]))
        texts = tuple(str(entry[name]) for name in rows.texts)
        flipped.append(FlippedRow(row, entry["label"], answers[0].label, answers[1].label, texts))
    return Exported(folder, record, check, tuple(flipped))


def write_reference(folder: Path, rows: StoredRows, exported: Predictor) -> None:
    """Store some validation rows with the logits of the exported model, with which a server checks it at its start."""
    entries = [rows.entries[place] for place in rows.spread(CHECKED_ROWS)]
    logits = exported.logits(*([str(entry[name]) for entry in entries] for name in rows.texts))
    lines = [
        {"row": entry.get("row"), "logits": found, **{name: entry[name] for name in rows.texts}}
        for entry, found in zip(entries, logits.tolist(), strict=True)
    ]
    write_text(folder / REFERENCE_NAME, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def refuse_other_folders(folder: Path) -> None:
    """Raise if there is nothing to export: no folder, an export, or no run."""
    if folder.is_dir() and is_export(folder):
        raise SettingsError(f"{folder} is an export already", "name the folder of the run it was made from")
    if (folder / CONFIG_NAME).exists() and not is_run(folder):
        problem = f"{folder} is a model without a run: an export is compared with the run on its validation rows"
        raise SettingsError(problem, "name the folder of a run, which glassloop train writes")
    if folder.is_dir():
        read_run(folder)


def versions_of(kind: str) -> dict[str, str]:
    """Return the versions of the packages that wrote an export."""
    return {name: version(name) for name in (*PACKAGES, *(ONNX_PACKAGES if kind != TORCH else ()))}
