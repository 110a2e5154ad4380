"""The curves of one or several runs as charts: losses, metrics, learning rate and gradient norm by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from glassloop.charts.figure import figure
from glassloop.charts.line import LineChart, Series, smoothed
from glassloop.charts.scales import COUNT, Axis
from glassloop.measures import LOSS, Measures
from glassloop.pages.parts import grid
from glassloop.report.curves import curves as learning_curves
from glassloop.report.drawn import Drawn
from glassloop.report.source import RunSource
from glassloop.run_folder.history import Entry
from glassloop.run_folder.record import RunRecord, is_timing
from glassloop.run_folder.summary import RunSummary
from glassloop.run_folder.tail import Curves

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
