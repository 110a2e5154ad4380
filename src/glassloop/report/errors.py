"""The sections about errors: the confusion matrix, classes, slices, and single rows with their texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from glassloop.base.records import Json
from glassloop.markup.templates import escaped
from glassloop.report.charts import LINEAR, PERCENT, Axis, BarChart, Bars, Chart, DotChart, Dots, HeatMap
from glassloop.report.page import Cell, Number, details, filters, grid, heading, number, paragraph, score, table
from glassloop.report.source import Drawn
from glassloop.scores.intervals import ScoredRows, class_counts, mean_interval, wilson
from glassloop.scores.metrics import Array, probabilities
from glassloop.scores.result import Result, class_scores
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

if TYPE_CHECKING:
    from glassloop.report.source import RunSource

MOST_ERRORS, MOST_UNCERTAIN = 100, 40
MOST_CHARACTERS = 3_000  # of a text; the report says what it omits
MOST_IN_ALL = 220_000  # characters of all texts of a list


def row_lists(source: RunSource, result: Result) -> str:
    """Return the lists of rows that deserve a look."""
    rows = result.rows
    certain = certainty(rows)
    if rows.task == SCORE:
        order = largest_residuals(rows)
        return heading("Largest residuals") + row_list("largest", source, result, order, certain, {})
    wrong = int((~rows.right).sum())
    confident, uncertain = most_confident_errors(rows, certain), least_certain(certain)
    choices = class_choices(rows, confident)
    parts = []
    if len(confident):
        parts.append(heading(f"Most confident errors ({len(confident):,} of {wrong:,})"))
        parts.append(row_list("wrong", source, result, confident, certain, choices))
    parts.append(heading(f"Least certain rows ({len(uncertain):,} of {len(rows):,})"))
    return "".join(parts) + row_list("uncertain", source, result, uncertain, certain, class_choices(rows, uncertain))


def listed_rows(rows: ScoredRows) -> Array:
    """Return the numbers of all rows that a report lists with their texts."""
    if rows.task == SCORE:
        return largest_residuals(rows)
    certain = certainty(rows)
    return np.union1d(most_confident_errors(rows, certain), least_certain(certain))


def largest_residuals(rows: ScoredRows) -> Array:
    """Return the rows whose score is predicted worst, the worst first."""
    return np.argsort(-np.abs(rows.predictions - rows.references), kind="stable")[:MOST_ERRORS]


def most_confident_errors(rows: ScoredRows, certain: Array) -> Array:
    """Return the rows with a wrong answer, the most certain first."""
    wrong = np.flatnonzero(~rows.right)
    return np.asarray(wrong[np.argsort(-certain[wrong], kind="stable")][:MOST_ERRORS])


def least_certain(certain: Array) -> Array:
    """Return the rows with the least certain answers."""
    return np.argsort(certain, kind="stable")[:MOST_UNCERTAIN]


def certainty(rows: ScoredRows) -> Array:
    """Return the probability of each answer; of several labels, of the wrong or least certain one; none for scores."""
    if rows.task == SCORE:
        return np.zeros(len(rows))
    likely = probabilities(rows.logits, rows.task)
    if rows.task == CLASSES:
        return np.asarray(likely[np.arange(len(rows)), rows.predictions])
    chosen = np.where(rows.predictions == 1, likely, 1 - likely)
    wrong = np.where(rows.predictions == rows.references, 0.0, chosen).max(axis=1)
    return np.asarray(np.where(rows.right, chosen.min(axis=1), wrong))


def class_choices(rows: ScoredRows, order: Array) -> dict[str, tuple[str, Sequence[str]]]:
    """Return the filters by true and by predicted class, with the classes that occur."""
    if rows.task == SEVERAL:
        return {}
    return {
        key: (title, sorted({rows.labels[place] for place in numbers[order]}))
        for key, title, numbers in (("label", "True", rows.references), ("predicted", "Predicted", rows.predictions))
    }


def row_list(
    name: str,
    source: RunSource,
    result: Result,
    order: Array,
    certain: Array,
    choices: Mapping[str, tuple[str, Sequence[str]]],
    seeds: Array | None = None,
) -> str:
    """Return rows with their texts, and a search field above. Stops before the page becomes too large.

    Args:
        name: Part of the anchor of the list.
        source: The run.
        order: The numbers of the rows.
        certain: The probability of each answer.
        choices: Filters by class.
        seeds: The share of seeds that get each row wrong, instead of a probability.
    """
    items: list[str] = []
    rows = result.rows
    left = MOST_IN_ALL
    for place in order.tolist():
        item = row_item(source, result, place, sureness(rows, place, certain, seeds))
        left -= len(item)
        if left < 0 and items:
            break
        items.append(item)
    omitted = len(order) - len(items)
    note = paragraph(f"{omitted:,} more rows are not shown, because their texts are long.", "note") if omitted else ""
    anchor = f"rows-{name}"
    return (
        f'{filters(anchor, choices, search="Search in the texts")}<ul class="items" id="{anchor}">{"".join(items)}</ul>{note}'
    )


def sureness(rows: ScoredRows, place: int, certain: Array, seeds: Array | None) -> str:
    """Return how sure an answer is, or how many seeds get the row wrong."""
    if seeds is not None:
        return f"wrong with {seeds[place]:.0%} of the seeds"
    if rows.task == SCORE:
        return f"off by {float(rows.predictions[place] - rows.references[place]):+.3f}"
    return f"probability {certain[place]:.3f}"


def row_item(source: RunSource, result: Result, place: int, sure: str) -> str:
    """Return a row: texts with the part that the model did not read, label, prediction and probability."""
    entry, rows = result.entries[place], result.rows
    right = bool(rows.right[place]) if rows.task != SCORE else None
    kind = "" if right is None else " right" if right else " wrong"
    kept = entry.get("kept")
    texts = "".join(
        f'<div class="words">{words(str(entry.get(name, "")), kept.get(name) if isinstance(kept, dict) else None)}</div>'
        for name in source.text_columns
    )
    attributes = ""
    if rows.task == CLASSES:
        label, predicted = (rows.labels[numbers[place]] for numbers in (rows.references, rows.predictions))
        attributes = f' data-label="{escaped(label)}" data-predicted="{escaped(predicted)}"'
    return f'<li class="item{kind}"{attributes}>{texts}<div class="about">{about(entry, place, sure)}</div></li>'


def about(entry: Mapping[str, Json], place: int, sure: str) -> str:
    """Return the line below the texts of a row."""
    label, prediction = shown(entry.get("label")), shown(entry.get("prediction"))
    parts = [f"<span>true <b>{label}</b></span>", f"<span>predicted <b>{prediction}</b></span>"]
    parts += [f"<span>{escaped(sure)}</span>", f"<span>row {place:,}</span>"]
    tokens = entry.get("tokens")
    parts += [f"<span>{tokens} tokens{', truncated' if entry.get('kept') else ''}</span>"] if isinstance(tokens, int) else []
    return "".join(parts)


def shown(value: Json) -> str:
    """Return a label, several labels or a score as HTML."""
    if isinstance(value, list):
        return escaped(", ".join(map(str, value)) or "no label")
    return escaped(f"{value:.4g}" if isinstance(value, float) else value)


def words(text: str, span: Json) -> str:
    """Return a text as HTML; the part that the model did not read is marked, and a very long text is cut."""
    start, end = 0, len(text)
    if isinstance(span, list) and len(span) == 2 and all(isinstance(place, int) for place in span):
        start, end = (place for place in span if isinstance(place, int))
    shortened = text[:MOST_CHARACTERS]
    parts = [(shortened[:start], "lost"), (shortened[start:end], ""), (shortened[max(end, start) :], "lost")]
    html = "".join(f'<span class="{kind}">{escaped(part)}</span>' if kind else escaped(part) for part, kind in parts if part)
    rest = len(text) - MOST_CHARACTERS
    return html + (f' <span class="soft">… {rest:,} more characters</span>' if rest > 0 else "")


PARTS = 4  # of the rows by length
MOST_SLICED_CLASSES = 12


def slices(source: RunSource, result: Result, drawn: Drawn) -> str:
    """Return the scores of parts of the rows; empty if there is only one part."""
    rows = result.rows
    lengths, unit = lengths_of(source, result)
    groups = {"length": by_length(lengths, unit)}
    cut = np.array([bool(entry.get("kept")) for entry in result.entries])
    groups["truncation"] = [("complete", ~cut), ("truncated", cut)]
    groups["true score" if rows.task == SCORE else "class"] = by_score(rows) if rows.task == SCORE else by_class(rows)
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


def lengths_of(source: RunSource, result: Result) -> tuple[Array, str]:
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


def by_class(rows: ScoredRows) -> list[tuple[str, Array]]:
    """Return the rows of each class; of many classes, of those with the most rows."""
    one_class = rows.task == CLASSES
    _, _, counts = class_counts(rows.predictions, rows.references, len(rows.labels))
    kept = np.sort(np.argsort(-counts, kind="stable")[:MOST_SLICED_CLASSES]).tolist()
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
            f"{wrong:,} of {len(result.rows):,} rows of {result.split} are {what} ({wrong / len(result.rows):.1%})."
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
    # Of 1,000 classes, those with the most errors are rarely confused with each other, so pairs count too.
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


def class_table(rows: ScoredRows) -> str:
    """Return precision, recall (with its interval), F1 and number of rows of each class."""
    _, predicted, true = class_counts(rows.predictions, rows.references, len(rows.labels))
    found = [*class_scores(rows).items()]
    order = [*range(len(found))] if len(found) <= SHOWN_BARS else np.argsort(-true, kind="stable").tolist()
    cells: list[list[Cell]] = []
    for place in order[:MOST_CLASSES]:
        name, one = found[place]
        span = wilson(round(one.recall * one.support), one.support) if one.recall is not None else None
        interval = Number(span.low, f"{span.low:.3f} to {span.high:.3f}") if span else Number(None, "–")
        counts = (one.support, int(predicted[place]))
        cells.append([name, score(one.precision, 3), score(one.recall, 3), interval, score(one.f1, 3), *counts])
    rest = len(found) - MOST_CLASSES
    more = paragraph(f"{rest:,} classes with fewer rows are not shown.", "note") if rest > 0 else ""
    head = ["class", "precision", "recall", "95 % interval", "F1", "rows", "predicted"]
    return table(head, cells, sortable=True) + more


def class_chart(rows: ScoredRows) -> tuple[Chart, str]:
    """Return F1 of the classes with the lowest values, those with the most rows first, and how many have none."""
    known = [
        (one.f1 or 0.0, -one.support, f"{name} ({one.support:,})") for name, one in class_scores(rows).items() if one.support
    ]
    lowest = sorted(known, key=lambda one: one[:2])[:SHOWN_BARS]
    zeros = sum(value == 0 for value, _, _ in known)
    title = "F1 by class" if len(lowest) == len(known) else f"The {len(lowest)} classes with the lowest F1"
    note = "In brackets: number of rows." + (f" {zeros:,} classes have an F1 of 0." if zeros > 1 else "")
    told = f"The lowest F1 is {lowest[0][0]:.3f} ({lowest[0][2]})." if lowest else "No class has rows."
    bars = Bars("F1", [round(value, 4) for value, _, _ in lowest])
    return BarChart(title, told, [name for _, _, name in lowest], [bars], Axis("F1", high=1.0)), note


def label_chart(rows: ScoredRows) -> Chart:
    """Return, for each of several labels, how many rows are found, missed, and predicted without having it."""
    hits, given, wanted = class_counts(rows.predictions, rows.references, len(rows.labels))
    kept = np.argsort(-(wanted + given - 2 * hits), kind="stable")[:SHOWN_BARS]
    names = [rows.labels[place] for place in kept]
    series: Sequence[Bars] = [
        Bars("found", hits[kept].tolist(), 2),
        Bars("missed", (wanted - hits)[kept].tolist(), 1),
        Bars("predicted without having it", (given - hits)[kept].tolist(), 4),
    ]
    more = "" if len(kept) == len(rows.labels) else f", the {len(kept)} with the most errors"
    return BarChart(f"Labels{more}", "Right and wrong predictions of each label.", names, series)
