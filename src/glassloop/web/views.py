"""What the pages show: the list of runs, and one run while it trains."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from os import fsencode
from pathlib import Path
from urllib.parse import quote

from glassloop.errors import counted, listed, printable
from glassloop.files import near_name
from glassloop.markup import escaped
from glassloop.pages.page import Section
from glassloop.pages.parts import Cell, Html, Number, code_block, fact_list, filters, number, paragraph, score, table, tag
from glassloop.quantities import duration
from glassloop.run_folder.record import FINISHED, RUNNING, RunRecord
from glassloop.run_folder.scan import Found
from glassloop.run_folder.status import DAMAGED
from glassloop.run_folder.summary import RunSummary
from glassloop.run_folder.tail import Curves
from glassloop.web.curves import EVALUATION, ordered, run_figures, title_of
from glassloop.web.groups import GroupSummary
from glassloop.web.view import View
from glassloop.web.words import (
    TAGS,
    list_progress,
    local_time,
    moment,
    percent,
    progress_words,
    result_of,
    rows_words,
    status_words,
)

LIVE_SECONDS, QUIET_SECONDS = 1.0, 4.0  # between two updates of a page, with and without a run that trains
MOST_EVALUATIONS = 30
MOST_LINKS = 40


def quoted(name: str) -> str:
    """Return the name of a run as a part of an address. It may contain any bytes."""
    return quote(fsencode(name))


def link(name: str, base: str) -> str:
    """Return a link to a run, or to several."""
    return f'<a href="{base}run/{escaped(quoted(name))}">{escaped(name)}</a>'


def group_links(group: GroupSummary, base: str) -> str:
    """Return links to the runs of several seeds or of a study, and what its page does not show yet."""
    shown = ", ".join(link(name, base) for name in group.runs[:MOST_LINKS])
    more = f" and {len(group.runs) - MOST_LINKS:,} more in the list" if len(group.runs) > MOST_LINKS else ""
    late = " Reload this page for later results." if group.status == RUNNING else ""
    about = paragraph(f"{group.progress} finished.{late}", "way") if group.status != FINISHED and group.number else ""
    return about + (f'<p class="way">Runs: {shown}{more}</p>' if shown else "")


def way_back(base: str) -> str:
    """Return the link to the list."""
    return f'<p class="way"><a href="{base}">← All runs</a></p>'


def status_tag(run: RunSummary) -> str:
    """Return the status of a run as a tag."""
    return tag("silent", "bad") if run.silent else tag(run.status, TAGS.get(run.status, ""))


def bar(run: RunSummary) -> str:
    """Return the progress of a run as a bar; nothing if its number of steps is unknown."""
    step = min(run.step, run.max_steps)
    return f'<progress aria-label="Progress" value="{step}" max="{run.max_steps}"></progress>' if run.max_steps > 0 else ""


def seconds_between_updates(runs: Sequence[RunSummary]) -> float:
    """Return how long a page waits before it asks again."""
    return LIVE_SECONDS if any(run.running and not run.silent for run in runs) else QUIET_SECONDS


# --- the list ----------------------------------------------------------------------------------------------------------


def list_view(root: Path, runs: Sequence[RunSummary], found: Found, base: str, groups: Sequence[GroupSummary] = ()) -> View:
    """Return all runs of a folder, after the folders of several seeds and of studies."""
    training = sum(run.running for run in runs)
    head = paragraph(f"{counted(len(runs), 'run', 'runs')} in {root.absolute()}, {training} training", "soft")
    name = root.absolute().name or "Runs"
    if runs or groups:
        columns = ("", "Run", "Status", "Progress", "Result", "Data", "Model", "Started", "Time")
        rows = [*(group_row(group, base) for group in groups), *(list_row(run, base) for run in runs)]
        body = table(columns, rows, sortable=True, name="runs")
    else:
        body = paragraph("There is no run yet. It appears here as soon as a training starts, for example with:")
        body += code_block(f"glassloop train quickstart --output_dir {near_name(str(root.absolute()))}/first")
    if found.links:
        links = counted(found.links, "link leads out of the folder and is", "links lead out of the folder and are")
        body += paragraph(f"{links} not followed.", "note")
    body += "" if found.complete else paragraph("There are more folders than this page reads.", "note")
    compare = '<p><a id="compare" class="action" href="compare" hidden>Compare</a></p>'
    tools = filters("runs", {}, search="Filter") + compare if runs or groups else ""
    tab = printable(f"({training}) {name}" if training else name)
    return View(name, head, [Section("list", "All runs", body)], seconds_between_updates(runs) * 2, tools, tab)


def group_row(group: GroupSummary, base: str) -> list[Cell]:
    """Return a row of the list for several seeds or for a study. It cannot be chosen to be compared side by side."""
    box = f'<input type="checkbox" value="{escaped(quoted(group.name))}" aria-label="{escaped(group.name)}" disabled>'
    began, share = moment(group.started), 100 * group.done / max(group.number, 1)
    return [
        Html(box),
        Html(f"{link(group.name, base)} {tag(group.kind)}"),
        Html(tag(group.status, TAGS.get(group.status, ""))),
        Number(share, group.progress),
        Number(group.value, group.result),
        near_name(group.source),
        near_name(group.model),
        Number(began, local_time(began) if began else ""),
        Number(group.seconds, duration(group.seconds) if group.seconds else ""),
    ]


def list_row(run: RunSummary, base: str) -> list[Cell]:
    """Return a row of the list."""
    box = f'<input type="checkbox" value="{escaped(quoted(run.name))}" aria-label="Compare {escaped(run.name)}">'
    record, began = run.record, moment(run.started)
    value, result = result_of(run)
    seconds = record.seconds if record else None
    return [
        Html(box),
        Html(link(run.name, base)),
        Html(status_tag(run)),
        Number(percent(run), list_progress(run)),
        Number(value, result),
        near_name(record.data.source) if record else "",
        near_name(record.model.name) if record else "",
        Number(began, local_time(began) if began else ""),
        Number(seconds, duration(seconds) if seconds else ""),
    ]


# --- one run -----------------------------------------------------------------------------------------------------------


def run_view(run: RunSummary, curves: Curves, base: str, problem: str = "") -> View:
    """Return a run while it trains, or one that has no report. `problem` says why there is none."""
    head = way_back(base) + f"<p>{status_tag(run)} {escaped(progress_words(run))}</p>" + bar(run)
    head += paragraph(status_words(run)) + paragraph(problem, "note")
    if run.record and not run.by_trainer and not run.running and run.status not in (FINISHED, DAMAGED):
        head += paragraph("To resume it:", "note") + code_block(f"glassloop train --resume {shlex.quote(str(run.folder))}")
    figures = run_figures(run, curves)
    if curves.damaged:
        figures += paragraph("A line of history.jsonl is damaged. What follows it is not shown.", "note")
    sections = [
        Section("curves", "Learning curves", figures),
        Section("evaluations", "Evaluations", evaluations(run, curves) or paragraph("There is no evaluation yet.", "soft")),
        Section("about", "The run", about(run)),
    ]
    tab = f"{percent(run)} % {run.name}" if run.running else f"{run.status}: {run.name}"
    seconds = LIVE_SECONDS / 4 if not curves.complete else seconds_between_updates([run])
    return View(run.name, head, sections, seconds, tab=printable(tab))


def evaluations(run: RunSummary, curves: Curves) -> str:
    """Return the last evaluations, newest first."""
    names = [name for name in ordered([*curves.points]) if name.startswith(EVALUATION)]
    values = {name: dict(curves.points[name]) for name in names}
    steps = sorted({step for found in values.values() for step in found}, reverse=True)[:MOST_EVALUATIONS]
    rows = [[number(step), *(score(values[name].get(step)) for name in names)] for step in steps]
    return table(["Step", *(title_of(name, run) for name in names)], rows)


def about(run: RunSummary) -> str:
    """Return data, model and settings of a run."""
    record, began = run.record, moment(run.started)
    facts: dict[str, Cell] = {"folder": str(run.folder.absolute()), "started": local_time(began) if began else None}
    if run.resumed:
        facts["resumed"] = "after step " + ", ".join(f"{step:,}" for step in run.resumed[-10:])
    if record:
        facts |= record_facts(record) | {"rows": rows_words(run)}
    return fact_list(facts)


def record_facts(record: RunRecord) -> dict[str, Cell]:
    """Return what a record says about data, model and machine."""
    settings, model, plan = record.settings, record.model, record.plan
    return {
        "data": near_name(record.data.source),
        "task": record.data.task.replace("_", " ") + (f": {listed(record.data.labels, 8)}" if record.data.labels else ""),
        "model": f"{near_name(model.name)} ({model.type}, {model.parameters / 1e6:.1f} M parameters)",
        "steps": f"{plan.max_steps:,}, evaluated every {plan.eval_every:,}" if plan.eval_every else f"{plan.max_steps:,}",
        "learning rate": f"{settings.learning_rate:g}",
        "seed": f"{settings.seed}",
        "device": f"{record.device}, {record.precision}, backend {record.backend}",
        "processes": f"{record.processes}" if record.processes > 1 else None,
    }
