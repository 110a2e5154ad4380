"""What the pages show: the list of runs, one run while it trains, and several side by side."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from hashlib import blake2b
from os import fsencode
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from glassloop.base.errors import counted, listed, printable
from glassloop.base.files import near_name
from glassloop.markup.templates import html, package_text
from glassloop.report.charts import COUNT, Axis, LineChart, Series, figure, smoothed
from glassloop.report.page import (
    Cell,
    Number,
    Section,
    code_block,
    fact_list,
    filters,
    grid,
    number,
    page,
    paragraph,
    score,
    table,
    tag,
)
from glassloop.report.source import Drawn, RunSource
from glassloop.report.source import curves as learning_curves
from glassloop.runs.history import Curves, Entry
from glassloop.runs.listing import RunFolders, duration
from glassloop.runs.record import DAMAGED, FAILED, FINISHED, KILLED, RUNNING, STOPPED, RunRecord, is_timing
from glassloop.runs.status import RunSummary
from glassloop.scores.metrics import LOSS, Measures, short_metrics
from glassloop.web.watch import GroupSummary

TAGS = {RUNNING: "live", FINISHED: "good", KILLED: "bad", FAILED: "bad", DAMAGED: "bad"}
SHOWN_METRICS = 1  # of the result in the list; two make the table wider than a page


def moment(text: str) -> float | None:
    """Return a time of a record in seconds, or None if it is not a time."""
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def local_time(seconds: float) -> str:
    """Return a time as this machine's clock shows it."""
    try:
        return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return ""


def percent(run: RunSummary) -> int:
    """Return how much of the training is done, in percent."""
    return min(100, int(100 * run.step / run.max_steps)) if run.max_steps > 0 else 0


def progress_words(run: RunSummary) -> str:
    """Return `step 120 of 400, epoch 1.20, 34 steps/s, about 2 min left`."""
    parts = [f"step {run.step:,}" + (f" of {run.max_steps:,}" if run.max_steps else "")]
    parts += [f"epoch {run.epoch:.2f}"] if run.epoch else []
    if run.running and run.step_seconds:
        fast = run.step_seconds <= 1
        parts.append(f"{1 / run.step_seconds:.3g} steps/s" if fast else f"{run.step_seconds:.3g} s per step")
        if run.seconds_left:
            parts.append(f"about {duration(run.seconds_left)} left")
    return ", ".join(parts)


def list_progress(run: RunSummary) -> str:
    """Return `30 %, 2 min left` for the list."""
    if not run.max_steps:
        return f"step {run.step:,}" if run.step else ""
    left = f", {duration(run.seconds_left)} left" if run.seconds_left else ""
    return f"{percent(run)} %{left}"


def status_words(run: RunSummary) -> str:
    """Return what the status of a run means, in a sentence or two."""
    after = f" after step {run.step:,}" if run.step else " before its first log entry"
    if run.status == DAMAGED:
        return f"The record of this run cannot be read. {run.problem}"
    if run.silent:
        return (
            f"It has written nothing for {duration(run.silent)}. Another machine trains it, so this page cannot tell "
            "whether it is still running."
        )
    if run.running and run.max_steps and run.step >= run.max_steps:
        return "All steps are done. The model is being evaluated and saved."
    if run.running:
        return "" if run.step else "It is starting: there is no log entry yet."
    return {
        KILLED: f"Its process was killed{after}.",
        STOPPED: f"It was stopped{after}.",
        FAILED: f"An error ended it{after}. The terminal that trained it shows the message.",
    }.get(run.status, "")


def result_of(run: RunSummary) -> tuple[float | None, str]:
    """Return the main result of a run, as a number to sort by and as text; while it trains, its latest values."""
    record = run.record
    if record and record.evaluation:
        measures = Measures(record.metrics, record.positive_label)
        scores = {name: value for name, value in short_metrics(record.evaluation).items() if name != LOSS}
        shown = [f"{measures.title(name)} {value:.4f}" for name, value in [*scores.items()][:SHOWN_METRICS]]
        return next(iter(scores.values()), None), ", ".join(shown)
    shown = [f"{name.removeprefix('eval_')} {value:.4f}" for name, value in run.latest.items() if is_shown(name)]
    return None, ", ".join(shown[:SHOWN_METRICS])


def is_shown(name: str) -> bool:
    """Return whether a value of the history says how well a training goes."""
    return name == LOSS or name.startswith("eval_")


def rows_words(run: RunSummary) -> str:
    """Return how many rows each split of the data has."""
    splits = run.record.data.splits if run.record else {}
    return ", ".join(f"{name}: {counted(split.num_rows, 'row', 'rows')}" for name, split in splits.items())


STYLE = package_text("web", "live.css")
SCRIPT = package_text("web", "live.js")


@dataclass(frozen=True)
class View:
    """What a page shows now."""

    title: str  # the heading
    head: str  # HTML below the heading
    sections: Sequence[Section]  # the parts of the page. All views of a page have the same ones.
    seconds: float  # how long to wait before the next update
    tools: str = ""  # HTML at the beginning of the first section that updates leave alone
    tab: str = ""  # what the tab of the browser says; by default the heading
    reload: bool = False  # whether the page is another one now: the report of a run that has ended

    def page(self) -> str:
        """Return the page as it is opened."""
        parts = [replace(section, body=part(section.name, section.body)) for section in self.sections]
        parts[0] = replace(parts[0], body=self.tools + parts[0].body)
        note = '<p class="note" id="connection" role="status"></p>'
        return page(self.title, parts, subtitle=part("head", self.head) + note, connect=True, style=STYLE, script=SCRIPT)

    def update(self) -> str:
        """Return the parts of the page as JSON, for the script."""
        parts = {"head": self.head, **{section.name: section.body for section in self.sections}}
        content = {"tab": self.tab or self.title, "seconds": self.seconds, "reload": self.reload, "parts": parts}
        return json.dumps(content)

    @cached_property
    def answer(self) -> tuple[bytes, str]:
        """The update and its tag, made once for all readers."""
        body = self.update().encode()
        return body, f'"{blake2b(body, digest_size=12).hexdigest()}"'


def part(name: str, body: str) -> str:
    """Return HTML that the script of the page can replace."""
    return html('<div data-part="{}">{}</div>', name, Markup(body))


EVALUATION = "eval_"
LOSSES = (LOSS, f"{EVALUATION}{LOSS}")
SMOOTHED = (LOSS, "grad_norm")
LAST = {"learning_rate": "Learning rate", "grad_norm": "Gradient norm"}  # shown after the metrics


def title_of(name: str, run: RunSummary) -> str:
    """Return the name of a curve for a person."""
    if name in LAST:
        return LAST[name]
    if name == LOSS:
        return "Training loss"
    measures = Measures(run.record.metrics, run.record.positive_label) if run.record else Measures(())
    shown = measures.title(name.removeprefix(EVALUATION)).replace("_", " ")
    shown = f"evaluation {shown}" if name.endswith(LOSS) else shown
    return shown[:1].upper() + shown[1:]


def ordered(names: Sequence[str]) -> list[str]:
    """Return the names of curves in the order of their charts, without timings."""
    shown = [name for name in dict.fromkeys(names) if not is_timing(name)]
    rest = [name for name in shown if name not in (*LOSSES, *LAST)]
    return [name for name in (*LOSSES, *sorted(rest, key=lambda name: not name.startswith(EVALUATION)), *LAST) if name in shown]


def run_figures(run: RunSummary, curves: Curves) -> str:
    """Return the charts of one run as its report shows them, with resumes and the best evaluation so far marked."""
    history: list[Entry] = [{"step": step, name: value} for name, points in curves.points.items() for step, value in points]
    record = replace(run.record, best_step=best_step(run.record, curves)) if run.record else None
    resumed = [step for step in run.resumed if step <= curves.step]
    return learning_curves(RunSource(run.folder, record, run.status, history, resumed), Drawn())


def compared_figures(runs: Sequence[RunSummary], every: Sequence[Curves]) -> str:
    """Return one chart per curve with a line for each run."""
    drawn, last = [], max(curves.step for curves in every)
    for name in ordered([name for curves in every for name in curves.points]):
        series = [
            series_of(name, run.name, curves, color=place)
            for place, (run, curves) in enumerate(zip(runs, every, strict=True))
            if name in curves.points
        ]
        drawn.append(chart(title_of(name, runs[0]), series, last))
    return grid(*drawn)


def series_of(name: str, title: str, curves: Curves, color: int | None = None) -> Series:
    """Return a curve as a line: the many values of single steps are smoothed, few values have dots."""
    points = curves.points[name]
    line = smoothed(points) if name in SMOOTHED else points
    return Series(title, line, raw=points if line is not points else (), dots=name in curves.sparse, color=color)


def chart(title: str, series: Sequence[Series], last: int) -> str:
    """Return a chart from the start to the last step."""
    latest = "; ".join(f"{line.name}: {line.points[-1][1]:.4g} at step {line.points[-1][0]:,g}" for line in series)
    steps = Axis("step", COUNT, 0, max(last, 1))
    return figure(LineChart(title, f"{title} by step. Latest: {latest}.", steps, Axis(), series))


def best_step(record: RunRecord, curves: Curves) -> int | None:
    """Return the step of the best of several evaluations, by the metric that counts for the run."""
    points = curves.points.get(record.plan.best_metric, [])
    if len(points) < 2:
        return None
    return int(max(points, key=lambda point: point[1] if record.plan.greater_is_better else -point[1])[0])


def latest_metrics(curves: Curves) -> dict[str, float]:
    """Return the latest value of each metric of an evaluation."""
    return {name: curves.latest[name] for name in ordered([*curves.latest]) if name.startswith(EVALUATION)}


LIVE_SECONDS, QUIET_SECONDS = 1.0, 4.0  # between two updates of a page, with and without a run that trains
MOST_EVALUATIONS = 30
MOST_LINKS = 40


def quoted(name: str) -> str:
    """Return the name of a run as a part of an address. It may contain any bytes."""
    return quote(fsencode(name))


def link(name: str, base: str) -> str:
    """Return a link to a run, or to several."""
    return html('<a href="{}run/{}">{}</a>', base, quoted(name), name)


def group_links(group: GroupSummary, base: str) -> str:
    """Return links to the runs of several seeds or of a study, and what its page does not show yet."""
    shown = ", ".join(link(name, base) for name in group.runs[:MOST_LINKS])
    more = f" and {len(group.runs) - MOST_LINKS:,} more in the list" if len(group.runs) > MOST_LINKS else ""
    late = " Reload this page for later results." if group.status == RUNNING else ""
    about = paragraph(f"{group.progress} finished.{late}", "way") if group.status != FINISHED and group.number else ""
    return about + (f'<p class="way">Runs: {shown}{more}</p>' if shown else "")


def way_back(base: str) -> str:
    """Return the link to the list."""
    return html('<p class="way"><a href="{}">← All runs</a></p>', base)


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


def list_view(
    root: Path, runs: Sequence[RunSummary], found: RunFolders, base: str, groups: Sequence[GroupSummary] = ()
) -> View:
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
    box = html('<input type="checkbox" value="{}" aria-label="{}" disabled>', quoted(group.name), group.name)
    began, share = moment(group.started), 100 * group.done / max(group.number, 1)
    return [
        Markup(box),
        Markup(f"{link(group.name, base)} {tag(group.kind)}"),
        Markup(tag(group.status, TAGS.get(group.status, ""))),
        Number(share, group.progress),
        Number(group.value, group.result),
        near_name(group.source),
        near_name(group.model),
        Number(began, local_time(began) if began else ""),
        Number(group.seconds, duration(group.seconds) if group.seconds else ""),
    ]


def list_row(run: RunSummary, base: str) -> list[Cell]:
    """Return a row of the list."""
    box = html('<input type="checkbox" value="{}" aria-label="Compare {}">', quoted(run.name), run.name)
    record, began = run.record, moment(run.started)
    value, result = result_of(run)
    seconds = record.seconds if record else None
    return [
        Markup(box),
        Markup(link(run.name, base)),
        Markup(status_tag(run)),
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
    head = way_back(base) + html("<p>{} {}</p>", Markup(status_tag(run)), progress_words(run)) + bar(run)
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


OWN_SETTINGS = ("output_dir", "overwrite_output_dir", "disable_tqdm", "run_name")  # differ in every run


def compare_view(runs: Sequence[RunSummary], every: Sequence[Curves], base: str) -> View:
    """Return several runs side by side."""
    rows = [progress_row(run, base) for run in runs]
    head = way_back(base) + table(("Run", "Status", "Progress", "Time"), rows)
    curves = compared_figures(runs, every) or paragraph("There is nothing to draw yet.", "soft")
    sections = [
        Section("curves", "Learning curves", curves),
        Section("results", "Results", results(runs, every) or paragraph("There is no evaluation yet.", "soft")),
        Section("settings", "Settings that differ", settings(runs)),
        Section("test", "Is one better?", comparison(runs, base)),
    ]
    return View(" and ".join(run.name for run in runs), head, sections, seconds_between_updates(runs))


def progress_row(run: RunSummary, base: str) -> list[Cell]:
    """Return where a run stands."""
    seconds = run.record.seconds if run.record else None
    return [Markup(link(run.name, base)), Markup(status_tag(run)), list_progress(run), duration(seconds) if seconds else ""]


def results(runs: Sequence[RunSummary], every: Sequence[Curves]) -> str:
    """Return the metrics of the final evaluation of each run or, while it trains, of its latest evaluation."""
    found = [
        short_metrics(run.record.evaluation if run.record and run.record.evaluation else latest_metrics(curves))
        for run, curves in zip(runs, every, strict=True)
    ]
    names = dict.fromkeys(name for metrics in found for name in metrics)
    rows: list[list[Cell]] = [
        [title_of(f"eval_{name}", runs[0]), *(score(metrics.get(name)) for metrics in found)] for name in names
    ]
    return table(["Metric", *(run.name for run in runs)], rows)


def settings(runs: Sequence[RunSummary]) -> str:
    """Return the settings, data and models that are not the same in all runs."""
    described = [values_of(run) for run in runs]
    names = dict.fromkeys(name for values in described for name in values)
    differ = [name for name in names if len({values.get(name, "–") for values in described}) > 1]
    rows: list[list[Cell]] = [[name, *(values.get(name, "–") for values in described)] for name in differ]
    same = paragraph("All settings, the data and the model are the same.", "soft")
    return table(["Setting", *(run.name for run in runs)], rows) or same


def comparison(runs: Sequence[RunSummary], base: str) -> str:
    """Return where to find a test of the difference, once all runs are finished."""
    if not all(run.status == FINISHED for run in runs):
        return paragraph("The results can be compared with a test when all runs are finished.", "soft")
    address = f"{base}comparison?" + "&".join(f"run={quote(quoted(run.name), safe='')}" for run in runs)
    command = code_block(f"glassloop compare {shlex.join(str(run.folder) for run in runs)}")
    return html('<p><a class="action" href="{}">Compare the results with a test</a></p>', address) + command


def values_of(run: RunSummary) -> dict[str, str]:
    """Return everything that may differ between two runs, as text."""
    record = run.record
    if record is None:
        return {}
    values: dict[str, object] = {"data": record.data.source, "model": record.model.name}
    values |= {name: value for name, value in asdict(record.settings).items() if name not in OWN_SETTINGS}
    values["max_length"] = record.max_length  # as it was chosen
    values |= {f"rows of {name}": split.fingerprint[:8] for name, split in record.data.splits.items()}
    values |= {"device": record.device, "precision": record.precision, "backend": record.backend}
    return {name: str(value) for name, value in values.items()}
