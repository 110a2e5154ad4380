"""The scores of several random seeds: a table with mean and standard deviation, and whether they beat the baseline."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassloop.errors import printable
from glassloop.measures import Measures, no_better
from glassloop.run_folder.seeds_json import SeedRecord, SeedsRecord
from glassloop.show.results import baseline_name, figures


def show_seeds(
    record: SeedsRecord, console: Console | None = None, title: str = "", together: dict[str, float] | None = None
) -> None:
    """Print one row per finished seed, then the mean, the sample standard deviation and the baseline.

    Args:
        record: The scores.
        console: Where to print. Default: standard error.
        title: What was evaluated.
        together: The scores of all seeds as one model.
    """
    found = record.finished
    if not record.mean:
        return
    first = next(iter(found.values()))
    measures, baseline = measures_of(first), baseline_name(measures_of(first))
    rows = {f"seed {seed}": entry.metrics for seed, entry in found.items()}
    rows |= {f"mean of {len(found)}": record.mean}
    rows |= {"standard deviation": deviation} if (deviation := record.standard_deviation) else {}
    rows |= {"all seeds as one model": together} if together else {}
    rows |= {baseline: record.baseline}
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column(Text(printable(title)), no_wrap=True)
    for name in map(measures.title, record.mean):
        table.add_column(Text(printable(name)), justify="right", no_wrap=True)
    for name, values in rows.items():
        table.add_row(name, *figures([values.get(metric) for metric in record.mean]))
    console = console or Console(stderr=True)
    console.width = max(console.width, console.measure(table).maximum)  # so that no number is cut
    console.print(table)
    for line in remarks(found, measures, baseline):
        console.print(Text(printable(f"• {line}")))


def remarks(found: dict[int, SeedRecord], measures: Measures, baseline: str) -> list[str]:
    """Return a line about metrics that do not beat the baseline, and one about seeds with different rows."""
    lines = []
    lost = Counter(key for entry in found.values() for key in no_better(entry.metrics, entry.baseline, measures))
    if lost:
        counts = ", ".join(f"{measures.title(key)} ({number} of {len(found)} seeds)" for key, number in lost.items())
        lines.append(f"no better than the {baseline}: {counts}")
    if any(entry.rows != next(iter(found.values())).rows for entry in found.values()):
        lines.append("the data changed between seeds, so their scores are for different rows")
    return lines


def scores_line(entry: SeedRecord) -> str:
    """Return `loss 0.4200  f1 (spam) 0.5000` for a finished seed."""
    title = measures_of(entry).title
    return "  ".join(f"{title(name)} {value:.4f}" for name, value in entry.metrics.items())


def measures_of(entry: SeedRecord) -> Measures:
    """Return the metrics of a finished seed."""
    return Measures(entry.measures.keys, entry.measures.positive)
