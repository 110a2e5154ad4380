"""What a study shows, in the terminal, in tables and as a page: of many configurations, and of several seeds of one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from glassloop.base.errors import GlassloopError, counted
from glassloop.base.files import home_name, write_text
from glassloop.base.records import Json, decoded
from glassloop.markup import templates
from glassloop.markup.templates import piece
from glassloop.report.charts import COUNT, Axis, DotChart, Dots, LineChart, ParallelChart, Series, Thread
from glassloop.report.errors import row_list
from glassloop.report.page import PARTS, Cell, Drawn, Section, figure, page, score
from glassloop.report.results import gain_title, gained, headline
from glassloop.report.source import TEMPLATE, RunSource, command, data_section, metric_names, read_source
from glassloop.runs.history import numbers_by_step
from glassloop.runs.record import REPORT_NAME, seed_name
from glassloop.runs.study import SeedRecord, SeedsRecord, StudyRecord, read_seeds
from glassloop.scores.conclusions import ExpectedBest
from glassloop.scores.metrics import COMPUTED, LOSS
from glassloop.scores.result import ROUNDING, Score, best_compared, mean_verdict, method_of, read_baselines
from glassloop.scores.statistics import NO_INTERVAL, mean_interval, seeds_estimate, some_rows
from glassloop.settings.study import Values, setting_name, value_text
from glassloop.settings.training import SCORE

if TYPE_CHECKING:
    from rich.console import Console

STUDY_TEMPLATE = "report/study.html.j2"
PAGE_NAME, MARKDOWN_NAME, LATEX_NAME = "study.html", "study.md", "study.tex"
STYLE = "table.sortable td.long{word-break:normal;overflow-wrap:normal;min-width:4.5em}"  # settings and verdicts stay readable
MOST_SETTINGS = 24  # in the terminal
MOST_LINES, MOST_ROWS = 8, 60
HOW_CHOSEN = "chosen by the mean on the selection split; validation was not used to choose"


# --- the results of a study, which study.json contains -------------------------------------------------------------------
@dataclass(frozen=True)
class Estimate:
    """The result of a setting on a split, with its 95% interval; `ensemble` is that of all seeds as one model."""

    mean: float | None = None
    deviation: float | None = None
    low: float | None = None
    high: float | None = None
    points: tuple[float, ...] = ()
    ensemble: Estimate | None = None


@dataclass(frozen=True)
class Gap:
    """The difference of a setting from the chosen one, with its interval, p-value and corrected p-value."""

    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    corrected: float | None = None
    verdict: str = ""


@dataclass(frozen=True)
class Tried:
    number: int
    name: str
    values: Values
    trained: float  # the fraction of its steps; 0 if the budget ended before
    failed: int
    runs: int
    selection: float | None = None
    selection_points: tuple[float, ...] = ()
    validation: Estimate | None = None
    comparison: Gap | None = None


@dataclass(frozen=True)
class Soup:
    """The mean of the weights of the final runs, and whether it is better than they are."""

    validation: float | None
    difference: float | None
    offered: bool
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Results:
    """Everything that was found out; empty before a study has results."""

    metric: str = ""
    positive_label: str | None = None
    chosen: str = "none"
    sentence: str = ""
    design: str = ""
    warning: str = ""
    baseline: float | None = None
    settings: tuple[Tried, ...] = ()
    expected_best: tuple[ExpectedBest, ...] = ()
    final: dict[str, Estimate | None] = field(default_factory=dict)
    soup: Soup | None = None

    @property
    def finals(self) -> dict[str, Estimate]:
        return {split: result for split, result in self.final.items() if result}

    @property
    def comparisons(self) -> int:
        """How many settings were compared with the chosen one."""
        return sum(setting.comparison is not None for setting in self.settings)


def results_of(record: StudyRecord) -> Results:
    values: Json = record.results  # type: ignore[assignment]  # what JSON can hold
    return decoded(Results, values)


# --- a study in the terminal and in tables -----------------------------------------------------------------------------
def study_content(folder: Path, record: StudyRecord) -> dict[str, object]:
    return {
        "study": folder,
        "status": record.status,
        "strategy": record.study.chosen_strategy,
        "seeds": record.seeds,
        "rounds": record.rounds,
        "seconds": record.seconds,
        "chosen_by": {"split": "selection", "folds": record.study.folds, "metric": record.metric},
        "test_evaluations": record.test_evaluations,
        "failed": {name: {"exit_status": run.exit_code, "error": " ".join(run.error)} for name, run in record.failed.items()},
        **record.results,
    }


def ranked(record: StudyRecord) -> list[Tried]:
    """Return the settings, the chosen one first, then those that were trained furthest with the best selection score."""
    sign = -1 if record.greater_is_better else 1

    def order(one: Tried) -> tuple[bool, float, float]:
        return one.number != record.chosen, -one.trained, math.inf if one.selection is None else sign * one.selection

    return sorted(results_of(record).settings, key=order)


def between(result: Estimate | Gap, sign: str = "") -> str:
    return f"{score(result.low, sign=sign)} to {score(result.high, sign=sign)}" if result.low is not None else "–"


def mean_and_deviation(result: Estimate) -> str:
    """Return `0.8412 ± 0.0091`."""
    return f"{score(result.mean)} ± {score(result.deviation)}" if result.deviation is not None else str(score(result.mean))


def table_of(record: StudyRecord) -> tuple[list[str], list[list[str]]]:
    names, results = [*record.study.vary], results_of(record)
    number = results.comparisons
    columns = [*names, "trained", f"{record.metric} (selection)", f"{results.metric} (validation)"]
    corrected = f"interval corrected for {number} comparisons" if number > 1 else "its 95% interval"
    columns += ["95% interval", "failed", "difference", corrected, "verdict"]
    rows = []
    for one in ranked(record):
        validation, gap = one.validation or Estimate(), one.comparison or Gap()
        verdict = "chosen" if one.number == record.chosen else gap.verdict
        if not verdict:  # there is no result on validation
            nothing = one.failed == one.runs and one.selection is None
            verdict = "not trained" if not one.trained else "failed" if nothing else "stopped early"
        cells = [value_text(one.values.get(name)) for name in names]
        cells += [f"{one.trained:.0%}", str(score(one.selection)), mean_and_deviation(validation), between(validation)]
        cells += [f"{one.failed} of {one.runs}", str(score(gap.difference, sign="+")), between(gap, "+"), verdict]
        rows.append(cells)
    return columns, rows


def markdown_table(record: StudyRecord) -> str:
    return f"{templates.markdown_table(*table_of(record), escape=templates.bars_escaped)}\n"


def latex_table(record: StudyRecord) -> str:
    columns, rows = table_of(record)
    return templates.latex_table(columns, rows, "l" * len(columns))


def lines_of(record: StudyRecord) -> list[str]:
    results = results_of(record)
    lines = [f"{results.sentence} ({HOW_CHOSEN})"] if results.sentence else []
    if results.comparisons > 1:
        corrected = f"intervals of differences and verdicts are corrected for {results.comparisons} comparisons"
        lines.append(f"{corrected}: all hold together with 95%; the intervals of single configurations hold with 95% each")
    for split, final in results.finals.items():
        trained = f"{'evaluated once, ' if split == 'test' else ''}trained on all training rows"
        together = f"; all seeds as one model {score(final.ensemble.mean)}" if final.ensemble else ""
        lines.append(f"{split} ({trained}): {mean_and_deviation(final)}, 95% interval {between(final)}{together}")
    if soup := results.soup:
        kept = "kept in soup/" if soup.offered else "not better than the mean of its seeds, so it is not kept"
        lines.append(f"model soup: {score(soup.validation)} on validation ({score(soup.difference, sign='+')}): {kept}")
    if results.design:
        lines.append(f"this design detects, with {results.design}")
    if record.failed:
        runs = counted(len(record.failed), "run failed and counts", "runs failed and count")
        lines.append(f"{runs} like the baseline: study.json has the errors")
    return [*lines, *([results.warning] if results.warning else [])]


def show_study(folder: Path, record: StudyRecord, console: Console | None = None) -> None:
    from rich.console import Console

    from glassloop.markup.terminal import bare_table, text

    console = console or Console(stderr=True)
    columns, rows = table_of(record)
    table = bare_table(*columns, no_wrap=True)
    for row in rows[:MOST_SETTINGS]:
        table.add_row(*map(text, row))
    width, console.width = console.width, 1000
    console.width = max(width, console.measure(table).maximum)  # so that no number is cut
    console.print(table)
    lines = [f"and {len(rows) - MOST_SETTINGS} more settings, in study.html"] if len(rows) > MOST_SETTINGS else []
    for line in (*lines, *(f"• {line}" for line in lines_of(record)), f"→ {folder}/study.html"):
        console.print(text(line))


# --- the page of a study -----------------------------------------------------------------------------------------------
def write_page(folder: Path, record: StudyRecord) -> None:
    if record.results:
        write_text(folder / PAGE_NAME, study_page(folder.name, record))
        write_text(folder / MARKDOWN_NAME, markdown_table(record))
        write_text(folder / LATEX_NAME, latex_table(record))


def study_page(name: str, record: StudyRecord) -> str:
    def row(run: SeedRecord, *more: Cell) -> list[Cell]:
        return [setting_name(record.tried[run.setting]), run.seed, run.fold or "final", *more]

    failed = [row(run, run.exit_code, " ".join(run.error)) for run in record.failed.values()]
    rounds = ", ".join(f"{len(part.settings)} to {part.fraction:.0%}" for part in record.rounds)  # 24 to 25%, 12 to 50%
    design = piece(STUDY_TEMPLATE, "design", record, rounds, HOW_CHOSEN)
    failures = Section("failed", "Failed runs", piece(STUDY_TEMPLATE, "failed", failed))
    if record.results:
        results = results_of(record)
        finals = {split: (score(final.mean), between(final)) for split, final in results.finals.items()}
        tables = piece(STUDY_TEMPLATE, "tables", markdown_table(record), latex_table(record))
        sections = [
            Section("verdict", "Verdict", piece(STUDY_TEMPLATE, "verdict", results, finals, lines_of(record))),
            Section("points", "All points", points(record)),
            Section("settings", "Settings", piece(STUDY_TEMPLATE, "settings", parallel(record), *table_of(record))),
            Section("expected", "Expected performance", expected(record)),
            failures,
            Section("design", "How it was done", design),
            Section("tables", "Tables for a paper", tables, short="Tables"),
        ]
    else:
        runs = [row(run, run.status, f"{run.fraction:.0%}") for run in record.runs.values()]
        sections = [Section("runs", "Runs", piece(STUDY_TEMPLATE, "runs", runs)), failures]
        sections.append(Section("design", "How it is done", design))
    numbers = f"{counted(len(record.tried), 'setting', 'settings')}, {counted(len(record.runs), 'run', 'runs')}"
    return page(f"Study {name}", sections, subtitle=piece(PARTS, "paragraph", numbers), style=STYLE)


def points(record: StudyRecord) -> Markup:
    metric, level = results_of(record).metric, results_of(record).baseline
    finished: list[Dots] = []
    chosen_by: list[Dots] = []
    for row in ranked(record):
        name = " · ".join(map(value_text, row.values.values()))  # names of settings would be too long for a chart
        color = 1 if row.number == record.chosen else 0
        if one := row.validation:
            note = f"{row.failed} of {row.runs} runs failed"
            finished.append(Dots(name, one.mean, one.low, one.high, one.points, level, note, color))
        if row.selection is not None:
            name = f"{name} ({row.trained:.0%})"
            chosen_by.append(Dots(name, row.selection, points=row.selection_points, color=color))
    named = f"Settings are named by {' · '.join(record.study.vary)}; the chosen one has another color."
    told = "One row per setting that was trained to its end: every run, the mean and its 95% interval over seeds and rows."
    title = f"{metric} on validation (not used to choose)"
    charts = [DotChart(title, told, finished, Axis(metric), baseline_name="majority baseline")] if finished else []
    told = "One row per setting: every run and the mean, after the share of its steps in brackets."
    title = f"{record.metric} on the selection split (used to choose)"
    charts.append(DotChart(title, told, chosen_by, Axis(record.metric)))
    return Markup("").join(figure(chart, wide=True, note=f"{chart.description} {named}") for chart in charts)


def parallel(record: StudyRecord) -> str:
    names = [*record.study.vary]
    threads = [
        Thread(row.name, [*map(row.values.get, names), row.selection], row.number == record.chosen)
        for row in results_of(record).settings
        if row.selection is not None
    ]
    text = "Each line is one setting; its right end is the mean score that settings are chosen by."
    chart = ParallelChart("Settings and their scores", text, [*names, f"{record.metric} (selection)"], threads)
    return figure(chart, wide=True) if threads else ""


def expected(record: StudyRecord) -> str:
    results = results_of(record)
    band = [(one.runs, one.value - one.deviation, one.value + one.deviation) for one in results.expected_best]
    series = [Series("expected best", [(one.runs, one.value) for one in results.expected_best], band=band)]
    text = "The best validation score to expect from a random choice of so many of the finished runs, with its deviation."
    title = "Expected validation performance against budget"
    chart = LineChart(title, text, Axis("runs", COUNT), Axis(results.metric), series)
    return figure(chart, wide=True) if band else ""


# --- several seeds -----------------------------------------------------------------------------------------------------
def read_all_seeds(folder: Path) -> tuple[SeedsRecord, dict[int, RunSource], list[Score]]:
    """Return the record of several seeds, their runs, unless one is missing or damaged, and the results."""
    record, runs = read_seeds(folder), {}
    for seed in record.seeds:
        with suppress(GlassloopError):
            runs[seed] = read_source(folder / seed_name(seed))
    return record, runs, seeds_results(record, runs)


def seeds_verdict(folder: Path) -> str:
    """Return the verdict on several seeds that their report shows, for the terminal and for JSON; empty if there is none."""
    _, runs, results = read_all_seeds(folder)
    return verdict_of_seeds(runs, results[0]) if results else ""


def verdict_of_seeds(runs: Mapping[int, RunSource], result: Score) -> str:
    """Return whether several seeds are better than the best baseline by a paired test; without baselines, than the majority."""
    sources = [run for run in runs.values() if run.results and run.record]
    first = sources[0] if sources else None
    if first and first.record and len(sources) == len(result.points):
        seeds = [run.results[0].rows for run in sources]
        known = read_baselines(first.folder, seeds[0], first.record) if first.folder else None
        same_split = known is not None and known.split == first.results[0].split
        if known and same_split and all(np.array_equal(rows.references, seeds[0].references) for rows in seeds[1:]):
            spent = [run.record.training_seconds for run in sources if run.record]
            seconds = [one for one in spent if one is not None]
            judged = [some_rows(rows, known.numbers) for rows in seeds]
            cost = sum(seconds) / len(seeds) if len(seconds) == len(seeds) else 0.0  # of a killed session, nobody knows it
            return best_compared(judged, known.each, replace(method_of(first.record), seconds=cost))[1]
    return mean_verdict(result)


def seeds_sections(folder: Path, drawn: Drawn) -> tuple[list[Section], list[Score], str]:
    record, runs, results = read_all_seeds(folder)
    first = next(iter(runs.values()), None)
    task = first.record.data.task if first and first.record else ""
    nothing = piece(PARTS, "paragraph", "No seed is finished yet.", "lead")
    best = headline(results, task, drawn, sentence(record, runs, results[0]), prefix="mean ") if results else nothing
    sections = [
        Section("results", "Results", best),
        Section("gained", gain_title(first) if first else "", seeds_gained(runs, results, drawn), "Gain"),
        Section("curves", "Learning curves", seed_curves(runs, drawn), "Curves"),
        Section("errors", "Errors", shared_errors(runs)),
        Section("data", "Data", data_section(first, drawn) if first else ""),
        Section("run", "The runs", seeds_about(record, runs)),
    ]
    words = f"{counted(len(record.seeds), 'random seed', 'random seeds')}, {len(record.finished):,} finished."
    return sections, results, piece(TEMPLATE, "seeds_subtitle", record.status, words)


def seeds_gained(runs: Mapping[int, RunSource], results: list[Score], drawn: Drawn) -> str:
    sources = [run for run in runs.values() if run.results and run.record]
    records = [run.record for run in sources if run.record]
    return gained(sources[0], results, drawn, records) if sources and results else ""


def seeds_results(record: SeedsRecord, runs: Mapping[int, RunSource]) -> list[Score]:
    """Return the mean of each metric with its interval over seeds and, if all evaluated the same rows, over rows."""
    values, finished = record.values(), record.finished
    scored = [runs[seed].results[0].rows for seed in finished if seed in runs and runs[seed].results]
    same = len(scored) == len(finished) and all(np.array_equal(rows.references, scored[0].references) for rows in scored[1:])
    measures = next(iter(runs.values())).measures if runs else None
    first, scores = next(iter(finished.values()), None), []
    for key in first.measures.keys or tuple(key for key in values if key != LOSS) if first else ():
        seeds, span = tuple(values[key]), mean_interval(values[key]).interval
        mean, baseline = record.mean[key], record.baseline.get(key)
        several = same and len(seeds) > 1 and key in COMPUTED[scored[0].task]
        if several:
            estimate = seeds_estimate(scored, key, measures.positive if measures else None)
            span = estimate.interval if abs(estimate.value - mean) < ROUNDING else span
        span = span.within_range(key) if span else None
        low, high = (span.low, span.high) if span else (None, None)
        note = NO_INTERVAL if several and span is None else ""
        title = measures.title(key) if measures else key
        scores.append(Score("validation", key, title, mean, low, high, baseline, seeds, note))
    return scores


def sentence(record: SeedsRecord, runs: Mapping[int, RunSource], result: Score) -> str:
    deviation, verdict = (record.standard_deviation or {}).get(result.key), verdict_of_seeds(runs, result)
    spread = f", standard deviation {deviation:.4f}" if deviation is not None else ""
    words = f"{result.title}: mean {result.value:.4f}{spread} over {counted(len(result.points), 'seed', 'seeds')}."
    failed = sum(point <= result.baseline for point in result.points) if verdict and result.baseline is not None else 0
    lost = f" {counted(failed, 'seed is', 'seeds are')} no better than the baseline." if failed else ""
    return (f"{verdict}. " if verdict else "") + words + lost


def seed_curves(runs: Mapping[int, RunSource], drawn: Drawn) -> str:
    figures = []
    names = metric_names(next(iter(runs.values()))) if runs else {}
    wanted = {"eval_" + key: title for key, title in names.items()} | {"eval_loss": "evaluation loss", "loss": "training loss"}
    note = f"The first {MOST_LINES} of {len(runs)} seeds." if len(runs) > MOST_LINES else ""
    for key, title in wanted.items():
        values = {seed: numbers_by_step(run.history, key) for seed, run in [*runs.items()][:MOST_LINES]}
        lines = [Series(f"seed {seed}", line, dots=key.startswith("eval_")) for seed, line in values.items() if line]
        if any(len(line.points) > 1 for line in lines):
            chart = LineChart(title, f"{title} of {len(lines)} seeds by step.", Axis("step"), Axis(title), lines)
            figures.append(drawn.figure(key.replace("_", "-"), chart, note))
    return piece(PARTS, "grid", figures)


def shared_errors(runs: Mapping[int, RunSource]) -> str:
    """Return the rows that most seeds get wrong; empty if the seeds evaluated different rows."""
    several = [run for run in runs.values() if run.results and run.results[0].rows.task != SCORE]
    rows = [run.results[0].rows for run in several]
    if not rows or any(not np.array_equal(other.references, rows[0].references) for other in rows):
        return ""
    wrong = np.stack([~one.right for one in rows]).sum(axis=0)
    order = np.argsort(-wrong, kind="stable")
    order = order[wrong[order] > len(rows) / 2][:MOST_ROWS]
    every, some = int((wrong == len(rows)).sum()), int((wrong > 0).sum())
    shares = wrong / len(rows)
    listed = row_list("shared", several[0], several[0].results[0], order, shares, shares) if len(order) else ""
    return piece(TEMPLATE, "shared_errors", every, len(wrong), some, len(rows), len(order), listed)


def seeds_about(record: SeedsRecord, runs: Mapping[int, RunSource]) -> Markup:
    keys = [*record.values()]
    rows: list[list[Cell]] = [
        [f"seed {seed}", entry.status, *(score(entry.metrics.get(key)) for key in keys), entry.seconds or None]
        for seed, entry in record.seeds.items()
    ]
    first = next((run.record for run in runs.values() if run.record), None)
    facts = {
        "folder": home_name(str(record.folder.absolute())),
        "reports": f"{seed_name(next(iter(record.seeds)))}/{REPORT_NAME} and so on",
        "one seed": command(first) if first else None,
    }
    return piece(TEMPLATE, "seeds_about", keys, rows, facts)
