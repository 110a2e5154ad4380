"""The scores of an evaluation as tables, next to the baseline, and what they mean."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from glassloop.data.facts import SHOWN_LABELS
from glassloop.errors import printable
from glassloop.measures import COMPUTED, Measures, no_better
from glassloop.outcomes import Outcome
from glassloop.run_folder.record import ClassRecord
from glassloop.settings import SCORE
from glassloop.verdict import Verdict

NOTHING = "-"  # a score that does not exist
LARGEST = 8  # of many classes, so many of those with the most rows are shown; the rest of SHOWN_LABELS have the lowest F1
LONGEST_NAME = 40  # characters of a class, so that its scores fit into 80 columns
Classes = list[tuple[str, ClassRecord]]


def show_outcome(console: Console, outcome: Outcome, title: str) -> None:
    """Print the scores of an evaluation and of each class, and what they mean next to the baseline."""
    console.print(results_table(outcome, title))
    if outcome.classes:
        console.print()
        console.print(class_table(outcome.classes))
    if outcome.verdict:
        console.print()
        for line in verdict_lines(outcome.verdict):
            console.print(Text(printable(line)))
    told = outcome.verdict and not outcome.verdict.better
    if outcome.baseline is not None and not told and (keys := no_better(outcome.metrics, outcome.baseline, outcome.measures)):
        titles = ", ".join(map(outcome.measures.title, keys))
        console.print(Text(printable(f"• no better than the {baseline_name(outcome.measures)}: {titles}")))


def verdict_lines(verdict: Verdict) -> list[str]:
    """Return the sentence about a result, and a line for each thing to try."""
    return [f"• {verdict.sentence}", *(f"  try {tip}" for tip in verdict.advice)]


def baseline_name(measures: Measures) -> str:
    """Return what the baseline always predicts: the mean score of the training rows, or their most frequent label."""
    return "mean baseline" if {*measures.keys} & {*COMPUTED[SCORE]} else "majority baseline"


def results_table(outcome: Outcome, title: str) -> Table:
    """Return a table with the metrics of a split and their baseline."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in (title, "this run", baseline_name(outcome.measures)):
        table.add_column(Text(printable(name)), justify="left" if name == title else "right")
    baseline = outcome.baseline or {}
    rows = {outcome.measures.title(key): (value, baseline.get(key)) for key, value in outcome.metrics.items()}
    if outcome.balanced:
        rows["balanced accuracy"] = (outcome.balanced[0], outcome.balanced[1] if outcome.baseline is not None else None)
    for name, values in rows.items():
        table.add_row(Text(printable(name)), *figures(values))
    return table


def class_table(classes: dict[str, ClassRecord]) -> RenderableType:
    """Return a table with the scores of each class. Of many, the largest and those with the lowest F1 are included."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("class", no_wrap=True, overflow="ellipsis", max_width=LONGEST_NAME)
    for name in ("precision", "recall", "f1", "rows"):
        table.add_column(name, justify="right", no_wrap=True)
    if len(classes) <= SHOWN_LABELS:
        add_classes(table, [*classes.items()])
        return table
    by_size = sorted(classes.items(), key=lambda entry: -entry[1].support)
    largest, rest = by_size[:LARGEST], [(name, scores) for name, scores in by_size[LARGEST:] if scores.support]
    worst = sorted(rest, key=lambda entry: entry[1].f1 or 0.0)[: SHOWN_LABELS - LARGEST]
    add_classes(table, largest)
    table.add_row(Text("lowest f1 of the others", style="dim"))
    add_classes(table, worst)
    hidden = len(classes) - len(largest) - len(worst)
    zero = sum(not scores.f1 for name, scores in rest if name not in dict(worst))
    empty = len(by_size) - LARGEST - len(rest)
    facts = [f"{zero:,} with f1 0"] * bool(zero) + [f"{empty:,} without rows"] * bool(empty)
    return Group(table, Text(f"and {hidden:,} more" + (f" ({', '.join(facts)})" if facts else "")))


def add_classes(table: Table, classes: Classes) -> None:
    """Add a row for each class."""
    for name, scores in classes:
        table.add_row(Text(printable(name)), *figures((scores.precision, scores.recall, scores.f1)), f"{scores.support:,}")


def figures(values: list[float | None] | tuple[float | None, ...]) -> Iterator[str]:
    """Yield each score with four decimals, or a dash for one that does not exist."""
    return (NOTHING if value is None else f"{value:.4f}" for value in values)
