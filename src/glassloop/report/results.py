"""The results of a run with their 95 % intervals, beside a baseline: as values, Markdown and LaTeX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from glassloop.measures import COMPUTED, LOWER_IS_BETTER, short_metrics
from glassloop.report.source import RunSource, SplitResult
from glassloop.run_folder.record import RunRecord
from glassloop.settings import CLASSES, SCORE, SEVERAL
from glassloop.statistics.intervals import NO_INTERVAL, metric_estimate
from glassloop.statistics.paired import Difference, compare
from glassloop.statistics.row_metrics import SHARES
from glassloop.statistics.scored import ScoredRows
from glassloop.statistics.verdicts import BETTER, UNDECIDED, WORSE, decided

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
