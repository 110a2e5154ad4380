"""The results of a run with their 95 % intervals beside a baseline, and the first section, which shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from glassloop.markup.templates import bars_escaped, latex_table, markdown_table
from glassloop.report.about import Drawn
from glassloop.report.charts.figure import Axis
from glassloop.report.charts.points import DotChart, Dots
from glassloop.report.page import Cell, Number, card, cards, grid, paragraph, score, table
from glassloop.runs.record import FAILED, KILLED, RUNNING, STOPPED
from glassloop.scores.metrics import short_metrics
from glassloop.scores.result import Score
from glassloop.settings.training import SCORE, SEVERAL

if TYPE_CHECKING:
    from glassloop.report.source import RunSource


def results_of(source: RunSource) -> list[Score]:
    """Return the metrics of a run's final evaluation on each split. Empty if there is none."""
    record = source.record
    if record is None or record.evaluation is None:
        return []
    if found := [score for result in source.results for score in result.scores]:
        return found
    # The predictions are missing or damaged, so there are no intervals.
    stored, baseline = short_metrics(record.evaluation), record.baseline or {}
    keys = [key for key in stored if source.measures.parted(key)[1] in record.metrics]
    return [Score("validation", key, source.measures.title(key), stored[key], baseline=baseline.get(key)) for key in keys]


def baseline_name(task: str) -> str:
    """Return what the baseline answers, in general."""
    return {SCORE: "mean of the training scores", SEVERAL: "most frequent labels"}.get(task, "majority class")


# --- as text -----------------------------------------------------------------------------------------------------------


def cells_of(results: Sequence[Score]) -> list[list[str]]:
    """Return the table of results, its head first. Columns without values are omitted."""
    rows = [["split", "metric", "value", "95 % interval", "baseline", "seeds"]]
    for result in results:
        seeds = ", ".join(f"{value:.4f}" for value in result.points)
        baseline = "" if result.baseline is None else f"{result.baseline:.4f}"
        rows.append([result.split, result.title, f"{result.value:.4f}", result.interval or result.note, baseline, seeds])
    used = [place for place in range(6) if place < 3 or any(row[place] for row in rows[1:])]
    return [[row[place] for place in used] for row in rows]


def markdown(results: Sequence[Score]) -> str:
    """Return the results as a Markdown table."""
    head, *rows = cells_of(results)
    return f"{markdown_table(head, rows, 2, bars_escaped)}\n"


def latex(results: Sequence[Score]) -> str:
    """Return the results as a LaTeX table. It needs the package booktabs."""
    head, *rows = cells_of(results)
    return latex_table(head, rows, "ll" + "r" * (len(head) - 2))


MOST_CARDS = 4

UNFINISHED = {
    RUNNING: "The run is being trained.",
    STOPPED: "The run was stopped before its end and can be resumed.",
    FAILED: "The run ended with an error before its end and can be resumed.",
    KILLED: "The run was killed before its end and can be resumed.",
}

WITHIN_ONE = 1.0  # scores above this are errors or losses and have another axis


def headline(source: RunSource, results: Sequence[Score], drawn: Drawn) -> str:
    """Return the results of a run, or how far it is."""
    if not results:
        return progress(source)
    record = source.record
    first = [result for result in results if result.split == results[0].split]
    shown = cards([card(result.title, f"{result.value:.4f}", small_print(result)) for result in first[:MOST_CARDS]])
    sentence = paragraph(f"{record.verdict}.", "lead") if record and record.verdict else ""
    advice = "".join(paragraph(f"Try: {text}", "soft") for text in (record.advice if record else ()))
    task = record.data.task if record else ""
    return shown + sentence + advice + grid(*results_charts(results, drawn, baseline_name(task)), results_table(results))


def small_print(result: Score) -> str:
    """Return the interval and the baseline of a metric."""
    parts = [f"95 % interval {result.interval}" if result.interval else f"no interval: {result.note}" if result.note else ""]
    parts += [f"baseline {result.baseline:.4f}" if result.baseline is not None else ""]
    return "; ".join(filter(None, parts))


def results_charts(results: Sequence[Score], drawn: Drawn, baseline: str) -> list[str]:
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
            note = f"Vertical mark: {baseline}." if any(result.baseline is not None for result in group) else ""
            charts.append(drawn.figure("metrics", chart, note))
    return charts


def reach(result: Score) -> float:
    """Return the largest absolute value that a metric shows."""
    values = (result.value, result.low, result.high, result.baseline, *result.points)
    return max(abs(value) for value in values if value is not None)


def results_table(results: Sequence[Score]) -> str:
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
