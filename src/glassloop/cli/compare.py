"""`glassloop compare`: compare finished runs."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from glassloop.base.errors import SettingsError
from glassloop.base.files import user_path, write_text
from glassloop.base.output import CommandResult, show
from glassloop.cli.options import Json, completed_runs

RUNS_HELP = "Run folders, or folders of several seeds. All are compared with the first."
MARGIN_HELP = "Maximum difference that does not matter. Default: 0.01."


def compare(
    runs: Annotated[list[str], Argument(metavar="RUN RUN...", help=RUNS_HELP, autocompletion=completed_runs)],
    split: Annotated[str | None, Option(help="Split to compare on. Default: validation.")] = None,
    margin: Annotated[float | None, Option(min=0, metavar="<float>", help=MARGIN_HELP)] = None,
    out: Annotated[str | None, Option("-o", "--out", help="HTML file for the comparison.")] = None,
    as_json: Json = False,
) -> CommandResult:
    """Compare runs on the same rows, with intervals and paired tests."""
    from rich.console import Console

    from glassloop.report.comparison import compare_runs, comparison_page, show_comparison

    target = user_path(out) if out is not None else None
    if target and target.suffix.lower() not in (".html", ".htm"):
        raise SettingsError(f"--out {target} is not an HTML file", "choose a name that ends with .html")
    comparison = compare_runs(runs, split, margin)
    show_comparison(Console(), comparison)
    if target:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, comparison_page(comparison))
        show(f"comparison → {target}")
    return CommandResult({**comparison.content(), "out": target})
