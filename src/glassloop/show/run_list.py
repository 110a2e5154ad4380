"""The runs of a folder as a table of at most 80 columns."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassloop.errors import counted, printable
from glassloop.measures import Measures
from glassloop.metric_values import AVERAGED
from glassloop.quantities import amount, duration
from glassloop.run_folder.listing import ListedRun, RunList
from glassloop.run_folder.record import FINISHED

LONGEST_NAME = 28


def show_run_list(console: Console, found: RunList, root: str) -> None:
    """Print one line per run, then how many there are and what was left out."""
    if not found.entries:
        console.print(Text(printable(f"no runs in {root}")))
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("run", "status", "result", "time", "size"):
        table.add_column(name, justify="right" if name in ("time", "size") else "left", no_wrap=name != "result")
    for entry in found.entries:
        time = "" if entry.seconds is None else duration(entry.seconds)
        table.add_row(name_of(entry), entry.status, result_of(entry), time, amount(entry.size))
    console.print(table)
    notes = [counted(len(found.entries), "run", "runs")]
    notes += [counted(found.links, "link was not followed", "links were not followed")] if found.links else []
    notes += [] if found.complete else ["not all folders were searched"]
    console.print(Text(printable(", ".join(notes)), style="dim"))
    for entry in found.entries:
        if entry.problem:
            console.print(Text(printable(f"• {entry.name}: {entry.problem}")))


def name_of(entry: ListedRun) -> Text:
    """Return the name of a run, its end if it is long, and its number of seeds."""
    seeds = f" ({counted(len(entry.seeds), 'seed', 'seeds')})" if entry.seeds else ""
    room = LONGEST_NAME - len(seeds)
    return Text(printable(entry.name if len(entry.name) <= room else "…" + entry.name[1 - room :]) + seeds)


def result_of(entry: ListedRun) -> Text:
    """Return the first score of a run, else how far it is."""
    key = next(iter(entry.metrics), None)
    if entry.seeds and entry.status != FINISHED:
        done = sum(seed.status == FINISHED for seed in entry.seeds)
        return Text(f"{done} of {len(entry.seeds)} seeds finished")
    if key is not None:
        spread = f" ± {entry.deviation[key]:.4f}" if key in entry.deviation else ""
        title = Measures((key,), entry.positive_label).title(key) if key in AVERAGED else key
        return Text(printable(f"{title} {entry.metrics[key]:.4f}{spread}"))
    return Text(f"step {entry.step:,} of {entry.max_steps:,}" if entry.max_steps else "")
