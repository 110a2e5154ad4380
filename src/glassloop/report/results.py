"""The results of a run with their 95% intervals beside a baseline, and how far its probabilities can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

import numpy as np
from markupsafe import Markup

from glassloop.base.errors import GlassloopError, listed
from glassloop.markup.templates import PERCENT, bars_escaped, latex_table, markdown_table, piece
from glassloop.report import charts
from glassloop.report.charts import Axis, Bars, Cloud, DotChart, Dots, Event, Histogram, LineChart, Points, ScatterChart, Series
from glassloop.report.page import Cell, Drawn, Number, score
from glassloop.report.source import TEMPLATE, RunSource
from glassloop.runs import record as records
from glassloop.runs.record import Calibration, Gain, RunRecord
from glassloop.scores import calibration
from glassloop.scores.calibration import LOG_LOSS, PROBABILITY_TITLES, confidences, reliability, threshold_curve
from glassloop.scores.metrics import AVERAGED, LOWER_IS_BETTER, Array, probabilities, short_metrics
from glassloop.scores.result import FINE_TUNING, THE_FROZEN_ENCODER, VERDICT_KEYS, Score
from glassloop.scores.statistics import ScoredRows, some_rows, wilson
from glassloop.settings.training import CLASSES, FROZEN, SCORE, SEVERAL

MOST_CARDS = 4
THIS_RUN = "this run"
WITHIN_ONE = 1.0  # scores above this are errors or losses and have another axis
BINS, FEW_ROWS = 20, 20
MOST_POINTS, MOST_THRESHOLDS = 1_000, 100
MOST_ROWS, MOST_LOGITS = 20_000, 500_000  # for the temperature, which is found in many passes
BASELINES = {SCORE: "mean of the training scores", SEVERAL: "most frequent labels", CLASSES: "majority class"}
UNFINISHED = {
    records.RUNNING: "The run is being trained.",
    records.STOPPED: "The run was stopped before its end and can be resumed.",
    records.FAILED: "The run ended with an error before its end and can be resumed.",
    records.KILLED: "The run was killed before its end and can be resumed.",
}
CONFIDENCE = Axis("confidence", PERCENT, 0, 1)
RIGHT = Axis("share of right answers", PERCENT, 0, 1)


def results_of(source: RunSource) -> list[Score]:
    """Return the metrics of a run's final evaluation on each split. Empty if there is none."""
    record = source.record
    if record is None or record.evaluation is None:
        return []
    if scores := [score for result in source.results for score in result.scores]:
        return scores
    # The predictions are missing or damaged, so there are no intervals.
    stored, baseline = short_metrics(record.evaluation), record.baseline or {}
    keys = [key for key in stored if source.measures.parted(key)[1] in record.metrics]
    return [Score("validation", key, source.measures.title(key), stored[key], baseline=baseline.get(key)) for key in keys]


def cells_of(results: Sequence[Score]) -> list[list[str]]:
    rows = [["split", "metric", "value", "95% interval", "baseline", "seeds"]]
    for result in results:
        seeds = ", ".join(f"{value:.4f}" for value in result.points)
        baseline = "" if result.baseline is None else f"{result.baseline:.4f}"
        rows.append([result.split, result.title, f"{result.value:.4f}", result.interval or result.note, baseline, seeds])
    used = [place for place in range(6) if place < 3 or any(row[place] for row in rows[1:])]
    return [[row[place] for place in used] for row in rows]


def markdown(results: Sequence[Score]) -> str:
    head, *rows = cells_of(results)
    return f"{markdown_table(head, rows, 2, bars_escaped)}\n"


def latex(results: Sequence[Score]) -> str:
    head, *rows = cells_of(results)
    return latex_table(head, rows, "ll" + "r" * (len(head) - 2))


def results_section(source: RunSource, results: Sequence[Score], drawn: Drawn) -> Markup:
    record = source.record
    if results and record:
        lead = f"{record.verdict}." if record.verdict else ""
        return headline(results, record.data.task, drawn, lead, record.advice)
    last = source.history[-1] if source.history else {}
    step = last.get("step", 0)
    numbers = {"steps": f"{step:,} of {record.plan.max_steps:,}" if record and isinstance(step, int) else f"{step}"}
    evaluations = [entry for entry in source.history if any(name.startswith("eval_") for name in entry)]
    latest = {name: value for name, value in (evaluations[-1] if evaluations else {}).items() if isinstance(value, float)}
    metrics = {name: value for name, value in short_metrics(latest).items() if name != "epoch"}
    numbers |= {source.measures.title(name): f"{value:.4f}" for name, value in [*metrics.items()][:MOST_CARDS]}
    note = "The metrics are those of the latest evaluation." if metrics else "There is no evaluation yet."
    sentence = UNFINISHED.get(source.status, "There is no final evaluation.")
    return piece(TEMPLATE, "progress", numbers, f"{sentence} {note}")


def headline(
    results: Sequence[Score], task: str, drawn: Drawn, lead: str, advice: Sequence[str] = (), prefix: str = ""
) -> Markup:
    """Return results as large numbers, charts and a table. `prefix` is put before the names of the large numbers."""
    several, seeds = len({result.split for result in results}) > 1, any(result.points for result in results)
    baseline = BASELINES.get(task, BASELINES[CLASSES])
    within = [result for result in results if reach(result) <= WITHIN_ONE]
    figures = []
    for group in (within, *([result] for result in results if reach(result) > WITHIN_ONE)):
        if group:
            dots = []
            for one in group:
                name = f"{one.title}, {one.split}" if several else one.title
                dots.append(Dots(name, one.value, one.low, one.high, one.points, one.baseline))
            told = "; ".join(f"{one.title} {one.value:.4f} ({one.interval or one.note or 'no interval'})" for one in group)
            chart = DotChart("Metrics with 95% intervals", told, dots, Axis("score"), baseline_name=baseline)
            note = f"Vertical mark: {baseline}." if any(one.baseline is not None for one in group) else ""
            figures.append(drawn.figure("metrics", chart, note))
    head = [*(["split"] if several else []), "metric", "value", "95% interval", "baseline", *(["seeds"] if seeds else [])]
    rows: list[list[Cell]] = []
    for one in results:
        interval = Number(one.low, one.interval or one.note or "–")
        points = ", ".join(f"{value:.4f}" for value in one.points)
        cells: list[Cell] = [one.title, score(one.value), interval, score(one.baseline)]
        rows.append([*([one.split] if several else []), *cells, *([points] if seeds else [])])
    first = [result for result in results if result.split == results[0].split]
    return piece(TEMPLATE, "results", first, MOST_CARDS, prefix, lead, advice, figures, head, rows)


def gain_title(source: RunSource) -> str:
    frozen = source.record is not None and source.record.settings.method == FROZEN
    return f"What {THE_FROZEN_ENCODER if frozen else FINE_TUNING} gained"


def gained(source: RunSource, results: Sequence[Score], drawn: Drawn, seeds: Sequence[RunRecord] = ()) -> str:
    """Return simple methods beside the run, if it has results: charts and a table of scores, probabilities and times.

    With the records of several `seeds`, `source` is one of them, and `results` are the means over all.
    """
    record = source.record
    if record is None or not record.baselines:
        return ""
    methods = {one.name: one.scores for one in record.baselines}
    facts: dict[str, tuple[int, float | None, str]] = {one.name: (one.rows, one.seconds, one.note) for one in record.baselines}
    this, warnings = f"mean of {len(seeds)} seeds" if seeds else THIS_RUN, list[str]()
    likely: dict[str, records.MetricRecord] = {}
    if results:
        each = [one.probabilities for one in seeds or [record] if one.probabilities]
        warnings = [*dict.fromkeys(one.warning for one in each if one.warning)]
        if each and not seeds:
            likely = each[0].after
        elif each and len(each) == len(seeds):
            likely = {key: records.MetricRecord(mean(one.after[key].value for one in each)) for key in each[0].after}
        own = {one.key: records.MetricRecord(one.value, one.low, one.high) for one in results if one.split == results[0].split}
        methods = {this: own | likely} | methods
        spent = [one.training_seconds for one in seeds or [record]]
        known = [one for one in spent if one is not None]
        seconds = mean(known) if len(known) == len(spent) else None
        facts[this] = (record.data.splits["train"].num_rows, seconds, "")
    keys = {key for scores in methods.values() for key in scores}
    titles = {key: source.measures.title(key) for key in record.metrics if key in keys}
    titles |= {key: title for key, title in PROBABILITY_TITLES.items() if key in keys}
    first = VERDICT_KEYS[record.data.task]
    figures = []
    for key in dict.fromkeys([first if first in titles else next(iter(titles)), *([LOG_LOSS] if LOG_LOSS in titles else [])]):
        values = [(name, scores[key]) for name, scores in methods.items() if key in scores]
        dots = [Dots(name, one.value, one.low, one.high, color=int(name != this)) for name, one in values]
        told = "; ".join(f"{name} {one.value:.4f}" for name, one in values)
        note = "Lower is better." if key in (*LOWER_IS_BETTER, LOG_LOSS) else ""
        title = f"{titles[key][0].upper()}{titles[key][1:]} with 95% confidence intervals"
        figures.append(drawn.figure(f"gained-{key}", DotChart(title, told, dots, Axis(titles[key])), note))
    has_notes = any(note for _, _, note in facts.values())
    head = ["method", *titles.values(), "training rows", "seconds", *([""] if has_notes else [])]
    rows: list[list[Cell]] = []
    for name, scores in methods.items():
        number, seconds, note = facts[name]
        cells: list[Cell] = [score(scores[key].value if key in scores else None) for key in titles]
        rows.append([name, *cells, number, score(seconds, 1), *([note] if has_notes else [])])
    return piece(TEMPLATE, "gained", figures, head, rows, "; ".join(warnings), gained_note(source, this, bool(likely)))


def gained_note(source: RunSource, this: str, has_probabilities: bool) -> str:
    """Return on which rows the methods of that section were evaluated, and at which temperature."""
    baselines, result = source.record.baselines if source.record else (), next(iter(source.results), None)
    told = "The baselines were fitted to the training rows."
    if result is not None:
        told += " All methods were evaluated on the same rows."
        if any("evaluated on" in one.note for one in baselines):
            told = f"{told.partition(' All')[0]} They were evaluated on the rows named in the table, and {this} on all"
            told += f" {len(result.rows):,}; the verdict compares them on the same rows."
    if has_probabilities:
        fitted = "the temperature 1" if source.by_trainer else "a temperature that was fitted to other rows"
        told += f" The probabilities of {this} were scored at {fitted}."
    return told


def reach(result: Score) -> float:
    """Return the largest absolute value that a metric shows."""
    values = (result.value, result.low, result.high, result.baseline, *result.points)
    return max(abs(value) for value in values if value is not None)


def confidence(source: RunSource, drawn: Drawn) -> str:
    if not source.results:
        return ""
    result, rows = source.results[0], source.results[0].rows
    if rows.task == SCORE:
        return residuals(rows, drawn)
    confident, right = confidences(rows)
    stored, problem = None, None
    try:
        stored = records.read_calibration(source.folder / records.MODEL_NAME, source.record.files if source.record else None)
    except GlassloopError as error:
        problem = error
    calibrated = replace(rows, logits=rows.logits / stored.temperature) if stored else rows  # answers stay as they are
    figures = [drawn.figure("reliability", *reliability_chart(confident, right))]
    figures.append(drawn.figure("confidence", histogram(confident, right)))
    if rows.task == CLASSES and len(rows.labels) == 2:
        name = source.measures.positive
        positive = rows.labels.index(name) if name in rows.labels else 1  # the class that F1 refers to
        figures.append(drawn.figure("thresholds", *threshold_chart(calibrated, positive, stored)))
    figures.append(drawn.figure("coverage", coverage_chart(confident, right)))
    part = calibrated_part(stored, rows, calibrated, result.split, drawn) if stored else ""
    return piece(TEMPLATE, "confidence", *calibration_sentences(rows), problem, figures, part)


def calibrated_part(stored: Calibration, rows: ScoredRows, calibrated: ScoredRows, split: str, drawn: Drawn) -> Markup:
    """Return what the stored calibration is for, what it gains on rows not used for fitting, and the reliability with it."""
    errors = [reliability(*confidences(rows, value)).error for value in (1.0, stored.temperature)]
    chart, _ = reliability_chart(*confidences(calibrated))
    chart = replace(chart, title=f"Calibrated {chart.title[0].lower()}{chart.title[1:]}")
    note = "" if split != stored.split else "The chart shows the rows that the temperature was fitted on; the table does not."
    gains = [gain_row(gain, stored.positive_label) for gain in stored.gains]
    thresholds: list[list[Cell]] = [[name, score(value)] for name, value in [*stored.thresholds.items()][:MOST_THRESHOLDS]]
    if rest := [*stored.thresholds][MOST_THRESHOLDS:]:
        thresholds.append([f"and {listed(rest, 3)}", ""])
    figure = drawn.figure("reliability-calibrated", chart, note)
    return piece(TEMPLATE, "calibration", stored, errors, figure, gains, thresholds)


def gain_row(gain: Gain, positive: str | None) -> list[Cell]:
    """Return what a calibration gains as cells: its name, with the class it refers to, before, after, change, interval."""
    title = {"f1": "F1", "cost": "cost per row"}.get(gain.name, gain.name)
    if gain.name in AVERAGED:
        title += f" ({positive or 'mean over labels'})"
    span = "" if gain.low is None or gain.high is None else f"{gain.low:+.4f} to {gain.high:+.4f}"
    return [title, score(gain.before), score(gain.after), score(gain.change, sign="+"), span]


def calibration_sentences(rows: ScoredRows) -> tuple[str, str]:
    """Return the expected calibration error before and after dividing the logits by the best temperature, and a note."""
    every = len(rows)
    if rows.logits.size > MOST_LOGITS or every > MOST_ROWS:
        number = min(MOST_ROWS, max(MOST_LOGITS // rows.logits.shape[1], 1))
        drawn = np.random.default_rng(0).choice(every, number, replace=False)
        rows = some_rows(rows, drawn)
    temperature = calibration.fitted_temperature(rows)
    before, after = (reliability(*confidences(rows, value)).error for value in (1.0, temperature))
    text = f"Expected calibration error (ECE): {before:.3f}."
    if not calibration.LEAST_SURE < temperature < calibration.MOST_SURE:
        return f"{text} These rows do not determine a temperature.", ""
    if abs(np.log(temperature)) < 0.05:
        text += f" The best temperature is {temperature:.2f}, close to 1."
    else:
        lean = "too confident" if temperature > 1 else "not confident enough"
        losses = " to ".join(f"{calibration.negative_log_likelihood(rows, value):.3f}" for value in (1.0, temperature))
        text += f" The answers are {lean}: dividing the logits by the temperature {temperature:.2f}"
        text += f" lowers the loss from {losses} (ECE {after:.3f})."
    note = "The temperature is fitted on the rows it is judged on. For an unbiased value, use: glassloop calibrate."
    note += f" Computed from {len(rows):,} of {every:,} rows, drawn at random." if len(rows) < every else ""
    return text, note


def reliability_chart(confident: Array, right: Array) -> tuple[LineChart, str]:
    measured = reliability(confident, right)
    points = [(one.confidence, one.accuracy) for one in measured.bins]
    spans = [(one.confidence, wilson(one.accuracy * one.number, one.number)) for one in measured.bins]
    band = [(place, span.low, span.high) for place, span in spans]
    lines = [Series("answers", points, band=band, dots=True), Series("perfectly calibrated", [(0, 0), (1, 1)], quiet=True)]
    told = f"The expected calibration error is {measured.error:.3f}. Below the diagonal, answers are too confident."
    few = sum(one.number < FEW_ROWS for one in measured.bins)
    note = "Shaded: 95% intervals."
    note += f" {few} of {len(measured.bins)} points have fewer than {FEW_ROWS} answers." if few else ""
    return LineChart(f"Reliability (ECE {measured.error:.3f})", told, CONFIDENCE, RIGHT, lines, square=True), note


def histogram(confident: Array, right: Array) -> Histogram:
    edges = charts.even_edges(float(np.floor(confident.min() * BINS) / BINS), 1.0, BINS)
    good, bad = (np.histogram(confident[chosen], bins=edges)[0].tolist() for chosen in (right, ~right))
    told = f"{int((confident > 0.9).sum()):,} of {len(confident):,} answers have a confidence above 90%."
    bars = [Bars("right", good, 2), Bars("wrong", bad, 1)]
    return Histogram("Confidence of the answers", told, edges, bars, Axis("confidence", PERCENT))


def threshold_chart(rows: ScoredRows, positive: int, stored: Calibration | None) -> tuple[LineChart, str]:
    """Return precision, recall, F1 and share of rows for each threshold of the positive class, the stored one marked."""
    name = rows.labels[positive]
    curve = threshold_curve(probabilities(rows.logits, rows.task)[:, positive], rows.references == positive)
    values = {"precision": curve.precision, "recall": curve.recall, "F1": curve.f1, "share answered": curve.answered}
    lines = [Series(key, points_of(curve.thresholds, several)) for key, several in values.items()]
    best = int(np.argmax(curve.f1))
    least = f"{curve.thresholds[best]:.3f}"
    told = f"F1 is highest, {curve.f1[best]:.3f}, if rows with a probability of at least {least} get {name}."
    threshold = stored.thresholds.get(name) if stored else None
    events = [] if threshold is None else [Event(round(threshold, 4), "calibrated")]
    axes = Axis(f"threshold for “{name}”", PERCENT, 0, 1), Axis("", PERCENT, 0, 1)
    note = f"{told} A threshold chosen on these rows is too optimistic for them."
    return LineChart("Thresholds", told, *axes, lines, events), note


def coverage_chart(confident: Array, right: Array) -> LineChart:
    curve = threshold_curve(confident, right)
    half = int(np.argmin(np.abs(curve.answered - 0.5)))
    told = f"Of the most confident {curve.answered[half]:.0%} of the answers, {curve.precision[half]:.1%} are right."
    axes = Axis("share answered, most confident first", PERCENT, 0, 1), Axis("share of right answers", PERCENT)
    return LineChart("Coverage", told, *axes, [Series("accuracy", points_of(curve.answered, curve.precision))])


def points_of(across: Array, upward: Array) -> Points:
    """Return two arrays as points, ordered from left to right, with few enough digits."""
    return sorted({*zip(np.round(across, 4).tolist(), np.round(upward, 4).tolist(), strict=True)})


def residuals(rows: ScoredRows, drawn: Drawn) -> Markup:
    rest = rows.predictions - rows.references
    bias, reach = float(rest.mean()), float(np.abs(rest).max()) or 1.0
    lean = f"{abs(bias):.3f} too {'high' if bias > 0 else 'low'}"
    told = f"The mean absolute error is {float(np.abs(rest).mean()):.3f}; predictions are {lean} on average."
    places, note = np.arange(len(rows)), ""
    if len(rows) > MOST_POINTS:
        places = np.sort(np.random.default_rng(0).choice(len(rows), MOST_POINTS, replace=False))
        note = f"{MOST_POINTS:,} of {len(rows):,} rows, drawn at random."
    names = [f"row {place:,}" for place in places.tolist()]
    true, predicted, left = (np.round(values[places], 4).tolist() for values in (rows.references, rows.predictions, rest))
    pairs, gaps = ([Cloud("rows", [*zip(*both, strict=True)], names)] for both in ((true, predicted), (predicted, left)))
    edges, off = charts.even_edges(-reach, reach, BINS), Axis("predicted minus true")
    bars = [Bars("rows", np.histogram(rest, bins=edges)[0].tolist())]
    scatter = ScatterChart("Predicted against true", told, Axis("true"), Axis("predicted"), pairs, diagonal=True)
    figures = [
        drawn.figure("scores", scatter, note),
        drawn.figure("residuals", ScatterChart("Residuals", told, Axis("predicted"), off, gaps, level=0.0), note),
        drawn.figure("residual-counts", Histogram("Distribution of residuals", told, edges, bars, off)),
    ]
    return piece(TEMPLATE, "confidence", told, "", None, figures, "")
