"""The first section: the metrics of a run with their intervals beside the baseline, and one sentence about them."""

from __future__ import annotations

from collections.abc import Sequence

from glassloop.charts.dots import DotChart, Dots
from glassloop.charts.scales import Axis
from glassloop.measures import short_metrics
from glassloop.pages.parts import Cell, Number, card, cards, grid, paragraph, score, table
from glassloop.report.drawn import Drawn
from glassloop.report.results import Result, baseline_name, interpretation
from glassloop.report.source import RunSource
from glassloop.run_folder.record import RUNNING
from glassloop.run_folder.seeds_json import FAILED, STOPPED
from glassloop.run_folder.status import KILLED

MOST_CARDS = 4
UNFINISHED = {
    RUNNING: "The run is being trained.",
    STOPPED: "The run was stopped before its end and can be resumed.",
    FAILED: "The run ended with an error before its end and can be resumed.",
    KILLED: "The run was killed before its end and can be resumed.",
}
WITHIN_ONE = 1.0  # scores above this are errors or losses and have another axis


def headline(source: RunSource, results: Sequence[Result], drawn: Drawn) -> str:
    """Return the results of a run, or how far it is."""
    if not results:
        return progress(source)
    record = source.record
    first = [result for result in results if result.split == results[0].split]
    shown = cards([card(result.title, f"{result.value:.4f}", small_print(result)) for result in first[:MOST_CARDS]])
    sentence = paragraph(interpretation(source, results), "lead")
    advice = "".join(paragraph(f"Try: {text}", "soft") for text in (record.advice if record else ()))
    task = record.data.task if record else ""
    return shown + sentence + advice + grid(*results_charts(results, drawn, baseline_name(task)), results_table(results))


def small_print(result: Result) -> str:
    """Return the interval and the baseline of a metric."""
    parts = [f"95 % interval {result.interval}" if result.interval else f"no interval: {result.note}" if result.note else ""]
    parts += [f"baseline {result.baseline:.4f}" if result.baseline is not None else ""]
    return "; ".join(filter(None, parts))


def results_charts(results: Sequence[Result], drawn: Drawn, baseline: str) -> list[str]:
    """Return the metrics with their intervals: those between 0 and 1, and each of the others on its own axis."""
    within = [result for result in results if reach(result) <= WITHIN_ONE]
    groups = [within, *([result] for result in results if reach(result) > WITHIN_ONE)]
    several = len({result.split for result in results}) > 1
    charts = []
    for group in groups:
        rows = [
            Dots(
                f"{result.title}, {result.split}" if several else result.title,
                *(result.value, result.low, result.high, result.points, result.baseline),
            )
            for result in group
        ]
        if rows:
            told = "; ".join(
                f"{result.title} {result.value:.4f} ({result.interval or result.note or 'no interval'})" for result in group
            )
            chart = DotChart("Metrics with 95 % intervals", told, rows, Axis("score"), baseline_name=baseline)
            charts.append(drawn.figure("metrics", chart, f"Vertical mark: {baseline}." if has_baseline(group) else ""))
    return charts


def has_baseline(group: Sequence[Result]) -> bool:
    """Return whether a metric of a group has a baseline."""
    return any(result.baseline is not None for result in group)


def reach(result: Result) -> float:
    """Return the largest absolute value that a metric shows."""
    values = (result.value, result.low, result.high, result.baseline, *result.points)
    return max(abs(value) for value in values if value is not None)


def results_table(results: Sequence[Result]) -> str:
    """Return the results as a table."""
    several, seeds = len({result.split for result in results}) > 1, any(result.points for result in results)
    head = [*(["split"] if several else []), "metric", "value", "95 % interval", "baseline", *(["seeds"] if seeds else [])]
    rows: list[list[Cell]] = [
        [
            *([result.split] if several else []),
            result.title,
            score(result.value),
            Number(result.low, result.interval or result.note or "–"),
            score(result.baseline),
            *([", ".join(f"{value:.4f}" for value in result.points)] if seeds else []),
        ]
        for result in results
    ]
    return table(head, rows)


def progress(source: RunSource) -> str:
    """Return how far a run without results is: its steps and the latest evaluation."""
    record, last = source.record, source.history[-1] if source.history else {}
    step = last.get("step", 0)
    steps = f"{step:,} of {record.plan.max_steps:,}" if record and isinstance(step, int) else f"{step}"
    evaluations = [entry for entry in source.history if any(name.startswith("eval_") for name in entry)]
    numbers = {name: value for name, value in (evaluations[-1] if evaluations else {}).items() if isinstance(value, float)}
    found = {name: value for name, value in short_metrics(numbers).items() if name != "epoch"}
    shown = [card("steps", steps)] + [card(source.measures.title(name), f"{value:.4f}") for name, value in found.items()]
    sentence = UNFINISHED.get(source.status, "There is no final evaluation.")
    note = "The metrics are those of the latest evaluation." if found else "There is no evaluation yet."
    return cards(shown[: MOST_CARDS + 1]) + paragraph(f"{sentence} {note}", "lead")
