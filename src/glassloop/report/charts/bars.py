"""Horizontal bars that start at zero, and histograms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from glassloop.report.charts.figure import (
    COUNT,
    WIDTH,
    Axis,
    Drawing,
    Key,
    Table,
    bottom_axis,
    element,
    label,
    left_axis,
    left_margin,
    scale_of,
    series_group,
    title,
    value_text,
    width_of,
)

TOP, BOTTOM, RIGHT = 6.0, 38.0, 52.0
MOST_LABEL = 0.4  # share of the width that labels may use


@dataclass(frozen=True)
class Bars:
    """The values of one series, one for each label of the chart. None draws no bar."""

    name: str
    values: Sequence[float | None]
    color: int | None = None


@dataclass(frozen=True)
class BarChart:
    """Horizontal bars.

    Attributes:
        title: What the chart shows.
        description: What to see in it.
        labels: The name of each group of bars, from top to bottom. Long names are cut and shown in full on hover.
        series: The values.
        axis: The axis of the values.
        colors: A color for each label instead of one for each series.
        width: Width of the drawing.
    """

    title: str
    description: str
    labels: Sequence[str]
    series: Sequence[Bars]
    axis: Axis = field(default_factory=lambda: Axis(kind=COUNT))
    colors: Sequence[int] = ()
    width: float = WIDTH

    def draw(self) -> Drawing:
        """Draw the bars with their values."""
        thick = 16.0 if len(self.series) == 1 else 11.0
        group = thick * len(self.series) + (6 if len(self.series) == 1 else 9)
        bottom = TOP + group * len(self.labels)
        left = 12 + min(max(map(width_of, self.labels), default=0.0), self.width * MOST_LABEL)
        values = [value for bars in self.series for value in bars.values if value is not None]
        axis = Axis(self.axis.title, self.axis.kind, 0.0 if self.axis.low is None else self.axis.low, self.axis.high)
        x = scale_of(axis, values, left, self.width - RIGHT)
        body = [bottom_axis(x, TOP, bottom, self.axis.title, grid=True)]
        body += [
            label(name, left - 8, TOP + group * place + group / 2 + 1, side="end", kind="tick strong", limit=left - 10)
            for place, name in enumerate(self.labels)
        ]
        keys = [Key(bars.name, number if bars.color is None else bars.color) for number, bars in enumerate(self.series)]
        for number, bars in enumerate(self.series):
            marks = []
            for place, value in enumerate(bars.values):
                if value is None:
                    continue
                y, end = TOP + group * place + thick * number + 1, x.place(value)
                name = f"{self.labels[place]}\n{bars.name}: {value_text(value, self.axis.kind)}"
                color = f"s{self.colors[place]}" if self.colors else None
                bar = element("rect", title(name), class_="bar", x=left, y=y, width=end - left, height=thick - 2)
                marks.append(element("g", bar, class_=color) if color else bar)
                marks.append(label(value_text(value, self.axis.kind), end + 5, y + thick / 2 + 3, side="start"))
            body.append(series_group(number, keys[number], *marks))
        return Drawing(self.width, bottom + (BOTTOM if self.axis.title else 22), "".join(body), tuple(keys))

    def table(self) -> Table:
        """Return one row per label."""
        rows = tuple((name, *(bars.values[place] for bars in self.series)) for place, name in enumerate(self.labels))
        return Table(("", *(bars.name for bars in self.series)), rows)


HEIGHT, HISTOGRAM_TOP, HISTOGRAM_BOTTOM, HISTOGRAM_RIGHT = 220.0, 24.0, 38.0, 12.0


@dataclass(frozen=True)
class Histogram:
    """Counts between edges.

    Attributes:
        title: What the chart shows.
        description: What to see in it.
        edges: The limits of the bins, one more than there are counts.
        series: The counts of each series in each bin; they are drawn on top of each other.
        x: The axis of the values.
        y: The axis of the counts.
    """

    title: str
    description: str
    edges: Sequence[float]
    series: Sequence[Bars]
    x: Axis
    y: Axis = field(default_factory=lambda: Axis("rows", COUNT))

    def draw(self) -> Drawing:
        """Draw the columns."""
        totals = [sum(bars.values[place] or 0 for bars in self.series) for place in range(len(self.edges) - 1)]
        y = scale_of(self.y, [0.0, *totals], HEIGHT - HISTOGRAM_BOTTOM, HISTOGRAM_TOP, 5)
        axis = Axis(self.x.title, self.x.kind, self.edges[0], self.edges[-1])
        x = scale_of(axis, (), left_margin(y), WIDTH - HISTOGRAM_RIGHT, 8)
        body = [
            left_axis(y, x.start, x.stop, self.y.title),
            bottom_axis(x, HISTOGRAM_TOP, HEIGHT - HISTOGRAM_BOTTOM, self.x.title),
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
        return Drawing(WIDTH, HEIGHT, "".join(body), tuple(keys))

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
