"""Read everything a report shows from a run folder, also of runs that are unfinished, damaged or old."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glassloop.base.errors import GlassloopError
from glassloop.base.files import holder
from glassloop.base.records import Json
from glassloop.runs.history import Entry, read_history, read_moments, resumed_steps
from glassloop.runs.record import (
    HISTORY_NAME,
    DataRecord,
    RunRecord,
    is_run,
    is_trainer_folder,
    objects_in,
    predicted_splits,
    predictions_name,
    read_predictions,
    record_of,
)
from glassloop.runs.status import status_of
from glassloop.scores.intervals import ScoredRows, scored_rows
from glassloop.scores.metrics import Measures
from glassloop.scores.result import Result, split_scores

LOGITS = b'"logits": ['  # quotation marks within a text are escaped, so that this is always the key
MANY = 500  # bytes of the logits of a row, beyond which Arrow reads them: JSON needs several times as long


def read_answers(folder: Path, split: str, data: DataRecord) -> tuple[ScoredRows | None, Sequence[Mapping[str, Json]]]:
    """Return the predictions of a split as arrays, None without labels, and its lines with the texts.

    Raises:
        ModelError: If the file is damaged, or does not fit the labels of the run.
        SettingsError: If there are no predictions for the split.
    """
    path = folder / predictions_name(split)
    entries = wide_entries(path) or read_predictions(folder, split)
    labelled = bool(entries) and "label" in entries[0]
    return scored_rows(entries, data.task, data.labels, path) if labelled else None, entries


def wide_entries(path: Path) -> list[dict[str, Json]] | None:
    """Return the lines of a file in which rows have very many logits; None if they have few, or if a line is unusual."""
    try:
        with path.open("rb") as opened:
            first = opened.readline()
            if len(first.partition(LOGITS)[2].partition(b"]")[0]) < MANY:
                return None
            lines = (first + opened.read()).removesuffix(b"\n").split(b"\n")
    except OSError:
        return None
    parts = [line.partition(LOGITS) for line in lines]
    numbers, rest = zip(*((behind.partition(b"]")[0], behind.partition(b"]")[2]) for _, _, behind in parts), strict=True)
    logits = numbers_in(b",".join(numbers))
    width = numbers[0].count(b",") + 1
    if logits is None or len(logits) != width * len(lines) or any(number.count(b",") + 1 != width for number in numbers):
        return None
    entries = objects_in([before + b'"logits": 0' + behind for (before, _, _), behind in zip(parts, rest, strict=True)], path)
    for entry, row in zip(entries, logits.reshape(len(lines), width), strict=True):
        entry["logits"] = row  # type: ignore[assignment]  # an array instead of a list
    return entries


def numbers_in(text: bytes) -> np.ndarray | None:
    """Return the numbers between commas; None if one is not a number. Arrow reads them several times faster than Python."""
    import pyarrow as pa
    from pyarrow import csv

    column = pa.BufferReader(text.replace(b",", b"\n"))
    reading = csv.ReadOptions(column_names=["x"], block_size=1 << 24)
    try:
        found = csv.read_csv(
            column, reading, convert_options=csv.ConvertOptions(column_types={"x": pa.float64()}, null_values=[])
        )
    except pa.ArrowInvalid:
        return None
    return np.asarray(found["x"].to_numpy())


UNKNOWN = "unknown"


@dataclass(frozen=True)
class RunSource:
    """A run folder as it was read.

    Attributes:
        folder: The folder.
        record: What run.json or trainer.json says; None for the output folder of a Trainer that wrote neither.
        status: "finished", "running", "stopped", "failed", "killed", or "unknown".
        history: The logged steps and evaluations.
        resumes: The steps after which the run was resumed.
        results: The result of each split, the one that was evaluated during training first.
        problems: What could not be read, one sentence each.
        by_trainer: Whether a Trainer trained it in Python, not the command.
    """

    folder: Path
    record: RunRecord | None
    status: str
    history: Sequence[Entry]
    resumes: Sequence[int]
    results: Sequence[Result] = ()
    problems: Sequence[str] = ()
    by_trainer: bool = False

    @property
    def measures(self) -> Measures:
        """The metrics of the run."""
        return Measures(self.record.metrics, self.record.positive_label) if self.record else Measures(())

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns with the texts."""
        return self.record.data.columns.texts if self.record else ()


def read_source(folder: Path) -> RunSource:
    """Return what a run folder contains. Raises `ModelError` if it is not a run folder, or if its record is damaged."""
    by_trainer = is_trainer_folder(folder)
    if not is_run(folder) and not by_trainer and (folder / HISTORY_NAME).is_file():
        return RunSource(folder, None, UNKNOWN, read_history(folder), resumed_steps(folder), by_trainer=True)
    held = holder(folder)  # before the record is read: a run writes its result before it releases the lock
    record = record_of(folder)
    found, problems = [], []
    for split in ordered_splits(folder):
        try:
            rows, entries = read_answers(folder, split, record.data)
            if rows is not None:
                measures = Measures(record.metrics, record.positive_label)
                found.append(Result(split, rows, measures, *split_scores(record, split), entries=entries))
        except GlassloopError as error:
            problems.append(f"{error.problem}; {error.remedy}.")
    status = status_of(held, record.finished, not by_trainer, read_moments(folder))
    return RunSource(folder, record, status, read_history(folder), resumed_steps(folder), found, problems, by_trainer)


def ordered_splits(folder: Path) -> list[str]:
    """Return the splits with predictions, the one that was evaluated during training first."""
    return sorted(predicted_splits(folder), key=lambda name: (not name.startswith("validation"), len(name), name))
