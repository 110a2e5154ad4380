"""`glassloop report`: the options of the command."""

from __future__ import annotations

from typing import Annotated

import typer

from glassloop.command_result import CommandResult
from glassloop.options import completed_runs
from glassloop.verbs.shared_options import Json


def report_command(
    run: Annotated[str, typer.Argument(help="Run folder, or folder of several seeds.", autocompletion=completed_runs)],
    out: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--out",
            help="File or, for charts, folder to write. Default: report.html or charts in the run folder; tables are printed.",
        ),
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="<str>",
            help="html for the report; svg, png or csv for its charts; markdown or latex for the table of results.",
        ),
    ] = "html",
    as_json: Json = False,
) -> CommandResult:
    """Write the report of a run: results, curves, errors, confidence, data."""
    from glassloop.commands.report import report

    return report(run, out, form)
