"""The results of a run with their 95 % intervals beside a baseline, and the first section, which shows them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from glassloop.report.about import Drawn
from glassloop.report.charts.figure import Axis
from glassloop.report.charts.points import DotChart, Dots
from glassloop.report.page import Cell, Number, card, cards, grid, paragraph, score, table
from glassloop.report.source import RunSource, SplitResult
from glassloop.runs.record import FAILED, KILLED, RUNNING, STOPPED, RunRecord
from glassloop.scores.comparisons import BETTER, UNDECIDED, WORSE, Difference, compare, decided
from glassloop.scores.intervals import NO_INTERVAL, SHARES, ScoredRows, metric_estimate
from glassloop.scores.measures import COMPUTED, LOWER_IS_BETTER, short_metrics
from glassloop.settings.fields import CLASSES, SCORE, SEVERAL

SAME = 1e-6  # largest difference between a stored metric and the one that is computed from the predictions


@dataclass(frozen=True)
class Result:
    """A metric of a run.

    Attributes:
        split: The split.
        key: The metric.
        title: Its name for a person.
        value: The value, or the mean over seeds.
        low: The lower end of its 95 % interval; None if there is none, such as for too few rows.
        high: The upper end of its 95 % interval.
        baseline: The value of always giving the same answer; None where it is not defined.
        points: The values of the single seeds.
        note: Why there is no interval, if the predictions are known.
    """

    split: str
    key: str
    title: str
    value: float
    low: float | None = None
    high: float | None = None
    baseline: float | None = None
    points: tuple[float, ...] = ()
    note: str = ""

    @property
    def interval(self) -> str:
        """The interval in words; empty if there is none."""
        return "" if self.low is None or self.high is None else f"{self.low:.4f} to {self.high:.4f}"


def results_of(source: RunSource) -> list[Result]:
    """Return the metrics of a run's final evaluation on each split. Empty if there is none."""
    record = source.record
    if record is None or record.evaluation is None:
        return []
    stored, baseline, found = short_metrics(record.evaluation), record.baseline or {}, []
    for place, result in enumerate(source.results):
        prefix = "" if place == 0 else f"{result.name.removeprefix('validation_')}_"
        keys = [key for key in record.metrics if place > 0 or key in stored]
        for key in keys:
            computed = key in COMPUTED[record.data.task]
            estimate = metric_estimate(result.rows, key, record.positive_label) if computed else None
            value = stored.get(f"{prefix}{key}", estimate.value if estimate else math.nan)
            level = baseline.get(f"{prefix}{key}")
            same = estimate is not None and abs(estimate.value - value) < SAME  # a user's metric may only have the name
            one = estimate.interval if estimate and same else None
            low, high = (one.low, one.high) if one else (None, None)
            note = NO_INTERVAL if same and one is None else ""
            found.append(Result(result.name, key, source.measures.title(key), value, low, high, level, note=note))
    if not found:  # the predictions are missing or damaged
        names = {key: source.measures.title(key) for key in stored if source.measures.parted(key)[1] in record.metrics}
        found = [Result("validation", key, title, stored[key], baseline=baseline.get(key)) for key, title in names.items()]
    return found


def constant_answer(rows: ScoredRows, record: RunRecord) -> ScoredRows | None:
    """Return the predictions of always giving the most frequent answer of the training rows; None if it is not known."""
    train = record.data.splits.get("train")
    if train is None or not train.label_counts or rows.task == SCORE:
        return None
    counts = np.array([train.label_counts.get(name, 0) for name in rows.labels])
    if rows.task == CLASSES:
        return replace(rows, predictions=np.full_like(rows.predictions, int(counts.argmax())))
    usual = (counts * 2 >= train.num_rows).astype(rows.predictions.dtype)
    return replace(rows, predictions=np.broadcast_to(usual, rows.predictions.shape).copy())


def comparison_key(record: RunRecord) -> str:
    """Return the metric that is compared with the baseline: a share of right rows, else the first one."""
    if record.data.task == CLASSES:
        return "accuracy"
    return next((key for key in record.metrics if key in SHARES), record.metrics[0] if record.metrics else "")


def interpretation(source: RunSource, results: Sequence[Result]) -> str:
    """Return one sentence about the result: better or worse than the baseline, or undecided and what would decide."""
    record = source.record
    if record is None or not source.results or not results:
        return (record.verdict or "") if record else ""
    first = source.results[0]
    baseline = constant_answer(first.rows, record)
    if baseline is not None:
        key = comparison_key(record)
        difference = compare({0: baseline}, {0: first.rows}, key, record.positive_label)
        return in_words(difference, key, source.measures.title(key), first, answer_of(baseline))
    known = next((result for result in results if result.baseline is not None and result.low is not None), None)
    return by_interval(known) if known else (record.verdict or "")


def answer_of(baseline: ScoredRows) -> str:
    """Return what the baseline answers."""
    if baseline.task == CLASSES:
        return f"“{baseline.labels[int(baseline.predictions[0])]}”"
    names = [name for name, chosen in zip(baseline.labels, baseline.predictions[0], strict=True) if chosen]
    return ", ".join(f"“{name}”" for name in names) or "no label"


def in_words(difference: Difference, key: str, title: str, result: SplitResult, answer: str) -> str:
    """Return a comparison with the baseline as a sentence."""
    verdict = decided(difference, key, margin=0.0)
    likely = "p < 0.001" if difference.p_value < 0.001 else f"p = {difference.p_value:.3f}"
    low, high = difference.interval.low, difference.interval.high
    facts = (
        f"95 % interval of the difference {low:+.3f} to {high:+.3f}, {likely}, {difference.method}, {len(result.rows):,} rows"
    )
    always = f"always answering {answer}"
    if verdict.kind == BETTER:
        return f"Better than {always}: {title} is {difference.value:.3f} higher ({facts})."
    if verdict.kind == WORSE:
        return f"Worse than {always}: {title} is {-difference.value:.3f} lower ({facts})."
    rows = f" About {verdict.more_rows:,} more rows would decide." if verdict.kind == UNDECIDED and verdict.more_rows else ""
    return f"Undecided: {title} differs by {difference.value:+.3f} from {always} ({facts}).{rows}"


def by_interval(result: Result) -> str:
    """Return whether the interval of a metric lies above or below its baseline."""
    low, high, baseline = result.low or 0.0, result.high or 0.0, result.baseline or 0.0
    facts = f"{result.title} {result.value:.4f} (95 % interval {low:.4f} to {high:.4f}), baseline {baseline:.4f}"
    if low <= baseline <= high:
        return f"Undecided: the interval includes the baseline. {facts}."
    better = (low > baseline) != (result.key in LOWER_IS_BETTER)
    return f"{'Better' if better else 'Worse'} than the baseline. {facts}."


def baseline_name(task: str) -> str:
    """Return what the baseline answers, in general."""
    return {SCORE: "mean of the training scores", SEVERAL: "most frequent labels"}.get(task, "majority class")


# --- as text -----------------------------------------------------------------------------------------------------------


def cells_of(results: Sequence[Result]) -> list[list[str]]:
    """Return the table of results, its head first. Columns without values are omitted."""
    rows = [["split", "metric", "value", "95 % interval", "baseline", "seeds"]]
    for result in results:
        seeds = ", ".join(f"{value:.4f}" for value in result.points)
        baseline = "" if result.baseline is None else f"{result.baseline:.4f}"
        rows.append([result.split, result.title, f"{result.value:.4f}", result.interval or result.note, baseline, seeds])
    used = [place for place in range(6) if place < 3 or any(row[place] for row in rows[1:])]
    return [[row[place] for place in used] for row in rows]


def markdown(results: Sequence[Result]) -> str:
    """Return the results as a Markdown table."""
    head, *rows = cells_of(results)
    lines = [head, ["---" if place < 2 else "---:" for place in range(len(head))], *rows]
    return (
        "\n".join("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines)
        + "\n"
    )


def latex(results: Sequence[Result]) -> str:
    """Return the results as a LaTeX table. It needs the package booktabs."""
    head, *rows = cells_of(results)
    lines = [" & ".join(map(escaped_latex, line)) + r" \\" for line in (head, *rows)]
    columns = "ll" + "r" * (len(head) - 2)
    parts = [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        lines[0],
        r"\midrule",
        *lines[1:],
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(parts) + "\n"


LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\n": " ",
}


def escaped_latex(text: str) -> str:
    """Return a text in which no character is a command of LaTeX."""
    return "".join(LATEX.get(character, character) for character in text)


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
