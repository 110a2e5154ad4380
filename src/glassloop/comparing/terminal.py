"""A comparison in the terminal: tables of at most 80 columns, and a line for each verdict."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassloop.comparing.results import ComparedRuns, RowDifference, RowDifferences, answer_text
from glassloop.errors import counted, printable, shortened
from glassloop.settings import SCORE
from glassloop.statistics.conclusions import Conclusion
from glassloop.statistics.intervals import NO_INTERVAL, Interval

LONGEST_NAME = 20
MOST_SETTINGS, MOST_ROWS = 20, 3
SINGLE_SEEDS = "One seed each: this compares single models. Train several seeds to compare their settings."


def show_comparison(console: Console, found: ComparedRuns) -> None:
    """Print the settings that differ, the metrics, the tests, and rows on which the runs differ."""
    first, *others = found.names
    line(console, f"{found.split}, {counted(found.num_rows, 'row', 'rows')}: {listed_names(others)} compared with {first}")
    if found.settings:
        console.print()
        console.print(settings_table(found))
        if len(found.settings) > MOST_SETTINGS:
            line(console, f"and {len(found.settings) - MOST_SETTINGS} more settings differ; --json lists all")
    for key, conclusion in found.conclusions.items():
        console.print()
        console.print(metric_table(found.measures.title(key), conclusion))
        for text in verdict_lines(conclusion):
            line(console, f"• {text}")
    if one_seed_of_different_settings(found):
        console.print()
        line(console, SINGLE_SEEDS)
    for rows in found.rows:
        console.print()
        show_rows(console, found, rows)


def one_seed_of_different_settings(found: ComparedRuns) -> bool:
    """Return whether single runs with different settings are compared, which says little about the settings."""
    return not found.has_several_seeds and bool({*found.settings} - {"seed", "best_step"})


def line(console: Console, text: str) -> None:
    """Print a line of plain text."""
    console.print(Text(printable(text)))


def listed_names(names: Sequence[str]) -> str:
    """Return names, or how many there are if they would not fit on a line."""
    return ", ".join(names) if sum(map(len, names)) < 40 else f"{len(names)} runs"


def short_name(name: str) -> Text:
    """Return a name that fits into a column: its end, which tells runs apart."""
    return Text(printable(name if len(name) <= LONGEST_NAME else "…" + name[1 - LONGEST_NAME :]))


def plain_table(*columns: str) -> Table:
    """Return a table whose first column is aligned to the left, all others to the right."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for place, name in enumerate(columns):
        table.add_column(Text(printable(name)), justify="right" if place else "left", overflow="fold")
    return table


def settings_table(found: ComparedRuns) -> Table:
    """Return the settings that differ, one row each. Long values are cut."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("setting")
    for name in found.names:
        table.add_column(short_name(name), overflow="fold")
    width = max(8, 56 // len(found.names))
    for name, values in [*found.settings.items()][:MOST_SETTINGS]:
        table.add_row(Text(shortened(name, 24)), *(Text(shortened(value, width)) for value in values))
    return table


def metric_table(title: str, conclusion: Conclusion) -> Table:
    """Return the results of all sides in one metric, with their differences from the first."""
    table = plain_table(
        shortened(title, LONGEST_NAME), "value", "95 % interval", "difference", difference_title(conclusion), "p"
    )
    compared = {one.name: one.difference for one in conclusion.comparisons}
    for result in conclusion.results:
        difference = compared.get(result.name)
        cells = ["", "", ""]
        if difference:
            cells = [f"{difference.value:+.4f}", in_brackets(difference.interval, sign="+"), p_text(difference.corrected)]
        value = "-" if result.mean is None else f"{result.mean:.4f}"
        span = in_brackets(result.interval) or (NO_INTERVAL if result.points else "")
        table.add_row(short_name(result.name), value, span, *cells)
    return table


def difference_title(conclusion: Conclusion) -> str:
    """Return the title of the intervals of differences: several are corrected, so that all hold together with 95 %."""
    return "corrected" if conclusion.correction else "95 % interval"


def in_brackets(interval: Interval | None, sign: str = "") -> str:
    """Return `0.805..0.875`."""
    return "" if interval is None else f"{interval.low:{sign}.3f}..{interval.high:{sign}.3f}"


def p_text(value: float) -> str:
    """Return a p-value with three decimals."""
    return f"{value:.3f}" if value >= 0.001 else "<0.001"


def verdict_lines(conclusion: Conclusion) -> list[str]:
    """Return a sentence for each comparison, and one about how they were computed."""
    lines = [f"{one.name}: {one.verdict}" for one in conclusion.comparisons]
    methods = ", ".join(dict.fromkeys(one.difference.method for one in conclusion.comparisons))
    return [*lines, f"test: {methods}" + (f"; {conclusion.correction}" if conclusion.correction else "")]


def show_rows(console: Console, found: ComparedRuns, rows: RowDifferences) -> None:
    """Print how many rows each of two sides does better on, and the clearest of them."""
    first = found.names[0]
    if found.sides[0].side.record.data.task == SCORE:
        words = f"closer on {rows.num_better:,}, farther off on {rows.num_worse:,}"
    elif not found.has_several_seeds:
        words = f"only it gets {counted(rows.num_better, 'row', 'rows')} right, only {first} {rows.num_worse:,}"
    else:
        words = f"more seeds right on {counted(rows.num_better, 'row', 'rows')}, fewer on {rows.num_worse:,}"
    line(console, f"{rows.name}: {words}, the same on {rows.num_equal:,}")
    for kind, several in (("better", rows.better), ("worse", rows.worse)):
        for row in several[:MOST_ROWS]:
            line(console, f"  {kind}: {row_text(row, shares=found.has_several_seeds and words.startswith('more'))}")


def row_text(row: RowDifference, *, shares: bool) -> str:
    """Return a row on one line: number, label, both answers or shares of seeds that are right, and its texts."""
    texts = " | ".join(str(value) for name, value in row.entry.items() if name != "label")
    answers = f"{shortened(answer_text(row.first_answer), 12)} → {shortened(answer_text(row.second_answer), 12)}"
    if shares:
        answers = f"{row.first:.0%} → {row.second:.0%} of seeds right"
    return shortened(f"row {row.row} [{shortened(answer_text(row.entry.get('label')), 12)}] {answers}: {texts}", 68)
