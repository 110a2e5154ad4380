"""Charts as values: each one is a dataclass that becomes SVG in a page, a standalone SVG file, and a data table."""

# Colors are CSS variables, so that charts follow the light or dark style of the page. Marks are named by a <title> child, which
# the script shows at once and browsers without script after a moment. All texts are escaped.

from __future__ import annotations

import csv
import io
import math
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import TypeAlias

from glassloop.base.files import protected
from glassloop.markup.templates import LINEAR, PERCENT, escaped, number_text, package_text, value_text

FONT_SIZE = 11.0
NARROW, WIDE = frozenset("iljtfrI.,:;'|!()[] 1"), frozenset("mwMW@%")
LOG, COUNT = "log", "count"
QUIET = "quiet"  # the CSS class of what is gray and dashed
WIDTH, HEIGHT, SQUARE = 440.0, 260.0, 360.0  # SQUARE is the height of a chart whose axes have the same length
TOP, BOTTOM = 24.0, 38.0  # above and below the axes of lines, columns and points
ROWS_TOP, ROW = 8.0, 26.0  # of dots
BARS_TOP, PARALLEL_TOP, PARALLEL_BOTTOM, SIDE = 6.0, 30.0, 18.0, 46.0
SMALL = 8.0  # font size in narrow cells
MOST_POINTS, MOST_HITS = 400, 200  # of a drawn line, and of places that show values on hover; more would not be visible
WIDE_RANGE = 20.0  # values of parallel coordinates that differ by more than this factor get a logarithmic axis

Numbers: TypeAlias = Iterable[float]
Points: TypeAlias = Sequence[tuple[float, float]]
Value: TypeAlias = str | float | int | None

SHEET = package_text("report", "charts.css")
LIGHT, NIGHT = re.findall(r"\{(--paper[^}]+)\}", SHEET)
CHART_CSS = SHEET.replace("DARK", NIGHT)  # the same colors by choice of the reader and of the system


# --- SVG elements ------------------------------------------------------------------------------------------------------
def short(number: float) -> str:
    text = f"{number:.1f}"
    return text.removesuffix(".0") if text != "-0.0" else "0"


def element(name: str, *children: str, **attributes: str | float | None) -> str:
    """Return an element with children that are SVG already, and escaped attributes: `class_` is class, `r_x` is r-x."""
    body, written = "".join(children), ""
    for key, value in attributes.items():
        if value is not None:
            content = short(value) if isinstance(value, int | float) else escaped(value)
            written += f' {key.rstrip("_").replace("_", "-")}="{content}"'
    return f"<{name}{written}>{body}</{name}>" if body else f"<{name}{written}/>"


def title(text: str) -> str:
    return f"<title>{escaped(text)}</title>" if text else ""


def label(text: str, x: float, y: float, *, side: str = "middle", kind: str = "tick", limit: float | None = None) -> str:
    """Return a text at a place. A text wider than `limit` is cut, and its full length is shown on hover."""
    visible = cut(text, limit) if limit else text
    full = title(text) if visible != text else ""
    return element("text", escaped(visible), full, class_=kind, x=x, y=y, text_anchor=None if side == "start" else side)


def turned(text: str, x: float, y: float, **more: str | float) -> str:
    return element("g", label(text, 0, 0, **more), transform=f"translate({x:.1f} {y:.1f}) rotate(-90)")  # type: ignore[arg-type]


def path(points: Points, kind: str, end: str = "") -> str:
    """Return a line through points, which `end="z"` closes to an area; empty for fewer than two."""
    places = "L".join(f"{short(x)} {short(y)}" for x, y in points)
    return element("path", class_=kind, d=f"M{places}{end}") if len(points) > 1 else ""


def quiet(points: Points, name: str = "") -> str:
    (x, y), (right, bottom) = points
    drawn = f"M{x:g} {y:.1f}H{right:g}" if y == bottom else f"M{x:.1f} {y:g}V{bottom:g}"
    return element("g", element("path", title(name), class_="dashed", d=drawn), class_="quiet")


def character_width(character: str) -> float:
    """Return about how wide a character is in a sans-serif font, as a share of the font size."""
    if character in NARROW:
        return 0.36
    if unicodedata.east_asian_width(character) in "WF":
        return 1.0
    return 0.9 if character in WIDE else 0.68 if character.isupper() else 0.6


def width_of(text: str, size: float = FONT_SIZE) -> float:
    return sum(map(character_width, text)) * size


def widest(texts: Iterable[str], most: float) -> float:
    return min(max(map(width_of, texts), default=0.0), most)


def cut(text: str, limit: float) -> str:
    if width_of(text) <= limit:
        return text
    fitting = sum(FONT_SIZE + width * FONT_SIZE <= limit for width in accumulate(map(character_width, text)))
    return text[:fitting].rstrip() + "…"


# --- scales and axes ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Axis:
    """An axis of a chart. Without `low` and `high`, it ends with round numbers around the data."""

    title: str = ""
    kind: str = LINEAR  # "linear", "log", "percent" (0.25 is written 25%) or "count" (only whole numbers, from zero)
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Scale:
    """Maps values from `low` to `high` to places between `start` and `stop`."""

    low: float
    high: float
    start: float
    stop: float
    kind: str
    ticks: tuple[float, ...]

    def place(self, value: float) -> float:
        """Return the place of a value; one outside of the range is at its end."""
        if self.kind == LOG:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + (self.stop - self.start) * min(max(share, 0.0), 1.0)

    def written(self, value: float) -> str:
        """Return the text of a tick, with as many decimals as its neighbors need."""
        times, unit = (100, "%") if self.kind == PERCENT else (1, "")
        if self.kind == LOG or value == 0:
            return number_text(value) + unit
        distance = abs(self.ticks[1] - self.ticks[0]) * times if len(self.ticks) > 1 else abs(value) * times or 1.0
        if 0 < distance < 1e-4:
            mantissa, power = f"{value:.3e}".split("e")
            return f"{float(mantissa):g}e{int(power)}"
        if self.kind != PERCENT and max((abs(tick) for tick in self.ticks), default=abs(value)) >= 1e6:
            return number_text(value)
        decimals = max(0, -math.floor(math.log10(distance) + 1e-9))
        return f"{value * times:,.{decimals}f}{unit}"


def scale_of(axis: Axis, values: Numbers, start: float, stop: float, most_ticks: int = 6) -> Scale:
    """Return the scale of an axis that shows all values. Values that are not finite are ignored."""
    finite = [value for value in values if math.isfinite(value)]
    if axis.low is not None and axis.high is not None and axis.high <= axis.low:
        axis = replace(axis, high=None)  # an axis whose ends are equal has no length
    if axis.kind == LOG:
        return log_scale(axis, finite, start, stop)
    low = axis.low if axis.low is not None else 0.0 if axis.kind == COUNT else min(finite, default=0.0)
    high = axis.high if axis.high is not None else max(finite, default=1.0)
    high = max(high, low + 1) if axis.kind == COUNT else high
    if high <= low:
        spread = abs(low) / 10 or 1.0
        low, high = (low if axis.low is not None else low - spread), low + spread
    # The smallest of 1, 2 and 5 times a power of ten that gives few enough ticks.
    power = math.floor(math.log10((high - low) / most_ticks))
    steps = [float(f"{part}e{power + extra}") for extra in (0, 1) for part in (1, 2, 5)]
    step = next((step for step in steps if (high - low) / step <= most_ticks + 1e-9), steps[-1] * 2)
    step = max(step, 1.0) if axis.kind == COUNT else step
    low = axis.low if axis.low is not None else math.floor(low / step + 1e-9) * step
    high = axis.high if axis.high is not None else math.ceil(high / step - 1e-9) * step
    numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ticks = tuple(float(f"{number * step:.12g}") for number in numbers)  # without errors such as 0.30000000000000004
    return Scale(low, high, start, stop, axis.kind, ticks)


def log_scale(axis: Axis, values: Sequence[float], start: float, stop: float) -> Scale:
    """Return a logarithmic scale over whole powers of ten, or over 1, 2 and 5 times them if there are few."""
    positive = [value for value in values if value > 0]
    least, most = axis.low or min(positive, default=1.0), axis.high or max(positive, default=10.0)
    powers = range(math.floor(math.log10(least) - 1e-9), math.ceil(math.log10(most) + 1e-9) + 1)
    parts = (1, 2, 5) if math.log10(most / least) < 2 else (1,)
    ticks = [float(f"{part}e{power}") for power in powers for part in parts]
    low = axis.low or max((tick for tick in ticks if tick <= least * (1 + 1e-9)), default=least)
    high = axis.high or min((tick for tick in ticks if tick >= most * (1 - 1e-9) and tick > low), default=most * 10)
    every = max(1, math.ceil(len(powers) / 6)) if parts == (1,) else 1
    visible = [tick for tick in ticks if low <= tick * (1 + 1e-9) and tick <= high * (1 + 1e-9)][::every]
    return Scale(low, high, start, stop, LOG, tuple(visible))


def bottom_axis(scale: Scale, top: float, bottom: float, name: str, *, grid: bool = False) -> str:
    """Return a horizontal axis: a line, ticks with their numbers, and a name below. Numbers that would touch are omitted."""
    marks = [element("path", class_="axis", d=f"M{scale.start:g} {bottom:g}H{scale.stop:g}")]
    free = float("-inf")
    for tick in scale.ticks:
        place, text = scale.place(tick), scale.written(tick)
        half = width_of(text) / 2
        if place - half >= free:
            lines = f"M{place:.1f} {bottom:g}v4" + (f"M{place:.1f} {bottom:g}V{top:g}" if grid and tick != scale.low else "")
            marks.append(element("path", class_="grid" if grid else "axis", d=lines))
            marks.append(label(text, place, bottom + 16))
            free = place + half + 6
    if name:
        marks.append(label(name, (scale.start + scale.stop) / 2, bottom + 32, kind="name", limit=scale.stop - scale.start))
    return element("g", *marks, class_="axes")


def frame(
    axes: tuple[Axis, Axis], across: Numbers, upward: Numbers, height: float, right: float = 12, ticks: tuple[int, int] = (7, 6)
) -> tuple[Scale, Scale, list[str]]:
    """Return the horizontal and the vertical scale of a chart, and both axes as SVG, with lines across at the ticks."""
    y = scale_of(axes[1], upward, height - BOTTOM, TOP, ticks[1])
    left = 12 + max((width_of(y.written(tick)) for tick in y.ticks), default=20.0)
    x = scale_of(axes[0], across, left, WIDTH - right, ticks[0])
    marks = []
    for tick in y.ticks:
        place = y.place(tick)
        marks.append(element("path", class_="grid", d=f"M{x.start:g} {place:.1f}H{x.stop:g}"))
        marks.append(label(y.written(tick), x.start - 6, place + 4, side="end"))
    if axes[1].title:
        marks.append(label(axes[1].title, 4, 12, side="start", kind="name", limit=x.stop))
    return x, y, [element("g", *marks, class_="axes"), bottom_axis(x, TOP, height - BOTTOM, axes[0].title)]


# --- what a chart becomes ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Table:
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True)
class Key:
    name: str
    css: str


@dataclass(frozen=True)
class Drawing:
    """A drawn chart without its title: SVG within a box, and the legend beside it."""

    width: float
    height: float
    body: str
    keys: tuple[Key, ...] = ()


@dataclass(frozen=True)
class Chart(ABC):
    """What all charts have. The description is for those who cannot see the chart."""

    title: str
    description: str

    @abstractmethod
    def draw(self) -> Drawing: ...

    @abstractmethod
    def table(self) -> Table: ...


def keys_of(series: Sequence[Series | Bars | Cloud]) -> tuple[Key, ...]:
    """Return the legend of a chart: without a color of its own, a series has that of its position, of eight colors."""
    colors = [place if one.color is None else one.color for place, one in enumerate(series)]
    quiet = [isinstance(one, Series) and one.quiet for one in series]
    css = [QUIET if gray else f"s{color % 8}" for color, gray in zip(colors, quiet, strict=True)]
    return tuple(Key(one.name, color) for one, color in zip(series, css, strict=True))


def series_group(number: int, key: Key, *marks: str) -> str:
    """Return the marks of a series as a group, which its button of the legend hides."""
    return element("g", *marks, class_=f"{key.css} series", data_series=str(number))


def svg(chart: Chart, drawing: Drawing | None = None) -> str:
    """Return a chart as an <svg> of a page, without visible title and legend."""
    drawn = drawing or chart.draw()
    name = "c" + blake2b(f"{chart.title}{drawn.body}".encode(errors="replace"), digest_size=5).hexdigest()
    named = element("title", escaped(chart.title), id=f"{name}t") + element("desc", escaped(chart.description), id=f"{name}d")
    box = f"0 0 {drawn.width:g} {drawn.height:g}"
    names = f"{name}t {name}d"
    return element("svg", named, drawn.body, class_="plot", viewBox=box, role="img", tabindex="0", aria_labelledby=names)


def csv_of(chart: Chart) -> str:
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    for row in (chart.table().columns, *chart.table().rows):
        writer.writerow([protected(cell) if isinstance(cell, str) else cell for cell in row])
    return written.getvalue()


def standalone(chart: Chart, *, dark: bool = True, below: str = "") -> str:
    """Return a chart as an .svg file: with title, legend, a line `below`, and `dark` colors for viewers that prefer them."""
    drawing = chart.draw()
    keys, place, offset = [], drawing.width, 34.0 - 18
    for key in drawing.keys if len(drawing.keys) > 1 else ():
        needed = 28 + width_of(cut(key.name, drawing.width / 2))
        if place + needed > drawing.width:  # the next row of the legend
            place, offset = 10.0, offset + 18
        square = element("rect", class_="key", x=place, y=offset - 1, width=10, height=10, rx=2)
        keys.append(element("g", square, class_=key.css))
        keys.append(label(cut(key.name, WIDTH / 2), place + 15, offset + 8, side="start"))
        place += needed
    offset += 18
    height = offset + drawing.height + (22 if below else 6)
    rules = SHEET.partition("/* marks */")[2].partition("/* page */")[0]

    def colored(palette: str) -> str:  # without variables, which not every viewer of SVG knows
        values = dict(re.findall(r"(--[\w-]+):([^;]+)", palette))
        return re.sub(r"var\((--[\w-]+)\)", lambda match: values[match[1]].strip(), rules)

    parts = [
        element("style", colored(LIGHT) + (f"@media (prefers-color-scheme:dark){{{colored(NIGHT)}}}" if dark else "")),
        element("title", escaped(chart.title)),
        element("desc", escaped(chart.description)),
        element("rect", class_="paper", width=drawing.width, height=height),
        label(chart.title, 10, 22, side="start", kind="heading", limit=drawing.width / 1.3),
        *keys,
        element("g", drawing.body, transform=f"translate(0 {offset:g})"),
        label(below, 10, height - 8, side="start", limit=drawing.width - 20) if below else "",
    ]
    box = f"0 0 {drawing.width:g} {height:g}"
    return element("svg", *parts, xmlns="http://www.w3.org/2000/svg", class_="plot", viewBox=box, role="img") + "\n"


# --- kinds of charts ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Bars:
    """The values of one series, one for each label of the chart. None draws no bar."""

    name: str
    values: Sequence[float | None]
    color: int | None = None


@dataclass(frozen=True)
class BarChart(Chart):
    """Horizontal bars that start at zero, from top to bottom. `colors` has one for each label instead of each series."""

    labels: Sequence[str]
    series: Sequence[Bars]
    axis: Axis = field(default_factory=lambda: Axis(kind=COUNT))
    colors: Sequence[int] = ()
    width: float = WIDTH

    def draw(self) -> Drawing:
        thick, gap = (16.0, 6) if len(self.series) == 1 else (11.0, 9)
        group = thick * len(self.series) + gap
        bottom = BARS_TOP + group * len(self.labels)
        left = 12 + widest(self.labels, self.width * 0.4)
        values = [value for bars in self.series for value in bars.values if value is not None]
        axis = replace(self.axis, low=0.0 if self.axis.low is None else self.axis.low)
        x = scale_of(axis, values, left, self.width - 52)
        body = [bottom_axis(x, BARS_TOP, bottom, self.axis.title, grid=True)]
        for place, name in enumerate(self.labels):
            y = BARS_TOP + group * (place + 0.5) + 1
            body.append(label(name, left - 8, y, side="end", kind="tick strong", limit=left - 10))
        keys = keys_of(self.series)
        for number, bars in enumerate(self.series):
            marks = []
            for place, value in enumerate(bars.values):
                if value is not None:
                    y = BARS_TOP + group * place + thick * number + 1
                    end, text = x.place(value), value_text(value, self.axis.kind)
                    name = title(f"{self.labels[place]}\n{bars.name}: {text}")
                    bar = element("rect", name, class_="bar", x=left, y=y, width=end - left, height=thick - 2)
                    marks.append(element("g", bar, class_=f"s{self.colors[place]}") if self.colors else bar)
                    marks.append(label(text, end + 5, y + thick / 2 + 3, side="start"))
            body.append(series_group(number, keys[number], *marks))
        return Drawing(self.width, bottom + (BOTTOM if self.axis.title else 22), "".join(body), keys)

    def table(self) -> Table:
        rows = tuple((name, *(bars.values[place] for bars in self.series)) for place, name in enumerate(self.labels))
        return Table(("", *(bars.name for bars in self.series)), rows)


@dataclass(frozen=True)
class Histogram(Chart):
    """Counts between edges, of which there is one more than counts. Series are drawn on top of each other."""

    edges: Sequence[float]
    series: Sequence[Bars]
    x: Axis
    y: Axis = field(default_factory=lambda: Axis("rows", COUNT))

    def draw(self) -> Drawing:
        height, places = 220.0, range(len(self.edges) - 1)
        totals = [sum(bars.values[place] or 0 for bars in self.series) for place in places]
        axis = replace(self.x, low=self.edges[0], high=self.edges[-1])
        x, y, body = frame((axis, self.y), (), [0.0, *totals], height, ticks=(8, 5))
        keys, below = keys_of(self.series), [0.0] * len(totals)
        for number, bars in enumerate(self.series):
            marks = []
            for place in places:
                if count := bars.values[place]:
                    left, right = x.place(self.edges[place]), x.place(self.edges[place + 1])
                    high, low = y.place(below[place] + count), y.place(below[place])
                    limits = " to ".join(value_text(edge, self.x.kind) for edge in self.edges[place : place + 2])
                    name = title(f"{f'{self.x.title} {limits}'.strip()}\n{bars.name}: {value_text(count)}")
                    box = {"x": left + 0.5, "y": high, "width": max(right - left - 1, 0.5), "height": low - high}
                    marks.append(element("rect", name, class_="bar", **box))
                    below[place] += count
            body.append(series_group(number, keys[number], *marks))
        return Drawing(WIDTH, height, "".join(body), keys)

    def table(self) -> Table:
        rows = (
            (self.edges[place], self.edges[place + 1], *(bars.values[place] for bars in self.series))
            for place in range(len(self.edges) - 1)
        )
        return Table(("from", "to", *(bars.name for bars in self.series)), tuple(rows))


def even_edges(low: float, high: float, bins: int) -> list[float]:
    return [low + (high - low) * place / bins for place in range(bins + 1)]


@dataclass(frozen=True)
class Series:
    """A line of a chart, its places ordered by x."""

    name: str
    points: Points
    raw: Points = ()  # the values before smoothing, drawn faintly behind the line
    band: Sequence[tuple[float, float, float]] = ()  # x, low and high of a shaded interval
    dots: bool = False  # for values with gaps between them, such as evaluations
    quiet: bool = False  # gray and dashed: something to compare with, such as the diagonal
    color: int | None = None


@dataclass(frozen=True)
class Event:
    """A vertical line at `x`, such as "best" or "resumed"."""

    x: float
    name: str


@dataclass(frozen=True)
class LineChart(Chart):
    x: Axis
    y: Axis
    series: Sequence[Series]
    events: Sequence[Event] = ()
    references: Sequence[tuple[str, float]] = ()  # horizontal dashed lines, such as the score of the majority baseline
    square: bool = False  # both axes have the same length, for a diagonal

    def draw(self) -> Drawing:
        """Draw the lines, the events and invisible columns that show the values on hover."""
        across, upward = [event.x for event in self.events], [value for _, value in self.references]
        for line in self.series:
            band = [(place, value) for place, *ends in line.band for value in ends]
            across += [place for place, _ in (*line.points, *line.raw, *band)]
            upward += [value for _, value in (*line.points, *line.raw, *band)]
        axis, low, high = self.x, min(across, default=0.0), max(across, default=1.0)
        if axis.kind != LOG and low != high:  # it ends with the data instead of the next round number
            axis = replace(axis, low=low if axis.low is None else axis.low, high=high if axis.high is None else axis.high)
        height = SQUARE if self.square else HEIGHT
        x, y, body = frame((axis, self.y), across, upward, height, 18.0)
        body.append(self.hits(x, y))
        references = [(name, value, y.place(value)) for name, value in self.references if y.low <= value <= y.high]
        for name, value, place in references:
            body.append(quiet([(x.start, place), (x.stop, place)], f"{name}: {value_text(value, y.kind)}"))
        keys = keys_of(self.series)
        for number in sorted(range(len(keys)), key=lambda number: keys[number].css != QUIET):
            line = self.series[number]
            places, raw = ([(x.place(a), y.place(b)) for a, b in thinned(points)] for points in (line.points, line.raw))
            upper = [(x.place(a), y.place(high)) for a, _, high in line.band]
            lower = [(x.place(a), y.place(low)) for a, low, _ in line.band]
            marks = [path([*upper, *reversed(lower)], "band", "z") if len(upper) > 1 else "", path(raw, "raw")]
            marks.append(path(places, "dashed" if line.quiet else "line"))
            if line.dots or len(places) == 1:
                marks += [element("circle", class_="dot", cx=a, cy=b, r=3.5) for a, b in places]
            body.append(series_group(number, keys[number], *marks))
        for name, _, place in references:  # names cover the lines
            above = place - 4 if place > TOP + 12 else place + 13
            body.append(label(name, x.stop, above, side="end", kind="tick halo through"))
        marks, free = [], 0.0
        for event in sorted(self.events, key=lambda event: event.x):
            place, half = x.place(event.x), width_of(event.name) / 2
            middle = min(max(place, x.start + half), x.stop - half)
            marks.append(element("path", title(event.name), class_="event", d=f"M{place:.1f} {TOP:g}V{y.start:g}"))
            if middle - half > free:  # names that would overlap are omitted
                marks.append(label(event.name, middle, TOP - 6))
                free = middle + half + 4
        body.append(element("g", *marks, class_="events") if marks else "")
        return Drawing(WIDTH, height, "".join(body), keys)

    def hits(self, x: Scale, y: Scale) -> str:
        """Return invisible columns, each of which names the values of all lines at its place."""
        values = [(line.name, dict(line.points)) for line in self.series if not line.quiet]
        every = sorted({place for _, points in values for place in points})
        every = every[:: max(1, math.ceil(len(every) / MOST_HITS))]
        places = [x.place(value) for value in every]
        between = [(left + right) / 2 for left, right in pairwise(places)]
        columns = []
        for value, left, right in zip(every, [x.start, *between], [*between, x.stop], strict=False):
            lines = [f"{self.x.title} {value_text(value, x.kind)}".strip()]
            lines += [f"{name}: {value_text(points[value], y.kind)}" for name, points in values if value in points]
            box = {"x": left, "y": y.stop, "width": right - left, "height": y.start - y.stop}
            columns.append(element("rect", title("\n".join(lines)), class_="hit", **box))
        return element("g", *columns, class_="hits") if columns else ""

    def table(self) -> Table:
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


def thinned(points: Points) -> Points:
    """Return few enough points: the lowest and the highest of each stretch, so that no peak is lost."""
    if len(points) <= MOST_POINTS:
        return points
    size = math.ceil(len(points) / ((MOST_POINTS - 2) // 2))
    kept = [points[0]]
    for start in range(1, len(points) - 1, size):
        part = range(start, min(start + size, len(points) - 1))
        ends = {min(part, key=lambda place: points[place][1]), max(part, key=lambda place: points[place][1])}
        kept += [points[place] for place in sorted(ends)]
    return [*kept, points[-1]]


def smoothed(points: Points, share: float = 0.04) -> Points:
    """Return the mean of each point and those around it, a share of all; few points are returned as they are."""
    reach = int(len(points) * share / 2)
    if reach < 1:
        return points
    sums = [*accumulate((value for _, value in points), initial=0.0)]
    windows = [(max(0, place - reach), min(len(points), place + reach + 1)) for place in range(len(points))]
    return [(x, (sums[last] - sums[first]) / (last - first)) for (x, _), (first, last) in zip(points, windows, strict=True)]


@dataclass(frozen=True)
class Dots:
    """A row of the chart: an estimate with its interval, or only points."""

    name: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    points: Sequence[float] = ()  # single values, such as one for each seed
    baseline: float | None = None  # drawn as a short line across
    note: str = ""  # shown on hover and in the data table, such as the number of rows
    color: int = 0


@dataclass(frozen=True)
class DotChart(Chart):
    """Values with intervals, from top to bottom."""

    rows: Sequence[Dots]
    axis: Axis = field(default_factory=Axis)
    reference: float | None = None  # a dashed line through all rows, such as zero for differences
    baseline_name: str = "baseline"

    def draw(self) -> Drawing:
        values = [] if self.reference is None else [self.reference]
        for row in self.rows:
            values += [one for one in (row.value, row.low, row.high, row.baseline, *row.points) if one is not None]
        # A little more on both sides, so that no mark lies on the names of the rows.
        low, high = min(values, default=0.0), max(values, default=1.0)
        wider = (high - low) * 0.03
        values.append(max(low - wider, 0.0) if low >= 0 else low - wider)
        values.append(min(high + wider, 1.0) if high <= 1 else high + wider)
        left = 17 + widest((row.name for row in self.rows), WIDTH * 0.42)
        x = scale_of(self.axis, values, left, WIDTH - 12)
        bottom = ROWS_TOP + ROW * len(self.rows)
        body = [bottom_axis(x, ROWS_TOP, bottom, self.axis.title, grid=True)]
        if self.reference is not None:
            place = x.place(self.reference)
            body.append(quiet([(place, ROWS_TOP), (place, bottom)]))
        for number, row in enumerate(self.rows):
            y = ROWS_TOP + ROW * (number + 0.5)
            body.append(label(row.name, left - 10, y + 4, side="end", kind="tick strong", limit=left - 11))
            body.append(element("g", *self.marks_of(row, x, y), class_=f"s{row.color}"))
        return Drawing(WIDTH, bottom + (BOTTOM if self.axis.title else 22), "".join(body))

    def marks_of(self, row: Dots, x: Scale, y: float) -> list[str]:
        """Return the marks of a row, from back to front: what it says on hover, interval, baseline, points, estimate."""
        kind, lines, marks = self.axis.kind, [row.name], []
        if row.low is not None and row.high is not None:
            marks.append(element("path", class_="whisker", d=f"M{x.place(row.low):.1f} {y:g}H{x.place(row.high):.1f}"))
        if row.value is not None:
            interval = f" (95% interval {value_text(row.low, kind)} to {value_text(row.high, kind)})" if marks else ""
            lines.append(value_text(row.value, kind) + interval)
        if row.baseline is not None:
            line = element("path", class_="whisker", d=f"M{x.place(row.baseline):.1f} {y - 7:g}v14")
            marks.append(element("g", line, class_="quiet"))
            lines.append(f"{self.baseline_name}: {value_text(row.baseline, kind)}")
        if row.points:
            height = y if row.value is None else y - 7
            marks += [element("circle", class_="point", cx=x.place(value), cy=height, r=3) for value in row.points]
            lines.append("points: " + ", ".join(value_text(value, kind) for value in sorted(row.points)))
        if row.value is not None:
            marks.append(element("circle", class_="dot", cx=x.place(row.value), cy=y, r=4.5))
        words = title("\n".join([*lines, *([row.note] if row.note else [])]))
        box = {"x": x.start, "y": y - ROW / 2, "width": x.stop - x.start, "height": ROW}
        return [element("rect", words, class_="hit", **box), *marks]

    def table(self) -> Table:
        columns: dict[str, list[Value]] = {"": [row.name for row in self.rows]}
        columns |= {name: [getattr(row, name) for row in self.rows] for name in ("value", "low", "high")}
        if any(row.baseline is not None for row in self.rows):
            columns[self.baseline_name] = [row.baseline for row in self.rows]
        for place in range(max((len(row.points) for row in self.rows), default=0)):
            columns[f"point {place + 1}"] = [row.points[place] if place < len(row.points) else None for row in self.rows]
        if any(row.note for row in self.rows):
            columns["note"] = [row.note for row in self.rows]
        return Table(tuple(columns), tuple(zip(*columns.values(), strict=True)))


@dataclass(frozen=True)
class Cloud:
    """A group of points with a common color. `names` are shown on hover, one for each point."""

    name: str
    points: Points
    names: Sequence[str] = ()
    color: int | None = None


@dataclass(frozen=True)
class ScatterChart(Chart):
    x: Axis
    y: Axis
    clouds: Sequence[Cloud]
    diagonal: bool = False  # draw the line where both values are equal; both axes then have the same range
    level: float | None = None  # a horizontal dashed line, such as a residual of zero

    def draw(self) -> Drawing:
        height = SQUARE if self.diagonal else HEIGHT
        across, upward = ([point[side] for cloud in self.clouds for point in cloud.points] for side in (0, 1))
        if self.diagonal:
            across = upward = across + upward
        x, y, body = frame((self.x, self.y), across, [*upward, *([] if self.level is None else [self.level])], height)
        ends = []
        if self.diagonal:
            ends.append([(x.place(value), y.place(value)) for value in (max(x.low, y.low), min(x.high, y.high))])
        if self.level is not None:
            ends.append([(place, y.place(self.level)) for place in (x.start, x.stop)])
        body += [element("g", path(line, "dashed"), class_="quiet") for line in ends]
        keys = keys_of(self.clouds)
        for number, cloud in enumerate(self.clouds):
            marks = []
            for place, (a, b) in enumerate(cloud.points):
                lines = [cloud.names[place]] if cloud.names else []
                lines += [f"{self.x.title}: {value_text(a, x.kind)}", f"{self.y.title}: {value_text(b, y.kind)}"]
                marks.append(element("circle", title("\n".join(lines)), class_="point", cx=x.place(a), cy=y.place(b), r=3))
            body.append(series_group(number, keys[number], *marks))
        return Drawing(WIDTH, height, "".join(body), keys)

    def table(self) -> Table:
        named = any(cloud.names for cloud in self.clouds)
        rows = [
            (cloud.name, *((cloud.names[place] if cloud.names else "",) if named else ()), a, b)
            for cloud in self.clouds
            for place, (a, b) in enumerate(cloud.points)
        ]
        return Table(("series", *(("name",) if named else ()), self.x.title or "x", self.y.title or "y"), tuple(rows))


@dataclass(frozen=True)
class Thread:
    """A line of the chart: its value on each axis, its name, and whether it is the chosen one."""

    name: str
    values: Sequence[Value]
    chosen: bool = False


@dataclass(frozen=True)
class ParallelChart(Chart):
    axes: Sequence[str]
    threads: Sequence[Thread]

    def draw(self) -> Drawing:
        """Draw the axes with their ends, then the lines, the chosen one on top."""
        width = max(WIDTH, 120.0 * len(self.axes))
        gap = (width - 2 * SIDE) / max(1, len(self.axes) - 1)
        places, body = [], []
        for number, name in enumerate(self.axes):
            x = SIDE + gap * number
            known, texts = axis_places([thread.values[number] for thread in self.threads])
            places.append(known)
            body.append(element("path", class_="axis", d=f"M{x:.1f} {PARALLEL_TOP:g}V{HEIGHT - PARALLEL_BOTTOM:g}"))
            body.append(label(name, x, PARALLEL_TOP - 14, limit=max(gap - 6, 60.0)))
            body += [label(text, x + 5, y + 4, side="start", kind="tick halo") for text, y in texts]
        keys = (Key("others", QUIET), Key("chosen", "s1"))
        for number, key in enumerate(keys):
            lines = []
            for thread in (thread for thread in self.threads if thread.chosen == bool(number)):
                points = [(SIDE + gap * at, places[at][value]) for at, value in enumerate(thread.values)]
                name = title(thread.name)
                dots = "".join(element("circle", name, class_="dot", cx=x, cy=y, r=3) for x, y in points)
                lines.append(element("g", name, path(points, "line" if number else "raw"), dots))
            body.append(series_group(number, key, *lines))
        return Drawing(width, HEIGHT, "".join(body), keys)

    def table(self) -> Table:
        rows = (
            (thread.name, *(str(value).lower() if isinstance(value, bool) else value for value in thread.values))
            for thread in self.threads
        )
        return Table(("setting", *self.axes), tuple(rows))


def axis_places(values: Sequence[Value]) -> tuple[dict[Value, float], list[tuple[str, float]]]:
    """Return the place of each value on an axis, and the texts beside it: numbers on a scale, other values in steps."""
    bottom = HEIGHT - PARALLEL_BOTTOM
    numbers = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) == len(values) and numbers:
        low, high = min(numbers), max(numbers)
        kind = LOG if low > 0 and high / low > WIDE_RANGE else LINEAR
        scale = scale_of(Axis(kind=kind, low=low, high=high if high > low else None), numbers, bottom, PARALLEL_TOP)
        known: dict[Value, float] = {value: scale.place(number) for value, number in zip(values, numbers, strict=True)}
        ordered = sorted({*numbers})
        written = ordered if len(ordered) <= 6 else [ordered[0], ordered[-1]]
        return known, [(value_text(number), scale.place(number)) for number in written]
    every = sorted({*values}, key=str)
    step = (bottom - PARALLEL_TOP) / max(1, len(every) - 1)
    known = {value: bottom - step * number for number, value in enumerate(every)}
    return known, [(str(value), place) for value, place in known.items()]


@dataclass(frozen=True)
class HeatMap(Chart):
    """Cells whose color is a share between 0 and 1, row by row."""

    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float]]
    texts: Sequence[Sequence[Sequence[str]]]  # written in each cell, if there is space, and on hover: one line each
    row_title: str = ""
    column_title: str = ""
    diagonal: bool = False  # cells off the diagonal are errors and have another color

    def draw(self) -> Drawing:
        top, most = 8.0, WIDTH * 0.3
        left = 26 + widest(self.rows, most)
        width = min(96.0, (WIDTH - left - 6) / max(len(self.columns), 1))
        height = max(min(width, 64.0), 12.0)
        bottom = top + height * len(self.rows)
        body = [
            self.cell(row, column, left + width * column, top + height * row, width, height)
            for row in range(len(self.rows))
            for column in range(len(self.columns))
        ]
        for row, name in enumerate(self.rows):
            body.append(label(name, left - 6, top + height * (row + 0.5) + 4, side="end", kind="tick strong", limit=most))
        upright = any(width_of(name) > width - 6 for name in self.columns)
        for column, name in enumerate(self.columns):
            x = left + width * (column + 0.5)
            if upright:
                body.append(turned(name, x + 4, bottom + 6, side="end", kind="tick strong", limit=most))
            else:
                body.append(label(name, x, bottom + 16, kind="tick strong"))
        below = bottom + (widest(self.columns, most) + 12 if upright else 22)
        if self.column_title:
            body.append(label(self.column_title, left + width * len(self.columns) / 2, below + 12, kind="name"))
        if self.row_title:
            body.append(turned(self.row_title, 10, (top + bottom) / 2, kind="name"))
        return Drawing(WIDTH, below + (18 if self.column_title else 4), element("g", *body, class_="cells"))

    def cell(self, row: int, column: int, x: float, y: float, width: float, height: float) -> str:
        """Return a cell, with its texts if it is large enough."""
        share, texts = self.values[row][column], self.texts[row][column]
        kind = "cell wrong" if self.diagonal and row != column else "cell"
        name = f"{self.row_title} {self.rows[row]}, {self.column_title} {self.columns[column]}".strip(" ,")
        box = {"x": x + 0.5, "y": y + 0.5, "width": width - 1, "height": height - 1}
        strength = f"{0.04 + 0.96 * share:.2f}" if share > 0 else "0"
        marks = [element("rect", class_="ground", **box)]
        marks.append(element("rect", title("\n".join([name, *texts])), class_=kind, fill_opacity=strength, **box))
        size = SMALL if width < 26 else FONT_SIZE
        fitting = [text for text in texts if width_of(text, size) <= width - 2][: 1 if height < 36 else 2]
        for number, text in enumerate(fitting if share > 0 and height >= 11 else ()):
            middle = y + height / 2 + 4 + (number - (len(fitting) - 1) / 2) * 15
            kind = "big" if number == 0 and height >= 36 else "small" if size == SMALL else "tick"
            ink = "on" if share > 0.55 else "strong"
            marks.append(label(text, x + width / 2, middle, kind=f"{kind} {ink} through"))
        return "".join(marks)

    def table(self) -> Table:
        """Return the first text of each cell, as a number if it is one."""

        def content(texts: Sequence[str]) -> str | float:
            first = texts[0] if texts else ""
            try:
                value = float(first.replace(",", ""))
            except ValueError:
                return first
            return value if number_text(value) == first else first

        rows = tuple((name, *map(content, self.texts[row])) for row, name in enumerate(self.rows))
        return Table((f"{self.row_title} \\ {self.column_title}" if self.row_title else "", *self.columns), rows)
