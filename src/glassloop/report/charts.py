"""Charts as values: each one is a dataclass that becomes SVG in a page, a standalone SVG file, and a data table.

    from glassloop.report.charts import Axis, LineChart, Series, csv_of, figure, standalone

    chart = LineChart("Training loss", "Loss by step.", Axis("step"), Axis("loss"), [Series("loss", [(1, 0.7), (2, 0.5)])])
    figure(chart)      # <figure> for a page: SVG, a legend whose buttons hide series, the data table in <details>
    standalone(chart)  # the text of an .svg file with its styles
    csv_of(chart)      # the data

Colors are CSS variables, so that charts follow the light or dark style of the page. Marks are named by a <title> child, which
the script shows at once and browsers without script after a moment. All texts are escaped.
"""

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
    """An axis of a chart."""

    title: str = ""  # what the axis shows
    kind: str = LINEAR  # "linear", "log", "percent" (0.25 is written 25 %) or "count" (only whole numbers, from zero)
    low: float | None = None  # the lowest value; by default a round number below the data
    high: float | None = None  # the highest value; by default a round number above the data


@dataclass(frozen=True)
class Scale:
    """Maps values of an axis to places between `start` and `stop`."""

    low: float  # the value at `start`
    high: float  # the value at `stop`
    start: float  # the place of the lowest value
    stop: float  # the place of the highest value
    kind: str = LINEAR  # the kind of the axis
    ticks: tuple[float, ...] = field(default=())  # the values with a tick

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


SHEET = package_text("report", "charts.css")
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


BAR_TOP, BAR_BOTTOM, BAR_RIGHT = 6.0, 38.0, 52.0
BAR_LABEL = 0.4  # share of the width that labels may use


@dataclass(frozen=True)
class Bars:
    """The values of one series, one for each label of the chart. None draws no bar."""

    name: str
    values: Sequence[float | None]
    color: int | None = None


@dataclass(frozen=True)
class BarChart:
    """Horizontal bars."""

    title: str  # what the chart shows
    description: str  # what to see in it
    labels: Sequence[str]  # the name of each group of bars, from top to bottom. Long names are cut and shown in full on hover.
    series: Sequence[Bars]  # the values
    axis: Axis = field(default_factory=lambda: Axis(kind=COUNT))  # the axis of the values
    colors: Sequence[int] = ()  # A color for each label instead of one for each series
    width: float = WIDTH  # width of the drawing

    def draw(self) -> Drawing:
        """Draw the bars with their values."""
        thick = 16.0 if len(self.series) == 1 else 11.0
        group = thick * len(self.series) + (6 if len(self.series) == 1 else 9)
        bottom = BAR_TOP + group * len(self.labels)
        left = 12 + min(max(map(width_of, self.labels), default=0.0), self.width * BAR_LABEL)
        values = [value for bars in self.series for value in bars.values if value is not None]
        axis = Axis(self.axis.title, self.axis.kind, 0.0 if self.axis.low is None else self.axis.low, self.axis.high)
        x = scale_of(axis, values, left, self.width - BAR_RIGHT)
        body = [bottom_axis(x, BAR_TOP, bottom, self.axis.title, grid=True)]
        body += [
            label(name, left - 8, BAR_TOP + group * place + group / 2 + 1, side="end", kind="tick strong", limit=left - 10)
            for place, name in enumerate(self.labels)
        ]
        keys = [Key(bars.name, number if bars.color is None else bars.color) for number, bars in enumerate(self.series)]
        for number, bars in enumerate(self.series):
            marks = []
            for place, value in enumerate(bars.values):
                if value is None:
                    continue
                y, end = BAR_TOP + group * place + thick * number + 1, x.place(value)
                name = f"{self.labels[place]}\n{bars.name}: {value_text(value, self.axis.kind)}"
                color = f"s{self.colors[place]}" if self.colors else None
                bar = element("rect", title(name), class_="bar", x=left, y=y, width=end - left, height=thick - 2)
                marks.append(element("g", bar, class_=color) if color else bar)
                marks.append(label(value_text(value, self.axis.kind), end + 5, y + thick / 2 + 3, side="start"))
            body.append(series_group(number, keys[number], *marks))
        return Drawing(self.width, bottom + (BAR_BOTTOM if self.axis.title else 22), "".join(body), tuple(keys))

    def table(self) -> Table:
        """Return one row per label."""
        rows = tuple((name, *(bars.values[place] for bars in self.series)) for place, name in enumerate(self.labels))
        return Table(("", *(bars.name for bars in self.series)), rows)


HISTOGRAM_HEIGHT, HISTOGRAM_TOP, HISTOGRAM_BOTTOM, HISTOGRAM_RIGHT = 220.0, 24.0, 38.0, 12.0


@dataclass(frozen=True)
class Histogram:
    """Counts between edges."""

    title: str  # what the chart shows
    description: str  # what to see in it
    edges: Sequence[float]  # the limits of the bins, one more than there are counts
    series: Sequence[Bars]  # the counts of each series in each bin; they are drawn on top of each other
    x: Axis  # the axis of the values
    y: Axis = field(default_factory=lambda: Axis("rows", COUNT))  # the axis of the counts

    def draw(self) -> Drawing:
        """Draw the columns."""
        totals = [sum(bars.values[place] or 0 for bars in self.series) for place in range(len(self.edges) - 1)]
        y = scale_of(self.y, [0.0, *totals], HISTOGRAM_HEIGHT - HISTOGRAM_BOTTOM, HISTOGRAM_TOP, 5)
        axis = Axis(self.x.title, self.x.kind, self.edges[0], self.edges[-1])
        x = scale_of(axis, (), left_margin(y), WIDTH - HISTOGRAM_RIGHT, 8)
        body = [
            left_axis(y, x.start, x.stop, self.y.title),
            bottom_axis(x, HISTOGRAM_TOP, HISTOGRAM_HEIGHT - HISTOGRAM_BOTTOM, self.x.title),
        ]
        keys = [Key(bars.name, number if bars.color is None else bars.color) for number, bars in enumerate(self.series)]
        below = [0.0] * len(totals)
        for number, bars in enumerate(self.series):
            marks = []
            for place, count in enumerate(bars.values):
                if not count:
                    continue
                left, right = x.place(self.edges[place]), x.place(self.edges[place + 1])
                high, low = y.place(below[place] + count), y.place(below[place])
                name = title(f"{self.span(place)}\n{bars.name}: {value_text(count)}")
                marks.append(
                    element(
                        "rect", name, class_="bar", x=left + 0.5, y=high, width=max(right - left - 1, 0.5), height=low - high
                    )
                )
                below[place] += count
            body.append(series_group(number, keys[number], *marks))
        return Drawing(WIDTH, HISTOGRAM_HEIGHT, "".join(body), tuple(keys))

    def span(self, place: int) -> str:
        """Return the limits of a bin in words."""
        low, high = (value_text(self.edges[end], self.x.kind) for end in (place, place + 1))
        return f"{self.x.title} {low} to {high}".strip()

    def table(self) -> Table:
        """Return one row per bin."""
        rows = tuple(
            (self.edges[place], self.edges[place + 1], *(bars.values[place] for bars in self.series))
            for place in range(len(self.edges) - 1)
        )
        return Table(("from", "to", *(bars.name for bars in self.series)), rows)


def counts_in(values: Sequence[float], edges: Sequence[float]) -> list[int]:
    """Return how many values lie in each bin; the last bin includes its upper limit."""
    counts = [0] * (len(edges) - 1)
    low, width = edges[0], (edges[-1] - edges[0]) / len(counts)
    for value in values:
        if edges[0] <= value <= edges[-1]:
            counts[min(int((value - low) / width), len(counts) - 1)] += 1
    return counts


def even_edges(low: float, high: float, bins: int) -> list[float]:
    """Return the limits of bins of equal width."""
    return [low + (high - low) * place / bins for place in range(bins + 1)]


Points: TypeAlias = Sequence[tuple[float, float]]
LINE_POINTS = 400  # of a drawn line; more would not be visible
MOST_HITS = 200  # places that show values on hover
LINE_TOP, LINE_BOTTOM, LINE_RIGHT = 24.0, 38.0, 18.0


@dataclass(frozen=True)
class Series:
    """A line of a chart."""

    name: str  # what the line is
    points: Points  # its places, ordered by x
    raw: Points = ()  # the values before smoothing, drawn faintly behind the line
    band: Sequence[tuple[float, float, float]] = ()  # x, low and high of a shaded interval around the line
    dots: bool = False  # whether each place has a dot, for values with gaps between them, such as evaluations
    quiet: bool = False  # whether the line is gray and dashed: something to compare with, such as the diagonal
    color: int | None = None  # number of the color; by default the position of the series


@dataclass(frozen=True)
class Event:
    """A vertical line at `x`, such as "best" or "resumed"."""

    x: float
    name: str


@dataclass(frozen=True)
class LineChart:
    """Several lines over a common axis."""

    title: str  # what the chart shows
    description: str  # what to see in it
    x: Axis  # the horizontal axis
    y: Axis  # the vertical axis
    series: Sequence[Series]  # the lines
    events: Sequence[Event] = ()  # vertical lines with a name
    references: Sequence[tuple[str, float]] = ()  # horizontal dashed lines by name, such as the score of the majority baseline
    square: bool = False  # whether both axes have the same length, for a diagonal

    def draw(self) -> Drawing:
        """Draw the lines, the events and invisible columns that show the values on hover."""
        height = 360.0 if self.square else HEIGHT
        across = [point[0] for line in self.series for point in every_point(line)] + [event.x for event in self.events]
        upward = [point[1] for line in self.series for point in every_point(line)] + [value for _, value in self.references]
        y = scale_of(self.y, upward, height - LINE_BOTTOM, LINE_TOP)
        x = scale_of(tight(self.x, across), across, left_margin(y), WIDTH - LINE_RIGHT, 7)
        body = [left_axis(y, x.start, x.stop, self.y.title), bottom_axis(x, LINE_TOP, height - LINE_BOTTOM, self.x.title)]
        body += [hit_columns(self, x, y)]
        references = [(name, value) for name, value in self.references if y.low <= value <= y.high]
        body += [reference_line(name, value, x, y) for name, value in references]
        keys = [
            Key(line.name, number if line.color is None else line.color, line.quiet) for number, line in enumerate(self.series)
        ]
        for number in sorted(range(len(keys)), key=lambda number: not self.series[number].quiet):
            body.append(series_group(number, keys[number], *marks_of(self.series[number], x, y)))
        body += [reference_name(name, value, x, y) for name, value in references]
        body.append(event_lines(self.events, x, y.start))
        return Drawing(WIDTH, height, "".join(body), tuple(keys))

    def table(self) -> Table:
        """Return one row per x with the value of every line, and its interval if it has one."""
        columns = [(line.name, dict(line.points)) for line in self.series if not line.quiet]
        for line in self.series:
            if line.raw:
                columns.append((f"{line.name} (raw)", dict(line.raw)))
            if line.band:
                columns.append((f"{line.name}, low", {x: low for x, low, _ in line.band}))
                columns.append((f"{line.name}, high", {x: high for x, _, high in line.band}))
        places = sorted({x for _, values in columns for x in values})
        rows = tuple((x, *(values.get(x) for _, values in columns)) for x in places)
        return Table((self.x.title or "x", *(name for name, _ in columns)), rows)


def every_point(line: Series) -> list[tuple[float, float]]:
    """Return all places that the line, its raw values and its interval reach."""
    band = [(x, value) for x, low, high in line.band for value in (low, high)]
    return [*line.points, *line.raw, *band]


def tight(axis: Axis, values: Sequence[float]) -> Axis:
    """Return an axis that ends with the data instead of the next round number."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if axis.kind == "log" or low == high:
        return axis
    return Axis(axis.title, axis.kind, low if axis.low is None else axis.low, high if axis.high is None else axis.high)


def marks_of(line: Series, x: Scale, y: Scale) -> list[str]:
    """Return the drawn parts of a line: interval, raw values, the line, its dots."""
    places = [(x.place(a), y.place(b)) for a, b in thinned(line.points)]
    upper = [(x.place(a), y.place(high)) for a, _, high in line.band]
    lower = [(x.place(a), y.place(low)) for a, low, _ in line.band]
    drawn = [area(upper, lower, "band"), path([(x.place(a), y.place(b)) for a, b in thinned(line.raw)], "raw")]
    drawn.append(path(places, "dashed" if line.quiet else "line"))
    if line.dots or len(places) == 1:
        drawn += [element("circle", class_="dot", cx=a, cy=b, r=3.5) for a, b in places]
    return drawn


def reference_line(name: str, value: float, x: Scale, y: Scale) -> str:
    """Return a horizontal dashed line."""
    place = y.place(value)
    line = element(
        "path", title(f"{name}: {value_text(value, y.kind)}"), class_="dashed", d=f"M{x.start:g} {place:.1f}H{x.stop:g}"
    )
    return element("g", line, class_="quiet")


def reference_name(name: str, value: float, x: Scale, y: Scale) -> str:
    """Return the name of a horizontal line at its right end, which covers the lines of the chart."""
    place = y.place(value)
    return label(name, x.stop, place - 4 if place > LINE_TOP + 12 else place + 13, side="end", kind="tick halo through")


def event_lines(events: Sequence[Event], x: Scale, bottom: float) -> str:
    """Return vertical lines with names above, which are omitted where they would overlap."""
    marks, free = [], 0.0
    for event in sorted(events, key=lambda event: event.x):
        place, half = x.place(event.x), width_of(event.name) / 2
        middle = min(max(place, x.start + half), x.stop - half)
        marks.append(element("path", title(event.name), class_="event", d=f"M{place:.1f} {LINE_TOP:g}V{bottom:g}"))
        if middle - half > free:
            marks.append(label(event.name, middle, LINE_TOP - 6))
            free = middle + half + 4
    return element("g", *marks, class_="events") if marks else ""


def hit_columns(chart: LineChart, x: Scale, y: Scale) -> str:
    """Return invisible columns, each of which names the values of all lines at its place."""
    values = {number: dict(line.points) for number, line in enumerate(chart.series) if not line.quiet}
    every = sorted({place for found in values.values() for place in found})
    kept = every[:: max(1, math.ceil(len(every) / MOST_HITS))]
    places = [x.place(value) for value in kept]
    columns = []
    for number, value in enumerate(kept):
        left = (places[number - 1] + places[number]) / 2 if number else x.start
        right = (places[number + 1] + places[number]) / 2 if number + 1 < len(places) else x.stop
        lines = [f"{chart.x.title} {value_text(value, x.kind)}".strip()]
        lines += [
            f"{chart.series[line].name}: {value_text(found[value], y.kind)}" for line, found in values.items() if value in found
        ]
        columns.append(
            element(
                "rect", title("\n".join(lines)), class_="hit", x=left, y=y.stop, width=right - left, height=y.start - y.stop
            )
        )
    return element("g", *columns, class_="hits") if columns else ""


def thinned(points: Points, most: int = LINE_POINTS) -> Points:
    """Return at most `most` points: the lowest and the highest of each stretch, so that no peak is lost."""
    if len(points) <= most:
        return points
    size = math.ceil(len(points) / ((most - 2) // 2))
    kept = [points[0]]
    for start in range(1, len(points) - 1, size):
        part = range(start, min(start + size, len(points) - 1))
        ends = {min(part, key=lambda place: points[place][1]), max(part, key=lambda place: points[place][1])}
        kept += [points[place] for place in sorted(ends)]
    return [*kept, points[-1]]


def smoothed(points: Points, share: float = 0.04) -> Points:
    """Return the mean of each point and those around it, in a window of a share of all points.

    The window is smaller at both ends. Few points are returned as they are.
    """
    reach = int(len(points) * share / 2)
    if reach < 1:
        return points
    sums = [0.0]
    for _, value in points:
        sums.append(sums[-1] + value)
    found = []
    for place, (x, _) in enumerate(points):
        first, last = max(0, place - reach), min(len(points), place + reach + 1)
        found.append((x, (sums[last] - sums[first]) / (last - first)))
    return found


DOT_TOP, DOT_ROW, DOT_BOTTOM, DOT_RIGHT = 8.0, 26.0, 38.0, 12.0
DOT_LABEL = 0.42  # share of the width that labels may use


@dataclass(frozen=True)
class Dots:
    """A row of the chart."""

    name: str  # what is measured
    value: float | None = None  # the estimate; None draws only the points
    low: float | None = None  # the lower end of its interval
    high: float | None = None  # the upper end of its interval
    points: Sequence[float] = ()  # single values, such as one for each seed
    baseline: float | None = None  # A value to compare with, drawn as a short line across
    note: str = ""  # shown on hover and in the data table, such as the number of rows
    color: int = 0  # number of the color


@dataclass(frozen=True)
class DotChart:
    """Values with intervals."""

    title: str  # what the chart shows
    description: str  # what to see in it
    rows: Sequence[Dots]  # the values, from top to bottom
    axis: Axis = field(default_factory=Axis)  # the axis of the values
    reference: float | None = None  # A value with a dashed line through all rows, such as zero for differences
    baseline_name: str = "baseline"  # what the baselines of the rows are

    def draw(self) -> Drawing:
        """Draw the rows."""
        left = 17 + min(max((width_of(row.name) for row in self.rows), default=0.0), WIDTH * DOT_LABEL)
        values = [value for row in self.rows for value in reached(row)]
        values += [] if self.reference is None else [self.reference]
        x = scale_of(self.axis, padded(values), left, WIDTH - DOT_RIGHT)
        bottom = DOT_TOP + DOT_ROW * len(self.rows)
        body = [bottom_axis(x, DOT_TOP, bottom, self.axis.title, grid=True)]
        if self.reference is not None:
            line = element("path", class_="dashed", d=f"M{x.place(self.reference):.1f} {DOT_TOP:g}V{bottom:g}")
            body.append(element("g", line, class_="quiet"))
        for place, row in enumerate(self.rows):
            y = DOT_TOP + DOT_ROW * (place + 0.5)
            body.append(label(row.name, left - 10, y + 4, side="end", kind="tick strong", limit=left - 11))
            body.append(element("g", *self.marks_of(row, x, y), class_=f"s{row.color}"))
        return Drawing(WIDTH, bottom + (DOT_BOTTOM if self.axis.title else 22), "".join(body))

    def marks_of(self, row: Dots, x: Scale, y: float) -> list[str]:
        """Return the marks of a row: baseline, interval, points, estimate."""
        drawn = []
        if row.low is not None and row.high is not None:
            drawn.append(element("path", class_="whisker", d=f"M{x.place(row.low):.1f} {y:g}H{x.place(row.high):.1f}"))
        if row.baseline is not None:
            line = element("path", class_="whisker", d=f"M{x.place(row.baseline):.1f} {y - 7:g}v14")
            drawn.append(element("g", line, class_="quiet"))
        for value in row.points:
            drawn.append(element("circle", class_="point", cx=x.place(value), cy=y if row.value is None else y - 7, r=3))
        if row.value is not None:
            drawn.append(element("circle", class_="dot", cx=x.place(row.value), cy=y, r=4.5))
        hit = element(
            "rect", title(self.words(row)), class_="hit", x=x.start, y=y - DOT_ROW / 2, width=x.stop - x.start, height=DOT_ROW
        )
        return [hit, *drawn]

    def words(self, row: Dots) -> str:
        """Return what a row says, for hover."""
        kind, lines = self.axis.kind, [row.name]
        if row.value is not None:
            lines.append(value_text(row.value, kind) + interval_text(row.low, row.high, kind))
        if row.baseline is not None:
            lines.append(f"{self.baseline_name}: {value_text(row.baseline, kind)}")
        if row.points:
            lines.append("points: " + ", ".join(value_text(value, kind) for value in sorted(row.points)))
        return "\n".join([*lines, *([row.note] if row.note else [])])

    def table(self) -> Table:
        """Return one row per row of the chart, and its points in columns of their own."""
        most = max((len(row.points) for row in self.rows), default=0)
        named = any(row.baseline is not None for row in self.rows)
        noted = any(row.note for row in self.rows)
        columns = ["", "value", "low", "high", *([self.baseline_name] if named else [])]
        columns += [f"point {number + 1}" for number in range(most)] + (["note"] if noted else [])
        rows = []
        for row in self.rows:
            cells: list[str | float | None] = [row.name, row.value, row.low, row.high, *([row.baseline] if named else [])]
            cells += [*row.points, *[None] * (most - len(row.points))]
            rows.append((*cells, *([row.note] if noted else [])))
        return Table(tuple(columns), tuple(rows))


def reached(row: Dots) -> list[float]:
    """Return all values that a row shows."""
    return [value for value in (row.value, row.low, row.high, row.baseline, *row.points) if value is not None]


def padded(values: Sequence[float]) -> list[float]:
    """Return values and, on both sides, a little more, so that no mark lies on the names of the rows."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    wider = (high - low) * 0.03
    return [*values, max(low - wider, 0.0) if low >= 0 else low - wider, min(high + wider, 1.0) if high <= 1 else high + wider]


def interval_text(low: float | None, high: float | None, kind: str) -> str:
    """Return an interval in words; empty if there is none."""
    return "" if low is None or high is None else f" (95 % interval {value_text(low, kind)} to {value_text(high, kind)})"


SCATTER_TOP, SCATTER_BOTTOM, SCATTER_RIGHT = 24.0, 38.0, 12.0


@dataclass(frozen=True)
class Cloud:
    """A group of points with a common color. `names` are shown on hover, one for each point."""

    name: str
    points: Sequence[tuple[float, float]]
    names: Sequence[str] = ()
    color: int | None = None


@dataclass(frozen=True)
class ScatterChart:
    """Points of two values."""

    title: str  # what the chart shows
    description: str  # what to see in it
    x: Axis  # the horizontal axis
    y: Axis  # the vertical axis
    clouds: Sequence[Cloud]  # the points
    diagonal: bool = False  # whether to draw the line where both values are equal. Both axes then have the same range.
    level: float | None = None  # A horizontal dashed line, such as a residual of zero

    def draw(self) -> Drawing:
        """Draw the points."""
        height = 360.0 if self.diagonal else HEIGHT
        across, upward = ([point[side] for cloud in self.clouds for point in cloud.points] for side in (0, 1))
        if self.diagonal:
            across = upward = across + upward
        y = scale_of(self.y, [*upward, *([] if self.level is None else [self.level])], height - SCATTER_BOTTOM, SCATTER_TOP)
        x = scale_of(self.x, across, left_margin(y), WIDTH - SCATTER_RIGHT, 7)
        body = [left_axis(y, x.start, x.stop, self.y.title), bottom_axis(x, SCATTER_TOP, height - SCATTER_BOTTOM, self.x.title)]
        if self.diagonal:
            low, high = max(x.low, y.low), min(x.high, y.high)
            ends = [(x.place(value), y.place(value)) for value in (low, high)]
            body.append(element("g", path(ends, "dashed"), class_="quiet"))
        if self.level is not None:
            ends = [(place, y.place(self.level)) for place in (x.start, x.stop)]
            body.append(element("g", path(ends, "dashed"), class_="quiet"))
        keys = [Key(cloud.name, number if cloud.color is None else cloud.color) for number, cloud in enumerate(self.clouds)]
        for number, cloud in enumerate(self.clouds):
            marks = []
            for place, (a, b) in enumerate(cloud.points):
                name = f"{self.x.title}: {value_text(a, x.kind)}\n{self.y.title}: {value_text(b, y.kind)}"
                name = f"{cloud.names[place]}\n{name}" if cloud.names else name
                marks.append(element("circle", title(name), class_="point", cx=x.place(a), cy=y.place(b), r=3))
            body.append(series_group(number, keys[number], *marks))
        return Drawing(WIDTH, height, "".join(body), tuple(keys))

    def table(self) -> Table:
        """Return one row per point."""
        named = any(cloud.names for cloud in self.clouds)
        rows = [
            (cloud.name, *((cloud.names[place] if cloud.names else "",) if named else ()), a, b)
            for cloud in self.clouds
            for place, (a, b) in enumerate(cloud.points)
        ]
        return Table(("series", *(("name",) if named else ()), self.x.title or "x", self.y.title or "y"), tuple(rows))


PARALLEL_TOP, PARALLEL_BOTTOM, SIDE = 30.0, 18.0, 46.0
WIDE_RANGE = 20.0  # values that differ by more than this factor get a logarithmic axis
Value = str | float | int | bool | None


@dataclass(frozen=True)
class Thread:
    """A line of the chart: its value on each axis, its name, and whether it stands out."""

    name: str
    values: Sequence[Value]
    strong: bool = False


@dataclass(frozen=True)
class ParallelChart:
    """Lines over several vertical axes."""

    title: str  # what the chart shows
    description: str  # what to see in it
    axes: Sequence[str]  # the name of each axis
    threads: Sequence[Thread]  # the lines
    strong_name: str = "chosen"  # what the lines that stand out are
    other_name: str = "others"  # what the other lines are

    def draw(self) -> Drawing:
        """Draw the axes with their ends, then the lines, those that stand out on top."""
        width = max(WIDTH, 120.0 * len(self.axes))
        gap = (width - 2 * SIDE) / max(1, len(self.axes) - 1)
        places, body = [], []
        for number, name in enumerate(self.axes):
            x = SIDE + gap * number
            found, marks = axis_places([thread.values[number] for thread in self.threads])
            places.append(found)
            body.append(element("path", class_="axis", d=f"M{x:.1f} {PARALLEL_TOP:g}V{HEIGHT - PARALLEL_BOTTOM:g}"))
            body.append(label(name, x, PARALLEL_TOP - 14, limit=max(gap - 6, 60.0)))
            body += [label(text, x + 5, y + 4, side="start", kind="tick halo") for text, y in marks]
        keys = (Key(self.other_name, 0, quiet=True), Key(self.strong_name, 1))
        for strong, key in enumerate(keys):
            lines = []
            for thread in self.threads:
                if thread.strong == bool(strong):
                    points = [(SIDE + gap * at, places[at][value]) for at, value in enumerate(thread.values)]
                    line = path(points, "line" if strong else "raw") if len(points) > 1 else ""
                    dots = "".join(element("circle", title(thread.name), class_="dot", cx=x, cy=y, r=3) for x, y in points)
                    lines.append(element("g", title(thread.name), line, dots))
            body.append(series_group(strong, key, *lines))
        return Drawing(width, HEIGHT, "".join(body), keys)

    def table(self) -> Table:
        """Return one row per line."""
        rows = tuple((thread.name, *(cell(value) for value in thread.values)) for thread in self.threads)
        return Table(("setting", *self.axes), rows)


def axis_places(values: Sequence[Value]) -> tuple[dict[Value, float], list[tuple[str, float]]]:
    """Return the place of each value on an axis, and the texts beside it: numbers on a scale, other values in steps."""
    bottom = HEIGHT - PARALLEL_BOTTOM
    numbers = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) == len(values) and numbers:
        low, high = min(numbers), max(numbers)
        kind = LOG if low > 0 and high / low > WIDE_RANGE else "linear"
        scale = scale_of(Axis(kind=kind, low=low, high=high if high > low else None), numbers, bottom, PARALLEL_TOP)
        known = {value: scale.place(float(value)) for value in values}  # type: ignore[arg-type]
        shown = sorted({*numbers})
        kept = shown if len(shown) <= 6 else [shown[0], shown[-1]]
        return known, [(value_text(value), scale.place(value)) for value in kept]
    every = sorted({*values}, key=str)
    step = (bottom - PARALLEL_TOP) / max(1, len(every) - 1)
    known = {value: bottom - step * number for number, value in enumerate(every)}
    return known, [(str(value), place) for value, place in known.items()]


def cell(value: Value) -> str | float | int | None:
    """Return a value as a cell of the data table."""
    return str(value).lower() if isinstance(value, bool) else value


HEAT_MOST_LABEL = 0.3  # share of the width that row names may use
HEAT_TOP = 8.0
SMALL = 8.0  # font size in narrow cells


@dataclass(frozen=True)
class HeatMap:
    """Colored cells."""

    title: str  # what the chart shows
    description: str  # what to see in it
    rows: Sequence[str]  # the names of the rows, from top to bottom
    columns: Sequence[str]  # the names of the columns
    values: Sequence[Sequence[float]]  # the share that colors each cell, between 0 and 1, row by row
    texts: Sequence[Sequence[Sequence[str]]]  # what is written in each cell, if there is space, and on hover: one line each
    row_title: str = ""  # what the rows are
    column_title: str = ""  # what the columns are
    diagonal: bool = False  # whether cells off the diagonal are errors and have another color

    def draw(self) -> Drawing:
        """Draw the cells with the names of rows and columns."""
        most = WIDTH * HEAT_MOST_LABEL
        left = 26 + min(max(map(width_of, self.rows), default=0.0), most)
        size = min(96.0, (WIDTH - left - 6) / max(len(self.columns), 1))
        high = max(min(size, 64.0), 12.0)
        bottom = HEAT_TOP + high * len(self.rows)
        body = [
            self.cell(row, column, left + size * column, HEAT_TOP + high * row, size, high) for row, column in self.places()
        ]
        body += [
            label(name, left - 6, HEAT_TOP + high * (row + 0.5) + 4, side="end", kind="tick strong", limit=most)
            for row, name in enumerate(self.rows)
        ]
        upright = any(width_of(name) > size - 6 for name in self.columns)
        longest = min(max(map(width_of, self.columns), default=0.0), most)
        for column, name in enumerate(self.columns):
            x = left + size * (column + 0.5)
            if upright:
                turned = label(name, 0, 0, side="end", kind="tick strong", limit=most)
                body.append(element("g", turned, transform=f"translate({x + 4:.1f} {bottom + 6:.1f}) rotate(-90)"))
            else:
                body.append(label(name, x, bottom + 16, kind="tick strong"))
        below = bottom + (longest + 12 if upright else 22)
        middle = left + size * len(self.columns) / 2
        if self.column_title:
            body.append(label(self.column_title, middle, below + 12, kind="name"))
        if self.row_title:
            turned = label(self.row_title, 0, 0, kind="name")
            body.append(element("g", turned, transform=f"translate(10 {(HEAT_TOP + bottom) / 2:.1f}) rotate(-90)"))
        return Drawing(WIDTH, below + (18 if self.column_title else 4), element("g", *body, class_="cells"))

    def places(self) -> list[tuple[int, int]]:
        """Return the number of row and column of every cell."""
        return [(row, column) for row in range(len(self.rows)) for column in range(len(self.columns))]

    def cell(self, row: int, column: int, x: float, y: float, width: float, height: float) -> str:
        """Return a cell, with its texts if it is large enough."""
        share, texts = self.values[row][column], self.texts[row][column]
        wrong = self.diagonal and row != column
        name = f"{self.row_title} {self.rows[row]}, {self.column_title} {self.columns[column]}".strip(" ,")
        box = {"x": x + 0.5, "y": y + 0.5, "width": width - 1, "height": height - 1}
        strength = f"{0.04 + 0.96 * share:.2f}" if share > 0 else "0"
        mark = element(
            "rect", title("\n".join([name, *texts])), class_="cell wrong" if wrong else "cell", fill_opacity=strength, **box
        )
        drawn = [element("rect", class_="ground", **box), mark]
        size = SMALL if width < 26 else FONT_SIZE
        fitting = [text for text in texts if width_of(text, size) <= width - 2][: 1 if height < 36 else 2]
        if share > 0 and height >= 11:
            ink = " on" if share > 0.55 else " strong"
            for number, text in enumerate(fitting):
                middle = y + height / 2 + 4 + (number - (len(fitting) - 1) / 2) * 15
                kind = ("big" if number == 0 and height >= 36 else "small" if size == SMALL else "tick") + ink
                drawn.append(label(text, x + width / 2, middle, kind=f"{kind} through"))
        return "".join(drawn)

    def table(self) -> Table:
        """Return the texts of the cells; of several lines, the first."""
        rows = tuple(
            (name, *(number_or_text(self.texts[row][column]) for column in range(len(self.columns))))
            for row, name in enumerate(self.rows)
        )
        corner = f"{self.row_title} \\ {self.column_title}" if self.row_title else ""
        return Table((corner, *self.columns), rows)


def number_or_text(texts: Sequence[str]) -> str | float:
    """Return the first text of a cell, as a number if it is one."""
    first = texts[0] if texts else ""
    try:
        value = float(first.replace(",", ""))
    except ValueError:
        return first
    return value if number_text(value) == first else first
