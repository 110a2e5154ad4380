"""The section about errors: the confusion matrix, classes, parts of the rows, and single rows with their texts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import numpy as np
from markupsafe import Markup

from glassloop.base.records import Json
from glassloop.markup.templates import LINEAR, PERCENT, piece, value_text
from glassloop.report.charts import Axis, BarChart, Bars, DotChart, Dots, HeatMap
from glassloop.report.page import Cell, Drawn, Number, score, span
from glassloop.report.source import TEMPLATE, RunSource
from glassloop.scores.calibration import confidences
from glassloop.scores.metrics import Array, class_counts
from glassloop.scores.result import Result, class_scores
from glassloop.scores.statistics import ScoredRows, mean_interval, wilson
from glassloop.settings.training import CLASSES, SCORE

MOST_ERRORS, MOST_UNCERTAIN = 100, 40
MOST_CHARACTERS = 3_000  # of a text; the report says what it omits
MOST_IN_ALL = 220_000  # characters of all texts of a list
PARTS = 4  # of the rows by length or score
MOST_SLICED_CLASSES = 12
MOST_CELLS = 20  # classes of a confusion matrix; of more, the most confused
FEW_CELLS = 8  # classes whose confusion matrix is readable in half of the width
MOST_PAIRS = 15
MOST_CLASSES = 1_000  # rows of the table of classes
SHOWN_BARS = 15


def errors(source: RunSource, drawn: Drawn) -> str:
    if not source.results:
        return ""
    result = source.results[0]
    rows, wrong = result.rows, None if result.rows.task == SCORE else int((~result.rows.right).sum())
    classes = class_parts(rows, drawn) if rows.task != SCORE else ""
    return piece(TEMPLATE, "errors", result, wrong, classes, slices(source, result, drawn), row_lists(source, result))


def row_lists(source: RunSource, result: Result) -> list[tuple[str, Markup]]:
    certain = certainty(result.rows)
    orders = row_orders(result.rows, certain)
    return [(title, row_list(name, source, result, order, certain)) for name, (title, order) in orders.items() if len(order)]


def row_orders(rows: ScoredRows, certain: Array) -> dict[str, tuple[str, Array]]:
    """Return the numbers of the rows that deserve a look, in lists with a title."""
    if rows.task == SCORE:
        largest = np.argsort(-np.abs(rows.predictions - rows.references), kind="stable")[:MOST_ERRORS]
        return {"largest": ("Largest residuals", largest)}
    wrong, uncertain = np.flatnonzero(~rows.right), np.argsort(certain, kind="stable")[:MOST_UNCERTAIN]
    confident = wrong[np.argsort(-certain[wrong], kind="stable")][:MOST_ERRORS]
    return {
        "wrong": (f"Most confident errors ({len(confident):,} of {len(wrong):,})", confident),
        "uncertain": (f"Least certain rows ({len(uncertain):,} of {len(rows):,})", uncertain),
    }


def listed_rows(rows: ScoredRows) -> Array:
    """Return the numbers of all rows that a report lists with their texts."""
    return reduce(np.union1d, (order for _, order in row_orders(rows, certainty(rows)).values()))


def certainty(rows: ScoredRows) -> Array:
    """Return the probability of each answer; of several labels, of the wrong or least certain one; none for scores."""
    if rows.task == SCORE:
        return np.zeros(len(rows))
    chosen = confidences(rows)[0].reshape(rows.predictions.shape)
    if rows.task == CLASSES:
        return chosen
    wrong = np.where(rows.predictions == rows.references, 0.0, chosen).max(axis=1)
    return np.asarray(np.where(rows.right, chosen.min(axis=1), wrong))


def row_list(name: str, source: RunSource, result: Result, order: Array, certain: Array, seeds: Array | None = None) -> Markup:
    """Return the rows of an `order` with their texts, and a search field above. Stops before the page becomes too large."""
    # `seeds` is the share of seeds that get each row wrong: it is shown instead, and the list cannot be filtered by class.
    rows, items, left, choices = result.rows, list[Markup](), MOST_IN_ALL, {}
    if rows.task == CLASSES and seeds is None:
        for key, title, numbers in (("label", "True", rows.references), ("predicted", "Predicted", rows.predictions)):
            choices[key] = (title, sorted({rows.labels[place] for place in numbers[order]}))
    for place in order.tolist():
        if seeds is not None:
            sure = f"wrong with {seeds[place]:.0%} of the seeds"
        elif rows.task == SCORE:
            sure = f"off by {float(rows.predictions[place] - rows.references[place]):+.3f}"
        else:
            sure = f"probability {certain[place]:.3f}"
        item = row_item(source, result, place, sure)
        left -= len(item)
        if left < 0 and items:
            break
        items.append(item)
    return piece(TEMPLATE, "row_list", f"rows-{name}", choices, items, len(order) - len(items))


def row_item(source: RunSource, result: Result, place: int, sure: str) -> Markup:
    """Return a row: texts with the part that the model did not read, label, prediction and how sure it is."""
    entry, rows = result.entries[place], result.rows
    kept = entry.get("kept")
    spans: Mapping[str, Json] = kept if isinstance(kept, dict) else {}
    texts = [words(str(entry.get(name, "")), spans.get(name)) for name in source.text_columns]
    right = bool(rows.right[place]) if rows.task != SCORE else None
    classes = [rows.labels[numbers[place]] for numbers in (rows.references, rows.predictions)] if rows.task == CLASSES else ()
    return piece(TEMPLATE, "row_item", texts, right, classes, sure, place, entry)


def words(text: str, span: Json) -> tuple[list[tuple[str, bool]], int]:
    """Return the parts of a text, each with whether the model did not read it, and how many characters are omitted."""
    start, end = 0, len(text)
    if isinstance(span, list) and len(span) == 2 and all(isinstance(place, int) for place in span):
        start, end = (place for place in span if isinstance(place, int))
    first = text[:MOST_CHARACTERS]
    parts = [(first[:start], True), (first[start:end], False), (first[max(end, start) :], True)]
    return parts, len(text) - len(first)


def slices(source: RunSource, result: Result, drawn: Drawn) -> list[Markup]:
    rows, figures = result.rows, []
    what = {SCORE: "mean absolute error", CLASSES: "accuracy"}.get(rows.task, "rows with all labels right")
    axis = Axis(what, LINEAR if rows.task == SCORE else PERCENT)
    every, *_ = part_score(rows, np.ones(len(rows), dtype=bool))
    cut = np.array([bool(entry.get("kept")) for entry in result.entries])
    groups = {"length": by_length(*lengths_of(source, result)), "truncation": [("complete", ~cut), ("truncated", cut)]}
    groups |= {"true score": by_score(rows)} if rows.task == SCORE else {"class": by_class(rows)}
    for name, parts in groups.items():
        dots = [Dots(part, *part_score(rows, mask), note=f"{int(mask.sum()):,} rows") for part, mask in parts if mask.any()]
        if len(dots) > 1:
            chart = DotChart(f"By {name}", f"The {what} by {name}; all rows: {every:.3f}.", dots, axis, every)
            figures.append(drawn.figure(f"slices-{name.replace(' ', '-')}", chart))
    return figures


def part_score(rows: ScoredRows, mask: Array) -> tuple[float, float | None, float | None]:
    if rows.task == SCORE:
        mean = mean_interval(np.abs(rows.predictions - rows.references)[mask].tolist())
        return mean.value, mean.interval.low if mean.interval else None, mean.interval.high if mean.interval else None
    right, number = int(rows.right[mask].sum()), int(mask.sum())
    span = wilson(right, number)
    return right / number, span.low, span.high


def lengths_of(source: RunSource, result: Result) -> tuple[Array, str]:
    """Return the length of each row in tokens, or in words for runs that did not record tokens."""
    tokens = [entry.get("tokens") for entry in result.entries]
    if all(type(number) is int and 0 <= number < 1 << 31 for number in tokens):
        return np.array(tokens), "tokens"
    texts = [" ".join(str(entry.get(name, "")) for name in source.text_columns) for entry in result.entries]
    return np.array([len(text.split()) for text in texts]), "words"


def by_length(lengths: Array, unit: str) -> list[tuple[str, Array]]:
    """Return about equally large parts of the rows, ordered by length."""
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, PARTS + 1)).round().astype(int)).tolist()
    parts = []
    for place, high in enumerate(edges[1:] if len(edges) > 2 else ()):
        low = edges[place] + (place > 0)
        name = f"{low} {unit}" if low == high else f"{low} to {high} {unit}"
        parts.append((name, (lengths >= low) & (lengths <= high)))
    return parts


def by_class(rows: ScoredRows) -> list[tuple[str, Array]]:
    *_, counts = class_counts(rows.predictions, rows.references, len(rows.labels))
    largest = np.sort(np.argsort(-counts, kind="stable")[:MOST_SLICED_CLASSES]).tolist()
    masks = [rows.references == place if rows.task == CLASSES else rows.references[:, place] == 1 for place in largest]
    return [(rows.labels[place], np.asarray(mask)) for place, mask in zip(largest, masks, strict=True)]


def by_score(rows: ScoredRows) -> list[tuple[str, Array]]:
    """Return parts of the rows by their true score; the last part includes its upper limit."""
    edges = np.unique(np.quantile(rows.references, np.linspace(0, 1, PARTS + 1)))
    ends = [*edges[1:-1], np.inf]
    return [
        (f"{low:.3g} to {high:.3g}", (rows.references >= low) & (rows.references < end))
        for low, high, end in zip(edges, edges[1:], ends, strict=False)
    ]


def class_parts(rows: ScoredRows, drawn: Drawn) -> Markup:
    size, pairs = len(rows.labels), list[list[Cell]]()
    if rows.task == CLASSES:
        matrix = confusion(rows)
        figures = [drawn.figure("confusion", *confusion_chart(rows, matrix), wide=size > FEW_CELLS)]
        pairs = confused_pairs(rows, matrix) if size > 2 else []
    else:
        figures = [drawn.figure("labels", label_chart(rows))]
    if size != 2:
        figures.append(drawn.figure("f1-by-class", *class_chart(rows)))
    table = class_rows(rows)
    return piece(TEMPLATE, "classes", size, figures, pairs, table, size - len(table), size <= SHOWN_BARS)


def confusion(rows: ScoredRows) -> np.ndarray:
    """Return how often each true class (row) was predicted as each class (column)."""
    size = len(rows.labels)
    return np.bincount(rows.references * size + rows.predictions, minlength=size * size).reshape(size, size)


def confusion_chart(rows: ScoredRows, matrix: np.ndarray) -> tuple[HeatMap, str]:
    """Return the confusion matrix, of many classes that of the most confused ones, and what it leaves out."""
    places, note = np.arange(len(rows.labels)), "Color: share of the true class."
    if len(places) > MOST_CELLS:
        off = matrix - np.diag(np.diag(matrix))
        places = most_confused(off)
        between = f"{int(off[np.ix_(places, places)].sum()):,} of {int(off.sum()):,}"
        note += f" {len(places)} of {len(rows.labels):,} classes, those with the most errors between them: {between}."
    counts, totals = matrix[np.ix_(places, places)], np.maximum(matrix.sum(axis=1)[places], 1)
    shares = (counts / totals[:, None]).tolist()
    texts = [
        [[f"{count:,}", f"{share:.1%}"] for count, share in zip(*row, strict=True)]
        for row in zip(counts.tolist(), shares, strict=True)
    ]
    names, right = [rows.labels[place] for place in places], int(np.diag(matrix).sum())
    told = f"{right:,} of {len(rows):,} rows are on the diagonal, so their class is predicted correctly."
    return HeatMap("Confusion matrix", told, names, names, shares, texts, "true", "predicted", True), note


def most_confused(off: np.ndarray) -> np.ndarray:
    """Return as many classes as are readable: those with the most errors, or those of the most confused pairs."""
    # Of 1,000 classes, those with the most errors are rarely confused with each other, so pairs count too.
    both = np.triu(off + off.T, 1)
    pairs = np.argsort(-both, axis=None, kind="stable")[: MOST_CELLS * MOST_CELLS]
    in_pairs = [*dict.fromkeys(np.stack(np.divmod(pairs, len(off)), axis=1).ravel().tolist())][:MOST_CELLS]
    with_most = np.argsort(-(off.sum(axis=0) + off.sum(axis=1)), kind="stable")[:MOST_CELLS]
    return max((np.sort(with_most), np.sort(in_pairs)), key=lambda places: int(off[np.ix_(places, places)].sum()))


def confused_pairs(rows: ScoredRows, matrix: np.ndarray) -> list[list[Cell]]:
    off = matrix - np.diag(np.diag(matrix))
    share = off / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    order = np.argsort(-off, axis=None, kind="stable")[:MOST_PAIRS]
    return [
        [*(rows.labels[part] for part in pair), int(off[pair]), Number(share[pair], value_text(share[pair], PERCENT))]
        for pair in (divmod(int(place), len(rows.labels)) for place in order)
        if off[pair]
    ]


def class_rows(rows: ScoredRows) -> list[list[Cell]]:
    _, predicted, true = class_counts(rows.predictions, rows.references, len(rows.labels))
    scores = [*class_scores(rows).items()]
    order = [*range(len(scores))] if len(scores) <= SHOWN_BARS else np.argsort(-true, kind="stable").tolist()
    cells: list[list[Cell]] = []
    for place in order[:MOST_CLASSES]:
        name, one = scores[place]
        ends = wilson(round(one.recall * one.support), one.support) if one.recall is not None else None
        counts = (one.support, int(predicted[place]))
        cells.append([name, score(one.precision, 3), score(one.recall, 3), span(ends, 3), score(one.f1, 3), *counts])
    return cells


def class_chart(rows: ScoredRows) -> tuple[BarChart, str]:
    """Return F1 of the classes with the lowest values, those with the most rows first, and how many have none."""
    scores = class_scores(rows).items()
    known = [(one.f1 or 0.0, -one.support, f"{name} ({one.support:,})") for name, one in scores if one.support]
    lowest = sorted(known, key=lambda one: one[:2])[:SHOWN_BARS]
    zeros = sum(value == 0 for value, _, _ in known)
    title = "F1 by class" if len(lowest) == len(known) else f"The {len(lowest)} classes with the lowest F1"
    note = "In brackets: number of rows." + (f" {zeros:,} classes have an F1 of 0." if zeros > 1 else "")
    told = f"The lowest F1 is {lowest[0][0]:.3f} ({lowest[0][2]})." if lowest else "No class has rows."
    bars = Bars("F1", [round(value, 4) for value, _, _ in lowest])
    return BarChart(title, told, [name for _, _, name in lowest], [bars], Axis("F1", high=1.0)), note


def label_chart(rows: ScoredRows) -> BarChart:
    hits, predicted, wanted = class_counts(rows.predictions, rows.references, len(rows.labels))
    places = np.argsort(-(wanted + predicted - 2 * hits), kind="stable")[:SHOWN_BARS]
    counts = {"found": (hits, 2), "missed": (wanted - hits, 1), "predicted without having it": (predicted - hits, 4)}
    series = [Bars(name, values[places].tolist(), color) for name, (values, color) in counts.items()]
    more = "" if len(places) == len(rows.labels) else f", the {len(places)} with the most errors"
    names = [rows.labels[place] for place in places]
    return BarChart(f"Labels{more}", "Right and wrong predictions of each label.", names, series)
