"""Parallel coordinates: one vertical axis per setting and one line per combination, highlighted where it was chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glassloop.charts.figure import HEIGHT, WIDTH, Drawing, Key, Table, series_group
from glassloop.charts.scales import LOG, Axis, scale_of, value_text
from glassloop.charts.svg import element, label, path, title

TOP, BOTTOM, SIDE = 30.0, 18.0, 46.0
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
            body.append(element("path", class_="axis", d=f"M{x:.1f} {TOP:g}V{HEIGHT - BOTTOM:g}"))
            body.append(label(name, x, TOP - 14, limit=max(gap - 6, 60.0)))
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
    bottom = HEIGHT - BOTTOM
    numbers = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) == len(values) and numbers:
        low, high = min(numbers), max(numbers)
        kind = LOG if low > 0 and high / low > WIDE_RANGE else "linear"
        scale = scale_of(Axis(kind=kind, low=low, high=high if high > low else None), numbers, bottom, TOP)
        known = {value: scale.place(float(value)) for value in values}  # type: ignore[arg-type]
        shown = sorted({*numbers})
        kept = shown if len(shown) <= 6 else [shown[0], shown[-1]]
        return known, [(value_text(value), scale.place(value)) for value in kept]
    every = sorted({*values}, key=str)
    step = (bottom - TOP) / max(1, len(every) - 1)
    known = {value: bottom - step * number for number, value in enumerate(every)}
    return known, [(str(value), place) for value, place in known.items()]


def cell(value: Value) -> str | float | int | None:
    """Return a value as a cell of the data table."""
    return str(value).lower() if isinstance(value, bool) else value
