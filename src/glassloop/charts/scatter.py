"""Points of two values, with the diagonal where both are equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glassloop.charts.figure import HEIGHT, WIDTH, Drawing, Key, Table, bottom_axis, left_axis, left_margin, series_group
from glassloop.charts.scales import Axis, scale_of, value_text
from glassloop.charts.svg import element, path, title

TOP, BOTTOM, RIGHT = 24.0, 38.0, 12.0


@dataclass(frozen=True)
class Cloud:
    """A group of points with a common color. `names` are shown on hover, one for each point."""

    name: str
    points: Sequence[tuple[float, float]]
    names: Sequence[str] = ()
    color: int | None = None


@dataclass(frozen=True)
class ScatterChart:
    """Points of two values.

    Attributes:
        title: What the chart shows.
        description: What to see in it.
        x: The horizontal axis.
        y: The vertical axis.
        clouds: The points.
        diagonal: Whether to draw the line where both values are equal. Both axes then have the same range.
        level: A horizontal dashed line, such as a residual of zero.
    """

    title: str
    description: str
    x: Axis
    y: Axis
    clouds: Sequence[Cloud]
    diagonal: bool = False
    level: float | None = None

    def draw(self) -> Drawing:
        """Draw the points."""
        height = 360.0 if self.diagonal else HEIGHT
        across, upward = ([point[side] for cloud in self.clouds for point in cloud.points] for side in (0, 1))
        if self.diagonal:
            across = upward = across + upward
        y = scale_of(self.y, [*upward, *([] if self.level is None else [self.level])], height - BOTTOM, TOP)
        x = scale_of(self.x, across, left_margin(y), WIDTH - RIGHT, 7)
        body = [left_axis(y, x.start, x.stop, self.y.title), bottom_axis(x, TOP, height - BOTTOM, self.x.title)]
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
