"""Put the sections of a report together: of one run, of several seeds, or of the output folder of a Trainer."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from glassloop.base.errors import SettingsError
from glassloop.base.files import home_name, near_name, replacing, user_path, write_text
from glassloop.base.output import say
from glassloop.base.records import collection_paused
from glassloop.markup.templates import escaped
from glassloop.report.charts import Chart, csv_of, standalone
from glassloop.report.errors import errors
from glassloop.report.page import Section, page, paragraph, tag
from glassloop.report.results import confidence, headline, results_of
from glassloop.report.source import Drawn, RunSource, about, curves, data_section, read_source
from glassloop.report.study import seeds_sections
from glassloop.runs.record import FINISHED, REPORT_NAME, is_run, is_seeds_folder
from glassloop.scores.result import Score

PNG_ZOOM = 3.0  # 1,320 pixels wide, enough for print at the width of a column


def write_charts(charts: Mapping[str, Chart], folder: Path, form: str) -> list[Path]:
    """Write each chart to a file of its name, and return the paths.

    Raises `SettingsError` for PNG if the library that draws it is not installed.
    """
    written = []
    for name, chart in charts.items():
        path = folder / f"{name}.{form}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if form == "png":
            content = png_of(chart)
            with replacing(path) as writing:
                writing.write_bytes(content)
        else:
            write_text(path, csv_of(chart) if form == "csv" else standalone(chart))
        written.append(path)
    return written


def png_of(chart: Chart) -> bytes:
    """Return a chart as a PNG image. Raises `SettingsError` if resvg-py is not installed."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError as error:
        raise SettingsError("PNG needs the package resvg-py", "pip install 'glassloop[png]', or use --format svg") from error
    return bytes(svg_to_bytes(svg_string=standalone(chart, dark=False), zoom=PNG_ZOOM))


NO_REPORT = "GLASSLOOP_NO_REPORT"  # environment variable: if it is set, training writes no report


@dataclass(frozen=True)
class Report:
    """The report of a run."""

    title: str  # its heading
    html: str  # the complete page
    charts: Mapping[str, Chart]  # the charts by name
    results: Sequence[Score]  # the metrics with their intervals

    def _repr_html_(self) -> str:
        return inline(self.html, self.title)

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
    if not is_run(folder) and is_seeds_folder(folder):
        return seeds_report(folder)
    return source_report(read_source(folder))


def source_report(source: RunSource) -> Report:
    """Return the report of a run that was read."""
    with collection_paused():  # it would walk over all rows many times
        return drawn_report(source)


def drawn_report(source: RunSource) -> Report:
    """Write the sections of the report of a run."""
    drawn = Drawn()
    results = results_of(source)
    sections = [
        Section("results", "Results", headline(source, results, drawn)),
        Section("curves", "Learning curves", curves(source, drawn), "Curves"),
        Section("errors", "Errors", errors(source, drawn)),
        Section("confidence", "Confidence", confidence(source, drawn)),
        Section("data", "Data", data_section(source, drawn)),
        Section("run", "The run", about(source)),
    ]
    title = f"{source.folder.name}"
    html = page(title, sections, subtitle=subtitle(source), footer=footer())
    return Report(title, html, drawn.charts, results)


def seeds_report(folder: Path) -> Report:
    """Return the report of several seeds."""
    drawn = Drawn()
    sections, results, line = seeds_sections(folder, drawn)
    return Report(folder.name, page(folder.name, sections, subtitle=line, footer=footer()), drawn.charts, results)


def subtitle(source: RunSource) -> str:
    """Return the lines below the heading: status, model and data, and what could not be read."""
    problems = "".join(paragraph(f"Could not be read: {problem}", "soft") for problem in source.problems)
    record = source.record
    if record is None:
        return paragraph("The output folder of a Trainer, which records its history only.", "soft") + problems
    state = tag(source.status, "good" if source.status == FINISHED else "bad")
    rows = ", ".join(f"{facts.num_rows:,} {name}" for name, facts in record.data.splits.items())
    model, data = (home_name(near_name(name)) for name in (record.model.name, record.data.source))
    names = f"Model {model}, data {data}"
    words = f"{names}: {rows} rows. {started(record.started)}"
    return f'<p class="soft">{state} {escaped(words)}</p>{problems}'


def started(text: str) -> str:
    """Return when a run was started, as a sentence; empty if that is not known."""
    try:
        return f"Started {datetime.fromisoformat(text):%d %B %Y, %H:%M} UTC."
    except ValueError:
        return ""


def footer() -> str:
    """Return the last line of a report."""
    text = "Written by Glassloop. Intervals cover 95 % and describe the rows that were evaluated."
    return paragraph(f"{text} This page contains texts of the data and names of files: check them before you share it.")


def inline(html: str, title: str) -> str:
    """Return a page as part of a notebook: in a frame, so that styles and scripts of both do not meet."""
    name = escaped(f"Report of {title}")
    frame = 'sandbox="allow-scripts" width="100%" height="720" frameborder="0"'
    return f'<iframe srcdoc="{escaped(html)}" title="{name}" {frame}></iframe>'


def write_report(folder: Path) -> Path | None:
    """Write report.html into a run folder and return its path; None if reports are switched off.

    Never raises: a report must not fail a run. An exception becomes one line on standard error.
    """
    if os.environ.get(NO_REPORT):
        return None
    try:
        return report_of(folder).save(folder / REPORT_NAME)
    except Exception as error:
        say(f"the report could not be written: {type(error).__name__}: {error}; try: glassloop report {folder}")
        return None
