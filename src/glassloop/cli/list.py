"""`glassloop list`: a table of the runs in a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument

from glassloop.base.errors import SettingsError, counted
from glassloop.base.files import user_path
from glassloop.base.output import CommandResult
from glassloop.cli.options import Json
from glassloop.runs.record import FINISHED
from glassloop.runs.status import RUNS_DIR, ListedRun, RunFolders, amount, duration, listed_runs

if TYPE_CHECKING:
    from rich.console import Console

LONGEST_NAME = 28


def list_runs(
    folder: Annotated[str | None, Argument(help="Folder with runs. Default: runs.")] = None, as_json: Json = False
) -> CommandResult:
    """List runs with their status, result, time and size."""
    from rich.console import Console

    root = RUNS_DIR if folder is None else user_path(folder)
    if not root.is_dir():
        raise SettingsError(f"{root} is not a folder", "name a folder with runs: glassloop list runs")
    found = listed_runs(root)
    show_run_list(Console(), found, str(root))
    return CommandResult({"folder": root, "runs": found.entries, "links": found.links, "complete": found.complete})


def show_run_list(console: Console, runs: RunFolders, root: str) -> None:
    """Print one line per run, then how many there are and what was left out."""
    from glassloop.markup.terminal import bare_table, text

    if not runs.entries:
        console.print(text(f"no runs in {root}"))
        return
    table = bare_table("run", "status", "result", "time", "size", right=3, no_wrap=True)
    table.columns[2].no_wrap = False
    for entry in runs.entries:
        seeds = f" ({counted(len(entry.seeds), 'seed', 'seeds')})" if entry.seeds else ""
        room = LONGEST_NAME - len(seeds)
        title = entry.name if len(entry.name) <= room else "…" + entry.name[1 - room :]  # the end of a long name differs
        time = "" if entry.seconds is None else duration(entry.seconds)
        table.add_row(text(title + seeds), entry.status, text(result_of(entry)), time, amount(entry.size))
    console.print(table)
    notes = [counted(len(runs.entries), "run", "runs")]
    notes += [counted(runs.links, "link was not followed", "links were not followed")] if runs.links else []
    notes += [] if runs.complete else ["not all folders were searched"]
    console.print(text(", ".join(notes), "dim"))
    for entry in runs.entries:
        if entry.problem:
            console.print(text(f"• {entry.name}: {entry.problem}"))


def result_of(entry: ListedRun) -> str:
    """Return the first score of a run, else how far it is."""
    from glassloop.scores.metrics import AVERAGED, Measures

    if entry.seeds and entry.status != FINISHED:
        done = sum(seed.status == FINISHED for seed in entry.seeds)
        return f"{done} of {len(entry.seeds)} seeds finished"
    for key, value in entry.metrics.items():
        spread = f" ± {entry.deviation[key]:.4f}" if key in entry.deviation else ""
        title = Measures((key,), entry.positive_label).title(key) if key in AVERAGED else key
        return f"{title} {value:.4f}{spread}"
    return f"step {entry.step:,} of {entry.max_steps:,}" if entry.max_steps else ""
