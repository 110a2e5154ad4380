"""Read and write export.json, the record of an exported model: where it comes from, and how it compares with its run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from glassloop.base.errors import ModelError, alternatives
from glassloop.base.records import Json, object_of, read_sealed, write_sealed
from glassloop.runs.record import RunRecord, check_files, file_checksums, has_name

EXPORT_NAME, REFERENCE_NAME, README_NAME = "export.json", "reference.jsonl", "README.md"
FORMAT = 1
ONNX, ONNX_INT8, TORCH = "onnx", "onnx-int8", "torch"
MODEL_FILES = {ONNX: "model.onnx", ONNX_INT8: "model.onnx", TORCH: "model.pt2"}  # by the format of the export
RESTORE = "restore the folder from a copy, or export the run again"


@dataclass(frozen=True)
class MetricChange:
    """A metric of the run's model and of the exported one on the same rows; both ends of the interval of the difference."""

    run: float
    exported: float
    difference: float
    low: float
    high: float
    p_value: float
    test: str


@dataclass(frozen=True)
class ExportCheck:
    """How an exported model compares with the model of its run on the rows of a split."""

    split: str
    rows: int
    largest_difference: float  # of two logits
    largest_row: int  # with that difference, from 0
    flipped: tuple[int, ...]  # the rows whose answer changed; scores have none
    metrics: dict[str, MetricChange]
    num_bytes: dict[str, int]  # size of the exported model, and of the run's model under "run"
    rows_per_second: dict[str, float]  # on the machine that exported, by the name of who predicted
    threads: int  # of that measurement


@dataclass(frozen=True)
class ExportRecord:
    """Everything export.json says. The first entries are what other programs need to use the model."""

    kind: str
    task: str
    labels: tuple[str, ...] | None
    max_length: int
    inputs: tuple[str, ...]
    name: str  # of the run folder
    run: RunRecord
    format: int = FORMAT
    versions: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # SHA-256 of every other file
    check: ExportCheck | None = None  # None until the export is finished

    def __post_init__(self) -> None:
        if self.kind not in MODEL_FILES:
            raise ValueError(f"the kind is not {alternatives(MODEL_FILES)}")

    @property
    def precision(self) -> str:
        """The precision of its matrix multiplications."""
        return "int8" if self.kind == ONNX_INT8 else "fp32"


def is_export(folder: Path) -> bool:
    return has_name(folder / EXPORT_NAME)


def write_export(folder: Path, record: ExportRecord) -> None:
    write_sealed(folder / EXPORT_NAME, record)


def checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file in a folder, without export.json and the README, which people may edit."""
    return file_checksums(folder, (EXPORT_NAME, README_NAME))


def read_record(folder: Path) -> ExportRecord:
    """Return what export.json says. Raises `ModelError` if it is damaged, edited, of a newer version, or not finished."""
    record = read_sealed(ExportRecord, folder / EXPORT_NAME, FORMAT, "the record of the export", RESTORE)
    if record.check is None and not folder.name.startswith("."):  # the command itself reads its hidden folder
        raise ModelError(f"{folder}: the export was interrupted", "export the run again")
    return record


def read_export(folder: Path) -> ExportRecord:
    """Return the record of an exported model. Raises `ModelError` if a file is missing or has changed since the export."""
    record = read_record(folder)
    if MODEL_FILES[record.kind] not in record.files:
        raise ModelError(f"{folder / EXPORT_NAME}: there is no checksum of {MODEL_FILES[record.kind]}", RESTORE)
    check_files(folder, record.files, "the export", RESTORE)
    return record


def read_reference(folder: Path) -> list[dict[str, Json]]:
    """Return the stored validation rows of an export with the logits of the exported model; empty if texts were not stored."""
    path = folder / REFERENCE_NAME
    if not path.exists():
        return []
    try:
        return [object_of(json.loads(line), "") for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: {error}", RESTORE) from error
