"""`glassloop report`: write the report of a run, its charts, or the table of its results."""

from __future__ import annotations

from pathlib import Path

from glassloop.command_result import CommandResult
from glassloop.errors import SettingsError, alternatives, did_you_mean, show, visible
from glassloop.files import user_path, write_text
from glassloop.report.build import Report, report_of
from glassloop.report.files import CHART_FORMATS, write_charts
from glassloop.report.results import latex, markdown
from glassloop.run_folder.layout import REPORT_NAME

TABLES = {"markdown": markdown, "latex": latex}
FORMATS = ("html", *CHART_FORMATS, *TABLES)


def report(run: str, out: str | None = None, form: str = "html") -> CommandResult:
    """Write the report of a run folder, or of a folder of several seeds, in one of `FORMATS`, and return the files.

    Args:
        run: The folder.
        out: The file to write, or the folder for charts. Tables are printed if it is None.
        form: The format.
    """
    if form not in FORMATS:
        raise SettingsError(f"--format is {visible(form)}{did_you_mean(form, FORMATS)}", f"use {alternatives(FORMATS)}")
    folder = user_path(run)
    target = user_path(out) if out is not None else None
    made = report_of(folder)
    if form in TABLES:
        files = written_table(made, form, target)
    elif form == "html":
        files = [made.save(target or folder / REPORT_NAME)]
    else:
        files = write_charts(made.charts, target or folder / "charts", form)
    for path in files:
        show(str(path))
    return CommandResult({"run": folder, "format": form, "files": files, "results": made.results})


def written_table(made: Report, form: str, target: Path | None) -> list[Path]:
    """Print the table of results, or write it to a file. Raise `SettingsError` if the run has no results."""
    if not made.results:
        raise SettingsError(f"{made.title} has no results yet", "train it to its end, or use --format html")
    text = TABLES[form](made.results)
    if target is None:
        for line in text.splitlines():
            show(line)
        return []
    write_text(target, text)
    return [target]
