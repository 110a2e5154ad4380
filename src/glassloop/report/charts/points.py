"""Points and cells: values with intervals, scatter plots, parallel coordinates and heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from glassloop.report.charts.figure import (
    FONT_SIZE,
    HEIGHT,
    LOG,
    WIDTH,
    Axis,
    Drawing,
    Key,
    Scale,
    Table,
    bottom_axis,
    element,
    label,
    left_axis,
    left_margin,
    number_text,
    path,
    scale_of,
    series_group,
    title,
    value_text,
    width_of,
)

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
    """Lines over several vertical axes.

    Attributes:
        title: What the chart shows.
        description: What to see in it.
        axes: The name of each axis.
        threads: The lines.
        strong_name: What the lines that stand out are.
        other_name: What the other lines are.
    """

    title: str
    description: str
    axes: Sequence[str]
    threads: Sequence[Thread]
    strong_name: str = "chosen"
    other_name: str = "others"

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
    """Colored cells.

    Attributes:
        title: What the chart shows.
        description: What to see in it.
        rows: The names of the rows, from top to bottom.
        columns: The names of the columns.
        values: The share that colors each cell, between 0 and 1, row by row.
        texts: What is written in each cell, if there is space, and on hover: one line each.
        row_title: What the rows are.
        column_title: What the columns are.
        diagonal: Whether cells off the diagonal are errors and have another color.
    """

    title: str
    description: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float]]
    texts: Sequence[Sequence[Sequence[str]]]
    row_title: str = ""
    column_title: str = ""
    diagonal: bool = False

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
