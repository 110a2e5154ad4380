"""The section about errors: the confusion matrix or the scores of each label, the classes, and slices of the rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glassloop.charts.bars import BarChart, Bars
from glassloop.charts.figure import Chart
from glassloop.charts.heat_map import HeatMap
from glassloop.charts.scales import PERCENT, Axis
from glassloop.pages.parts import Cell, Number, details, grid, heading, number, paragraph, score, table
from glassloop.report.drawn import Drawn
from glassloop.report.rows import row_lists
from glassloop.report.slices import slices
from glassloop.report.source import RunSource
from glassloop.settings import CLASSES, SCORE
from glassloop.statistics.intervals import wilson
from glassloop.statistics.scored import ScoredRows

MOST_CELLS = 20  # classes of a confusion matrix; of more, the most confused
FEW_CELLS = 8  # classes whose confusion matrix is readable in half of the width
MOST_PAIRS = 15
MOST_CLASSES = 1_000  # rows of the table of classes
SHOWN_BARS = 15


def errors(source: RunSource, drawn: Drawn) -> str:
    """Return the errors of a run on its first split; empty without predictions."""
    if not source.results:
        return ""
    result = source.results[0]
    wrong = 0 if result.rows.task == SCORE else int((~result.rows.right).sum())
    lead = ""
    if result.rows.task != SCORE:
        what = "predicted wrongly" if result.rows.task == CLASSES else "without all labels right"
        lead = paragraph(
            f"{wrong:,} of {len(result.rows):,} rows of {result.name} are {what} ({wrong / len(result.rows):.1%})."
        )
    tables = class_parts(result.rows, drawn) if result.rows.task != SCORE else ""
    found = slices(source, result, drawn)
    return lead + tables + found + row_lists(source, result)


def class_parts(rows: ScoredRows, drawn: Drawn) -> str:
    """Return the confusion matrix and the scores of the classes."""
    if rows.task == CLASSES:
        matrix = confusion(rows)
        figures = [drawn.figure("confusion", *confusion_chart(rows, matrix), wide=len(rows.labels) > FEW_CELLS)]
        figures += [pairs_table(rows, matrix)] if len(rows.labels) > 2 else []
    else:
        figures = [drawn.figure("labels", label_chart(rows))]
    listed = class_table(rows)
    if len(rows.labels) > SHOWN_BARS:
        listed = details(f"All {len(rows.labels):,} classes", listed)
    if len(rows.labels) == 2:
        return grid(*figures, heading("Classes") + listed)
    figures.append(drawn.figure("f1-by-class", *class_chart(rows)))
    return grid(*figures) + heading("Classes") + listed


def confusion(rows: ScoredRows) -> np.ndarray:
    """Return how often each true class (row) was predicted as each class (column)."""
    size = len(rows.labels)
    return np.bincount(rows.references * size + rows.predictions, minlength=size * size).reshape(size, size)


def confusion_chart(rows: ScoredRows, matrix: np.ndarray) -> tuple[Chart, str]:
    """Return the confusion matrix, of many classes that of the most confused ones, and what it leaves out."""
    kept, note = np.arange(len(rows.labels)), "Color: share of the true class."
    if len(kept) > MOST_CELLS:
        off = matrix - np.diag(np.diag(matrix))
        kept = most_confused(off)
        inside = int(off[np.ix_(kept, kept)].sum())
        note += (
            f" {len(kept)} of {len(rows.labels):,} classes, those with the most errors between them: "
            f"{inside:,} of {int(off.sum()):,}."
        )
    shown, totals = matrix[np.ix_(kept, kept)], np.maximum(matrix.sum(axis=1)[kept], 1)
    shares = shown / totals[:, None]
    texts = [
        [[f"{count:,}", f"{share:.1%}"] for count, share in zip(counts, parts, strict=True)]
        for counts, parts in zip(shown.tolist(), shares.tolist(), strict=True)
    ]
    names = [rows.labels[place] for place in kept]
    right = int(np.diag(matrix).sum())
    told = f"{right:,} of {len(rows):,} rows are on the diagonal, so their class is predicted correctly."
    return HeatMap("Confusion matrix", told, names, names, shares.tolist(), texts, "true", "predicted", True), note


def most_confused(off: np.ndarray) -> np.ndarray:
    """Return as many classes as are readable: those with the most errors, or those of the most confused pairs.

    Of a thousand classes, those with the most errors are rarely confused with each other.
    """
    both = np.triu(off + off.T, 1)
    pairs = np.argsort(-both, axis=None, kind="stable")[: MOST_CELLS * MOST_CELLS]
    in_pairs = [*dict.fromkeys(np.stack(np.divmod(pairs, len(off)), axis=1).ravel().tolist())][:MOST_CELLS]
    with_most = np.argsort(-(off.sum(axis=0) + off.sum(axis=1)), kind="stable")[:MOST_CELLS]
    return max((np.sort(with_most), np.sort(in_pairs)), key=lambda kept: int(off[np.ix_(kept, kept)].sum()))


def pairs_table(rows: ScoredRows, matrix: np.ndarray) -> str:
    """Return the pairs of classes that are confused most often."""
    off = matrix - np.diag(np.diag(matrix))
    order = np.argsort(-off, axis=None, kind="stable")[:MOST_PAIRS]
    places = [divmod(int(place), len(rows.labels)) for place in order]
    totals = np.maximum(matrix.sum(axis=1), 1)
    cells: list[list[Cell]] = [
        [rows.labels[true], rows.labels[other], int(off[true, other]), number(off[true, other] / totals[true], PERCENT)]
        for true, other in places
        if off[true, other]
    ]
    return heading("Most confused pairs") + table(["true", "predicted", "rows", "of the class"], cells) if cells else ""


def counts_by_class(rows: ScoredRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for each class, how many rows are predicted correctly, are predicted, and have it."""
    size = len(rows.labels)
    if rows.task == CLASSES:
        hits = rows.references[rows.right]
        return tuple(np.bincount(found, minlength=size) for found in (hits, rows.predictions, rows.references))  # type: ignore[return-value]
    given, wanted = rows.predictions == 1, rows.references == 1
    return (given & wanted).sum(axis=0), given.sum(axis=0), wanted.sum(axis=0)


def ratio(part: float, whole: float) -> float | None:
    """Return a share, or None if there is nothing to divide by."""
    return float(part / whole) if whole else None


def class_table(rows: ScoredRows) -> str:
    """Return precision, recall (with its interval), F1 and number of rows of each class."""
    hits, given, wanted = counts_by_class(rows)
    order = [*range(len(rows.labels))] if len(rows.labels) <= SHOWN_BARS else np.argsort(-wanted, kind="stable").tolist()
    cells: list[list[Cell]] = []
    for place in order[:MOST_CLASSES]:
        recall = ratio(hits[place], wanted[place])
        span = wilson(hits[place], wanted[place]) if wanted[place] else None
        cells.append(
            [
                rows.labels[place],
                score(ratio(hits[place], given[place]), 3),
                score(recall, 3),
                Number(span.low if span else None, f"{span.low:.3f} to {span.high:.3f}" if span else "–"),
                score(ratio(2 * hits[place], given[place] + wanted[place]), 3),
                int(wanted[place]),
                int(given[place]),
            ]
        )
    rest = len(rows.labels) - MOST_CLASSES
    more = paragraph(f"{rest:,} classes with fewer rows are not shown.", "note") if rest > 0 else ""
    head = ["class", "precision", "recall", "95 % interval", "F1", "rows", "predicted"]
    return table(head, cells, sortable=True) + more


def class_chart(rows: ScoredRows) -> tuple[Chart, str]:
    """Return F1 of the classes with the lowest values, those with the most rows first, and how many have none."""
    hits, given, wanted = counts_by_class(rows)
    scores = [ratio(2 * hits[place], given[place] + wanted[place]) for place in range(len(rows.labels))]
    found = [(value, place) for place, value in enumerate(scores) if value is not None and wanted[place]]
    known = sorted(found, key=lambda one: (one[0], -wanted[one[1]]))
    shown, zeros = known[:SHOWN_BARS], sum(value == 0 for value, _ in known)
    title = "F1 by class" if len(shown) == len(known) else f"The {len(shown)} classes with the lowest F1"
    names = [f"{rows.labels[place]} ({wanted[place]:,})" for _, place in shown]
    values = [value for value, _ in shown]
    note = "In brackets: number of rows." + (f" {zeros:,} classes have an F1 of 0." if zeros > 1 else "")
    told = f"The lowest F1 is {values[0]:.3f} ({names[0]})." if values else "No class has rows."
    return BarChart(title, told, names, [Bars("F1", [round(value, 4) for value in values])], Axis("F1", high=1.0)), note


def label_chart(rows: ScoredRows) -> Chart:
    """Return, for each of several labels, how many rows are found, missed, and predicted without having it."""
    hits, given, wanted = counts_by_class(rows)
    kept = np.argsort(-(wanted + given - 2 * hits), kind="stable")[:SHOWN_BARS]
    names = [rows.labels[place] for place in kept]
    series: Sequence[Bars] = [
        Bars("found", hits[kept].tolist(), 2),
        Bars("missed", (wanted - hits)[kept].tolist(), 1),
        Bars("predicted without having it", (given - hits)[kept].tolist(), 4),
    ]
    more = "" if len(kept) == len(rows.labels) else f", the {len(kept)} with the most errors"
    return BarChart(f"Labels{more}", "Right and wrong predictions of each label.", names, series)
