"""The page of an inspection: one offline HTML file with every finding, its rows, and what to do."""

from __future__ import annotations

from itertools import groupby

from glassloop.data.examples import Examples
from glassloop.diagnosis.codes import CODES, SEVERITIES
from glassloop.diagnosis.findings import Diagnosis, Finding
from glassloop.diagnosis.learning_curve import LearningCurve, points_of, span_of
from glassloop.markup.templates import PERCENT, piece
from glassloop.report.charts import COUNT, Axis, DotChart, Dots, LineChart, Series
from glassloop.report.page import Cell, Number, Section, figure, page
from glassloop.settings.training import CLASSES, SCORE

TEMPLATE = "diagnosis/inspection.html.j2"
MOST_CHARACTERS = 1_000  # of a text
SHOWN_CLASSES = 20
SCORED = {CLASSES: "accuracy", SCORE: "mean error, negative"}


def inspection_page(found: Diagnosis, data: str, examples: Examples, curve: LearningCurve | None = None) -> str:
    """Return the page of a diagnosis, and of a learning curve, as HTML."""
    sections = [Section("overview", "Findings", overview(found, examples.task))]
    for code, each in groupby(found.findings, key=lambda finding: finding.code):
        sections.append(Section(code, f"{code}: {CODES[code].title}", finding_section([*each]), code))
    if found.noise:
        sections.append(Section("noise", "Estimated share of wrong labels", noise_section(found), "Wrong labels"))
    if curve:
        sections.append(Section("learning-curve", "What more rows would bring", curve_section(curve), "More rows"))
    title = f"Inspection of {data.rpartition('/')[2] or data}"
    return page(title, sections, subtitle=piece(TEMPLATE, "subtitle", found, data), footer=piece(TEMPLATE, "footer"))


def overview(found: Diagnosis, task: str) -> str:
    counts = {f"{severity}s" if severity != "info" else "notes": 0 for severity in SEVERITIES}
    for code in {finding.code for finding in found.findings}:
        severity = CODES[code].severity
        counts[f"{severity}s" if severity != "info" else "notes"] += 1
    rows: list[list[Cell]] = []
    for finding in found.findings:
        about = finding.about
        order = Number(SEVERITIES.index(about.severity), about.severity)
        link = piece(TEMPLATE, "code_link", finding.code)
        rows.append([link, about.title, order, finding.split, len(finding.rows), finding.told])
    shown = {name: f"{count:,}" for name, count in counts.items()}
    return piece(TEMPLATE, "overview", shown, rows, found.score, SCORED.get(task, "labels right"))


def finding_section(parts: list[Finding]) -> str:
    """Return the section of one code, with the rows of every split. Rows can be filtered by their label."""
    choices = []
    for part in parts:
        labels = sorted({row.label for row in part.examples if isinstance(row.label, str)})
        choices.append({"label": ("Label", labels)} if len(labels) > 1 else {})
    return piece(TEMPLATE, "finding", parts[0].about, parts, MOST_CHARACTERS, choices)


def noise_section(found: Diagnosis) -> str:
    largest = sorted(found.noise, key=lambda one: -one.share)
    dots = [Dots(one.label, one.share, one.low, one.high, note=f"{one.rows:,} rows") for one in largest[:SHOWN_CLASSES]]
    told = f"The largest share is {largest[0].share:.1%} ({largest[0].label})."
    chart = DotChart("Wrong labels by class", told, dots, Axis("share of the rows of the class", PERCENT, low=0))
    interval = [Number(one.low, f"{one.low:.1%} to {one.high:.1%}") for one in found.noise]
    rows: list[list[Cell]] = [
        [one.label, one.rows, Number(one.share, f"{one.share:.1%}"), span]
        for one, span in zip(found.noise, interval, strict=True)
    ]
    return piece(TEMPLATE, "noise", [figure(chart)], rows)


def curve_section(curve: LearningCurve) -> str:
    """Return the chart of the measured and expected scores, and the tables of gains."""
    measured = [(float(point.rows), point.mean) for point in curve.points]
    lines = [Series("measured", measured, dots=True)]
    ends = {"expected": "score", "lower end of the 95 % interval": "low", "upper end": "high"}
    lines += [Series(name, [(float(one.rows), getattr(one, key)) for one in curve.forecasts]) for name, key in ends.items()]
    chart = LineChart("Learning curve", curve.sentence(), Axis("training rows", COUNT, low=0), Axis(curve.metric), lines)
    rows: list[list[Cell]] = [
        [one.more, Number(one.score, f"{one.score:.4f}"), Number(one.gain, f"{points_of(one.gain)} points"), span_of(one)]
        for one in curve.forecasts
    ]
    classes: list[list[Cell]] = [
        [one.label, one.rows, Number(one.before, f"{one.before:.3f}"), Number(one.after, f"{one.after:.3f}")]
        for one in curve.classes
        if one.low > 0
    ]
    return piece(TEMPLATE, "curve", curve, [figure(chart)], rows, classes)
