"""What several seeds of one run found: a table with mean and standard deviation, and whether the baseline is beaten."""

from __future__ import annotations

from collections import Counter
from statistics import mean, stdev
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassloop.errors import printable
from glassloop.measures import Measures, no_better
from glassloop.show.results import figures


def finished(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {seed: entry for seed, entry in record["seeds"].items() if entry["status"] == "finished"}


def summary(record: dict[str, Any]) -> dict[str, Any]:
    """Mean and standard deviation (n - 1) over the finished seeds, and the majority baseline that all of them share."""
    found = [*finished(record).values()]
    over = {name: [entry["metrics"][name] for entry in found] for name in (found[0]["metrics"] if found else ())}
    return {
        "mean": {name: mean(values) for name, values in over.items()},
        "standard_deviation": {name: stdev(values) for name, values in over.items()} if len(found) > 1 else None,
        "baseline": found[0]["baseline"] if found else {},
    }


def show_seeds(record: dict[str, Any]) -> None:
    """A row a seed, then mean and standard deviation (n - 1), and what always giving the same answer would get."""
    found = finished(record)
    if not record["mean"]:
        return
    rows = {f"seed {seed}": entry["metrics"] for seed, entry in found.items()}
    rows |= {f"mean of {len(found)}": record["mean"]}
    rows |= {"standard deviation": record["standard_deviation"]} if len(found) > 1 else {}
    rows |= {"majority baseline": record["baseline"]}
    table = Table(box=None, header_style="dim", pad_edge=False)
    measures = measures_of(next(iter(found.values())))
    for name in ("", *map(measures.title, record["mean"])):
        table.add_column(Text(printable(name)), justify="right" if name else "left", no_wrap=True)
    for name, values in rows.items():
        table.add_row(name, *figures([values.get(metric) for metric in record["mean"]]))
    console = Console(stderr=True)
    console.width = max(console.width, console.measure(table).maximum)  # no figure is cut
    console.print(table)
    lines = []
    lost = Counter(key for entry in found.values() for key in no_better(entry["metrics"], entry["baseline"], measures))
    if lost:
        told = ", ".join(f"{measures.title(key)} (seeds: {number} of {len(found)})" for key, number in lost.items())
        lines.append(f"• no better than the majority baseline: {told}")
    if any(entry["rows"] != next(iter(found.values()))["rows"] for entry in found.values()):
        lines.append("• the data changed between seeds: their scores are not of the same rows")
    for line in lines:
        console.print(Text(printable(line)))


def measures_of(entry: dict[str, Any]) -> Measures:
    """The metrics of a finished seed."""
    return Measures(tuple(entry["measures"]["keys"]), entry["measures"]["positive"])
