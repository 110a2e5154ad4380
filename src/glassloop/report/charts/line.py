"""Lines over an axis: raw values behind smoothed ones, shaded intervals, events such as a resume, and reference lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from glassloop.report.charts.figure import (
    HEIGHT,
    WIDTH,
    Axis,
    Drawing,
    Key,
    Scale,
    Table,
    area,
    bottom_axis,
    element,
    label,
    left_axis,
    left_margin,
    path,
    scale_of,
    series_group,
    title,
    value_text,
    width_of,
)

Points: TypeAlias = Sequence[tuple[float, float]]
MOST_POINTS = 400  # of a drawn line; more would not be visible
MOST_HITS = 200  # places that show values on hover
TOP, BOTTOM, RIGHT = 24.0, 38.0, 18.0


@dataclass(frozen=True)
class Series:
    """A line of a chart.

    Attributes:
        name: What the line is.
        points: Its places, ordered by x.
        raw: The values before smoothing, drawn faintly behind the line.
        band: x, low and high of a shaded interval around the line.
        dots: Whether each place has a dot, for values with gaps between them, such as evaluations.
        quiet: Whether the line is gray and dashed: something to compare with, such as the diagonal.
        color: Number of the color; by default the position of the series.
    """

    name: str
    points: Points
    raw: Points = ()
    band: Sequence[tuple[float, float, float]] = ()
    dots: bool = False
    quiet: bool = False
    color: int | None = None


@dataclass(frozen=True)
class Event:
    """A vertical line at `x`, such as "best" or "resumed"."""

    x: float
    name: str


@dataclass(frozen=True)
class LineChart:
    """Several lines over a common axis.

    Attributes:
        title: What the chart shows.
        description: What to see in it.
        x: The horizontal axis.
        y: The vertical axis.
        series: The lines.
        events: Vertical lines with a name.
        references: Horizontal dashed lines by name, such as the score of the majority baseline.
        square: Whether both axes have the same length, for a diagonal.
    """

    title: str
    description: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    events: Sequence[Event] = ()
    references: Sequence[tuple[str, float]] = ()
    square: bool = False

    def draw(self) -> Drawing:
        """Draw the lines, the events and invisible columns that show the values on hover."""
        height = 360.0 if self.square else HEIGHT
        across = [point[0] for line in self.series for point in every_point(line)] + [event.x for event in self.events]
        upward = [point[1] for line in self.series for point in every_point(line)] + [value for _, value in self.references]
        y = scale_of(self.y, upward, height - BOTTOM, TOP)
        x = scale_of(tight(self.x, across), across, left_margin(y), WIDTH - RIGHT, 7)
        body = [left_axis(y, x.start, x.stop, self.y.title), bottom_axis(x, TOP, height - BOTTOM, self.x.title)]
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
    return label(name, x.stop, place - 4 if place > TOP + 12 else place + 13, side="end", kind="tick halo through")


def event_lines(events: Sequence[Event], x: Scale, bottom: float) -> str:
    """Return vertical lines with names above, which are omitted where they would overlap."""
    marks, free = [], 0.0
    for event in sorted(events, key=lambda event: event.x):
        place, half = x.place(event.x), width_of(event.name) / 2
        middle = min(max(place, x.start + half), x.stop - half)
        marks.append(element("path", title(event.name), class_="event", d=f"M{place:.1f} {TOP:g}V{bottom:g}"))
        if middle - half > free:
            marks.append(label(event.name, middle, TOP - 6))
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


def thinned(points: Points, most: int = MOST_POINTS) -> Points:
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
