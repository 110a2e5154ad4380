"""The report of several seeds: all points, the curves over each other, and the rows that most seeds get wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from glassloop.base.errors import GlassloopError, counted
from glassloop.base.files import home_name
from glassloop.markup.templates import escaped
from glassloop.report.about import Drawn, command, data_section, metric_names
from glassloop.report.charts.figure import Axis
from glassloop.report.charts.line import LineChart, Series
from glassloop.report.errors import row_list
from glassloop.report.page import Cell, Section, card, cards, fact_list, grid, heading, paragraph, score, table, tag
from glassloop.report.results import baseline_name, results_charts, results_table, small_print
from glassloop.report.source import RunSource, read_source
from glassloop.runs.history import numbers_by_step
from glassloop.runs.layout import REPORT_NAME, seed_name
from glassloop.runs.record import FINISHED
from glassloop.runs.study import SeedsRecord, read_seeds
from glassloop.scores.comparisons import seeds_estimate
from glassloop.scores.intervals import NO_INTERVAL, mean_interval
from glassloop.scores.measures import COMPUTED, LOSS
from glassloop.scores.result import ROUNDING, Score, mean_verdict
from glassloop.settings.fields import SCORE

MOST_LINES = 8


MOST_ROWS = 60


def seeds_sections(folder: Path, drawn: Drawn) -> tuple[list[Section], list[Score], str]:
    """Return the sections, the results, and the line below the heading."""
    record = read_seeds(folder)
    runs = {seed: run for seed in record.seeds if (run := readable(folder / seed_name(seed)))}
    results = seeds_results(record, runs)
    first = next(iter(runs.values()), None)
    sections = [
        Section("results", "Results", seeds_headline(record, results, first, drawn)),
        Section("curves", "Learning curves", seed_curves(runs, drawn), "Curves"),
        Section("errors", "Errors", shared_errors(runs)),
        Section("data", "Data", data_section(first, drawn) if first else ""),
        Section("run", "The runs", seeds_about(record, runs)),
    ]
    state = tag(record.status, "good" if record.status == FINISHED else "bad")
    words = f"{counted(len(record.seeds), 'random seed', 'random seeds')}, {len(record.finished):,} finished."
    return sections, results, f'<p class="soft">{state} {escaped(words)}</p>'


def readable(folder: Path) -> RunSource | None:
    """Return the run of a seed, or None if there is none yet or it is damaged."""
    try:
        return read_source(folder)
    except GlassloopError:
        return None


def seeds_results(record: SeedsRecord, runs: dict[int, RunSource]) -> list[Score]:
    """Return the mean of each metric with its interval over seeds and, if all evaluated the same rows, over rows."""
    values, finished = record.values(), record.finished
    scored = [runs[seed].results[0].rows for seed in finished if seed in runs and runs[seed].results]
    same = len(scored) == len(finished) and all(np.array_equal(rows.references, scored[0].references) for rows in scored[1:])
    found = []
    first = next(iter(finished.values()), None)
    measured = first.measures.keys or tuple(key for key in values if key != LOSS) if first else ()
    for key in measured:
        points = tuple(values[key])
        measures = next(iter(runs.values())).measures if runs else None
        title = measures.title(key) if measures else key
        span = mean_interval(points).interval
        mean, baseline = record.mean[key], record.baseline.get(key)
        several = same and len(points) > 1 and key in COMPUTED[scored[0].task]
        if several:
            estimate = seeds_estimate(scored, key, measures.positive if measures else None)
            span = estimate.interval if abs(estimate.mean - mean) < ROUNDING else span
        span = span.within_range(key) if span else None
        low, high = (span.low, span.high) if span else (None, None)
        note = NO_INTERVAL if several and span is None else ""
        found.append(Score("validation", key, title, mean, low, high, baseline, points, note))
    return found


def seeds_headline(record: SeedsRecord, results: Sequence[Score], first: RunSource | None, drawn: Drawn) -> str:
    """Return the means with intervals and all points, and one sentence about them."""
    if not results:
        return paragraph("No seed is finished yet.", "lead")
    shown = cards([card(f"mean {result.title}", f"{result.value:.4f}", small_print(result)) for result in results[:4]])
    task = first.record.data.task if first and first.record else ""
    figures = results_charts(results, drawn, baseline_name(task))
    return shown + paragraph(sentence(record, results[0]), "lead") + grid(*figures, results_table(results))


def sentence(record: SeedsRecord, result: Score) -> str:
    """Return the spread over seeds, how many are no better than the baseline, and whether the mean is."""
    deviation = (record.standard_deviation or {}).get(result.key)
    spread = f", standard deviation {deviation:.4f}" if deviation is not None else ""
    number = counted(len(result.points), "seed", "seeds")
    words = f"{result.title}: mean {result.value:.4f}{spread} over {number}."
    verdict = mean_verdict(result)
    failed = sum(point <= result.baseline for point in result.points) if verdict and result.baseline is not None else 0
    lost = f" {counted(failed, 'seed is', 'seeds are')} no better than the baseline." if failed else ""
    return (f"{verdict}. " if verdict else "") + words + lost


def seed_curves(runs: dict[int, RunSource], drawn: Drawn) -> str:
    """Return the evaluations and the training loss of the seeds over each other."""
    parts = []
    names = metric_names(next(iter(runs.values()))) if runs else {}
    wanted = {"eval_" + key: title for key, title in names.items()} | {"eval_loss": "evaluation loss", "loss": "training loss"}
    for key, title in wanted.items():
        lines = [
            Series(f"seed {seed}", points, dots=key.startswith("eval_"))
            for seed, run in [*runs.items()][:MOST_LINES]
            if (points := numbers_by_step(run.history, key))
        ]
        if any(len(line.points) > 1 for line in lines):
            chart = LineChart(title, f"{title} of {len(lines)} seeds by step.", Axis("step"), Axis(title), lines)
            note = f"The first {MOST_LINES} of {len(runs)} seeds." if len(runs) > MOST_LINES else ""
            parts.append(drawn.figure(key.replace("_", "-"), chart, note))
    return grid(*parts)


def shared_errors(runs: dict[int, RunSource]) -> str:
    """Return the rows that most seeds get wrong; empty if the seeds evaluated different rows."""
    found = [run for run in runs.values() if run.results and run.results[0].rows.task != SCORE]
    if not found or any(
        not np.array_equal(run.results[0].rows.references, found[0].results[0].rows.references) for run in found
    ):
        return ""
    wrong = np.stack([~run.results[0].rows.right for run in found]).sum(axis=0)
    order = np.argsort(-wrong, kind="stable")
    order = order[wrong[order] > len(found) / 2][:MOST_ROWS]
    every, some = int((wrong == len(found)).sum()), int((wrong > 0).sum())
    words = f"{every:,} of {len(wrong):,} rows are wrong with every seed, {some:,} with at least one of {len(found)}."
    if not len(order):
        return paragraph(words)
    first = found[0]
    listed = row_list("shared", first, first.results[0], order, np.zeros(len(wrong)), {}, wrong / len(found))
    return paragraph(words) + heading(f"Rows that most seeds get wrong ({len(order):,})") + listed


def seeds_about(record: SeedsRecord, runs: dict[int, RunSource]) -> str:
    """Return the state and the scores of each seed, and how to train one of them again."""
    keys = [*record.values()]
    rows: list[list[Cell]] = [
        [f"seed {seed}", entry.status, *(score(entry.metrics.get(key)) for key in keys), entry.seconds or None]
        for seed, entry in record.seeds.items()
    ]
    first = next((run.record for run in runs.values() if run.record), None)
    facts: dict[str, Cell] = {
        "folder": home_name(str(record.folder.absolute())),
        "reports": f"{seed_name(next(iter(record.seeds)))}/{REPORT_NAME} and so on",
        "one seed": command(first) if first else None,
    }
    return table(["run", "status", *keys, "seconds"], rows, sortable=True) + fact_list(facts)
