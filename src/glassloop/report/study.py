"""What a study shows, in the terminal, in tables and as a page: of many configurations, and of several seeds of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from glassloop.base.errors import GlassloopError, counted, printable
from glassloop.base.files import home_name, write_text
from glassloop.markup import templates
from glassloop.markup.templates import escaped
from glassloop.report.charts import COUNT, Axis, DotChart, Dots, LineChart, ParallelChart, Series, Thread, figure
from glassloop.report.errors import row_list
from glassloop.report.page import (
    Cell,
    Section,
    card,
    cards,
    code_block,
    details,
    fact_list,
    grid,
    heading,
    page,
    paragraph,
    score,
    table,
    tag,
)
from glassloop.report.results import baseline_name, results_charts, results_table, small_print
from glassloop.report.source import Drawn, RunSource, command, data_section, metric_names, read_source
from glassloop.runs.history import numbers_by_step
from glassloop.runs.record import FINISHED, REPORT_NAME, seed_name
from glassloop.runs.study import RoundRecord, SeedsRecord, StudyRecord, read_seeds
from glassloop.scores.comparisons import seeds_estimate
from glassloop.scores.intervals import NO_INTERVAL, mean_interval
from glassloop.scores.metrics import COMPUTED, LOSS
from glassloop.scores.result import ROUNDING, Score, mean_verdict
from glassloop.settings.study import setting_name, value_text
from glassloop.settings.training import SCORE

if TYPE_CHECKING:
    from rich.console import Console

Row = Mapping[str, object]
MOST_SHOWN = 24  # settings in the terminal
HOW_CHOSEN = "chosen by the mean on the selection split; validation was not used to choose"


def study_content(folder: Path, record: StudyRecord) -> dict[str, object]:
    """Return the result of `glassloop study`."""
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


def ranked(record: StudyRecord) -> list[Row]:
    """Return the settings, the chosen one first, then those that were trained furthest with the best selection score."""
    sign = 1 if record.greater_is_better else -1
    rows = [row for row in listed_rows(record) if isinstance(row, Mapping)]

    def order(row: Row) -> tuple[bool, float, float]:
        score = row["selection"]
        return (
            row["number"] != record.chosen,
            -number_of(row["trained"]),
            -sign * (score if isinstance(score, float) else -sign * 1e9),
        )

    return sorted(rows, key=order)


def listed_rows(record: StudyRecord) -> Sequence[object]:
    """Return the settings of the results; empty before they are known."""
    found = record.results.get("settings", [])
    return found if isinstance(found, list | tuple) else []


def number_of(value: object) -> float:
    """Return a plain number, 0 for anything else."""
    return float(value) if isinstance(value, int | float) else 0.0


def table_of(record: StudyRecord) -> tuple[list[str], list[list[str]]]:
    """Return the columns and the cells of the table of all settings."""
    names = [*record.study.vary]
    columns = [*names, "trained", f"{record.metric} (selection)", f"{record.results.get('metric', '')} (validation)"]
    columns += ["95 % interval", "failed", "difference", difference_title(record), "verdict"]
    rows = []
    for row in ranked(record):
        values, validation, comparison = (
            row[name] if isinstance(row[name], Mapping) else {} for name in ("values", "validation", "comparison")
        )
        rows.append(
            [
                *(value_text(values.get(name)) for name in names),  # type: ignore[attr-defined]
                f"{number_of(row['trained']):.0%}",
                score_text(row["selection"]),
                mean_and_deviation(validation),  # type: ignore[arg-type]
                between(validation),  # type: ignore[arg-type]
                f"{row['failed']} of {row['runs']}",
                signed(comparison.get("difference")),  # type: ignore[attr-defined]
                between(comparison, signed),  # type: ignore[arg-type]
                "chosen" if row["number"] == record.chosen else str(comparison.get("verdict") or without_result(row)),  # type: ignore[attr-defined]
            ]
        )
    return columns, rows


def without_result(row: Row) -> str:
    """Return why a setting has no result on validation."""
    if not row["trained"]:
        return "not trained"
    return "failed" if row["failed"] == row["runs"] and row["selection"] is None else "stopped early"


def score_text(value: object) -> str:
    """Return a score with four digits."""
    return f"{value:.4f}" if isinstance(value, int | float) else "–"


def signed(value: object) -> str:
    """Return a difference with its sign."""
    return f"{value:+.4f}" if isinstance(value, int | float) else "–"


def mean_and_deviation(result: Mapping[str, object]) -> str:
    """Return `0.8412 ± 0.0091`."""
    deviation = result.get("deviation")
    return score_text(result.get("mean")) + (f" ± {score_text(deviation)}" if deviation is not None else "")


def between(result: Mapping[str, object], shown: Callable[[object], str] = score_text) -> str:
    """Return the interval of a mean, or of a difference with signs."""
    return f"{shown(result['low'])} to {shown(result['high'])}" if result.get("low") is not None else "–"


def number_of_comparisons(record: StudyRecord) -> int:
    """Return how many settings were compared with the chosen one."""
    return sum(isinstance(row, Mapping) and isinstance(row["comparison"], Mapping) for row in listed_rows(record))


def difference_title(record: StudyRecord) -> str:
    """Return the title of the intervals of differences, with the number of comparisons that they are corrected for."""
    number = number_of_comparisons(record)
    return f"interval corrected for {number} comparisons" if number > 1 else "its 95 % interval"


def markdown_table(record: StudyRecord) -> str:
    """Return the table of all settings in Markdown."""
    return f"{templates.markdown_table(*table_of(record), escape=templates.bars_escaped)}\n"


def latex_table(record: StudyRecord) -> str:
    """Return the table of all settings in LaTeX, for the booktabs package."""
    columns, rows = table_of(record)
    return templates.latex_table(columns, rows, "l" * len(columns))


def lines_of(record: StudyRecord) -> list[str]:
    """Return what a study shows in sentences."""
    results, lines = record.results, []
    if results.get("sentence"):
        lines.append(f"{results['sentence']} ({HOW_CHOSEN})")
    if number_of_comparisons(record) > 1:
        corrected = f"intervals of differences and verdicts are corrected for {number_of_comparisons(record)} comparisons"
        lines.append(f"{corrected}: all hold together with 95 %; the intervals of single settings hold with 95 % each")
    final = results.get("final")
    for split, found in (final if isinstance(final, Mapping) else {}).items():
        if isinstance(found, Mapping):
            ensemble = found.get("ensemble")
            extra = f"; all seeds as one model {score_text(ensemble['mean'])}" if isinstance(ensemble, Mapping) else ""
            once = "evaluated once, " if split == "test" else ""
            lines.append(
                f"{split} ({once}trained on all training rows): {mean_and_deviation(found)}, "
                f"95 % interval {between(found)}{extra}"
            )
    soup = results.get("soup")
    if isinstance(soup, Mapping):
        kept = "kept in soup/" if soup["offered"] else "not better than the mean of its seeds, so it is not kept"
        lines.append(f"model soup: {score_text(soup['validation'])} on validation ({signed(soup['difference'])}): {kept}")
    if results.get("design"):
        lines.append(f"this design detects, with {results['design']}")
    if failed := len(record.failed):
        runs = counted(failed, "run failed and counts", "runs failed and count")
        lines.append(f"{runs} like the baseline: study.json has the errors")
    return [*lines, *([str(results["warning"])] if results.get("warning") else [])]


def show_study(folder: Path, record: StudyRecord, console: Console | None = None) -> None:
    """Print the table of the settings and what the study shows."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = console or Console(stderr=True)
    columns, rows = table_of(record)
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in columns:
        table.add_column(Text(printable(name)), no_wrap=True)
    for row in rows[:MOST_SHOWN]:
        table.add_row(*(Text(printable(cell)) for cell in row))
    width, console.width = console.width, 1000
    console.width = max(width, console.measure(table).maximum)  # so that no number is cut
    console.print(table)
    if len(rows) > MOST_SHOWN:
        console.print(Text(f"and {len(rows) - MOST_SHOWN} more settings, in study.html"))
    for line in lines_of(record):
        console.print(Text(printable(f"• {line}")))
    console.print(Text(printable(f"→ {folder}/study.html")))


def rounds_in_words(rounds: Sequence[RoundRecord]) -> str:
    """Return the rounds of a search: `24 settings to 25 %, 12 to 50 %, 6 to 100 %`."""
    return ", ".join(f"{len(part.settings)} to {part.fraction:.0%}" for part in rounds)


STYLE = "table.sortable td.long{word-break:normal;overflow-wrap:normal;min-width:4.5em}"  # settings and verdicts stay readable
PAGE_NAME, MARKDOWN_NAME, LATEX_NAME = "study.html", "study.md", "study.tex"


def write_page(folder: Path, record: StudyRecord) -> None:
    """Write study.html and the tables study.md and study.tex of a study that has results."""
    if not record.results:
        return
    write_text(folder / PAGE_NAME, study_page(folder.name, record))
    write_text(folder / MARKDOWN_NAME, markdown_table(record))
    write_text(folder / LATEX_NAME, latex_table(record))


def study_page(name: str, record: StudyRecord) -> str:
    """Return the page of a study."""
    subtitle = paragraph(f"{counted(len(record.tried), 'setting', 'settings')}, {counted(len(record.runs), 'run', 'runs')}")
    if not record.results:
        return page(f"Study {name}", unfinished(record), subtitle=subtitle, style=STYLE)
    columns, rows = table_of(record)
    cells: list[list[Cell]] = [[*row] for row in rows]
    sections = [
        Section("verdict", "Verdict", summary(record)),
        Section("points", "All points", points(record)),
        Section("settings", "Settings", parallel(record) + table(columns, cells, sortable=True)),
        Section("expected", "Expected performance", expected(record)),
        Section("failed", "Failed runs", failures(record)),
        Section("design", "How it was done", design(record)),
        Section("tables", "Tables for a paper", tables(record), short="Tables"),
    ]
    return page(f"Study {name}", sections, subtitle=subtitle, style=STYLE)


def unfinished(record: StudyRecord) -> list[Section]:
    """Return the sections of a study that has no results yet: its runs so far, and how it is done."""
    rows: list[list[Cell]] = [
        [setting_name(record.tried[run.setting]), run.seed, run.fold or "final", run.status, f"{run.fraction:.0%}"]
        for run in record.runs.values()
    ]
    listed = table(["setting", "seed", "fold", "status", "trained"], rows, sortable=True)
    return [
        Section("runs", "Runs", paragraph("There is no result yet.", "lead") + listed),
        Section("failed", "Failed runs", failures(record)),
        Section("design", "How it is done", design(record)),
    ]


def summary(record: StudyRecord) -> str:
    """Return the chosen setting, its scores and the verdict in sentences."""
    results, shown = record.results, []
    final = results.get("final")
    for split, found in (final if isinstance(final, Mapping) else {}).items():
        if isinstance(found, Mapping):
            shown.append(card(f"{results['metric']}, {split}", score_text(found["mean"]), f"95 % interval {between(found)}"))
    chosen = paragraph(f"Chosen: {results.get('chosen', 'none')}", "strong")
    return chosen + cards(shown) + "".join(paragraph(line) for line in lines_of(record))


def points(record: StudyRecord) -> str:
    """Return the validation scores of every finished run, and the selection scores of all settings."""
    metric, rows = str(record.results.get("metric", "")), ranked(record)
    finished = []
    for row in rows:
        found = row["validation"]
        if isinstance(found, Mapping):
            mean, low, high = (optional_number(found[name]) for name in ("mean", "low", "high"))
            baseline, note = record.results.get("baseline"), f"{row['failed']} of {row['runs']} runs failed"
            level = baseline if isinstance(baseline, float) else None
            color = 1 if row["number"] == record.chosen else 0
            finished.append(Dots(short_name(row), mean, low, high, floats(found["points"]), level, note, color))
    chosen_by = []
    for row in rows:
        if row["selection"] is not None:
            name, color = f"{short_name(row)} ({number_of(row['trained']):.0%})", 1 if row["number"] == record.chosen else 0
            chosen_by.append(Dots(name, number_of(row["selection"]), points=floats(row["selection_points"]), color=color))
    parts, named = [], f"Settings are named by {' · '.join(record.study.vary)}; the chosen one has another color."
    if finished:
        title = f"{metric} on validation (not used to choose)"
        text = "One row per setting that was trained to its end: every run, the mean and its 95 % interval over seeds and rows."
        chart = DotChart(title, text, finished, Axis(metric), baseline_name="majority baseline")
        parts.append(figure(chart, wide=True, note=f"{text} {named}"))
    title = f"{record.metric} on the selection split (used to choose)"
    text = "One row per setting: every run and the mean, after the share of its steps in brackets."
    chart = DotChart(title, text, chosen_by, Axis(record.metric))
    parts.append(figure(chart, wide=True, note=f"{text} {named}"))
    return "".join(parts)


def optional_number(value: object) -> float | None:
    """Return a plain number, None for anything else, such as an interval that too few rows do not give."""
    return float(value) if isinstance(value, int | float) else None


def short_name(row: Row) -> str:
    """Return the values of a setting without the names, which would be too long for a chart."""
    values = row["values"]
    return " · ".join(value_text(value) for value in values.values()) if isinstance(values, Mapping) else ""


def floats(values: object) -> list[float]:
    """Return the numbers of a list."""
    return [float(value) for value in values if isinstance(value, int | float)] if isinstance(values, Sequence) else []


def parallel(record: StudyRecord) -> str:
    """Return the settings as lines over one axis each."""
    names = [*record.study.vary]
    threads = []
    for row in listed_rows(record):
        if isinstance(row, Mapping) and isinstance(row["values"], Mapping) and row["selection"] is not None:
            values = [row["values"].get(name) for name in names]
            threads.append(Thread(str(row["name"]), [*values, number_of(row["selection"])], row["number"] == record.chosen))
    text = "Each line is one setting; its right end is the mean score that settings are chosen by."
    chart = ParallelChart("Settings and their scores", text, [*names, f"{record.metric} (selection)"], threads)
    return figure(chart, wide=True) if threads else ""


def expected(record: StudyRecord) -> str:
    """Return the expected best validation score against the number of runs."""
    found = record.results.get("expected_best")
    entries = [entry for entry in found if isinstance(entry, Mapping)] if isinstance(found, Sequence) else []
    if not entries:
        return ""
    line = [(number_of(entry["runs"]), number_of(entry["value"])) for entry in entries]
    band = [
        (number_of(entry["runs"]), number_of(entry["value"]) - number_of(entry["deviation"]),
         number_of(entry["value"]) + number_of(entry["deviation"]))
        for entry in entries
    ]  # fmt: skip
    metric = str(record.results["metric"])
    text = "The best validation score to expect from a random choice of so many of the finished runs, with its deviation."
    series = [Series("expected best", line, band=band)]
    chart = LineChart("Expected validation performance against budget", text, Axis("runs", COUNT), Axis(metric), series)
    return figure(chart, wide=True)


def failures(record: StudyRecord) -> str:
    """Return a table of the runs that failed."""
    rows: list[list[Cell]] = [
        [setting_name(record.tried[run.setting]), run.seed, run.fold or "final", run.exit_code, " ".join(run.error)]
        for run in record.failed.values()
    ]
    return table(["setting", "seed", "fold", "exit status", "error"], rows)


def design(record: StudyRecord) -> str:
    """Return how settings were searched, chosen, compared and tested."""
    study = record.study
    tested = len(record.test_evaluations)
    facts: dict[str, Cell] = {
        "data": home_name(record.base.source or "quickstart"),
        "model": home_name(record.base.model or "quickstart"),
        "search": f"{study.chosen_strategy}: {rounds_in_words(record.rounds)} of the steps",
        "seeds": ", ".join(map(str, record.seeds)),
        "chosen by": f"mean {record.metric} on the selection split (folds {', '.join(study.folds)} of the training rows)",
        "compared on": f"validation; {HOW_CHOSEN}",
        "test split": f"used {'once' if tested == 1 else f'for {tested} settings'}, at the end" if tested else "not used",
        "time": f"{record.seconds:.0f} s",
        "can detect": str(record.results.get("design", "")),
        "versions": ", ".join(f"{name} {number}" for name, number in record.versions.items()),
    }
    return fact_list(facts)


def tables(record: StudyRecord) -> str:
    """Return the table of all settings in Markdown and LaTeX."""
    return details("Markdown", code_block(markdown_table(record))) + details(
        "LaTeX (booktabs)", code_block(latex_table(record))
    )


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


def seeds_verdict(folder: Path) -> str:
    """Return the verdict on several seeds that their report shows, for the terminal and for JSON; empty if there is none."""
    record = read_seeds(folder)
    runs = {seed: run for seed in record.finished if (run := readable(folder / seed_name(seed)))}
    results = seeds_results(record, runs)
    return mean_verdict(results[0]) if results else ""


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
