"""The results of a run with their 95 % intervals beside a baseline, and how far its probabilities can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from glassloop.base.errors import GlassloopError, listed
from glassloop.markup.templates import bars_escaped, latex_table, markdown_table
from glassloop.report.charts import (
    PERCENT,
    Axis,
    Bars,
    Cloud,
    DotChart,
    Dots,
    Event,
    Histogram,
    LineChart,
    ScatterChart,
    Series,
    even_edges,
)
from glassloop.report.page import Cell, Number, card, cards, grid, heading, paragraph, score, table
from glassloop.report.source import Drawn, RunSource
from glassloop.runs.record import FAILED, KILLED, MODEL_NAME, RUNNING, STOPPED, Calibration, read_calibration
from glassloop.scores.calibration import (
    LEAST_SURE,
    MOST_SURE,
    confidences,
    fitted_temperature,
    negative_log_likelihood,
    reliability,
    threshold_curve,
)
from glassloop.scores.intervals import ScoredRows, wilson
from glassloop.scores.metrics import Array, probabilities, short_metrics
from glassloop.scores.result import Score
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

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


MOST_THRESHOLDS = 100


def calibration_of(source: RunSource) -> tuple[Calibration | None, str]:
    """Return the stored calibration of a run, if it can be read, and otherwise a paragraph that says why not."""
    try:
        return read_calibration(source.folder / MODEL_NAME, source.record.files if source.record else None), ""
    except GlassloopError as error:
        return None, paragraph(f"Could not be read: {error.problem}; {error.remedy}.", "soft")


def marked(chart: LineChart, found: Calibration | None, name: str) -> LineChart:
    """Return the chart of thresholds with a vertical line at the stored one, if there is one."""
    if found is None or name not in found.thresholds:
        return chart
    return replace(chart, events=[Event(round(found.thresholds[name], 4), "calibrated")])


def calibrated_part(found: Calibration, rows: ScoredRows, split: str, drawn: Drawn, chart: LineChart) -> str:
    """Return what the calibration is for, what it gains, and the reliability with it.

    Args:
        chart: The reliability of the calibrated rows.
    """
    errors = [reliability(*confidences(rows, value)).error for value in (1.0, found.temperature)]
    words = f"Predictions divide the logits by the temperature {found.temperature:.4g}"
    if found.target is not None:
        words += f", and use thresholds for the {found.target}"
    words += f". Fitted on {found.num_rows:,} rows of {found.split}."
    words += " The rest of this report, except for the chart of thresholds, describes the model without calibration."
    lead = f"On these rows, the expected calibration error changes from {errors[0]:.3f} to {errors[1]:.3f}."
    note = "" if split != found.split else "The chart shows the rows that the temperature was fitted on; the table does not."
    figure = drawn.figure(
        "reliability-calibrated", replace(chart, title=f"Calibrated {chart.title[0].lower()}{chart.title[1:]}"), note
    )
    return heading("Calibration") + paragraph(words) + paragraph(lead) + grid(figure, gains_table(found), limits_table(found))


def gains_table(found: Calibration) -> str:
    """Return the scores before and after, on rows that were not used for fitting."""
    rows: list[list[Cell]] = [
        [
            gain.name if gain.name != "f1" else "F1",
            score(gain.before),
            score(gain.after),
            Number(gain.change, f"{gain.change:+.4f}"),
            "" if gain.low is None or gain.high is None else f"{gain.low:+.4f} to {gain.high:+.4f}",
        ]
        for gain in found.gains
    ]
    head = [f"not fitted on, {found.folds} folds", "before", "after", "change", "95 % interval"]
    return table(head, rows)


def limits_table(found: Calibration) -> str:
    """Return the threshold of each label; empty without thresholds."""
    shown = [*found.thresholds.items()][:MOST_THRESHOLDS]
    rows: list[list[Cell]] = [[name, score(value)] for name, value in shown]
    if rest := [*found.thresholds][MOST_THRESHOLDS:]:
        rows.append([f"and {listed(rest, 3)}", ""])
    return table(["label", "threshold"], rows) if rows else ""


BINS, MOST_POINTS = 20, 1_000
FEW_ROWS = 20
MOST_ROWS, MOST_LOGITS = 20_000, 500_000  # for the temperature, which is found in many passes


def confidence(source: RunSource, drawn: Drawn) -> str:
    """Return how far the probabilities of a classifier, or the scores of a regression, can be trusted."""
    if not source.results:
        return ""
    rows = source.results[0].rows
    if rows.task == SCORE:
        return score_parts(rows, drawn)
    confident, right = confidences(rows)
    parts = [drawn.figure("reliability", *reliability_chart(confident, right))]
    parts.append(drawn.figure("confidence", histogram(confident, right)))
    positive = positive_place(source, rows)
    found, problem = calibration_of(source)
    calibrated = rows if found is None else replace(rows, logits=rows.logits / found.temperature)  # answers stay as they are
    if positive is not None:
        chart, note = threshold_chart(calibrated, positive)
        parts.append(drawn.figure("thresholds", marked(chart, found, rows.labels[positive]), note))
    parts.append(drawn.figure("coverage", coverage_chart(confident, right)))
    stored = ""
    if found is not None:
        chart, _ = reliability_chart(*confidences(calibrated))
        stored = calibrated_part(found, rows, source.results[0].split, drawn, chart)
    return calibration_sentence(rows) + problem + grid(*parts) + stored


def positive_place(source: RunSource, rows: ScoredRows) -> int | None:
    """Return the class whose threshold is shown: the one F1 refers to, else the second of two; None for more classes."""
    if rows.task != CLASSES or len(rows.labels) != 2:
        return None
    name = source.measures.positive
    return rows.labels.index(name) if name in rows.labels else 1


def calibration_sentence(rows: ScoredRows) -> str:
    """Return the expected calibration error before and after dividing the logits by the best temperature."""
    every = len(rows)
    if rows.logits.size > MOST_LOGITS or every > MOST_ROWS:
        number = min(MOST_ROWS, max(MOST_LOGITS // rows.logits.shape[1], 1))
        kept = np.random.default_rng(0).choice(every, number, replace=False)
        rows = replace(rows, **{name: getattr(rows, name)[kept] for name in ("predictions", "references", "logits")})
    temperature = fitted_temperature(rows)
    before, after = (reliability(*confidences(rows, value)).error for value in (1.0, temperature))
    losses = [negative_log_likelihood(rows, value) for value in (1.0, temperature)]
    if not LEAST_SURE < temperature < MOST_SURE:
        return paragraph(f"Expected calibration error (ECE): {before:.3f}. These rows do not determine a temperature.", "lead")
    lean = "too confident" if temperature > 1 else "not confident enough"
    text = (
        f"Expected calibration error (ECE): {before:.3f}. The answers are {lean}: dividing the logits by the temperature "
        f"{temperature:.2f} lowers the loss from {losses[0]:.3f} to {losses[1]:.3f} (ECE {after:.3f})."
    )
    if abs(np.log(temperature)) < 0.05:
        text = f"Expected calibration error (ECE): {before:.3f}. The best temperature is {temperature:.2f}, close to 1."
    note = "The temperature is fitted on the rows it is judged on. For an unbiased value, use: glassloop calibrate."
    note += f" Computed from {len(rows):,} of {every:,} rows, drawn at random." if len(rows) < every else ""
    return paragraph(text, "lead") + paragraph(note, "note")


def reliability_chart(confident: Array, right: Array) -> tuple[LineChart, str]:
    """Return the share of right answers by confidence, with 95 % intervals, and the diagonal."""
    found = reliability(confident, right)
    points = [(one.confidence, one.accuracy) for one in found.bins]
    spans = [(one.confidence, wilson(one.accuracy * one.number, one.number)) for one in found.bins]
    band = [(place, span.low, span.high) for place, span in spans]
    lines = [Series("answers", points, band=band, dots=True), Series("perfectly calibrated", [(0, 0), (1, 1)], quiet=True)]
    told = f"The expected calibration error is {found.error:.3f}. Below the diagonal, answers are too confident."
    few = sum(one.number < FEW_ROWS for one in found.bins)
    note = "Shaded: 95 % intervals." + (
        f" {few} of {len(found.bins)} points have fewer than {FEW_ROWS} answers." if few else ""
    )
    axes = Axis("confidence", PERCENT, 0, 1), Axis("share of right answers", PERCENT, 0, 1)
    return LineChart(f"Reliability (ECE {found.error:.3f})", told, *axes, lines, square=True), note


def histogram(confident: Array, right: Array) -> Histogram:
    """Return how many right and wrong answers have which confidence."""
    edges = even_edges(float(np.floor(confident.min() * BINS) / BINS), 1.0, BINS)
    good, bad = (np.histogram(confident[chosen], bins=edges)[0].tolist() for chosen in (right, ~right))
    told = f"{int((confident > 0.9).sum()):,} of {len(confident):,} answers have a confidence above 90 %."
    return Histogram(
        "Confidence of the answers", told, edges, [Bars("right", good, 2), Bars("wrong", bad, 1)], Axis("confidence", PERCENT)
    )


def threshold_chart(rows: ScoredRows, positive: int) -> tuple[LineChart, str]:
    """Return precision, recall, F1 and share of rows for each threshold of the positive class."""
    likely = probabilities(rows.logits, rows.task)[:, positive]
    found = threshold_curve(likely, rows.references == positive)
    curves = {"precision": found.precision, "recall": found.recall, "F1": found.f1, "share answered": found.answered}
    lines = [Series(name, points_of(found.thresholds, values)) for name, values in curves.items()]
    best = int(np.argmax(found.f1))
    name = rows.labels[positive]
    told = (
        f"F1 is highest, {found.f1[best]:.3f}, if rows with a probability of at least {found.thresholds[best]:.3f} get {name}."
    )
    axes = Axis(f"threshold for “{name}”", PERCENT, 0, 1), Axis("", PERCENT, 0, 1)
    return LineChart("Thresholds", told, *axes, lines), f"{told} A threshold chosen on these rows is too optimistic for them."


def coverage_chart(confident: Array, right: Array) -> LineChart:
    """Return the accuracy of the most confident answers, by their share."""
    found = threshold_curve(confident, right)
    half = int(np.argmin(np.abs(found.answered - 0.5)))
    told = f"Of the most confident {found.answered[half]:.0%} of the answers, {found.precision[half]:.1%} are right."
    line = Series("accuracy", points_of(found.answered, found.precision))
    return LineChart(
        "Coverage",
        told,
        Axis("share answered, most confident first", PERCENT, 0, 1),
        Axis("share of right answers", PERCENT),
        [line],
    )


def points_of(across: Array, upward: Array) -> Sequence[tuple[float, float]]:
    """Return two arrays as points, ordered from left to right, with few enough digits."""
    return sorted({*zip(np.round(across, 4).tolist(), np.round(upward, 4).tolist(), strict=True)})


def score_parts(rows: ScoredRows, drawn: Drawn) -> str:
    """Return predicted against true scores, and the residuals."""
    kept = np.arange(len(rows))
    if len(rows) > MOST_POINTS:
        kept = np.sort(np.random.default_rng(0).choice(len(rows), MOST_POINTS, replace=False))
    note = f"{MOST_POINTS:,} of {len(rows):,} rows, drawn at random." if len(kept) < len(rows) else ""
    residuals = rows.predictions - rows.references
    names = [f"row {place:,}" for place in kept.tolist()]
    pairs = [*zip(np.round(rows.references[kept], 4).tolist(), np.round(rows.predictions[kept], 4).tolist(), strict=True)]
    rest = [*zip(np.round(rows.predictions[kept], 4).tolist(), np.round(residuals[kept], 4).tolist(), strict=True)]
    error, bias = float(np.abs(residuals).mean()), float(residuals.mean())
    lean = f"{abs(bias):.3f} too {'high' if bias > 0 else 'low'}"
    told = f"The mean absolute error is {error:.3f}; predictions are {lean} on average."
    reach = float(np.abs(residuals).max()) or 1.0
    edges = even_edges(-reach, reach, BINS)
    counts = np.histogram(residuals, bins=edges)[0].tolist()
    true, predicted = Axis("true"), Axis("predicted")
    charts = [
        drawn.figure(
            "scores", ScatterChart("Predicted against true", told, true, predicted, [Cloud("rows", pairs, names)], True), note
        ),
        drawn.figure(
            "residuals",
            ScatterChart("Residuals", told, predicted, Axis("predicted minus true"), [Cloud("rows", rest, names)], level=0.0),
            note,
        ),
        drawn.figure(
            "residual-counts",
            Histogram("Distribution of residuals", told, edges, [Bars("rows", counts)], Axis("predicted minus true")),
        ),
    ]
    return paragraph(told, "lead") + grid(*charts)
