"""Read everything a report shows from a run folder, also of runs that are unfinished, damaged or old."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from glassloop.errors import GlassloopError
from glassloop.lock import holder
from glassloop.measures import Measures
from glassloop.records import Json
from glassloop.run_folder.history import Entry, read_history
from glassloop.run_folder.layout import HISTORY_NAME, is_run
from glassloop.run_folder.predictions import predicted_splits, read_predictions
from glassloop.run_folder.record import RunRecord
from glassloop.run_folder.run_json import read_run
from glassloop.run_folder.sessions import read_moments, resumed_steps
from glassloop.run_folder.status import status_of
from glassloop.statistics.scored import ScoredRows, scored_rows

UNKNOWN = "unknown"


@dataclass(frozen=True)
class SplitResult:
    """The predictions of a run for one split.

    Attributes:
        name: The split.
        rows: Predictions, labels and logits as arrays.
        entries: The lines of the predictions file, with the texts.
    """

    name: str
    rows: ScoredRows
    entries: Sequence[Mapping[str, Json]]


@dataclass(frozen=True)
class RunSource:
    """A run folder as it was read.

    Attributes:
        folder: The folder.
        record: What run.json says; None for the output folder of a Trainer, which has none.
        status: "finished", "running", "stopped", "failed", "killed", or "unknown".
        history: The logged steps and evaluations.
        resumes: The steps after which the run was resumed.
        results: The predictions for each split, the one that was evaluated during training first.
        problems: What could not be read, one sentence each.
    """

    folder: Path
    record: RunRecord | None
    status: str
    history: Sequence[Entry]
    resumes: Sequence[int]
    results: Sequence[SplitResult] = ()
    problems: Sequence[str] = ()

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
    if not is_run(folder) and (folder / HISTORY_NAME).is_file():
        return RunSource(folder, None, UNKNOWN, read_history(folder), resumed_steps(folder))
    held = holder(folder)  # before the record is read: a run writes its result before it releases the lock
    record = read_run(folder)
    found, problems = [], []
    for split in ordered_splits(folder):
        try:
            entries = read_predictions(folder, split)
            if entries and "label" in entries[0]:
                rows = scored_rows(entries, record.data.task, record.data.labels)
                found.append(SplitResult(split, rows, entries))
        except GlassloopError as error:
            problems.append(f"{error.problem}; {error.remedy}.")
    status = status_of(held, record.finished, True, read_moments(folder))
    return RunSource(folder, record, status, read_history(folder), resumed_steps(folder), found, problems)


def ordered_splits(folder: Path) -> list[str]:
    """Return the splits with predictions, the one that was evaluated during training first."""
    return sorted(predicted_splits(folder), key=lambda name: (not name.startswith("validation"), len(name), name))


def numbers_by_step(history: Sequence[Entry], name: str) -> list[tuple[float, float]]:
    """Return a figure of the history with its step, where both are numbers."""
    found = [(entry.get("step"), entry.get(name)) for entry in history]
    return [(step, value) for step, value in found if isinstance(step, int | float) and isinstance(value, int | float)]
