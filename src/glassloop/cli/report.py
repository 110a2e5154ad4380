"""`glassloop report`: write the report of a run."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from glassloop.base.errors import SettingsError, alternatives, did_you_mean, visible
from glassloop.base.files import user_path, write_text
from glassloop.base.output import CommandResult, show
from glassloop.cli.options import Json, completed_runs
from glassloop.runs.record import REPORT_NAME

TABLES = ("markdown", "latex")
FORMATS = ("html", "svg", "png", "csv", *TABLES)
OUT_HELP = "File or, for charts, folder to write. Default: report.html or charts in the run folder; tables are printed."
FORMAT_HELP = "html for the report; svg, png or csv for its charts; markdown or latex for the table of results."


def report(
    run: Annotated[str, Argument(help="Run folder, or folder of several seeds.", autocompletion=completed_runs)],
    out: Annotated[str | None, Option("-o", "--out", help=OUT_HELP)] = None,
    form: Annotated[str, Option("--format", metavar="<str>", help=FORMAT_HELP)] = "html",
    as_json: Json = False,
) -> CommandResult:
    """Write the report of a run as one HTML file, or its charts."""
    from glassloop.report.build import report_of, write_charts
    from glassloop.report.results import latex, markdown

    if form not in FORMATS:
        raise SettingsError(f"--format is {visible(form)}{did_you_mean(form, FORMATS)}", f"use {alternatives(FORMATS)}")
    folder = user_path(run)
    target = user_path(out) if out is not None else None
    made = report_of(folder)
    if form in TABLES:
        if not made.results:
            raise SettingsError(f"{made.title} has no results yet", "train it to its end, or use --format html")
        text = markdown(made.results) if form == "markdown" else latex(made.results)
        for line in [] if target else text.splitlines():
            show(line)
        if target:
            write_text(target, text)
        files = [target] if target else []
    elif form == "html":
        files = [made.save(target or folder / REPORT_NAME)]
    else:
        files = write_charts(made.charts, target or folder / "charts", form)
    for path in files:
        show(str(path))
    return CommandResult({"run": folder, "format": form, "files": files, "results": made.results})
