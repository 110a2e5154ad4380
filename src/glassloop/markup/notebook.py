"""Small pieces of HTML for notebooks: tables, metrics and line charts. All text is escaped, and colors follow the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from glassloop.markup.templates import piece
from glassloop.runs.record import is_timing

Points: TypeAlias = Sequence[tuple[float, float]]
TEMPLATE = "markup/notebook.html.j2"
MOST_POINTS = 200  # of a line; more would not be visible
WIDTH, HEIGHT, MARGIN = 360, 120, 4
COLORS = ("#7d8790", "#1c8fc4", "#c2711a", "#3d9a50")  # readable on white and on black


def figure(value: float | None) -> str:
    """Return a score with four decimals, or a dash for one that does not exist."""
    return "-" if value is None else f"{value:.4f}"


def view(title: str, *parts: str) -> str:
    """Return a titled block with all parts, which are HTML. MathJax does not read its text as formulas."""
    return piece(TEMPLATE, "view", title, parts)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with a line of column names; the first column is aligned to the left. Empty without rows."""
    return piece(TEMPLATE, "table", head, rows) if rows else ""


def scores(title: str, metrics: Mapping[str, float], named: Mapping[str, str] | None = None) -> str:
    """Return metrics under the names by which Python finds them, without timings, below the facts `named`."""
    values = {name: value for name, value in metrics.items() if not is_timing(name)}
    rows = [(name, figure(value) if isinstance(value, int | float) else str(value)) for name, value in values.items()]
    return view(title, facts(named) if named else "", table(("metric", "value"), rows))


def facts(named: Mapping[str, str]) -> str:
    return piece(TEMPLATE, "facts", named)


def chart(lines: Mapping[str, Points], axis: str) -> str:
    """Return named lines over a common axis as a small SVG with its range. Empty if no line has two points."""
    drawn = {name: thinned(points) for name, points in lines.items() if len(points) > 1}
    if not drawn:
        return ""
    every = [point for points in drawn.values() for point in points]
    (left, right), (low, high) = ((min(values), max(values)) for values in zip(*every, strict=True))
    series = []
    for (name, points), color in zip(drawn.items(), COLORS, strict=False):
        places = (f"{place(x, left, right, WIDTH):.1f},{HEIGHT - place(y, low, high, HEIGHT):.1f}" for x, y in points)
        series.append((name, " ".join(places), color))
    label = f"{', '.join(drawn)} by {axis}"
    return piece(TEMPLATE, "chart", series, WIDTH, HEIGHT, label, f"{low:.3g} to {high:.3g}; {axis} {left:,g} to {right:,g}")


def place(value: float, least: float, most: float, size: int) -> float:
    return MARGIN + (size - 2 * MARGIN) * ((value - least) / (most - least) if most > least else 0.5)


def thinned(points: Points) -> Points:
    """Return at most a few hundred points, with the first and the last."""
    every = -(-len(points) // MOST_POINTS)
    return points if every <= 1 else [*points[:-1:every], points[-1]]
