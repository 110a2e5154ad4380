"""Read everything a report shows from a run folder, also of runs that are unfinished, damaged or old."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from glassloop.errors import GlassloopError
from glassloop.lock import holder
from glassloop.measures import Measures
from glassloop.records import Json
from glassloop.report.answers import read_answers
from glassloop.run_folder.history import Entry, read_history
from glassloop.run_folder.layout import HISTORY_NAME, is_run, is_trainer_folder
from glassloop.run_folder.predictions import predicted_splits
from glassloop.run_folder.record import RunRecord
from glassloop.run_folder.run_json import record_of
from glassloop.run_folder.sessions import read_moments, resumed_steps
from glassloop.run_folder.status import status_of
from glassloop.statistics.scored import ScoredRows

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
        record: What run.json or trainer.json says; None for the output folder of a Trainer that wrote neither.
        status: "finished", "running", "stopped", "failed", "killed", or "unknown".
        history: The logged steps and evaluations.
        resumes: The steps after which the run was resumed.
        results: The predictions for each split, the one that was evaluated during training first.
        problems: What could not be read, one sentence each.
        by_trainer: Whether a Trainer trained it in Python, not the command.
    """

    folder: Path
    record: RunRecord | None
    status: str
    history: Sequence[Entry]
    resumes: Sequence[int]
    results: Sequence[SplitResult] = ()
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
                found.append(SplitResult(split, rows, entries))
        except GlassloopError as error:
            problems.append(f"{error.problem}; {error.remedy}.")
    status = status_of(held, record.finished, not by_trainer, read_moments(folder))
    return RunSource(folder, record, status, read_history(folder), resumed_steps(folder), found, problems, by_trainer)


def ordered_splits(folder: Path) -> list[str]:
    """Return the splits with predictions, the one that was evaluated during training first."""
    return sorted(predicted_splits(folder), key=lambda name: (not name.startswith("validation"), len(name), name))
