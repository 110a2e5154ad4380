"""Histograms: how many values lie between two edges, with the counts of several series on top of each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from glassloop.charts.bars import Bars
from glassloop.charts.figure import WIDTH, Drawing, Key, Table, bottom_axis, left_axis, left_margin, series_group
from glassloop.charts.scales import COUNT, Axis, scale_of, value_text
from glassloop.charts.svg import element, title

HEIGHT, TOP, BOTTOM, RIGHT = 220.0, 24.0, 38.0, 12.0


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
        y = scale_of(self.y, [0.0, *totals], HEIGHT - BOTTOM, TOP, 5)
        axis = Axis(self.x.title, self.x.kind, self.edges[0], self.edges[-1])
        x = scale_of(axis, (), left_margin(y), WIDTH - RIGHT, 8)
        body = [left_axis(y, x.start, x.stop, self.y.title), bottom_axis(x, TOP, HEIGHT - BOTTOM, self.x.title)]
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
