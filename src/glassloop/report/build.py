"""The report of a run, of several seeds or of the folder of a Trainer; and `RunFolder`, which Python reads a run with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from glassloop.base.errors import SettingsError
from glassloop.base.files import replacing, user_path, write_text
from glassloop.base.output import say
from glassloop.base.records import Json, collection_paused
from glassloop.markup.templates import piece
from glassloop.report.charts import Chart, csv_of, standalone
from glassloop.report.errors import errors
from glassloop.report.page import Drawn, Section, page
from glassloop.report.results import confidence, gain_title, gained, results_of, results_section
from glassloop.report.source import TEMPLATE, RunSource, about, curves, data_section, read_source
from glassloop.report.study import seeds_sections
from glassloop.runs import record as records
from glassloop.runs.history import Entry, read_history
from glassloop.runs.record import REPORT_NAME, ClassRecord, RunRecord
from glassloop.runs.status import run_status
from glassloop.scores.metrics import short_metrics
from glassloop.scores.result import Score
from glassloop.settings.training import TrainingArguments

if TYPE_CHECKING:
    from pandas import DataFrame
    from pyarrow import Table

PNG_ZOOM = 3.0  # 1,320 pixels wide, enough for print at the width of a column
NO_REPORT = "GLASSLOOP_NO_REPORT"  # environment variable: if it is set, training writes no report


def write_charts(charts: Mapping[str, Chart], folder: Path, form: str) -> list[Path]:
    written = []
    for name, chart in charts.items():
        path = folder / f"{name}.{form}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if form == "png":
            try:
                from resvg_py import svg_to_bytes
            except ImportError as error:
                remedy = "pip install 'glassloop[png]', or use --format svg"
                raise SettingsError("PNG needs the package resvg-py", remedy) from error
            with replacing(path) as writing:
                writing.write_bytes(bytes(svg_to_bytes(svg_string=standalone(chart, dark=False), zoom=PNG_ZOOM)))
        else:
            write_text(path, csv_of(chart) if form == "csv" else standalone(chart))
        written.append(path)
    return written


@dataclass(frozen=True)
class Report:
    """The report of a run.

    Attributes:
        title: Its heading.
        html: The complete page.
        charts: The charts by name.
        results: The metrics with their intervals.
    """

    title: str
    html: str
    charts: Mapping[str, Chart]
    results: Sequence[Score]

    def _repr_html_(self) -> str:
        """Return the page in a frame, so that its styles and scripts and those of a notebook do not meet."""
        return piece(TEMPLATE, "frame", self.html, self.title)

    def save(self, path: str | Path) -> Path:
        """Write the page and return its path.

        Args:
            path: The file to write.
        """
        target = user_path(path)
        write_text(target, self.html)
        return target


def report_of(folder: Path) -> Report:
    """Return the report of a run folder, or of a folder with one run per seed. Raises `ModelError` if it is neither."""
    if records.is_run(folder) or not records.is_seeds_folder(folder):
        return source_report(read_source(folder))
    drawn = Drawn()
    sections, results, subtitle = seeds_sections(folder, drawn)
    html = page(folder.name, sections, subtitle=subtitle, footer=piece(TEMPLATE, "footer"))
    return Report(folder.name, html, drawn.charts, results)


def source_report(source: RunSource) -> Report:
    with collection_paused():  # it would walk over all rows many times
        drawn = Drawn()
        results = results_of(source)
        sections = [
            Section("results", "Results", results_section(source, results, drawn)),
            Section("gained", gain_title(source), gained(source, results, drawn), "Gain"),
            Section("curves", "Learning curves", curves(source, drawn), "Curves"),
            Section("errors", "Errors", errors(source, drawn)),
            Section("confidence", "Confidence", confidence(source, drawn)),
            Section("data", "Data", data_section(source, drawn)),
            Section("run", "The run", about(source, drawn)),
        ]
        try:
            started = f"Started {datetime.fromisoformat(source.record.started if source.record else ''):%d %B %Y, %H:%M} UTC."
        except ValueError:
            started = ""
        subtitle = piece(TEMPLATE, "subtitle", source, started)
        html = page(source.folder.name, sections, subtitle=subtitle, footer=piece(TEMPLATE, "footer"))
        return Report(source.folder.name, html, drawn.charts, results)


def write_report(folder: Path) -> Path | None:
    """Write report.html into a run folder and return its path; None if reports are off, or after an error, which is a line."""
    if os.environ.get(NO_REPORT):
        return None
    try:
        return report_of(folder).save(folder / REPORT_NAME)
    except Exception as error:
        say(f"the report could not be written: {type(error).__name__}: {error}; try: glassloop report {folder}")
        return None


class RunFolder:
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
        self.record: RunRecord = records.record_of(self.folder)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r}): {self.status}"

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
        return self.folder / records.MODEL_NAME

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
        return records.predicted_splits(self.folder)

    def predictions(self, split: str = "validation") -> list[dict[str, Json]]:
        """Return the predictions of the final evaluation: one dict per row with texts, label, prediction and logits.

        Args:
            split: The split that was evaluated, one of `predicted_splits`.

        Raises:
            SettingsError: If the run has no predictions for this split.
            ModelError: If the file is damaged.
        """
        return records.read_predictions(self.folder, split)

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
