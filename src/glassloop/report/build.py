"""Put the sections of a report together: of one run, of several seeds, or of the output folder of a Trainer."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from glassloop.base.errors import SettingsError
from glassloop.base.files import replacing, user_path, write_text
from glassloop.base.output import say
from glassloop.base.records import collection_paused
from glassloop.markup.templates import piece
from glassloop.report.charts import Chart, csv_of, standalone
from glassloop.report.errors import errors
from glassloop.report.page import Drawn, Section, page
from glassloop.report.results import confidence, results_of, results_section
from glassloop.report.source import TEMPLATE, RunSource, about, curves, data_section, read_source
from glassloop.report.study import seeds_sections
from glassloop.runs.record import REPORT_NAME, is_run, is_seeds_folder
from glassloop.scores.result import Score

PNG_ZOOM = 3.0  # 1,320 pixels wide, enough for print at the width of a column
NO_REPORT = "GLASSLOOP_NO_REPORT"  # environment variable: if it is set, training writes no report


def write_charts(charts: Mapping[str, Chart], folder: Path, form: str) -> list[Path]:
    """Write each chart to a file of its name, and return the paths. Raises `SettingsError` for PNG without its library."""
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
    if is_run(folder) or not is_seeds_folder(folder):
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
            Section("curves", "Learning curves", curves(source, drawn), "Curves"),
            Section("errors", "Errors", errors(source, drawn)),
            Section("confidence", "Confidence", confidence(source, drawn)),
            Section("data", "Data", data_section(source, drawn)),
            Section("run", "The run", about(source)),
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
