"""Read a run folder from Python: its record, results, history and predictions, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from glassloop.base.errors import SettingsError
from glassloop.base.files import user_path
from glassloop.base.records import Json
from glassloop.report.build import Report, report_of
from glassloop.runs.history import Entry, read_history
from glassloop.runs.record import MODEL_NAME, ClassRecord, RunRecord, predicted_splits, read_predictions, record_of
from glassloop.runs.status import run_status
from glassloop.scores.metrics import short_metrics
from glassloop.settings.training import TrainingArguments

if TYPE_CHECKING:
    from pandas import DataFrame
    from pyarrow import Table


class Run:
    """Reads a run folder. A notebook shows its report.

    `record` is read once; history and predictions are read again whenever they are asked for.

    Args:
        folder: The run folder: the `output_dir` of `glassloop train` or of a `Trainer`.

    Attributes:
        folder: The run folder.
        record: Everything run.json says about the run.

    Raises:
        ModelError: If the folder is not a run folder, or if its run.json is damaged.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder: Path = user_path(folder)
        self.record: RunRecord = record_of(self.folder)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}): {self.status}"

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()

    @property
    def status(self) -> str:
        """Return "finished", "running", or, for a run that can be resumed, "stopped", "failed" or "killed"."""
        return run_status(self.folder, self.record)

    def report(self) -> Report:
        """Return the report of the run, which a notebook shows. `report().save(path)` writes it to a file."""
        return report_of(self.folder)

    @property
    def settings(self) -> TrainingArguments:
        """Return the training settings."""
        return self.record.settings

    @property
    def model_dir(self) -> Path:
        """Return the folder of the trained model, which `load_model` and `from_pretrained` accept."""
        return self.folder / MODEL_NAME

    @property
    def metrics(self) -> dict[str, float]:
        """Return the metrics of the final evaluation, without prefix and timings; empty before it."""
        return short_metrics(self.record.evaluation or {})

    @property
    def baseline(self) -> dict[str, float]:
        """Return the same metrics for always predicting the most frequent label, or the mean score."""
        return dict(self.record.baseline or {})

    @property
    def classes(self) -> dict[str, ClassRecord]:
        """Return precision, recall, F1 and number of rows of each class, if they were computed."""
        return dict(self.record.classes or {})

    @property
    def history(self) -> list[Entry]:
        """Return one dict for each logged step and each evaluation, in their order."""
        return read_history(self.folder)

    @property
    def predicted_splits(self) -> list[str]:
        """Return the splits that `predictions` can read."""
        return predicted_splits(self.folder)

    def predictions(self, split: str = "validation") -> list[dict[str, Json]]:
        """Return the predictions of the final evaluation: one dict per row with texts, label, prediction and logits.

        Args:
            split: The split that was evaluated, one of `predicted_splits`.

        Raises:
            SettingsError: If the run has no predictions for this split.
            ModelError: If the file is damaged.
        """
        return read_predictions(self.folder, split)

    def history_frame(self) -> DataFrame:
        """Return the history as a pandas frame, one line per entry.

        Raises:
            SettingsError: If pandas is not installed.
        """
        return frame_of(self.history)

    def history_table(self) -> Table:
        """Return the history as an Arrow table, one line per entry."""
        return table_of(self.history)

    def predictions_table(self, split: str = "validation") -> Table:
        """Return the predictions of a split as an Arrow table, one line per row.

        Args:
            split: The split that was evaluated, one of `predicted_splits`.

        Raises:
            SettingsError: If the run has no predictions for this split.
        """
        return table_of(self.predictions(split))

    def predictions_frame(self, split: str = "validation") -> DataFrame:
        """Return the predictions of a split as a pandas frame, one line per row.

        Args:
            split: The split that was evaluated, one of `predicted_splits`.

        Raises:
            SettingsError: If the run has no predictions for this split, or if pandas is not installed.
        """
        return frame_of(self.predictions(split))


def table_of(entries: list[Entry]) -> Table:
    """Return dicts as an Arrow table. An entry that has no value for a column of another one has a null there."""
    import pyarrow

    columns = dict.fromkeys(name for entry in entries for name in entry)
    return pyarrow.table({name: [entry.get(name) for entry in entries] for name in columns})


def frame_of(entries: list[Entry]) -> DataFrame:
    """Return dicts as a pandas frame. Raise `SettingsError` if pandas is not installed."""
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise SettingsError("pandas is not installed", "pip install 'glassloop[pandas]'") from error
    return DataFrame(entries)
