"""Read and write run.json, the record of a run, and find the model of a run."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from glassloop.errors import ModelError, listed
from glassloop.files import sha256_of, write_text
from glassloop.records import NotARecordError, read_sealed, sealed
from glassloop.run_folder.layout import (
    CALIBRATION_NAME,
    CARD_NAME,
    MODEL_NAME,
    RUN_NAME,
    TRAINER_NAME,
    is_run,
    is_seeds_folder,
    is_trainer_folder,
)
from glassloop.run_folder.record import FORMAT, RunRecord


def read_run(folder: Path) -> RunRecord:
    """Return the record of a run. Raises `ModelError` if run.json is missing, damaged, edited, or of a newer version."""
    refuse_seeds(folder)
    if not is_run(folder):
        raise ModelError(f"{folder} is not a run folder: {RUN_NAME} is missing", "name the folder of a run")
    return read_record(folder / RUN_NAME)


def record_of(folder: Path) -> RunRecord:
    """Return the record of a run of the command or of a Trainer. Raises `ModelError` as `read_run` does."""
    return read_record(folder / TRAINER_NAME) if is_trainer_folder(folder) else read_run(folder)


def read_record(path: Path) -> RunRecord:
    """Return the record in a run.json or trainer.json. Raises `ModelError` if it is damaged, edited, or of a newer version."""
    try:
        return read_sealed(RunRecord, path, FORMAT)
    except NotARecordError as error:
        denied = isinstance(error.__cause__, PermissionError)
        remedy = "check its owner and permissions" if denied else "restore the file from a copy, or start a new run"
        raise ModelError(f"{path}: the record of the run cannot be read: {error}", remedy) from error


def refuse_seeds(folder: Path) -> None:
    """Raise `ModelError` for a folder that contains the runs of several seeds instead of one run."""
    if not is_run(folder) and is_seeds_folder(folder):
        runs = sorted(path.name for path in folder.glob("seed-*") if is_run(path))
        raise ModelError(
            f"{folder} contains one run per seed: {listed(runs) or 'none yet'}",
            f"name one of these runs, or resume all: glassloop train --seeds {max(len(runs), 1)} --resume {folder}",
        )


def write_run(folder: Path, record: RunRecord) -> None:
    """Replace run.json, completely or not at all. The record of a finished run gets the checksums of its model's files.

    The model card and the calibration are not among them: they change later.
    """
    if record.finished:
        model = folder / MODEL_NAME
        later = (model / CARD_NAME, model / CALIBRATION_NAME)
        found = sorted(path for path in model.rglob("*") if path.is_file() and path not in later)
        record = replace(record, files={path.relative_to(model).as_posix(): sha256_of(path) for path in found})
    write_record(folder / RUN_NAME, record)


def write_record(path: Path, record: RunRecord) -> None:
    """Replace a run.json or trainer.json, completely or not at all."""
    content = sealed(json.loads(json.dumps(asdict(record), allow_nan=False)))
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def model_of_run(folder: Path) -> tuple[Path, RunRecord]:
    """Return the folder of a run's trained model, and the record of the run.

    Raises `ModelError` if there is no model yet, or if a file of a finished run's model has changed since it was written.
    """
    run, model = read_run(folder), folder / MODEL_NAME
    if not model.is_dir():
        raise ModelError(
            f"{folder}: the run is {run.status} and has no model yet", f"train it to the end: glassloop train --resume {folder}"
        )
    remedy = f"restore the file, or use the model as it is now: name {model} instead"
    for name, checksum in run.files.items():
        if not (model / name).is_file():
            raise ModelError(f"{model / name}: missing", remedy)
        if sha256_of(model / name) != checksum:
            raise ModelError(f"{model / name}: changed since the run wrote it (its checksum differs)", remedy)
    return model, run
