"""What the pages show: the list of runs, one run while it trains, and several side by side."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from hashlib import blake2b
from os import fsencode
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from glassloop.base.errors import counted, listed, printable
from glassloop.base.files import near_name
from glassloop.markup.templates import package_text, piece
from glassloop.report.charts import COUNT, Axis, LineChart, Series, smoothed
from glassloop.report.comparison import different_facts, facts_of
from glassloop.report.page import Cell, Drawn, Number, Section, figure, page, score
from glassloop.report.results import gained
from glassloop.report.source import RunSource
from glassloop.report.source import curves as learning_curves
from glassloop.runs.history import Curves, Entry
from glassloop.runs.record import DAMAGED, FAILED, FINISHED, KILLED, RUNNING, STOPPED, is_timing
from glassloop.runs.status import RunFolders, RunSummary, duration
from glassloop.scores.metrics import LOSS, Measures, short_metrics
from glassloop.web.watch import GroupSummary

TEMPLATE = "web/live.html.j2"
STYLE = package_text("web", "live.css")
SCRIPT = package_text("web", "live.js")
TAGS = {RUNNING: "live", FINISHED: "good", KILLED: "bad", FAILED: "bad", DAMAGED: "bad"}
EVALUATION = "eval_"
LOSSES = (LOSS, f"{EVALUATION}{LOSS}")
LAST = {"learning_rate": "Learning rate", "grad_norm": "Gradient norm"}  # shown after the metrics
LIVE_SECONDS, QUIET_SECONDS = 1.0, 4.0  # between two updates of a page, with and without a run that trains
MOST_EVALUATIONS, MOST_LINKS = 30, 40


def moment(text: str) -> float | None:
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def local_time(seconds: float | None) -> str:
    """Return a time as this machine's clock shows it; empty if it is not known."""
    try:
        return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M") if seconds else ""
    except (ValueError, OverflowError, OSError):
        return ""


def percent(run: RunSummary) -> int:
    return min(100, int(100 * run.step / run.max_steps)) if run.max_steps > 0 else 0


def progress_words(run: RunSummary) -> str:
    """Return `step 120 of 400, epoch 1.20, 34 steps/s, about 2 min left`."""
    parts = [f"step {run.step:,}" + (f" of {run.max_steps:,}" if run.max_steps else "")]
    parts += [f"epoch {run.epoch:.2f}"] if run.epoch else []
    if run.running and run.step_seconds:
        fast = run.step_seconds <= 1
        parts.append(f"{1 / run.step_seconds:.3g} steps/s" if fast else f"{run.step_seconds:.3g} s per step")
        parts += [f"about {duration(run.seconds_left)} left"] if run.seconds_left else []
    return ", ".join(parts)


def list_progress(run: RunSummary) -> str:
    """Return `30%, 2 min left` for the list."""
    if not run.max_steps:
        return f"step {run.step:,}" if run.step else ""
    left = f", {duration(run.seconds_left)} left" if run.seconds_left else ""
    return f"{percent(run)}%{left}"


def status_words(run: RunSummary) -> str:
    after = f" after step {run.step:,}" if run.step else " before its first log entry"
    if run.status == DAMAGED:
        return f"The record of this run cannot be read. {run.problem}"
    if run.silent:
        unknown = "Another machine trains it, so this page cannot tell whether it is still running."
        return f"It has written nothing for {duration(run.silent)}. {unknown}"
    if run.running and run.max_steps and run.step >= run.max_steps:
        return "All steps are done. The model is being evaluated and saved."
    if run.running:
        return "" if run.step else "It is starting: there is no log entry yet."
    return {
        KILLED: f"Its process was killed{after}.",
        STOPPED: f"It was stopped{after}.",
        FAILED: f"An error ended it{after}. The terminal that trained it shows the message.",
    }.get(run.status, "")


def result_of(run: RunSummary) -> Number:
    """Return the main result of a run; while it trains, its latest value. More would make the table wider than a page."""
    record = run.record
    if record and record.evaluation:
        measures = Measures(record.metrics, record.positive_label)
        scores = [(name, value) for name, value in short_metrics(record.evaluation).items() if name != LOSS]
        return next((Number(value, f"{measures.title(name)} {value:.4f}") for name, value in scores), Number(None, ""))
    latest = [(name, value) for name, value in run.latest.items() if name == LOSS or name.startswith(EVALUATION)]
    return Number(None, next((f"{name.removeprefix(EVALUATION)} {value:.4f}" for name, value in latest), ""))


@dataclass(frozen=True)
class View:
    title: str
    head: str  # HTML below the heading
    sections: Sequence[Section]  # all views of a page have the same ones
    seconds: float  # how long to wait before the next update
    tools: str = ""  # HTML at the beginning of the first section that updates leave alone
    tab: str = ""  # what the tab of the browser says; by default the heading
    reload: bool = False  # the page is another one now: the report of a run that has ended

    def page(self) -> str:
        """Return the page as it is opened, with parts that its script can replace."""
        parts = [replace(section, body=piece(TEMPLATE, "part", section.name, section.body)) for section in self.sections]
        parts[0] = replace(parts[0], body=f"{self.tools}{parts[0].body}")
        head = piece(TEMPLATE, "head", self.head)
        return page(self.title, parts, subtitle=head, connect=True, style=STYLE, script=SCRIPT)

    @cached_property
    def answer(self) -> tuple[bytes, str]:
        """The parts of the page as JSON, for the script, and their tag, made once for all readers."""
        parts = {"head": self.head, **{section.name: section.body for section in self.sections}}
        content = {"tab": self.tab or self.title, "seconds": self.seconds, "reload": self.reload, "parts": parts}
        body = json.dumps(content).encode()
        return body, f'"{blake2b(body, digest_size=12).hexdigest()}"'


def seconds_between_updates(runs: Sequence[RunSummary]) -> float:
    return LIVE_SECONDS if any(run.running and not run.silent for run in runs) else QUIET_SECONDS


def quoted(name: str) -> str:
    """Return the name of a run as a part of an address. It may contain any bytes."""
    return quote(fsencode(name))


def link(name: str, base: str, kind: str = "") -> Markup:
    return piece(TEMPLATE, "link", name, f"{base}run/{quoted(name)}", kind)


def status_tag(entry: RunSummary | GroupSummary) -> Markup:
    silent = isinstance(entry, RunSummary) and entry.silent
    return piece(TEMPLATE, "status", *(("silent", "bad") if silent else (entry.status, TAGS.get(entry.status, ""))))


def way_back(base: str) -> Markup:
    return piece(TEMPLATE, "way_back", base)


def group_links(group: GroupSummary, base: str) -> Markup:
    """Return links to the runs of several seeds or of a study, and what its page does not show yet."""
    return piece(TEMPLATE, "group_links", group, [link(name, base) for name in group.runs[:MOST_LINKS]])


def list_view(
    root: Path, runs: Sequence[RunSummary], found: RunFolders, base: str, groups: Sequence[GroupSummary] = ()
) -> View:
    place = root.absolute()
    name, training = place.name or "Runs", sum(run.running for run in runs)
    head = piece(TEMPLATE, "list_head", f"{counted(len(runs), 'run', 'runs')} in {place}, {training} training")
    links = counted(found.links, "link leads out of the folder and is", "links lead out of the folder and are")
    command = f"glassloop train quickstart --output_dir {near_name(str(place))}/first"
    rows = [list_row(group, base) for group in groups] + [list_row(run, base) for run in runs]
    body = piece(TEMPLATE, "list", rows, command, f"{links} not followed." if found.links else "", found.complete)
    tools = piece(TEMPLATE, "list_tools") if rows else ""
    tab = printable(f"({training}) {name}" if training else name)
    return View(name, head, [Section("list", "All runs", body)], seconds_between_updates(runs) * 2, tools, tab)


def list_row(entry: RunSummary | GroupSummary, base: str) -> list[Cell]:
    """Return a row of the list, for a run, or for several seeds or a study, which cannot be compared side by side."""
    if isinstance(entry, GroupSummary):
        progress = Number(100 * entry.done / max(entry.number, 1), entry.progress)
        result, kind = Number(entry.value, entry.result), entry.kind
        source, model, seconds = entry.source, entry.model, entry.seconds
    else:
        progress, result, kind = Number(percent(entry), list_progress(entry)), result_of(entry), ""
        record = entry.record
        source, model, seconds = (record.data.source, record.model.name, record.seconds) if record else ("", "", None)
    began = moment(entry.started)
    return [
        piece(TEMPLATE, "box", entry.name, quoted(entry.name), isinstance(entry, GroupSummary)),
        link(entry.name, base, kind),
        status_tag(entry),
        progress,
        result,
        near_name(source),
        near_name(model),
        Number(began, local_time(began)),
        Number(seconds, duration(seconds) if seconds else ""),
    ]


def title_of(name: str, run: RunSummary) -> str:
    if name == LOSS or name in LAST:
        return LAST.get(name, "Training loss")
    measures = Measures(run.record.metrics, run.record.positive_label) if run.record else Measures(())
    title = measures.title(name.removeprefix(EVALUATION)).replace("_", " ")
    title = f"evaluation {title}" if name.endswith(LOSS) else title
    return title[:1].upper() + title[1:]


def ordered(names: Sequence[str]) -> list[str]:
    """Return the names of curves in the order of their charts, without timings."""
    known = [name for name in dict.fromkeys(names) if not is_timing(name)]
    rest = [name for name in known if name not in (*LOSSES, *LAST)]
    return [name for name in (*LOSSES, *sorted(rest, key=lambda name: not name.startswith(EVALUATION)), *LAST) if name in known]


def run_figures(run: RunSummary, curves: Curves) -> Markup:
    """Return the charts of one run as its report shows them, with resumes and the best of several evaluations marked."""
    history: list[Entry] = [{"step": step, name: value} for name, points in curves.points.items() for step, value in points]
    if record := run.record:
        points = curves.points.get(record.plan.best_metric, [])
        sign = 1 if record.plan.greater_is_better else -1
        best = max(points, key=lambda point: sign * point[1]) if len(points) > 1 else None
        record = replace(record, best_step=int(best[0]) if best else None)
    resumed = [step for step in run.resumed if step <= curves.step]
    return learning_curves(RunSource(run.folder, record, run.status, history, resumed), Drawn())


def compared_figures(runs: Sequence[RunSummary], every: Sequence[Curves]) -> list[Markup]:
    figures, steps = [], Axis("step", COUNT, 0, max(1, *(curves.step for curves in every)))
    for name in ordered([name for curves in every for name in curves.points]):
        lines = []
        for place, (run, curves) in enumerate(zip(runs, every, strict=True)):
            if points := curves.points.get(name):
                # The many values of single steps are smoothed; few values have dots.
                line = smoothed(points) if name in (LOSS, "grad_norm") else points
                raw = points if line is not points else ()
                lines.append(Series(run.name, line, raw=raw, dots=name in curves.sparse, color=place))
        latest = "; ".join(f"{line.name}: {line.points[-1][1]:.4g} at step {line.points[-1][0]:,g}" for line in lines)
        title = title_of(name, runs[0])
        figures.append(figure(LineChart(title, f"{title} by step. Latest: {latest}.", steps, Axis(), lines)))
    return figures


def run_view(run: RunSummary, curves: Curves, base: str, problem: str = "") -> View:
    """Return a run while it trains, or one that has no report. `problem` says why there is none."""
    resumable = run.record and not run.by_trainer and not run.running and run.status not in (FINISHED, DAMAGED)
    command = f"glassloop train --resume {shlex.quote(str(run.folder))}" if resumable else ""
    words = (progress_words(run), status_words(run), problem, command)
    head = way_back(base) + piece(TEMPLATE, "run_head", run, status_tag(run), *words)
    names = [name for name in ordered([*curves.points]) if name.startswith(EVALUATION)]
    values = [dict(curves.points[name]) for name in names]
    steps = sorted({step for points in values for step in points}, reverse=True)[:MOST_EVALUATIONS]
    rows = [[step, *(score(points.get(step)) for points in values)] for step in steps]
    labels = listed(run.record.data.labels, 8) if run.record and run.record.data.labels else ""
    about = piece(TEMPLATE, "about", run, str(run.folder.absolute()), local_time(moment(run.started)), labels)
    baselines = gained(RunSource(run.folder, run.record, run.status, (), ()), (), Drawn())
    sections = [
        Section("curves", "Learning curves", piece(TEMPLATE, "run_curves", run_figures(run, curves), curves.damaged)),
        *([Section("baselines", "Baselines", baselines)] if baselines else []),
        Section("evaluations", "Evaluations", piece(TEMPLATE, "evaluations", [title_of(name, run) for name in names], rows)),
        Section("about", "The run", about),
    ]
    tab = f"{percent(run)}% {run.name}" if run.running else f"{run.status}: {run.name}"
    seconds = LIVE_SECONDS / 4 if not curves.complete else seconds_between_updates([run])
    return View(run.name, head, sections, seconds, tab=printable(tab))


def compare_view(runs: Sequence[RunSummary], every: Sequence[Curves], base: str) -> View:
    names = [run.name for run in runs]
    states: list[list[Cell]] = []
    for run in runs:
        seconds = run.record.seconds if run.record else None
        states.append([link(run.name, base), status_tag(run), list_progress(run), duration(seconds) if seconds else ""])
    address = f"{base}comparison?" + "&".join(f"run={quote(quoted(name), safe='')}" for name in names)
    command = f"glassloop compare {shlex.join(str(run.folder) for run in runs)}"
    finished = all(run.status == FINISHED for run in runs)
    curves = piece(TEMPLATE, "compared_curves", compared_figures(runs, every))
    results = piece(TEMPLATE, "compared_results", names, compared_results(runs, every))
    different = different_facts([facts_of(run.record) if run.record else {} for run in runs])
    settings = piece(TEMPLATE, "compared_settings", names, [[name, *values] for name, values in different.items()])
    sections = [
        Section("curves", "Learning curves", curves),
        Section("results", "Results", results),
        Section("settings", "Settings that differ", settings),
        Section("test", "Is one better?", piece(TEMPLATE, "comparison", finished, address, command)),
    ]
    head = way_back(base) + piece(TEMPLATE, "compared_head", states)
    return View(" and ".join(names), head, sections, seconds_between_updates(runs))


def compared_results(runs: Sequence[RunSummary], every: Sequence[Curves]) -> list[list[Cell]]:
    metrics = []
    for run, curves in zip(runs, every, strict=True):
        latest = {name: curves.latest[name] for name in ordered([*curves.latest]) if name.startswith(EVALUATION)}
        metrics.append(short_metrics(run.record.evaluation if run.record and run.record.evaluation else latest))
    names = dict.fromkeys(name for scores in metrics for name in scores)
    return [[title_of(f"{EVALUATION}{name}", runs[0]), *(score(scores.get(name)) for scores in metrics)] for name in names]
