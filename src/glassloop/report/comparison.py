"""The comparison of runs: metrics with intervals, tests and verdicts, settings and rows; in the terminal and as a page."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from glassloop.base.errors import ModelError, SettingsError, counted, listed, printable, shortened, visible
from glassloop.base.files import home_name, near_name, user_path
from glassloop.base.output import say
from glassloop.base.records import Json
from glassloop.markup.templates import piece
from glassloop.markup.terminal import bare_table, text
from glassloop.report.charts import Axis, DotChart, Dots, LineChart, Series
from glassloop.report.page import PARTS, Cell, Number, Section, figure, page, score, span
from glassloop.runs import record as records
from glassloop.runs.history import Entry, numbers_by_step, read_history
from glassloop.runs.record import RunRecord, seed_name
from glassloop.runs.study import read_seeds
from glassloop.scores.conclusions import Conclusion, SettingRuns, concluded
from glassloop.scores.metrics import Array, Measures, default_measures
from glassloop.scores.statistics import NO_INTERVAL, ROW_METRICS, Interval, ScoredRows, scored_rows
from glassloop.settings.training import SCORE

VALIDATION = "validation"
OMITTED = ("output_dir", "overwrite_output_dir", "disable_tqdm", "run_name")  # settings that explain no difference
RECORDED = ("max_length", "class_weights", "device", "precision", "backend", "processes", "best_step")
LONGEST_NAME = 20
MOST_SETTINGS, MOST_ROWS = 20, 3  # in the terminal
MOST_TEXT, MOST_LISTED = 2000, 100  # characters of a text, and rows of each direction, on the page
SINGLE_SEEDS = "One seed each: this compares single models. Train several seeds to compare their settings."
TEMPLATE = "report/comparison.html.j2"
STYLE = (
    "ul.rows{list-style:none;padding:0}ul.rows li{border-top:1px solid var(--line);padding:.5rem 0;overflow-wrap:anywhere}"
    "ul.rows p{margin:.3rem 0 0}main,header.top{overflow-wrap:anywhere}"  # names of runs are long paths
    "td.long{overflow-wrap:anywhere;min-width:5.5rem}td.long:last-child{overflow-wrap:normal}"
)


# --- the sides ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Side:
    """One side of a comparison: a run, or the runs of several seeds, by seed. `read_rows` adds the predictions."""

    name: str  # as the user called it
    folders: Mapping[int, Path]
    records: Mapping[int, RunRecord]
    seeds: Mapping[int, ScoredRows] = field(default_factory=dict)
    entries: Mapping[int, Sequence[Entry]] = field(default_factory=dict)

    @property
    def record(self) -> RunRecord:
        return next(iter(self.records.values()))


def read_side(name: str) -> Side:
    """Return a run folder, or a folder of several seeds, of which one must be finished; the others are omitted with a line."""
    folder = user_path(name)
    if records.is_run(folder) or not records.is_seeds_folder(folder):
        record = records.record_of(folder)
        return Side(near_name(str(folder)), {record.settings.seed: folder}, {record.settings.seed: record})
    seeds = read_seeds(folder)
    if not seeds.finished:
        raise ModelError(f"{folder}: no seed is finished yet", f"train them to the end: glassloop train --resume {folder}")
    if seeds.unfinished:
        say(f"{folder}: omitted, because they are not finished: {listed(map(seed_name, seeds.unfinished))}")
    folders = {seed: folder / seed_name(seed) for seed in seeds.finished}
    return Side(near_name(str(folder)), folders, {seed: records.read_run(path) for seed, path in folders.items()})


def common_split(sides: Sequence[Side], wanted: str | None) -> str:
    """Return the split to compare on: the one that is wanted, else validation, else the first that all runs predicted."""
    known = {str(path): records.predicted_splits(path) for side in sides for path in side.folders.values()}
    shared = set.intersection(*(set(splits) for splits in known.values()))
    if wanted is None:
        wanted = VALIDATION if VALIDATION in shared or not shared else min(shared)
    if lacking := next((path for path, splits in known.items() if wanted not in splits), None):
        remedy = f"use --split with one of {listed(sorted(shared))}" if shared else "train both runs to their ends"
        raise SettingsError(f"{lacking} has no predictions for the split {visible(wanted)}", remedy)
    return wanted


def read_rows(sides: Sequence[Side], split: str) -> list[Side]:
    """Return the sides with their predictions for a split. Raises `SettingsError` if tasks, labels or rows differ."""
    complete = []
    for side in sides:
        entries = {seed: records.read_predictions(path, split) for seed, path in side.folders.items()}
        files = {seed: path / records.predictions_name(split) for seed, path in side.folders.items()}
        data = {seed: record.data for seed, record in side.records.items()}
        seeds = {seed: scored_rows(entries[seed], one.task, one.labels, files[seed]) for seed, one in data.items()}
        complete.append(replace(side, seeds=seeds, entries=entries))
    first = complete[0]
    mine = first.record.data
    for other in complete:
        for seed, path in other.folders.items():
            theirs = other.records[seed].data
            if theirs.task != mine.task:
                raise SettingsError(f"{first.name} is {mine.task}, but {path} is {theirs.task}", "compare runs of one task")
            if theirs.labels != mine.labels:
                labels = f"the labels {listed(mine.labels or ())}, but {path} has {listed(theirs.labels or ())}"
                raise SettingsError(f"{first.name} has {labels}", "compare runs with the same labels")
            refuse_other_rows(first, other, seed, split)
    return complete


def refuse_other_rows(first: Side, other: Side, seed: int, split: str) -> None:
    """Raise `SettingsError` with the rows that differ, by fingerprint, text or label, from those of the first side."""
    mine = [content_of(entry, first.record) for entry in next(iter(first.entries.values()))]
    yours = [content_of(entry, other.records[seed]) for entry in other.entries[seed]]
    if mine == yours:
        return
    splits = [record.data.splits.get(split) for record in (first.record, other.records[seed])]
    prints = " and ".join(facts.fingerprint[:8] for facts in splits if facts) if all(splits) else ""
    facts = [f"{counted(len(mine), 'row', 'rows')} and {len(yours):,}" + (f" (fingerprints {prints})" if prints else "")]
    if different := [place for place, (one, two) in enumerate(zip(mine, yours, strict=False)) if one != two]:
        at = different[0]
        one, two = (f"{visible(content[at][0], 40)} ({content[at][-1]})" for content in (mine, yours))
        facts.append(f"rows {listed(different, 5)} differ, row {at:,} is {one} and {two}")
    only = len({*mine} - {*yours}), len({*yours} - {*mine})
    counts = f"{only[0]:,} rows are only in the first, {only[1]:,} in the second"
    facts.append(counts if any(only) else "the same rows in another order")
    problem = f"{first.name} and {other.folders[seed]} were evaluated on different rows: {'; '.join(facts)}"
    remedy = "evaluate both on the same rows: use the same data and the same split_seed, or a validation file"
    raise SettingsError(problem, remedy)


def content_of(entry: Mapping[str, Json], record: RunRecord) -> tuple[str, ...]:
    label = entry.get("label")
    wanted = ", ".join(sorted(map(str, label))) if isinstance(label, list) else str(label)
    return (*(str(entry.get(name)) for name in record.data.columns.texts), wanted)


# --- settings and rows that differ -------------------------------------------------------------------------------------
def facts_of(record: RunRecord) -> dict[str, object]:
    """Return everything about a run that may explain a difference: model, data, settings, machine, versions."""
    return {
        "model": home_name(record.model.name),
        "parameters": record.model.parameters,
        "data": home_name(record.data.source),
        **record.data.given(),
        **{f"rows of {name}": f"{split.num_rows:,} ({split.fingerprint[:8]})" for name, split in record.data.splits.items()},
        **{name: value for name, value in asdict(record.settings).items() if name not in OMITTED},
        "steps": record.plan.max_steps,
        "warmup_steps": record.plan.warmup_steps,
        **{name: getattr(record, name) for name in RECORDED},
        **{f"{name} version": version for name, version in record.versions.items()},
    }


def different_settings(sides: Sequence[Side]) -> dict[str, list[str]]:
    """Return the settings that differ between sides, with the value of each side; of several seeds, that of the first."""
    facts = [facts_of(side.record) for side in sides]
    if any(len(side.folders) > 1 for side in sides):
        for known, side in zip(facts, sides, strict=True):
            del known["seed"], known["best_step"]
            known["seeds"] = ", ".join(map(str, sorted(side.folders)))
    return different_facts(facts)


def different_facts(every: Sequence[Mapping[str, object]]) -> dict[str, list[str]]:
    """Return the facts that differ between runs, with the value of each run in words."""
    names = dict.fromkeys(name for facts in every for name in facts)
    values = {name: [in_words(facts.get(name)) for facts in every] for name in names}
    return {name: several for name, several in values.items() if len({*several}) > 1}


def in_words(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:g}"
        case Mapping():
            return ", ".join(f"{name}: {in_words(part)}" for name, part in value.items()) or "-"
        case list() | tuple():
            return ", ".join(map(in_words, value))
    return str(value)


@dataclass(frozen=True)
class RowDifference:
    row: int  # its number in the split, from 0
    first: float  # share of the first side's seeds that get it right, or its mean absolute error
    second: float
    entry: Entry  # texts and label
    first_answer: object  # the prediction of the first side's first seed
    second_answer: object


@dataclass(frozen=True)
class RowDifferences:
    """The rows on which another side does better and worse than the first, those with the largest difference first."""

    name: str
    better: tuple[RowDifference, ...]
    worse: tuple[RowDifference, ...]
    num_better: int
    num_worse: int
    num_equal: int


def answer_text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "no label"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def quality_of(side: Side) -> Array:
    """Return the share of seeds that get each row right; for scores, minus the mean absolute error of each row."""
    if side.record.data.task != SCORE:  # a row is either right or wrong
        return np.asarray(np.mean([rows.right for rows in side.seeds.values()], axis=0))
    return -np.asarray(np.mean([np.abs(rows.predictions - rows.references) for rows in side.seeds.values()], axis=0))


def row_differences(first: Side, other: Side) -> RowDifferences:
    before, after = quality_of(first), quality_of(other)
    change = after - before
    order = np.argsort(-np.abs(change), kind="stable")
    mine, yours = next(iter(first.entries.values())), next(iter(other.entries.values()))
    texts = first.record.data.columns.texts

    def described(row: int) -> RowDifference:
        entry = {name: mine[row].get(name) for name in (*texts, "label")}
        answers = mine[row].get("prediction"), yours[row].get("prediction")
        return RowDifference(row, abs(float(before[row])), abs(float(after[row])), entry, *answers)

    better, worse = order[change[order] > 0].tolist(), order[change[order] < 0].tolist()
    equal = len(change) - len(better) - len(worse)
    first_rows, last_rows = (tuple(map(described, several[:MOST_LISTED])) for several in (better, worse))
    return RowDifferences(other.name, first_rows, last_rows, len(better), len(worse), equal)


# --- the comparison ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ComparedRuns:
    split: str
    num_rows: int
    sides: tuple[Side, ...]
    measures: Measures
    settings: dict[str, list[str]]  # those that differ, with the value of each side
    conclusions: dict[str, Conclusion]  # for each metric, the results of all sides and their comparisons with the first
    rows: tuple[RowDifferences, ...]  # for each other side

    @property
    def names(self) -> list[str]:
        return [side.name for side in self.sides]

    @property
    def has_several_seeds(self) -> bool:
        return any(len(side.seeds) > 1 for side in self.sides)

    @property
    def task(self) -> str:
        return self.sides[0].record.data.task

    @property
    def warning(self) -> str:
        """What to know if single runs with different settings are compared, which says little about the settings."""
        return SINGLE_SEEDS if not self.has_several_seeds and {*self.settings} - {"seed", "best_step"} else ""

    def content(self) -> dict[str, object]:
        """Return the comparison as plain values for `--json`, without the texts of rows."""
        return {
            "split": self.split,
            "rows": self.num_rows,
            "positive_label": self.measures.positive,
            "runs": {side.name: {str(seed): path for seed, path in side.folders.items()} for side in self.sides},
            "settings": {name: dict(zip(self.names, values, strict=True)) for name, values in self.settings.items()},
            "metrics": {
                key: {
                    "results": {one.name: one for one in conclusion.results},
                    "comparisons": {
                        one.name: {
                            "difference": one.difference.value,
                            "interval": one.difference.interval,
                            "p_value": one.difference.p_value,
                            "corrected_p_value": one.difference.corrected,
                            "comparisons": one.difference.comparisons,
                            "test": one.difference.method,
                            "verdict": one.verdict,
                            "sentence": str(one.verdict),
                        }
                        for one in conclusion.comparisons
                    },
                }
                for key, conclusion in self.conclusions.items()
            },
            "row_differences": {
                one.name: {
                    "better": one.num_better,
                    "worse": one.num_worse,
                    "equal": one.num_equal,
                    "better_rows": [row.row for row in one.better],
                    "worse_rows": [row.row for row in one.worse],
                }
                for one in self.rows
            },
        }


def compare_runs(names: Sequence[str], split: str | None = None, margin: float | None = None) -> ComparedRuns:
    """Compare every other run with the first on the same rows.

    `margin` is the largest difference that does not matter. Without `split`, rows are those of `common_split`.
    """
    if len(names) < 2:
        raise SettingsError("a comparison needs two runs", "name two or more run folders: glassloop compare RUN RUN")
    if margin is not None and not (math.isfinite(margin) and margin >= 0):
        raise SettingsError(f"margin is {margin}, not a number of 0 or more", "use a share such as 0.01")
    sides = [read_side(name) for name in names]
    paths = [str(path.resolve()) for side in sides for path in side.folders.values()]
    if twice := [path for path in dict.fromkeys(paths) if paths.count(path) > 1]:
        raise SettingsError(f"{listed(twice, 2)} is compared with itself", "name each run once")
    folders = [Path(side.name) for side in sides]
    if all(folder.is_absolute() for folder in folders):  # names below the folder that all share are enough
        shared = os.path.commonpath([folder.parent for folder in folders])
        sides = [replace(side, name=os.path.relpath(side.name, shared)) for side in sides]
    chosen = common_split(sides, split)
    sides = read_rows(sides, chosen)
    first, *others = sides
    measures = measures_of(first.record)
    runs = [SettingRuns(side.name, side.seeds) for side in sides]
    baseline = (first.record.baseline or {}) if chosen == VALIDATION else {}
    conclusions = {key: concluded(runs, key, measures.positive, baseline.get(key), margin=margin) for key in measures.keys}
    rows = tuple(row_differences(first, other) for other in others)
    size = len(next(iter(first.seeds.values())))
    return ComparedRuns(chosen, size, tuple(sides), measures, different_settings(sides), conclusions, rows)


def measures_of(record: RunRecord) -> Measures:
    """Return the metrics of a run that can be computed from stored predictions, else the default ones of its task."""
    task, labels = record.data.task, record.data.labels or ("score",)
    keys = tuple(key for key in record.metrics if key in ROW_METRICS[task])
    return Measures(keys, record.positive_label) if keys else default_measures(task, labels)


# --- in the terminal ---------------------------------------------------------------------------------------------------
def show_comparison(console: Console, compared: ComparedRuns) -> None:
    first, *others = compared.names
    names = ", ".join(others) if sum(map(len, others)) < 40 else f"{len(others)} runs"
    console.print(text(f"{compared.split}, {counted(compared.num_rows, 'row', 'rows')}: {names} compared with {first}"))
    if compared.settings:
        table = bare_table("setting", *map(short_name, compared.names), overflow="fold")
        table.columns[0].overflow = "ellipsis"
        width = max(8, 56 // len(compared.names))
        for name, values in [*compared.settings.items()][:MOST_SETTINGS]:
            table.add_row(text(shortened(name, 24)), *(text(shortened(value, width)) for value in values))
        console.print()
        console.print(table)
        if len(compared.settings) > MOST_SETTINGS:
            console.print(text(f"and {len(compared.settings) - MOST_SETTINGS} more settings differ; --json lists all"))
    for key, conclusion in compared.conclusions.items():
        console.print()
        console.print(metric_table(compared.measures.title(key), conclusion))
        for sentence in verdict_lines(conclusion):
            console.print(text(f"• {sentence}"))
    if compared.warning:
        console.print()
        console.print(text(compared.warning))
    for rows in compared.rows:
        console.print()
        show_rows(console, compared, rows)


def short_name(name: str) -> str:
    """Return a name that fits into a column: its end, which tells runs apart."""
    return name if len(name) <= LONGEST_NAME else "…" + name[1 - LONGEST_NAME :]


def metric_table(title: str, conclusion: Conclusion) -> Table:
    # Several intervals of differences are corrected, so that all hold together with 95%.
    corrected = "corrected" if conclusion.correction else "95% interval"
    columns = (shortened(title, LONGEST_NAME), "value", "95% interval", "difference", corrected, "p")
    table = bare_table(*columns, right=1, overflow="fold")
    compared = {one.name: one.difference for one in conclusion.comparisons}
    for result in conclusion.results:
        cells = ["", "", ""]
        if difference := compared.get(result.name):
            cells = [f"{difference.value:+.4f}", in_dots(difference.interval, sign="+"), p_text(difference.corrected)]
        value = "-" if result.mean is None else f"{result.mean:.4f}"
        span = in_dots(result.interval) or (NO_INTERVAL if result.points else "")
        table.add_row(text(short_name(result.name)), value, span, *cells)
    return table


def in_dots(interval: Interval | None, sign: str = "") -> str:
    """Return `0.805..0.875`."""
    return "" if interval is None else f"{interval.low:{sign}.3f}..{interval.high:{sign}.3f}"


def p_text(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "<0.001"


def verdict_lines(conclusion: Conclusion) -> list[str]:
    lines = [f"{one.name}: {one.verdict}" for one in conclusion.comparisons]
    methods = ", ".join(dict.fromkeys(one.difference.method for one in conclusion.comparisons))
    return [*lines, f"test: {methods}" + (f"; {conclusion.correction}" if conclusion.correction else "")]


def show_rows(console: Console, compared: ComparedRuns, rows: RowDifferences) -> None:
    shares = compared.has_several_seeds and compared.task != SCORE
    if compared.task == SCORE:
        words = f"closer on {rows.num_better:,}, farther off on {rows.num_worse:,}"
    elif not shares:
        words = f"only it gets {counted(rows.num_better, 'row', 'rows')} right, only {compared.names[0]} {rows.num_worse:,}"
    else:
        words = f"more seeds right on {counted(rows.num_better, 'row', 'rows')}, fewer on {rows.num_worse:,}"
    console.print(text(f"{rows.name}: {words}, the same on {rows.num_equal:,}"))
    for kind, several in (("better", rows.better), ("worse", rows.worse)):
        for row in several[:MOST_ROWS]:
            texts = " | ".join(str(value) for name, value in row.entry.items() if name != "label")
            label, *both = (
                shortened(answer_text(one), 12) for one in (row.entry.get("label"), row.first_answer, row.second_answer)
            )
            answers = f"{row.first:.0%} → {row.second:.0%} of seeds right" if shares else " → ".join(both)
            console.print(text(f"  {kind}: {shortened(f'row {row.row} [{label}] {answers}: {texts}', 68)}"))


# --- as a page ---------------------------------------------------------------------------------------------------------
def comparison_page(compared: ComparedRuns) -> str:
    first, *others = compared.names
    title = f"{', '.join(others)} compared with {first}" if len(others) < 4 else f"{len(others)} runs compared with {first}"
    results = []
    for key, conclusion in compared.conclusions.items():
        name = compared.measures.title(key)
        figures = [figure(values_chart(name, conclusion)), figure(differences_chart(name, conclusion))]
        corrected = "corrected interval" if conclusion.correction else "95% interval"
        results.append((name, verdict_lines(conclusion), figures, corrected, metric_rows(conclusion)))
    settings = [[name, *values] for name, values in compared.settings.items()]
    rows = [
        piece(TEMPLATE, "rows", compared, side, number, row_items(compared, side)) for number, side in enumerate(compared.rows)
    ]
    sections = [
        Section("result", "Result", piece(TEMPLATE, "result", compared.warning, results)),
        Section("settings", "Settings that differ", piece(TEMPLATE, "settings", compared.names, settings), "Settings"),
        Section("curves", "Curves", piece(PARTS, "grid", [figure(chart) for chart in curves(compared)])),
        Section("rows", "Rows that differ", "".join(rows), "Rows"),
    ]
    subtitle = piece(PARTS, "paragraph", f"{compared.split}, {counted(compared.num_rows, 'row', 'rows')}")
    footer = piece(PARTS, "paragraph", "Made by glassloop compare from the run folders.")
    return page(printable(title), sections, subtitle=subtitle, style=STYLE, footer=footer)


def values_chart(title: str, conclusion: Conclusion) -> DotChart:
    rows = []
    for place, one in enumerate(conclusion.results):
        low, high = (one.interval.low, one.interval.high) if one.interval else (None, None)
        several = [*one.points.values()] if len(one.points) > 1 else ()
        note = f"{one.failed} of {one.runs} runs at or below the baseline" if one.failed else ""
        rows.append(Dots(one.name, one.mean, low, high, several, note=note, color=place))
    return DotChart(title, "Value of each run with its 95% interval; small points are single seeds.", rows, Axis(title))


def differences_chart(title: str, conclusion: Conclusion) -> DotChart:
    rows = []
    for place, one in enumerate(conclusion.comparisons, start=1):
        span = one.difference.interval
        rows.append(Dots(one.name, one.difference.value, span.low, span.high, note=str(one.verdict), color=place))
    told = "An interval across zero leaves open which is better."
    told += f" With {conclusion.correction}." if conclusion.correction else ""
    return DotChart(f"Difference in {title} from {conclusion.reference}", told, rows, Axis("difference"), reference=0.0)


def metric_rows(conclusion: Conclusion) -> list[list[Cell]]:
    compared = {one.name: one for one in conclusion.comparisons}
    rows: list[list[Cell]] = []
    for result in conclusion.results:
        scores = (score(result.mean), score(result.deviation), span(result.interval))
        cells: list[Cell] = [result.name, len(result.points), *scores]
        if one := compared.get(result.name):
            tested = one.difference
            cells += [score(tested.value), span(tested.interval)]
            cells += [Number(value, p_text(value)) for value in (tested.p_value, tested.corrected)]
        rows.append([*cells, str(one.verdict)] if one else [*cells, None, None, None, None, "reference"])
    return rows


def row_items(compared: ComparedRuns, rows: RowDifferences) -> list[tuple[str, str, list[str]]]:
    """Return whether each row is better or worse, its number, label and both answers in words, and its texts."""
    items = []
    for kind, row in [("better", row) for row in rows.better] + [("worse", row) for row in rows.worse]:
        words = [f"row {row.row}, label {cut(row.entry.get('label'))}"]
        sides = (compared.names[0], row.first_answer, row.first), (rows.name, row.second_answer, row.second)
        for side, answer, share in sides:
            if compared.task == SCORE:
                words.append(f"{side}: {cut(answer)} (off by {share:.3g})")
            else:
                words.append(f"{side}: {f'{share:.0%} of seeds right' if compared.has_several_seeds else cut(answer)}")
        items.append((kind, "; ".join(words), [cut(value) for key, value in row.entry.items() if key != "label"]))
    return items


def cut(value: object) -> str:
    text = answer_text(value)
    return text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + "…"


def curves(compared: ComparedRuns) -> list[LineChart]:
    histories = {side.name: [read_history(path) for path in side.folders.values()] for side in compared.sides}
    wanted = {"loss": "Training loss", "eval_loss": "Evaluation loss"}
    wanted |= {f"eval_{key}": compared.measures.title(key) for key in compared.measures.keys}
    charts = []
    for key, title in wanted.items():
        lines = [line for name, several in histories.items() if (line := series_of(name, several, key)).points]
        if lines:
            told = f"{title} by step."
            if any(line.band for line in lines):
                told += " Lines are means over seeds, areas reach from the lowest to the highest."
            charts.append(LineChart(title, told, Axis("step"), Axis(title), lines))
    return charts


def series_of(name: str, histories: Sequence[Sequence[Entry]], key: str) -> Series:
    """Return the values of one side by step: of several seeds the mean, with the lowest and highest as an area."""
    values: dict[float, list[float]] = {}
    for history in histories:
        for step, value in dict(numbers_by_step(history, key)).items():  # of repeated steps, the last
            values.setdefault(step, []).append(value)
    steps = sorted(step for step, several in values.items() if len(several) == len(histories)) or sorted(values)
    points = [(step, sum(values[step]) / len(values[step])) for step in steps]
    band = [(step, min(values[step]), max(values[step])) for step in steps] if len(histories) > 1 else []
    return Series(name, points, band=band, dots=key != "loss")
