"""`glassloop compare`: the options of the command."""

from __future__ import annotations

from typing import Annotated

import typer

from glassloop.command_result import CommandResult
from glassloop.options import completed_runs
from glassloop.verbs.shared_options import Json


def compare_command(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN RUN...",
            help="Run folders, or folders of several seeds. All are compared with the first.",
            autocompletion=completed_runs,
        ),
    ],
    split: Annotated[str | None, typer.Option("--split", help="Split to compare on. Default: validation.")] = None,
    margin: Annotated[
        float | None,
        typer.Option("--margin", min=0, metavar="<float>", help="Largest difference that does not matter. Default: 0.01."),
    ] = None,
    out: Annotated[str | None, typer.Option("-o", "--out", help="HTML file for the comparison.")] = None,
    as_json: Json = False,
) -> CommandResult:
    """Compare runs on the same rows: settings, metrics with intervals, paired tests."""
    from glassloop.commands.compare import compare

    return compare(runs, split, margin, out)
