"""The scores of parts of the rows: by length, by truncation, by class; each with its 95 % interval."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glassloop.charts.dots import DotChart, Dots
from glassloop.charts.scales import LINEAR, PERCENT, Axis
from glassloop.metric_values import Array
from glassloop.pages.parts import grid, heading
from glassloop.report.drawn import Drawn
from glassloop.report.source import RunSource, SplitResult
from glassloop.settings import CLASSES, SCORE
from glassloop.statistics.intervals import mean_interval, wilson
from glassloop.statistics.scored import ScoredRows

PARTS = 4  # of the rows by length
MOST_CLASSES = 12


def slices(source: RunSource, result: SplitResult, drawn: Drawn) -> str:
    """Return the scores of parts of the rows; empty if there is only one part."""
    rows = result.rows
    lengths, unit = lengths_of(source, result)
    groups = {"length": by_length(lengths, unit), "truncation": by_truncation(source, result)}
    groups["true score" if rows.task == SCORE else "class"] = by_class(rows)
    charts = []
    for name, parts in groups.items():
        shown = [(part, mask) for part, mask in parts if mask.any()]
        if len(shown) > 1:
            charts.append(drawn.figure(f"slices-{name.replace(' ', '-')}", slice_chart(name, rows, shown)))
    return heading("Parts of the rows") + grid(*charts) if charts else ""


def slice_chart(name: str, rows: ScoredRows, parts: Sequence[tuple[str, Array]]) -> DotChart:
    """Return the score of each part with its interval, and that of all rows as a line."""
    found = []
    for part, mask in parts:
        value, low, high = part_score(rows, mask)
        found.append(Dots(part, value, low, high, note=f"{int(mask.sum()):,} rows"))
    every, *_ = part_score(rows, np.ones(len(rows), dtype=bool))
    what = {SCORE: "mean absolute error", CLASSES: "accuracy"}.get(rows.task, "rows with all labels right")
    axis = Axis(what, LINEAR if rows.task == SCORE else PERCENT)
    told = f"The {what} by {name}; all rows: {every:.3f}."
    return DotChart(f"By {name}", told, found, axis, every)


def part_score(rows: ScoredRows, mask: Array) -> tuple[float, float | None, float | None]:
    """Return the share of rows that are right, or the mean absolute error, with its interval."""
    if rows.task == SCORE:
        found = mean_interval(np.abs(rows.predictions - rows.references)[mask].tolist())
        return found.value, found.interval.low if found.interval else None, found.interval.high if found.interval else None
    right, number = int(rows.right[mask].sum()), int(mask.sum())
    span = wilson(right, number)
    return right / number, span.low, span.high


def lengths_of(source: RunSource, result: SplitResult) -> tuple[Array, str]:
    """Return the length of each row in tokens, or in words for runs that did not record tokens."""
    tokens = [entry.get("tokens") for entry in result.entries]
    if all(type(number) is int and 0 <= number < 1 << 31 for number in tokens):
        return np.array(tokens), "tokens"
    texts = [" ".join(str(entry.get(name, "")) for name in source.text_columns) for entry in result.entries]
    return np.array([len(text.split()) for text in texts]), "words"


def by_length(lengths: Array, unit: str) -> list[tuple[str, Array]]:
    """Return about equally large parts of the rows, ordered by length."""
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, PARTS + 1)).round().astype(int))
    if len(edges) < 3:
        return []
    parts = []
    for place in range(len(edges) - 1):
        low, high = int(edges[place]) + (place > 0), int(edges[place + 1])
        name = f"{low} {unit}" if low == high else f"{low} to {high} {unit}"
        parts.append((name, (lengths >= low) & (lengths <= high)))
    return parts


def by_truncation(source: RunSource, result: SplitResult) -> list[tuple[str, Array]]:
    """Return the rows that lost tokens, and the others. Empty if no row did."""
    cut = np.array([bool(entry.get("kept")) for entry in result.entries])
    return [("complete", ~cut), ("truncated", cut)] if cut.any() else []


def by_class(rows: ScoredRows) -> list[tuple[str, Array]]:
    """Return the rows of each class; of many classes, of those with the most rows."""
    if rows.task == SCORE:
        return by_score(rows)
    size, one_class = len(rows.labels), rows.task == CLASSES
    counts = np.bincount(rows.references, minlength=size) if one_class else rows.references.sum(axis=0)
    kept = np.sort(np.argsort(-counts, kind="stable")[:MOST_CLASSES]).tolist()
    masks = [rows.references == place if one_class else rows.references[:, place] == 1 for place in kept]
    return [(rows.labels[place], np.asarray(mask)) for place, mask in zip(kept, masks, strict=True)]


def by_score(rows: ScoredRows) -> list[tuple[str, Array]]:
    """Return parts of the rows by their true score."""
    edges = np.unique(np.quantile(rows.references, np.linspace(0, 1, PARTS + 1)))
    last = len(edges) - 2
    return [
        (
            f"{edges[place]:.3g} to {edges[place + 1]:.3g}",
            (rows.references >= edges[place])
            & ((rows.references < edges[place + 1]) if place < last else (rows.references <= edges[-1])),
        )
        for place in range(len(edges) - 1)
    ]
