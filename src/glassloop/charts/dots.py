"""Values with their intervals, one below the other (a forest plot), and all single points, such as the seeds of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from glassloop.charts.figure import WIDTH, Drawing, Table, bottom_axis
from glassloop.charts.scales import Axis, Scale, scale_of, value_text
from glassloop.charts.svg import element, label, title, width_of

TOP, ROW, BOTTOM, RIGHT = 8.0, 26.0, 38.0, 12.0
MOST_LABEL = 0.42  # share of the width that labels may use


@dataclass(frozen=True)
class Dots:
    """A row of the chart.

    Attributes:
        name: What is measured.
        value: The estimate; None draws only the points.
        low: The lower end of its interval.
        high: The upper end of its interval.
        points: Single values, such as one for each seed.
        baseline: A value to compare with, drawn as a short line across.
        note: Shown on hover and in the data table, such as the number of rows.
        color: Number of the color.
    """

    name: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    points: Sequence[float] = ()
    baseline: float | None = None
    note: str = ""
    color: int = 0


@dataclass(frozen=True)
class DotChart:
    """Values with intervals.

    Attributes:
        title: What the chart shows.
        description: What to see in it.
        rows: The values, from top to bottom.
        axis: The axis of the values.
        reference: A value with a dashed line through all rows, such as zero for differences.
        baseline_name: What the baselines of the rows are.
    """

    title: str
    description: str
    rows: Sequence[Dots]
    axis: Axis = field(default_factory=Axis)
    reference: float | None = None
    baseline_name: str = "baseline"

    def draw(self) -> Drawing:
        """Draw the rows."""
        left = 17 + min(max((width_of(row.name) for row in self.rows), default=0.0), WIDTH * MOST_LABEL)
        values = [value for row in self.rows for value in reached(row)]
        x = scale_of(self.axis, padded([*values, *([] if self.reference is None else [self.reference])]), left, WIDTH - RIGHT)
        bottom = TOP + ROW * len(self.rows)
        body = [bottom_axis(x, TOP, bottom, self.axis.title, grid=True)]
        if self.reference is not None:
            line = element("path", class_="dashed", d=f"M{x.place(self.reference):.1f} {TOP:g}V{bottom:g}")
            body.append(element("g", line, class_="quiet"))
        for place, row in enumerate(self.rows):
            y = TOP + ROW * (place + 0.5)
            body.append(label(row.name, left - 10, y + 4, side="end", kind="tick strong", limit=left - 11))
            body.append(element("g", *self.marks_of(row, x, y), class_=f"s{row.color}"))
        return Drawing(WIDTH, bottom + (BOTTOM if self.axis.title else 22), "".join(body))

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
            "rect", title(self.words(row)), class_="hit", x=x.start, y=y - ROW / 2, width=x.stop - x.start, height=ROW
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
