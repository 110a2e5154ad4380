"""The scores of an evaluation as tables, next to the baseline."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassloop.data.facts import SHOWN_LABELS
from glassloop.errors import printable
from glassloop.measures import COMPUTED, Measures, no_better
from glassloop.outcomes import Outcome
from glassloop.run_folder.record import ClassRecord
from glassloop.settings import SCORE

NOTHING = "-"  # a score that does not exist


def show_outcome(console: Console, outcome: Outcome, title: str) -> None:
    """Print the scores of an evaluation and of each class, and which scores do not beat the baseline."""
    console.print(results_table(outcome, title))
    if outcome.classes:
        console.print(class_table(outcome.classes))
    if outcome.baseline is not None and (keys := no_better(outcome.metrics, outcome.baseline, outcome.measures)):
        titles = ", ".join(map(outcome.measures.title, keys))
        console.print(Text(printable(f"• no better than the {baseline_name(outcome.measures)}: {titles}")))


def baseline_name(measures: Measures) -> str:
    """Return what the baseline always predicts: the mean score of the training rows, or their most frequent label."""
    return "mean baseline" if {*measures.keys} & {*COMPUTED[SCORE]} else "majority baseline"


def results_table(outcome: Outcome, title: str) -> Table:
    """Return a table with the metrics of a split and their baseline."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in (title, "this run", baseline_name(outcome.measures)):
        table.add_column(Text(printable(name)), justify="left" if name == title else "right")
    for key, value in outcome.metrics.items():
        table.add_row(Text(printable(outcome.measures.title(key))), *figures([value, (outcome.baseline or {}).get(key)]))
    return table


def class_table(classes: dict[str, ClassRecord]) -> Table:
    """Return a table with the scores of each class. Of many classes, only those with the most rows are included."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("class", "precision", "recall", "f1", "rows"):
        table.add_column(name, justify="left" if name == "class" else "right")
    shown = [*classes.items()]
    if hidden := max(0, len(shown) - SHOWN_LABELS):
        shown = sorted(shown, key=lambda entry: -entry[1].support)[:SHOWN_LABELS]
    for name, scores in shown:
        table.add_row(Text(printable(name)), *figures([scores.precision, scores.recall, scores.f1]), f"{scores.support:,}")
    if hidden:
        table.add_row(f"and {hidden:,} more")
    return table


def figures(values: list[float | None]) -> Iterator[str]:
    """Yield each score with four decimals, or a dash for one that does not exist."""
    return (NOTHING if value is None else f"{value:.4f}" for value in values)
