"""`glassloop compare`: compare runs on the same rows, in the terminal and as an HTML file."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from glassloop.command_result import CommandResult
from glassloop.comparing.results import compare_runs
from glassloop.comparing.terminal import show_comparison
from glassloop.errors import SettingsError, show
from glassloop.files import user_path, write_text


def compare(runs: Sequence[str], split: str | None, margin: float | None, out: str | None) -> CommandResult:
    """Print the comparison of all runs with the first, and write it to `out` as HTML."""
    target = user_path(out) if out is not None else None
    if target and target.suffix.lower() not in (".html", ".htm"):
        raise SettingsError(f"--out {target} is not an HTML file", "choose a name that ends with .html")
    found = compare_runs(runs, split, margin)
    show_comparison(Console(), found)
    if target:
        from glassloop.comparing.web_page import comparison_page

        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, comparison_page(found))
        show(f"comparison → {target}")
    return CommandResult({**found.content(), "out": target})
