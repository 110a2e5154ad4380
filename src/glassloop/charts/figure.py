"""What all charts share: axes, legends, the data table, and how a chart becomes a figure of a page or a file."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib.resources import files
from typing import Protocol, TypeAlias

from glassloop.charts.scales import Scale, value_text
from glassloop.charts.svg import cut, element, label, width_of
from glassloop.formulas import protected
from glassloop.markup import escaped

WIDTH, HEIGHT = 440.0, 260.0
NUM_COLORS = 8

Cell: TypeAlias = str | float | int | None


def palettes(rules: str) -> tuple[str, str]:
    """Return the light and the dark variables of the style sheet."""
    light, night = re.findall(r"\{(--paper[^}]+)\}", rules)
    return light, night


SHEET = files("glassloop.charts").joinpath("charts.css").read_text(encoding="utf-8")
LIGHT, NIGHT = palettes(SHEET)
CHART_CSS = SHEET.replace("DARK", NIGHT)  # the same colors by choice of the reader and of the system


@dataclass(frozen=True)
class Table:
    """The data of a chart: column names and rows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Key:
    """An entry of a legend: the name of a series and its color, 0 to 7; `quiet` is gray and dashed."""

    name: str
    color: int
    quiet: bool = False


@dataclass(frozen=True)
class Drawing:
    """A drawn chart without its title: SVG within a box, and the legend beside it."""

    width: float
    height: float
    body: str
    keys: tuple[Key, ...] = ()


class Chart(Protocol):
    """What every chart can do."""

    @property
    def title(self) -> str:
        """What the chart shows, in a few words."""

    @property
    def description(self) -> str:
        """What to see in the chart, for those who cannot see it."""

    def draw(self) -> Drawing:
        """Draw the chart."""

    def table(self) -> Table:
        """Return the data of the chart."""


# --- a chart in a page -----------------------------------------------------------------------------------------------


def figure(chart: Chart, *, note: str = "", wide: bool = False, most_rows: int = 200) -> str:
    """Return a chart as a <figure>: title, legend, SVG, a note below, and its data table in <details>.

    Args:
        chart: The chart.
        note: A sentence below the chart.
        wide: Whether the figure takes the whole width of the page.
        most_rows: How many rows the data table shows; it says how many it omits.
    """
    drawing = chart.draw()
    keys = legend(drawing.keys)
    below = f'<p class="note">{escaped(note)}</p>' if note else ""
    kind = "chart wide" if wide else "chart"
    return (
        f'<figure class="{kind}"><figcaption>{escaped(chart.title)}</figcaption>{keys}{svg(chart, drawing)}{below}'
        f"{data_table(chart.table(), most_rows)}</figure>"
    )


def svg(chart: Chart, drawing: Drawing | None = None) -> str:
    """Return a chart as an <svg> of a page, without visible title and legend."""
    drawn = drawing or chart.draw()
    name = "c" + blake2b(f"{chart.title}{drawn.body}".encode(errors="replace"), digest_size=5).hexdigest()
    named = element("title", escaped(chart.title), id=f"{name}t") + element("desc", escaped(chart.description), id=f"{name}d")
    box = f"0 0 {drawn.width:g} {drawn.height:g}"
    return element(
        "svg", named, drawn.body, class_="plot", viewBox=box, role="img", tabindex="0", aria_labelledby=f"{name}t {name}d"
    )


def legend(keys: Sequence[Key]) -> str:
    """Return the legend as buttons that hide and show a series; empty if there is only one."""
    if len(keys) < 2:
        return ""
    buttons = (
        f'<button type="button" data-series="{number}" aria-pressed="true"><i class="{color_class(key)}"></i>'
        f"{escaped(key.name)}</button>"
        for number, key in enumerate(keys)
    )
    return f'<div class="legend">{"".join(buttons)}</div>'


def color_class(key: Key) -> str:
    """Return the CSS class of the color of a series."""
    return "quiet" if key.quiet else f"s{key.color % NUM_COLORS}"


def series_group(number: int, key: Key, *marks: str) -> str:
    """Return the marks of a series as a group, which its button of the legend hides."""
    return element("g", *marks, class_=f"{color_class(key)} series", data_series=str(number))


def data_table(table: Table, most_rows: int = 200) -> str:
    """Return the data of a chart as a closed table."""
    if not table.rows:
        return ""
    head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in table.columns)
    rows = "".join(f"<tr>{''.join(map(data_cell, row))}</tr>" for row in table.rows[:most_rows])
    rest = len(table.rows) - most_rows
    more = f'<p class="note">{rest:,} more rows are not shown.</p>' if rest > 0 else ""
    inner = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    inner = f'<div class="scroll" tabindex="0" role="region" aria-label="Data">{inner}</div>'
    return f'<details class="data"><summary>Data</summary>{inner}{more}</details>'


def data_cell(value: Cell) -> str:
    """Return a cell: numbers are aligned to the right."""
    return f"<td>{escaped(value)}</td>" if isinstance(value, str) else f'<td class="n">{value_text(value)}</td>'


# --- a chart as a file -----------------------------------------------------------------------------------------------


def csv_of(chart: Chart) -> str:
    """Return the data of a chart as CSV, with all digits."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    for row in (chart.table().columns, *chart.table().rows):
        writer.writerow([protected(cell) if isinstance(cell, str) else cell for cell in row])
    return written.getvalue()


def standalone(chart: Chart, *, dark: bool = True, below: str = "") -> str:
    """Return a chart as the text of an .svg file with title, legend and styles.

    Args:
        chart: The chart.
        dark: Whether the file also has the dark colors, for viewers that prefer them.
        below: A line below the chart, such as the machine of a measurement.
    """
    drawing = chart.draw()
    top, rows = 34.0, legend_rows(drawing.keys, drawing.width)
    offset = top + 18 * len(rows)
    height = offset + drawing.height + (22 if below else 6)
    keys = "".join(legend_line(row, top + 18 * number) for number, row in enumerate(rows))
    parts = [
        element("style", file_style(dark)),
        element("title", escaped(chart.title)),
        element("desc", escaped(chart.description)),
        element("rect", class_="paper", width=drawing.width, height=height),
        label(chart.title, 10, 22, side="start", kind="heading", limit=drawing.width / 1.3),
        keys,
        element("g", drawing.body, transform=f"translate(0 {offset:g})"),
        label(below, 10, height - 8, side="start", limit=drawing.width - 20) if below else "",
    ]
    box = f"0 0 {drawing.width:g} {height:g}"
    return element("svg", *parts, xmlns="http://www.w3.org/2000/svg", class_="plot", viewBox=box, role="img") + "\n"


def legend_rows(keys: Sequence[Key], width: float) -> list[list[tuple[Key, float]]]:
    """Return the entries of a legend in rows, each with its place from the left."""
    rows: list[list[tuple[Key, float]]] = []
    place = width
    for key in keys if len(keys) > 1 else ():
        needed = 28 + width_of(cut(key.name, width / 2))
        if place + needed > width:
            rows.append([])
            place = 10.0
        rows[-1].append((key, place))
        place += needed
    return rows


def legend_line(row: Sequence[tuple[Key, float]], y: float) -> str:
    """Return one row of the legend of a file."""
    return "".join(
        element("g", element("rect", class_="key", x=x, y=y - 1, width=10, height=10, rx=2), class_=color_class(key))
        + label(cut(key.name, WIDTH / 2), x + 15, y + 8, side="start")
        for key, x in row
    )


def file_style(dark: bool) -> str:
    """Return the styles of charts without variables, which not every viewer of SVG knows."""
    plain = SHEET.partition("/* marks */")[2].partition("/* page */")[0]

    def filled(palette: str) -> str:
        values = dict(re.findall(r"(--[\w-]+):([^;]+)", palette))
        return re.sub(r"var\((--[\w-]+)\)", lambda match: values[match[1]].strip(), plain)

    return filled(LIGHT) + (f"@media (prefers-color-scheme:dark){{{filled(NIGHT)}}}" if dark else "")


# --- axes --------------------------------------------------------------------------------------------------------------


def bottom_axis(scale: Scale, top: float, bottom: float, name: str, *, grid: bool = False) -> str:
    """Return a horizontal axis: a line, ticks with their numbers, and a name below."""
    marks = [element("path", class_="axis", d=f"M{scale.start:g} {bottom:g}H{scale.stop:g}")]
    for tick, place, text in spaced_ticks(scale):
        lines = f"M{place:.1f} {bottom:g}v4" + (f"M{place:.1f} {bottom:g}V{top:g}" if grid and tick != scale.low else "")
        marks.append(element("path", class_="grid" if grid else "axis", d=lines))
        marks.append(label(text, place, bottom + 16))
    if name:
        marks.append(label(name, (scale.start + scale.stop) / 2, bottom + 32, kind="name", limit=scale.stop - scale.start))
    return element("g", *marks, class_="axes")


def spaced_ticks(scale: Scale) -> list[tuple[float, float, str]]:
    """Return ticks with place and text, without those whose texts would touch."""
    found: list[tuple[float, float, str]] = []
    free = float("-inf")
    for tick in scale.ticks:
        place, text = scale.place(tick), scale.written(tick)
        half = width_of(text) / 2
        if place - half >= free:
            found.append((tick, place, text))
            free = place + half + 6
    return found


def left_axis(scale: Scale, left: float, right: float, name: str) -> str:
    """Return a vertical axis: lines across at the ticks, their numbers, and a name above."""
    marks = []
    for tick in scale.ticks:
        place = scale.place(tick)
        marks.append(element("path", class_="grid", d=f"M{left:g} {place:.1f}H{right:g}"))
        marks.append(label(scale.written(tick), left - 6, place + 4, side="end"))
    if name:
        marks.append(label(name, 4, 12, side="start", kind="name", limit=right))
    return element("g", *marks, class_="axes")


def left_margin(scale: Scale) -> float:
    """Return the space that the numbers of a vertical axis need."""
    return 12 + max((width_of(scale.written(tick)) for tick in scale.ticks), default=20.0)
