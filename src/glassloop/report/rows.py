"""Single rows with their texts: the most confident errors, the least certain answers, the largest residuals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from glassloop.markup import escaped
from glassloop.metric_values import Array
from glassloop.metrics import probabilities
from glassloop.pages.parts import filters, heading, paragraph
from glassloop.records import Json
from glassloop.report.source import RunSource, SplitResult
from glassloop.settings import CLASSES, SCORE, SEVERAL
from glassloop.statistics.scored import ScoredRows

MOST_ERRORS, MOST_UNCERTAIN = 100, 40
MOST_CHARACTERS = 3_000  # of a text; the report says what it omits
MOST_IN_ALL = 220_000  # characters of all texts of a list


def row_lists(source: RunSource, result: SplitResult) -> str:
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
    result: SplitResult,
    order: Array,
    certain: Array,
    choices: Mapping[str, tuple[str, Sequence[str]]],
    seeds: Array | None = None,
) -> str:
    """Return rows with their texts, and a search field above. Stops before the page becomes too large.

    Args:
        name: Part of the anchor of the list.
        source: The run.
        result: The split.
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


def row_item(source: RunSource, result: SplitResult, place: int, sure: str) -> str:
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
