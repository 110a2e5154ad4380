"""Self-contained HTML pages: the skeleton with its style, script and policy, charts as figures, and the cells of tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from markupsafe import Markup

from glassloop.markup.templates import package_text, piece, policy, rendered
from glassloop.report.charts import CHART_CSS, Chart, svg
from glassloop.scores.statistics import Interval

PARTS = "report/parts.html.j2"
PAGE_CSS = package_text("report", "page.css")
PAGE_JS = package_text("report", "page.js")


@dataclass(frozen=True)
class Number:
    """A number of a table: `shown` is its text, `value` its order."""

    value: float | None
    shown: str

    def __str__(self) -> str:
        return self.shown


Cell: TypeAlias = str | float | int | Markup | Number | None


def score(value: float | None, digits: int = 4, sign: str = "") -> Number:
    return Number(value, "–" if value is None else f"{value:{sign}.{digits}f}")


def figure(chart: Chart, *, note: str = "", wide: bool = False, most_rows: int = 200) -> Markup:
    """Return a chart with title, legend, a note below, and its data table, of which it shows the first rows."""
    drawing = chart.draw()
    return piece(PARTS, "figure", chart, Markup(svg(chart, drawing)), drawing.keys, note, wide, most_rows)


class Drawn:
    def __init__(self) -> None:
        self.charts: dict[str, Chart] = {}

    def figure(self, name: str, chart: Chart, note: str = "", *, wide: bool = False) -> Markup:
        """Return a chart as HTML and keep it. `name` is that of its file; a second one of this name gets a number."""
        free = name if name not in self.charts else f"{name}-{sum(known.startswith(name) for known in self.charts) + 1}"
        self.charts[free] = chart
        return figure(chart, note=note, wide=wide, most_rows=60)


@dataclass(frozen=True)
class Section:
    """A part of a page: its anchor, heading, HTML, and its name in the list of sections, by default the heading."""

    name: str
    title: str
    body: str
    short: str = ""


def page(
    title: str,
    sections: Sequence[Section],
    *,
    subtitle: str = "",
    footer: str = "",
    connect: bool = False,  # whether the script may send requests to the server that the page came from
    style: str = "",
    script: str = "",
) -> str:
    """Return a complete HTML document with all sections that have content. Only its own style and script can run."""
    style, script = CHART_CSS + PAGE_CSS + style, PAGE_JS + script
    parts = {"subtitle": subtitle, "footer": footer, "policy": policy(style, script, connect), "style": style, "script": script}
    html = {name: Markup(part) for name, part in parts.items()}
    return rendered("report/page.html.j2", title=title, sections=[section for section in sections if section.body], **html)


def span(interval: Interval | None, digits: int = 4) -> Number:
    """Return both ends of an interval as a cell."""
    return Number(interval.low, f"{interval.low:.{digits}f} to {interval.high:.{digits}f}") if interval else Number(None, "–")
