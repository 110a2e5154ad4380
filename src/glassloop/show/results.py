"""What a run found out, for a person: its scores beside the baseline as tables, and its predictions as a file."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassloop.data.facts import SHOWN_LABELS
from glassloop.errors import printable
from glassloop.measures import Measures, no_better
from glassloop.outcomes import Outcome
from glassloop.run_folder.record import ClassRecord

NOTHING = "-"  # a score that does not exist


def show_outcome(console: Console, outcome: Outcome, title: str) -> None:
    """Print the table of an evaluation, the scores of each class, and whether the baseline is beaten at all."""
    console.print(results_table(outcome, title))
    if outcome.classes:
        console.print(class_table(outcome.classes))
    if outcome.baseline is not None and (keys := no_better(outcome.metrics, outcome.baseline, outcome.measures)):
        console.print(Text(f"• {remark_on(keys, outcome.measures)}"))


def remark_on(keys: list[str], measures: Measures) -> str:
    return printable(f"no better than the majority baseline: {', '.join(map(measures.title, keys))}")


def results_table(outcome: Outcome, title: str) -> Table:
    """The metrics of a split and their baseline."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in (title, "this run", "majority baseline"):
        table.add_column(Text(printable(name)), justify="left" if name == title else "right")
    for key, value in outcome.metrics.items():
        table.add_row(Text(printable(outcome.measures.title(key))), *figures([value, (outcome.baseline or {}).get(key)]))
    return table


def class_table(classes: dict[str, ClassRecord]) -> Table:
    """The scores of each class; of many, those with the most rows."""
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
    return (NOTHING if value is None else f"{value:.4f}" for value in values)
