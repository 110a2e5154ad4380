"""Small pieces of HTML for notebooks: tables, metrics and line charts. All text is escaped, and colors follow the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TypeAlias

from glassloop.base.errors import printable
from glassloop.runs.record import is_timing

Points: TypeAlias = Sequence[tuple[float, float]]


MOST_CHARACTERS = 80  # of a cell; longer text is cut


MOST_POINTS = 200  # of a line; more would not be visible


WIDTH, HEIGHT, MARGIN = 360, 120, 4


# Colors that are readable on white and on black.
COLORS = ("#7d8790", "#1c8fc4", "#c2711a", "#3d9a50")


TABLE = "border-collapse:collapse;color:inherit;font:inherit"  # some pages give tables a color of their own


CELL = "padding:2px 12px 2px 0;text-align:{side};border:0;background:none"


QUIET = "opacity:.65;font-weight:normal"


def text(value: object) -> str:
    """Return a value as escaped text, on one line and not too long."""
    shown = printable(str(value))
    return escape(shown if len(shown) <= MOST_CHARACTERS else f"{shown[: MOST_CHARACTERS - 1]}…")


def escaped(value: object) -> str:
    """Return a value as text of a page, complete: markup is escaped, control characters are visible, line breaks remain.

    All texts of users pass through this function. It is also safe inside a quoted attribute.
    """
    lines = str(value).replace("\t", " ").replace("\r\n", "\n").split("\n")
    return escape("\n".join(map(printable, lines)))


def figure(value: float | None) -> str:
    """Return a score with four decimals, or a dash for one that does not exist."""
    return "-" if value is None else f"{value:.4f}"


def view(title: str, *parts: str) -> str:
    """Return a titled block with all parts that are not empty. MathJax does not read its text as formulas."""
    head = f'<div style="font-weight:bold;padding-bottom:4px">{text(title)}</div>'
    body = "".join(f'<div style="padding-bottom:8px">{part}</div>' for part in parts if part)
    return f'<div class="tex2jax_ignore mathjax_ignore" style="line-height:1.4">{head}{body}</div>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with a line of column names; the first column is aligned to the left. Empty without rows."""
    return f'<table style="{TABLE}">{header(head)}{"".join(map(line, rows))}</table>' if rows else ""


def scores(title: str, metrics: Mapping[str, float], named: Mapping[str, str] | None = None) -> str:
    """Return metrics under the names by which Python finds them, without timings, below the facts `named`."""
    shown = {name: value for name, value in metrics.items() if not is_timing(name)}
    rows = [(name, figure(value) if isinstance(value, int | float) else str(value)) for name, value in shown.items()]
    return view(title, facts(named) if named else "", table(("metric", "value"), rows))


def facts(named: Mapping[str, str]) -> str:
    """Return a table of names and values, without column names."""
    rows = (f"<tr>{cell(name, 'left', QUIET)}{cell(value, 'left')}</tr>" for name, value in named.items())
    return f'<table style="{TABLE}">{"".join(rows)}</table>'


def header(names: Sequence[str]) -> str:
    """Return the line of column names."""
    cells = (cell(name, "right" if number else "left", QUIET, "th") for number, name in enumerate(names))
    return f"<tr>{''.join(cells)}</tr>"


def line(values: Sequence[str]) -> str:
    """Return one line of a table."""
    return f"<tr>{''.join(cell(value, 'right' if number else 'left') for number, value in enumerate(values))}</tr>"


def cell(value: str, side: str, style: str = "", tag: str = "td") -> str:
    """Return a cell of a table."""
    return f'<{tag} style="{CELL.format(side=side)};{style}">{text(value)}</{tag}>'


def chart(lines: Mapping[str, Points], axis: str) -> str:
    """Return named lines over a common axis as a small SVG with its range. Empty if no line has two points."""
    drawn = {name: thinned(points) for name, points in lines.items() if len(points) > 1}
    if not drawn:
        return ""
    every = [point for points in drawn.values() for point in points]
    (left, right), (low, high) = ((min(values), max(values)) for values in zip(*every, strict=True))
    paths, names = [], []
    for (name, points), color in zip(drawn.items(), COLORS, strict=False):
        places = " ".join(f"{place(x, left, right, WIDTH):.1f},{HEIGHT - place(y, low, high, HEIGHT):.1f}" for x, y in points)
        paths.append(f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="2"/>')
        names.append(f'<span style="color:{color}">■</span> {text(name)}')
    frame = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="currentColor" stroke-opacity=".25"/>'
    label = text(f"{', '.join(drawn)} by {axis}")
    svg = f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{label}">{frame}{"".join(paths)}</svg>'
    extent = text(f"{low:.3g} to {high:.3g}; {axis} {left:,g} to {right:,g}")
    return f'{svg}<div>{" ".join(names)} <span style="{QUIET}">{extent}</span></div>'


def place(value: float, least: float, most: float, size: int) -> float:
    """Return where a value lies between the margins of a chart."""
    return MARGIN + (size - 2 * MARGIN) * ((value - least) / (most - least) if most > least else 0.5)


def thinned(points: Points) -> Points:
    """Return at most a few hundred points, with the first and the last."""
    every = -(-len(points) // MOST_POINTS)
    return points if every <= 1 else [*points[:-1:every], points[-1]]
