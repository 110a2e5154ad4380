"""`glassloop list`: a table of the runs in a folder."""

from __future__ import annotations

from rich.console import Console

from glassloop.claim import RUNS_DIR
from glassloop.command_result import CommandResult
from glassloop.errors import SettingsError
from glassloop.files import user_path
from glassloop.run_folder.listing import listed_runs
from glassloop.show.run_list import show_run_list


def list_runs(folder: str | None) -> CommandResult:
    """Print status, result, time and size of all runs in a folder; by default those in runs/."""
    root = RUNS_DIR if folder is None else user_path(folder)
    if not root.is_dir():
        raise SettingsError(f"{root} is not a folder", "name a folder with runs: glassloop list runs")
    found = listed_runs(root)
    show_run_list(Console(), found, str(root))
    return CommandResult({"folder": root, "runs": found.entries, "links": found.links, "complete": found.complete})
