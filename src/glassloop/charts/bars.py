"""Horizontal bars, one or several for each label, which start at zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from glassloop.charts.figure import WIDTH, Drawing, Key, Table, bottom_axis, series_group
from glassloop.charts.scales import COUNT, Axis, scale_of, value_text
from glassloop.charts.svg import element, label, title, width_of

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
