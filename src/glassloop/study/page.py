"""study.html: one page with all points, the settings, the expected performance, the verdict, and tables for a paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from glassloop.base.errors import counted
from glassloop.base.files import home_name, write_text
from glassloop.report.charts.figure import COUNT, Axis, figure
from glassloop.report.charts.line import LineChart, Series
from glassloop.report.charts.points import DotChart, Dots, ParallelChart, Thread
from glassloop.report.page import Cell, Section, card, cards, code_block, details, fact_list, page, paragraph, table
from glassloop.runs.study import StudyRecord
from glassloop.settings.study import shown
from glassloop.study.tables import (
    HOW_CHOSEN,
    Row,
    between,
    latex_table,
    lines_of,
    listed_rows,
    markdown_table,
    number_of,
    ranked,
    rounds_in_words,
    setting_name,
    table_of,
)
from glassloop.study.tables import figure as score_text

STYLE = "table.sortable td.long{word-break:normal;overflow-wrap:normal;min-width:4.5em}"  # settings and verdicts stay readable
PAGE_NAME, MARKDOWN_NAME, LATEX_NAME = "study.html", "study.md", "study.tex"


def write_page(folder: Path, record: StudyRecord) -> None:
    """Write study.html and the tables study.md and study.tex of a study that has results."""
    if not record.results:
        return
    write_text(folder / PAGE_NAME, study_page(folder.name, record))
    write_text(folder / MARKDOWN_NAME, markdown_table(record))
    write_text(folder / LATEX_NAME, latex_table(record))


def study_page(name: str, record: StudyRecord) -> str:
    """Return the page of a study.

    Args:
        name: The name of its folder.
        record: The study.
    """
    subtitle = paragraph(f"{counted(len(record.tried), 'setting', 'settings')}, {counted(len(record.runs), 'run', 'runs')}")
    if not record.results:
        return page(f"Study {name}", unfinished(record), subtitle=subtitle, style=STYLE)
    columns, rows = table_of(record)
    cells: list[list[Cell]] = [[*row] for row in rows]
    sections = [
        Section("verdict", "Verdict", summary(record)),
        Section("points", "All points", points(record)),
        Section("settings", "Settings", parallel(record) + table(columns, cells, sortable=True)),
        Section("expected", "Expected performance", expected(record)),
        Section("failed", "Failed runs", failures(record)),
        Section("design", "How it was done", design(record)),
        Section("tables", "Tables for a paper", tables(record), short="Tables"),
    ]
    return page(f"Study {name}", sections, subtitle=subtitle, style=STYLE)


def unfinished(record: StudyRecord) -> list[Section]:
    """Return the sections of a study that has no results yet: its runs so far, and how it is done."""
    rows: list[list[Cell]] = [
        [setting_name(record.tried[run.setting]), run.seed, run.fold or "final", run.status, f"{run.fraction:.0%}"]
        for run in record.runs.values()
    ]
    listed = table(["setting", "seed", "fold", "status", "trained"], rows, sortable=True)
    return [
        Section("runs", "Runs", paragraph("There is no result yet.", "lead") + listed),
        Section("failed", "Failed runs", failures(record)),
        Section("design", "How it is done", design(record)),
    ]


def summary(record: StudyRecord) -> str:
    """Return the chosen setting, its scores and the verdict in sentences."""
    results, shown = record.results, []
    final = results.get("final")
    for split, found in (final if isinstance(final, Mapping) else {}).items():
        if isinstance(found, Mapping):
            shown.append(card(f"{results['metric']}, {split}", score_text(found["mean"]), f"95 % interval {between(found)}"))
    chosen = paragraph(f"Chosen: {results.get('chosen', 'none')}", "strong")
    return chosen + cards(shown) + "".join(paragraph(line) for line in lines_of(record))


def points(record: StudyRecord) -> str:
    """Return the validation scores of every finished run, and the selection scores of all settings."""
    metric, rows = str(record.results.get("metric", "")), ranked(record)
    finished = []
    for row in rows:
        found = row["validation"]
        if isinstance(found, Mapping):
            mean, low, high = (optional_number(found[name]) for name in ("mean", "low", "high"))
            baseline, note = record.results.get("baseline"), f"{row['failed']} of {row['runs']} runs failed"
            level = baseline if isinstance(baseline, float) else None
            color = 1 if row["number"] == record.chosen else 0
            finished.append(Dots(short_name(row), mean, low, high, floats(found["points"]), level, note, color))
    chosen_by = []
    for row in rows:
        if row["selection"] is not None:
            name, color = f"{short_name(row)} ({number_of(row['trained']):.0%})", 1 if row["number"] == record.chosen else 0
            chosen_by.append(Dots(name, number_of(row["selection"]), points=floats(row["selection_points"]), color=color))
    parts, named = [], f"Settings are named by {' · '.join(record.study.vary)}; the chosen one has another color."
    if finished:
        title = f"{metric} on validation (not used to choose)"
        text = "One row per setting that was trained to its end: every run, the mean and its 95 % interval over seeds and rows."
        chart = DotChart(title, text, finished, Axis(metric), baseline_name="majority baseline")
        parts.append(figure(chart, wide=True, note=f"{text} {named}"))
    title = f"{record.metric} on the selection split (used to choose)"
    text = "One row per setting: every run and the mean, after the share of its steps in brackets."
    chart = DotChart(title, text, chosen_by, Axis(record.metric))
    parts.append(figure(chart, wide=True, note=f"{text} {named}"))
    return "".join(parts)


def optional_number(value: object) -> float | None:
    """Return a plain number, None for anything else, such as an interval that too few rows do not give."""
    return float(value) if isinstance(value, int | float) else None


def short_name(row: Row) -> str:
    """Return the values of a setting without the names, which would be too long for a chart."""
    values = row["values"]
    return " · ".join(shown(value) for value in values.values()) if isinstance(values, Mapping) else ""


def floats(values: object) -> list[float]:
    """Return the numbers of a list."""
    return [float(value) for value in values if isinstance(value, int | float)] if isinstance(values, Sequence) else []


def parallel(record: StudyRecord) -> str:
    """Return the settings as lines over one axis each."""
    names = [*record.study.vary]
    threads = []
    for row in listed_rows(record):
        if isinstance(row, Mapping) and isinstance(row["values"], Mapping) and row["selection"] is not None:
            values = [row["values"].get(name) for name in names]
            threads.append(Thread(str(row["name"]), [*values, number_of(row["selection"])], row["number"] == record.chosen))
    text = "Each line is one setting; its right end is the mean score that settings are chosen by."
    chart = ParallelChart("Settings and their scores", text, [*names, f"{record.metric} (selection)"], threads)
    return figure(chart, wide=True) if threads else ""


def expected(record: StudyRecord) -> str:
    """Return the expected best validation score against the number of runs."""
    found = record.results.get("expected_best")
    entries = [entry for entry in found if isinstance(entry, Mapping)] if isinstance(found, Sequence) else []
    if not entries:
        return ""
    line = [(number_of(entry["runs"]), number_of(entry["value"])) for entry in entries]
    band = [
        (number_of(entry["runs"]), number_of(entry["value"]) - number_of(entry["deviation"]),
         number_of(entry["value"]) + number_of(entry["deviation"]))
        for entry in entries
    ]  # fmt: skip
    metric = str(record.results["metric"])
    text = "The best validation score to expect from a random choice of so many of the finished runs, with its deviation."
    series = [Series("expected best", line, band=band)]
    chart = LineChart("Expected validation performance against budget", text, Axis("runs", COUNT), Axis(metric), series)
    return figure(chart, wide=True)


def failures(record: StudyRecord) -> str:
    """Return a table of the runs that failed."""
    rows: list[list[Cell]] = [
        [setting_name(record.tried[run.setting]), run.seed, run.fold or "final", run.exit_code, " ".join(run.error)]
        for run in record.failed.values()
    ]
    return table(["setting", "seed", "fold", "exit status", "error"], rows)


def design(record: StudyRecord) -> str:
    """Return how settings were searched, chosen, compared and tested."""
    study = record.study
    tested = len(record.test_evaluations)
    facts: dict[str, Cell] = {
        "data": home_name(record.base.source or "quickstart"),
        "model": home_name(record.base.model or "quickstart"),
        "search": f"{study.chosen_strategy}: {rounds_in_words(record.rounds)} of the steps",
        "seeds": ", ".join(map(str, record.seeds)),
        "chosen by": f"mean {record.metric} on the selection split (folds {', '.join(study.folds)} of the training rows)",
        "compared on": f"validation; {HOW_CHOSEN}",
        "test split": f"used {'once' if tested == 1 else f'for {tested} settings'}, at the end" if tested else "not used",
        "time": f"{record.seconds:.0f} s",
        "can detect": str(record.results.get("design", "")),
        "versions": ", ".join(f"{name} {number}" for name, number in record.versions.items()),
    }
    return fact_list(facts)


def tables(record: StudyRecord) -> str:
    """Return the table of all settings in Markdown and LaTeX."""
    return details("Markdown", code_block(markdown_table(record))) + details(
        "LaTeX (booktabs)", code_block(latex_table(record))
    )
