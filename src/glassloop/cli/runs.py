"""`glassloop list`, `report`, `compare` and `ui`: look at runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from glassloop.base.errors import SettingsError, alternatives, counted, did_you_mean, visible
from glassloop.base.files import user_path, write_text
from glassloop.base.output import CommandResult, show
from glassloop.cli.options import Json, completed_runs
from glassloop.runs.record import FINISHED, REPORT_NAME
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


RUNS_HELP = "Run folders, or folders of several seeds. All are compared with the first."


MARGIN_HELP = "Largest difference that does not matter. Default: 0.01."


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


PORT_HELP = "Port of the page; 0 for a free one. Default: 8000 or the next."


def ui(
    folder: Annotated[str | None, Argument(help="Folder with runs, or one run folder. Default: runs.")] = None,
    port: Annotated[int | None, Option(min=0, max=65535, metavar="<int>", help=PORT_HELP)] = None,
    open_browser: Annotated[bool, Option("--open/--no-open", help="Open the page in a browser.")] = False,
) -> None:
    """Watch runs while they train, on a local page in the browser."""
    from glassloop.web.start import start_page

    start_page(folder, port, open_browser=open_browser)
