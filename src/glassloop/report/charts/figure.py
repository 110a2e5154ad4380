"""What all charts share: scales, axes, legends, SVG elements, the data table, and how a chart becomes a figure or a file."""

from __future__ import annotations

import csv
import io
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Protocol, TypeAlias

from glassloop.base.files import protected
from glassloop.markup.templates import escaped, package_text

FONT_SIZE = 11.0
NARROW, WIDE = frozenset("iljtfrI.,:;'|!()[] 1"), frozenset("mwMW@%")


def short(number: float) -> str:
    """Return a coordinate with at most one decimal."""
    text = f"{number:.1f}"
    return text.removesuffix(".0") if text != "-0.0" else "0"


def element(name: str, *children: str, **attributes: str | float | None) -> str:
    """Return an element with children that are SVG already.

    Attributes are escaped. `class_` becomes `class`, other underscores become hyphens, and None omits an attribute.
    """
    written = []
    for key, value in attributes.items():
        if value is not None:
            shown = short(value) if isinstance(value, int | float) else escaped(value)
            written.append(f' {key.rstrip("_").replace("_", "-")}="{shown}"')
    body = "".join(children)
    return f"<{name}{''.join(written)}>{body}</{name}>" if body else f"<{name}{''.join(written)}/>"


def title(text: str) -> str:
    """Return the name of a mark, which is shown when the pointer is over it."""
    return f"<title>{escaped(text)}</title>" if text else ""


def label(text: str, x: float, y: float, *, side: str = "middle", kind: str = "tick", limit: float | None = None) -> str:
    """Return a text at a place. A text wider than `limit` is cut, and its full length is shown on hover."""
    shown = cut(text, limit) if limit else text
    full = title(text) if shown != text else ""
    anchor = None if side == "start" else side
    return element("text", escaped(shown), full, class_=kind, x=x, y=y, text_anchor=anchor)


def path(points: Sequence[tuple[float, float]], kind: str) -> str:
    """Return a line through points; empty for fewer than two."""
    return element("path", class_=kind, d=directions(points)) if len(points) > 1 else ""


def area(upper: Sequence[tuple[float, float]], lower: Sequence[tuple[float, float]], kind: str) -> str:
    """Return the filled area between two lines."""
    return element("path", class_=kind, d=f"{directions([*upper, *reversed(lower)])}z") if len(upper) > 1 else ""


def directions(points: Iterable[tuple[float, float]]) -> str:
    """Return the commands of a path through points."""
    return "M" + "L".join(f"{short(x)} {short(y)}" for x, y in points)


def width_of(text: str, size: float = FONT_SIZE) -> float:
    """Return about how wide a text is in a sans-serif font."""
    return sum(map(character_width, text)) * size


def character_width(character: str) -> float:
    """Return the width of a character as a share of the font size."""
    if character in NARROW:
        return 0.36
    if unicodedata.east_asian_width(character) in "WF":
        return 1.0
    return 0.9 if character in WIDE else 0.68 if character.isupper() else 0.6


def cut(text: str, limit: float, size: float = FONT_SIZE) -> str:
    """Return a text that is at most `limit` wide, with an ellipsis where it is cut."""
    if width_of(text, size) <= limit:
        return text
    kept, used = [], size
    for character in text:
        used += character_width(character) * size
        if used > limit:
            break
        kept.append(character)
    return "".join(kept).rstrip() + "…"


LINEAR, LOG, PERCENT, COUNT = "linear", "log", "percent", "count"


@dataclass(frozen=True)
class Axis:
    """An axis of a chart.

    Attributes:
        title: What the axis shows.
        kind: "linear", "log", "percent" (0.25 is written 25 %) or "count" (only whole numbers, from zero).
        low: The lowest value; by default a round number below the data.
        high: The highest value; by default a round number above the data.
    """

    title: str = ""
    kind: str = LINEAR
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Scale:
    """Maps values of an axis to places between `start` and `stop`.

    Attributes:
        low: The value at `start`.
        high: The value at `stop`.
        start: The place of the lowest value.
        stop: The place of the highest value.
        kind: The kind of the axis.
        ticks: The values with a tick.
    """

    low: float
    high: float
    start: float
    stop: float
    kind: str = LINEAR
    ticks: tuple[float, ...] = field(default=())

    def place(self, value: float) -> float:
        """Return the place of a value; one outside of the range is at its end."""
        share = self.share(value)
        return self.start + (self.stop - self.start) * min(max(share, 0.0), 1.0)

    def share(self, value: float) -> float:
        """Return where a value lies between the lowest, 0, and the highest, 1."""
        if self.kind == LOG:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def written(self, value: float) -> str:
        """Return the text of a tick."""
        return tick_text(value, self.ticks, self.kind)


def scale_of(axis: Axis, values: Iterable[float], start: float, stop: float, most_ticks: int = 6) -> Scale:
    """Return the scale of an axis that shows all values. Values that are not finite are ignored."""
    found = [value for value in values if math.isfinite(value)]
    if axis.low is not None and axis.high is not None and axis.high <= axis.low:
        axis = replace(axis, high=None)  # an axis whose ends are equal has no length
    if axis.kind == LOG:
        return log_scale(axis, found, start, stop)
    low = axis.low if axis.low is not None else 0.0 if axis.kind == COUNT else min(found, default=0.0)
    high = axis.high if axis.high is not None else max(found, default=1.0)
    high = max(high, low + 1) if axis.kind == COUNT else high
    if high <= low:
        spread = abs(low) / 10 or 1.0
        low, high = (low if axis.low is not None else low - spread), low + spread
    step = round_step(high - low, most_ticks, axis.kind)
    low = axis.low if axis.low is not None else math.floor(low / step + 1e-9) * step
    high = axis.high if axis.high is not None else math.ceil(high / step - 1e-9) * step
    return Scale(low, high, start, stop, axis.kind, tuple(multiples(low, high, step)))


def log_scale(axis: Axis, found: Sequence[float], start: float, stop: float) -> Scale:
    """Return a logarithmic scale over whole powers of ten, or over 1, 2 and 5 times them if there are few."""
    positive = [value for value in found if value > 0]
    least, most = axis.low or min(positive, default=1.0), axis.high or max(positive, default=10.0)
    powers = range(math.floor(math.log10(least) - 1e-9), math.ceil(math.log10(most) + 1e-9) + 1)
    parts = (1, 2, 5) if math.log10(most / least) < 2 else (1,)
    ticks = [float(f"{part}e{power}") for power in powers for part in parts]
    low = axis.low or max((tick for tick in ticks if tick <= least * (1 + 1e-9)), default=least)
    high = axis.high or min((tick for tick in ticks if tick >= most * (1 - 1e-9) and tick > low), default=most * 10)
    every = max(1, math.ceil(len(powers) / 6)) if parts == (1,) else 1
    kept = [tick for tick in ticks if low <= tick * (1 + 1e-9) and tick <= high * (1 + 1e-9)][::every]
    return Scale(low, high, start, stop, LOG, tuple(kept))


def round_step(span: float, most: int, kind: str = LINEAR) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that divides a span into at most `most` parts."""
    power = math.floor(math.log10(span / most))
    steps = [float(f"{part}e{power + extra}") for extra in (0, 1) for part in (1, 2, 5)]
    step = next((step for step in steps if span / step <= most + 1e-9), steps[-1] * 2)
    return max(step, 1.0) if kind == COUNT else step


def multiples(low: float, high: float, step: float) -> list[float]:
    """Return the multiples of a step between two values, without rounding errors such as 0.30000000000000004."""
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def tick_text(value: float, ticks: Sequence[float], kind: str) -> str:
    """Return the text of a tick, with as many decimals as its neighbors need."""
    if kind == LOG or value == 0:
        return number_text(value) + (" %" if kind == PERCENT else "")
    times = 100 if kind == PERCENT else 1
    distance = abs(ticks[1] - ticks[0]) * times if len(ticks) > 1 else abs(value) * times or 1.0
    if 0 < distance < 1e-4:
        mantissa, power = f"{value:.3e}".split("e")
        return f"{float(mantissa):g}e{int(power)}" if value else "0"
    decimals = max(0, -math.floor(math.log10(distance) + 1e-9))
    largest = max((abs(tick) for tick in ticks), default=abs(value))
    if largest >= 1e6 and kind != PERCENT:
        return number_text(value)
    return f"{value * times:,.{decimals}f}" + (" %" if kind == PERCENT else "")


def number_text(value: float) -> str:
    """Return a number with about four significant digits: 12,345, 0.1234, 2.5e-5, 3.2M."""
    size = abs(value)
    if size >= 1e9:
        return f"{value / 1e9:.4g}G"
    if size >= 1e6:
        return f"{value / 1e6:.4g}M"
    if size >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.4g}" if size >= 1e-4 else f"{value:.2e}".replace("e-0", "e-").replace(".00e", "e")


def value_text(value: float | None, kind: str = LINEAR) -> str:
    """Return a value as it is shown on hover and in tables."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value * 100:.1f} %" if kind == PERCENT else number_text(value)


WIDTH, HEIGHT = 440.0, 260.0
NUM_COLORS = 8
Cell: TypeAlias = str | float | int | None


def palettes(rules: str) -> tuple[str, str]:
    """Return the light and the dark variables of the style sheet."""
    light, night = re.findall(r"\{(--paper[^}]+)\}", rules)
    return light, night


SHEET = package_text("report/charts", "charts.css")
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
