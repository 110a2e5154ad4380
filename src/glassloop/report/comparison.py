"""The comparison of runs: metrics with intervals, tests and verdicts, settings and rows; in the terminal and as a page."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassloop.base.errors import (
    ModelError,
    SettingsError,
    counted,
    listed,
    printable,
    shortened,
    visible,
)
from glassloop.base.files import home_name, near_name, user_path
from glassloop.base.output import say
from glassloop.base.records import Json
from glassloop.markup.templates import escaped
from glassloop.report.charts import Axis, DotChart, Dots, LineChart, Series, figure
from glassloop.report.page import Cell, Number, Section, details, filters, grid, heading, page, paragraph, score, table, tag
from glassloop.runs.history import Entry, read_history
from glassloop.runs.record import (
    RunRecord,
    is_run,
    is_seeds_folder,
    predicted_splits,
    predictions_name,
    read_predictions,
    read_run,
    record_of,
    seed_name,
)
from glassloop.runs.study import read_seeds
from glassloop.scores.conclusions import Conclusion, SettingRuns, concluded
from glassloop.scores.intervals import (
    NO_INTERVAL,
    ROW_METRICS,
    Interval,
    ScoredRows,
    has_rows_right,
    scored_rows,
)
from glassloop.scores.metrics import Array, Measures, default_measures
from glassloop.settings.training import SCORE, TrainingArguments

VALIDATION = "validation"


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a run, or the runs of several seeds."""

    name: str  # how the user called it
    folders: Mapping[int, Path]  # the run folder of each seed
    records: Mapping[int, RunRecord]  # the record of each run

    @property
    def record(self) -> RunRecord:
        """The record of the first run."""
        return next(iter(self.records.values()))


@dataclass(frozen=True)
class SideRows:
    """A side with its predictions for the rows that all sides share."""

    side: Side  # the side
    seeds: Mapping[int, ScoredRows]  # the predictions of each seed as arrays
    entries: Mapping[int, Sequence[Entry]]  # the lines of the predictions file of each seed

    @property
    def name(self) -> str:
        """How the user called the side."""
        return self.side.name


def read_side(name: str) -> Side:
    """Return a run folder, or a folder of several seeds. Seeds that are not finished are omitted with a line.

    Raises:
        ModelError: If the folder is no run folder, is damaged, or has no finished seed.
    """
    folder = user_path(name)
    if is_run(folder) or not is_seeds_folder(folder):
        record = record_of(folder)
        return Side(near_name(str(folder)), {record.settings.seed: folder}, {record.settings.seed: record})
    found = read_seeds(folder)
    if not found.finished:
        raise ModelError(f"{folder}: no seed is finished yet", f"train them to the end: glassloop train --resume {folder}")
    if found.unfinished:
        say(f"{folder}: omitted, because they are not finished: {listed(map(seed_name, found.unfinished))}")
    folders = {seed: folder / seed_name(seed) for seed in found.finished}
    return Side(near_name(str(folder)), folders, {seed: read_run(path) for seed, path in folders.items()})


def with_short_names(sides: Sequence[Side]) -> list[Side]:
    """Return the sides with names below the folder that they share, if all have absolute paths as names."""
    paths = [Path(side.name) for side in sides]
    if not all(path.is_absolute() for path in paths):
        return [*sides]
    shared = os.path.commonpath([path.parent for path in paths])
    return [replace(side, name=str(path.relative_to(shared))) for side, path in zip(sides, paths, strict=True)]


def common_split(sides: Sequence[Side], wanted: str | None) -> str:
    """Return the split to compare on: the one that is wanted, else validation, else the first that all runs predicted.

    Raises:
        SettingsError: If a run has no predictions for it.
    """
    known = {str(path): predicted_splits(path) for side in sides for path in side.folders.values()}
    shared = set.intersection(*(set(splits) for splits in known.values()))
    if wanted is None:
        wanted = VALIDATION if VALIDATION in shared or not shared else min(shared)
    if lacking := next((path for path, splits in known.items() if wanted not in splits), None):
        remedy = f"use --split with one of {listed(sorted(shared))}" if shared else "train both runs to their ends"
        raise SettingsError(f"{lacking} has no predictions for the split {visible(wanted)}", remedy)
    return wanted


def read_rows(sides: Sequence[Side], split: str) -> list[SideRows]:
    """Return the sides with their predictions for a split.

    Raises:
        SettingsError: If tasks, labels or rows differ; it says which.
    """
    found = []
    for side in sides:
        entries = {seed: read_predictions(path, split) for seed, path in side.folders.items()}
        seeds = {
            seed: scored_rows(entries[seed], record.data.task, record.data.labels, side.folders[seed] / predictions_name(split))
            for seed, record in side.records.items()
        }
        found.append(SideRows(side, seeds, entries))
    first = found[0]
    for other in found:
        for seed, path in other.side.folders.items():
            refuse_other_labels(first.side, other.side.records[seed], path)
            refuse_other_rows(first, other, seed, split)
    return found


def refuse_other_labels(first: Side, record: RunRecord, path: Path) -> None:
    """Raise `SettingsError` if a run has another task or other labels than the first side."""
    stored = first.record.data
    if record.data.task != stored.task:
        raise SettingsError(f"{first.name} is {stored.task}, but {path} is {record.data.task}", "compare runs of one task")
    if record.data.labels != stored.labels:
        problem = (
            f"{first.name} has the labels {listed(stored.labels or ())}, but {path} has {listed(record.data.labels or ())}"
        )
        raise SettingsError(problem, "compare runs with the same labels")


def refuse_other_rows(first: SideRows, other: SideRows, seed: int, split: str) -> None:
    """Raise `SettingsError` with the rows that differ, by fingerprint, text or label, from those of the first side."""
    start = next(iter(first.entries))
    own, theirs = (
        first.side.records[start].data.splits.get(split),
        other.side.records[seed].data.splits.get(split),
    )
    mine = [content_of(entry, first.side.records[start]) for entry in first.entries[start]]
    yours = [content_of(entry, other.side.records[seed]) for entry in other.entries[seed]]
    if mine == yours:
        return
    different = [place for place, (one, two) in enumerate(zip(mine, yours, strict=False)) if one != two]
    only = len({*yours} - {*mine}), len({*mine} - {*yours})
    prints = f" (fingerprints {own.fingerprint[:8]} and {theirs.fingerprint[:8]})" if own and theirs else ""
    facts = [f"{counted(len(mine), 'row', 'rows')} and {len(yours):,}{prints}"]
    if different:
        at = different[0]
        facts.append(f"rows {listed(different, 5)} differ, row {at:,} is {shown(mine[at])} and {shown(yours[at])}")
    facts.append(
        "the same rows in another order"
        if only == (0, 0)
        else f"{only[1]:,} rows are only in the first, {only[0]:,} in the second"
    )
    problem = f"{first.name} and {other.side.folders[seed]} were evaluated on different rows: {'; '.join(facts)}"
    remedy = "evaluate both on the same rows: use the same data and the same split_seed, or a validation file"
    raise SettingsError(problem, remedy)


def content_of(entry: Mapping[str, Json], record: RunRecord) -> tuple[str, ...]:
    """Return the texts and the label of a row."""
    label = entry.get("label")
    wanted = ", ".join(sorted(map(str, label))) if isinstance(label, list) else str(label)
    return (*(str(entry.get(name)) for name in record.data.columns.texts), wanted)


def shown(content: Sequence[str]) -> str:
    """Return a row for a message: its first text and its label."""
    return f"{visible(content[0], 40)} ({content[-1]})"


OMITTED = ("output_dir", "seed", "disable_tqdm")


def facts_of(record: RunRecord) -> dict[str, object]:
    """Return everything about a run that may explain a difference: model, data, settings, machine, versions."""
    facts: dict[str, object] = {"model": home_name(record.model.name), "parameters": record.model.parameters}
    facts |= {"data": home_name(record.data.source), **record.data.given()}
    facts["training rows"] = record.data.splits["train"].num_rows if "train" in record.data.splits else None
    facts["training rows fingerprint"] = record.data.splits["train"].fingerprint[:8] if "train" in record.data.splits else None
    settings = {entry.name: getattr(record.settings, entry.name) for entry in fields(TrainingArguments)}
    facts |= {name: value for name, value in settings.items() if name not in OMITTED}
    facts |= {"steps": record.plan.max_steps, "warmup_steps": record.plan.warmup_steps, "max_length": record.max_length}
    facts |= {"class_weights": record.class_weights, "device": record.device, "precision": record.precision}
    facts |= {"backend": record.backend, "processes": record.processes, "best_step": record.best_step}
    return facts | {f"{name} version": version for name, version in record.versions.items()}


def different_settings(sides: Sequence[Side]) -> dict[str, list[str]]:
    """Return the settings that differ between sides, with the value of each side; of several seeds, that of the first."""
    facts = [facts_of(side.record) for side in sides]
    if all(len(side.folders) == 1 for side in sides):
        facts = [{**found, "seed": side.record.settings.seed} for found, side in zip(facts, sides, strict=True)]
    else:
        facts = [
            {**found, "seeds": ", ".join(map(str, sorted(side.folders)))} for found, side in zip(facts, sides, strict=True)
        ]
        facts = [{name: value for name, value in found.items() if name != "best_step"} for found in facts]
    names = dict.fromkeys(name for found in facts for name in found)
    values = {name: [in_words(found.get(name)) for found in facts] for name in names}
    return {name: found for name, found in values.items() if len({*found}) > 1}


def in_words(value: object) -> str:
    """Return a value as people write it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {in_words(part)}" for name, part in value.items()) or "-"
    return ", ".join(map(in_words, value)) if isinstance(value, list | tuple) else str(value)


@dataclass(frozen=True)
class RowDifference:
    """A row on which the first and another side differ."""

    row: int  # its number in the split, from 0
    first: float  # share of the first side's seeds that get it right, or its mean absolute error
    second: float  # the same for the other side
    entry: Entry  # texts and label
    first_answer: object  # the prediction of the first side's first seed
    second_answer: object  # the prediction of the other side's first seed


def answer_text(value: object) -> str:
    """Return a label, several labels, or a score."""
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "no label"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class RowDifferences:
    """The rows on which another side does better and worse than the first, those with the largest difference first."""

    name: str
    better: tuple[RowDifference, ...]
    worse: tuple[RowDifference, ...]
    num_better: int
    num_worse: int
    num_equal: int


@dataclass(frozen=True)
class ComparedRuns:
    """The comparison of all sides with the first."""

    split: str  # the split whose rows were compared
    num_rows: int  # number of rows
    sides: tuple[SideRows, ...]  # the sides with their predictions
    measures: Measures  # the metrics
    settings: dict[str, list[str]]  # the settings that differ, with the value of each side
    conclusions: dict[str, Conclusion]  # for each metric, the results of all sides and their comparisons with the first
    rows: tuple[RowDifferences, ...]  # for each other side, the rows on which it differs from the first

    @property
    def names(self) -> list[str]:
        """The names of the sides."""
        return [side.name for side in self.sides]

    @property
    def has_several_seeds(self) -> bool:
        """Whether a side has more than one seed."""
        return any(len(side.seeds) > 1 for side in self.sides)

    def content(self) -> dict[str, object]:
        """Return the comparison as plain values for `--json`, without the texts of rows."""
        return {
            "split": self.split,
            "rows": self.num_rows,
            "positive_label": self.measures.positive,
            "runs": {side.name: {str(seed): path for seed, path in side.side.folders.items()} for side in self.sides},
            "settings": {name: dict(zip(self.names, values, strict=True)) for name, values in self.settings.items()},
            "metrics": {
                key: {
                    "results": {one.name: one for one in found.results},
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
                        for one in found.comparisons
                    },
                }
                for key, found in self.conclusions.items()
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


def compare_runs(
    names: Sequence[str], split: str | None = None, margin: float | None = None, most_rows: int = 100
) -> ComparedRuns:
    """Compare runs on the same rows: every other one with the first.

    Args:
        names: Run folders, or folders of several seeds.
        split: The split to compare on. Default: validation, or the first that all runs have predictions for.
        margin: The largest difference that does not matter.
        most_rows: How many rows to list for each direction.

    Raises:
        SettingsError: If there are fewer than two different runs, or if their rows, labels or tasks differ.
        ModelError: If a folder is not a run folder, or is damaged.
    """
    if len(names) < 2:
        raise SettingsError("a comparison needs two runs", "name two or more run folders: glassloop compare RUN RUN")
    if margin is not None and not (math.isfinite(margin) and margin >= 0):
        raise SettingsError(f"margin is {margin}, not a number of 0 or more", "use a share such as 0.01")
    sides = with_short_names([read_side(name) for name in names])
    paths = [str(path.resolve()) for side in sides for path in side.folders.values()]
    if twice := [path for path in dict.fromkeys(paths) if paths.count(path) > 1]:
        raise SettingsError(f"{listed(twice, 2)} is compared with itself", "name each run once")
    chosen = common_split(sides, split)
    found = read_rows(sides, chosen)
    measures = measures_of(found[0].side.record)
    runs = [SettingRuns(side.name, side.seeds) for side in found]
    baseline = (found[0].side.record.baseline or {}) if chosen == "validation" else {}
    conclusions = {key: concluded(runs, key, measures.positive, baseline.get(key), margin=margin) for key in measures.keys}
    rows = tuple(row_differences(found[0], other, most_rows) for other in found[1:])
    size = len(next(iter(found[0].seeds.values())))
    return ComparedRuns(chosen, size, tuple(found), measures, different_settings(sides), conclusions, rows)


def measures_of(record: RunRecord) -> Measures:
    """Return the metrics of a run that can be computed from stored predictions, else the default ones of its task."""
    task, labels = record.data.task, record.data.labels or ("score",)
    known = ROW_METRICS[task]
    keys = tuple(key for key in record.metrics if key in known)
    return Measures(keys, record.positive_label) if keys else default_measures(task, labels)


def quality_of(side: SideRows) -> Array:
    """Return the share of seeds that get each row right; for scores, minus the mean absolute error of each row."""
    if has_rows_right(side.side.record.data.task):
        return np.asarray(np.mean([rows.right for rows in side.seeds.values()], axis=0))
    return -np.asarray(np.mean([np.abs(rows.predictions - rows.references) for rows in side.seeds.values()], axis=0))


def row_differences(first: SideRows, other: SideRows, most: int) -> RowDifferences:
    """Return the rows on which two sides differ."""
    before, after = quality_of(first), quality_of(other)
    change = after - before
    order = np.argsort(-np.abs(change), kind="stable")
    own, theirs = next(iter(first.entries.values())), next(iter(other.entries.values()))
    texts = first.side.record.data.columns.texts

    def described(row: int) -> RowDifference:
        entry = {name: own[row].get(name) for name in (*texts, "label")}
        answers = own[row].get("prediction"), theirs[row].get("prediction")
        return RowDifference(row, abs(float(before[row])), abs(float(after[row])), entry, *answers)

    better, worse = (order[change[order] > 0].tolist(), order[change[order] < 0].tolist())
    return RowDifferences(
        other.name,
        tuple(map(described, better[:most])),
        tuple(map(described, worse[:most])),
        len(better),
        len(worse),
        len(change) - len(better) - len(worse),
    )


LONGEST_NAME = 20
MOST_SETTINGS, MOST_ROWS = 20, 3
SINGLE_SEEDS = "One seed each: this compares single models. Train several seeds to compare their settings."


def show_comparison(console: Console, found: ComparedRuns) -> None:
    """Print the settings that differ, the metrics, the tests, and rows on which the runs differ."""
    first, *others = found.names
    line(console, f"{found.split}, {counted(found.num_rows, 'row', 'rows')}: {listed_names(others)} compared with {first}")
    if found.settings:
        console.print()
        console.print(settings_table(found))
        if len(found.settings) > MOST_SETTINGS:
            line(console, f"and {len(found.settings) - MOST_SETTINGS} more settings differ; --json lists all")
    for key, conclusion in found.conclusions.items():
        console.print()
        console.print(metric_table(found.measures.title(key), conclusion))
        for text in verdict_lines(conclusion):
            line(console, f"• {text}")
    if one_seed_of_different_settings(found):
        console.print()
        line(console, SINGLE_SEEDS)
    for rows in found.rows:
        console.print()
        show_rows(console, found, rows)


def one_seed_of_different_settings(found: ComparedRuns) -> bool:
    """Return whether single runs with different settings are compared, which says little about the settings."""
    return not found.has_several_seeds and bool({*found.settings} - {"seed", "best_step"})


def line(console: Console, text: str) -> None:
    """Print a line of plain text."""
    console.print(Text(printable(text)))


def listed_names(names: Sequence[str]) -> str:
    """Return names, or how many there are if they would not fit on a line."""
    return ", ".join(names) if sum(map(len, names)) < 40 else f"{len(names)} runs"


def short_name(name: str) -> Text:
    """Return a name that fits into a column: its end, which tells runs apart."""
    return Text(printable(name if len(name) <= LONGEST_NAME else "…" + name[1 - LONGEST_NAME :]))


def plain_table(*columns: str) -> Table:
    """Return a table whose first column is aligned to the left, all others to the right."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for place, name in enumerate(columns):
        table.add_column(Text(printable(name)), justify="right" if place else "left", overflow="fold")
    return table


def settings_table(found: ComparedRuns) -> Table:
    """Return the settings that differ, one row each. Long values are cut."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("setting")
    for name in found.names:
        table.add_column(short_name(name), overflow="fold")
    width = max(8, 56 // len(found.names))
    for name, values in [*found.settings.items()][:MOST_SETTINGS]:
        table.add_row(Text(shortened(name, 24)), *(Text(shortened(value, width)) for value in values))
    return table


def metric_table(title: str, conclusion: Conclusion) -> Table:
    """Return the results of all sides in one metric, with their differences from the first."""
    table = plain_table(
        shortened(title, LONGEST_NAME), "value", "95 % interval", "difference", difference_title(conclusion), "p"
    )
    compared = {one.name: one.difference for one in conclusion.comparisons}
    for result in conclusion.results:
        difference = compared.get(result.name)
        cells = ["", "", ""]
        if difference:
            cells = [f"{difference.value:+.4f}", in_brackets(difference.interval, sign="+"), p_text(difference.corrected)]
        value = "-" if result.mean is None else f"{result.mean:.4f}"
        span = in_brackets(result.interval) or (NO_INTERVAL if result.points else "")
        table.add_row(short_name(result.name), value, span, *cells)
    return table


def difference_title(conclusion: Conclusion) -> str:
    """Return the title of the intervals of differences: several are corrected, so that all hold together with 95 %."""
    return "corrected" if conclusion.correction else "95 % interval"


def in_brackets(interval: Interval | None, sign: str = "") -> str:
    """Return `0.805..0.875`."""
    return "" if interval is None else f"{interval.low:{sign}.3f}..{interval.high:{sign}.3f}"


def p_text(value: float) -> str:
    """Return a p-value with three decimals."""
    return f"{value:.3f}" if value >= 0.001 else "<0.001"


def verdict_lines(conclusion: Conclusion) -> list[str]:
    """Return a sentence for each comparison, and one about how they were computed."""
    lines = [f"{one.name}: {one.verdict}" for one in conclusion.comparisons]
    methods = ", ".join(dict.fromkeys(one.difference.method for one in conclusion.comparisons))
    return [*lines, f"test: {methods}" + (f"; {conclusion.correction}" if conclusion.correction else "")]


def show_rows(console: Console, found: ComparedRuns, rows: RowDifferences) -> None:
    """Print how many rows each of two sides does better on, and the clearest of them."""
    first = found.names[0]
    if found.sides[0].side.record.data.task == SCORE:
        words = f"closer on {rows.num_better:,}, farther off on {rows.num_worse:,}"
    elif not found.has_several_seeds:
        words = f"only it gets {counted(rows.num_better, 'row', 'rows')} right, only {first} {rows.num_worse:,}"
    else:
        words = f"more seeds right on {counted(rows.num_better, 'row', 'rows')}, fewer on {rows.num_worse:,}"
    line(console, f"{rows.name}: {words}, the same on {rows.num_equal:,}")
    for kind, several in (("better", rows.better), ("worse", rows.worse)):
        for row in several[:MOST_ROWS]:
            line(console, f"  {kind}: {row_text(row, shares=found.has_several_seeds and words.startswith('more'))}")


def row_text(row: RowDifference, *, shares: bool) -> str:
    """Return a row on one line: number, label, both answers or shares of seeds that are right, and its texts."""
    texts = " | ".join(str(value) for name, value in row.entry.items() if name != "label")
    answers = f"{shortened(answer_text(row.first_answer), 12)} → {shortened(answer_text(row.second_answer), 12)}"
    if shares:
        answers = f"{row.first:.0%} → {row.second:.0%} of seeds right"
    return shortened(f"row {row.row} [{shortened(answer_text(row.entry.get('label')), 12)}] {answers}: {texts}", 68)


def curves(found: ComparedRuns) -> list[LineChart]:
    """Return a chart of the training loss, of the evaluation loss, and of each metric, if the runs recorded them."""
    histories = {side.name: [read_history(path) for path in side.side.folders.values()] for side in found.sides}
    wanted = {"loss": "Training loss", "eval_loss": "Evaluation loss"}
    wanted |= {f"eval_{key}": found.measures.title(key) for key in found.measures.keys}
    charts = []
    for key, title in wanted.items():
        lines = [series_of(name, several, key) for name, several in histories.items()]
        shown = [line for line in lines if line.points]
        if shown:
            seeds = " Lines are means over seeds, areas reach from the lowest to the highest." * any(
                line.band for line in shown
            )
            charts.append(LineChart(title, f"{title} by step.{seeds}", Axis("step"), Axis(title), shown))
    return charts


def series_of(name: str, histories: Sequence[Sequence[Entry]], key: str) -> Series:
    """Return the values of one side by step: of several seeds the mean, with the lowest and highest as an area."""
    values: dict[float, list[float]] = {}
    for history in histories:
        for step, value in points_of(history, key).items():
            values.setdefault(step, []).append(value)
    steps = sorted(step for step, several in values.items() if len(several) == len(histories)) or sorted(values)
    points = [(step, sum(values[step]) / len(values[step])) for step in steps]
    band = [(step, min(values[step]), max(values[step])) for step in steps] if len(histories) > 1 else []
    return Series(name, points, band=band, dots=key != "loss")


def points_of(history: Sequence[Mapping[str, object]], key: str) -> dict[float, float]:
    """Return a figure of a history by step; of repeated steps, the last."""
    found: dict[float, float] = {}
    for entry in history:
        step, value = entry.get("step"), entry.get(key)
        if isinstance(step, int | float) and isinstance(value, int | float) and not isinstance(value, bool):
            found[float(step)] = float(value)
    return found


MOST_TEXT = 2000  # characters of a text that are shown
STYLE = "ul.rows{list-style:none;padding:0}ul.rows li{border-top:1px solid var(--line);padding:.5rem 0;overflow-wrap:anywhere}"


STYLE += "ul.rows p{margin:.3rem 0 0}main,header.top{overflow-wrap:anywhere}"  # names of runs are long paths


STYLE += "td.long{overflow-wrap:anywhere;min-width:5.5rem}td.long:last-child{overflow-wrap:normal}"


def comparison_page(found: ComparedRuns) -> str:
    """Return the HTML of a comparison. All texts and names in it are escaped."""
    first, *others = found.names
    title = f"{', '.join(others)} compared with {first}" if len(others) < 4 else f"{len(others)} runs compared with {first}"
    sections = [
        Section("result", "Result", result_part(found)),
        Section("settings", "Settings that differ", settings_part(found), "Settings"),
        Section("curves", "Curves", grid(*(figure(chart) for chart in curves(found)))),
        Section(
            "rows", "Rows that differ", "".join(rows_part(found, rows, place) for place, rows in enumerate(found.rows)), "Rows"
        ),
    ]
    subtitle = paragraph(f"{found.split}, {counted(found.num_rows, 'row', 'rows')}")
    return page(
        printable(title),
        sections,
        subtitle=subtitle,
        style=STYLE,
        footer=paragraph("Made by glassloop compare from the run folders."),
    )


def result_part(found: ComparedRuns) -> str:
    """Return the verdicts, a chart and a table for each metric."""
    parts = [paragraph(SINGLE_SEEDS)] if one_seed_of_different_settings(found) else []
    for key, conclusion in found.conclusions.items():
        title = found.measures.title(key)
        parts.append(heading(title))
        parts.append("<ul>" + "".join(f"<li>{escaped(line)}</li>" for line in verdict_lines(conclusion)) + "</ul>")
        parts.append(grid(figure(values_chart(title, conclusion)), figure(differences_chart(title, conclusion))))
        parts.append(details("Table", metric_section_table(conclusion)))
    return "".join(parts)


def values_chart(title: str, conclusion: Conclusion) -> DotChart:
    """Return all points, the mean and its interval for each side."""
    rows = [
        Dots(
            one.name,
            one.mean,
            one.interval.low if one.interval else None,
            one.interval.high if one.interval else None,
            points=[*one.points.values()] if len(one.points) > 1 else (),
            note=f"{one.failed} of {one.runs} runs at or below the baseline" if one.failed else "",
            color=place,
        )
        for place, one in enumerate(conclusion.results)
    ]
    return DotChart(title, "Value of each run with its 95 % interval; small points are single seeds.", rows, Axis(title))


def differences_chart(title: str, conclusion: Conclusion) -> DotChart:
    """Return the difference of each other side from the first with its interval."""
    rows = [
        Dots(
            one.name,
            one.difference.value,
            one.difference.interval.low,
            one.difference.interval.high,
            note=str(one.verdict),
            color=place + 1,
        )
        for place, one in enumerate(conclusion.comparisons)
    ]
    name = f"Difference in {title} from {conclusion.reference}"
    told = "An interval across zero leaves open which is better."
    if conclusion.correction:
        told += f" With {conclusion.correction}."
    return DotChart(name, told, rows, Axis("difference"), reference=0.0)


def metric_section_table(conclusion: Conclusion) -> str:
    """Return values, intervals and tests of one metric."""
    compared = {one.name: one for one in conclusion.comparisons}
    rows: list[list[Cell]] = []
    for result in conclusion.results:
        interval, one = result.interval, compared.get(result.name)
        cells: list[Cell] = [result.name, len(result.points), score(result.mean), score(result.deviation), between(interval)]
        if one:
            found = one.difference
            cells += [score(found.value), between(found.interval)]
            cells += [
                Number(found.p_value, p_text(found.p_value)),
                Number(found.corrected, p_text(found.corrected)),
                str(one.verdict),
            ]
        else:
            cells += [None, None, None, None, "reference"]
        rows.append(cells)
    columns = [
        "run",
        "seeds",
        "mean",
        "standard deviation",
        "95 % interval",
        "difference",
        "corrected interval" if conclusion.correction else "95 % interval",
        "p",
        "p (Holm)",
        "verdict",
    ]
    return table(columns, rows)


def between(interval: Interval | None) -> Number:
    """Return both ends of an interval as a cell."""
    return Number(interval.low, f"{interval.low:.4f} to {interval.high:.4f}") if interval else Number(None, "–")


def settings_part(found: ComparedRuns) -> str:
    """Return the settings that differ."""
    rows = [[name, *values] for name, values in found.settings.items()]
    return table(["setting", *found.names], rows) or paragraph("All recorded settings are the same.")


def rows_part(found: ComparedRuns, rows: RowDifferences, place: int) -> str:
    """Return the rows on which one side does better or worse than the first, with a filter."""
    better, worse, equal = (f"{number:,}" for number in (rows.num_better, rows.num_worse, rows.num_equal))
    counts = f"{rows.name} does better on {better} rows, worse on {worse}, and equally well on {equal}."
    listed = [("better", row) for row in rows.better] + [("worse", row) for row in rows.worse]
    hidden = rows.num_better + rows.num_worse - len(listed)
    note = f" The list shows the clearest {len(listed):,}; {hidden:,} more are omitted." if hidden else ""
    name = f"rows-{place}"
    items = "".join(row_item(found, rows.name, kind, row) for kind, row in listed)
    chosen = filters(name, {"kind": (rows.name, ("better", "worse"))}) + f'<ul class="rows" id="{name}">{items}</ul>'
    return heading(f"{rows.name} and {found.names[0]}") + paragraph(counts + note) + (chosen if items else "")


def row_item(found: ComparedRuns, name: str, kind: str, row: RowDifference) -> str:
    """Return one row: its number and label, both answers, and its texts."""
    regression = found.sides[0].side.record.data.task == SCORE
    answers = {found.names[0]: (row.first_answer, row.first), name: (row.second_answer, row.second)}
    words = [f"row {row.row}, label {cut(row.entry.get('label'))}"]
    for side, (answer, share) in answers.items():
        if found.has_several_seeds and not regression:
            words.append(f"{side}: {share:.0%} of seeds right")
        else:
            words.append(f"{side}: {cut(answer)}" + (f" (off by {share:.3g})" if regression else ""))
    texts = "".join(paragraph(cut(value)) for key, value in row.entry.items() if key != "label")
    tagged = tag(kind, "good" if kind == "better" else "bad")
    return f'<li data-kind="{kind}"><div>{tagged} {escaped("; ".join(words))}</div>{texts}</li>'


def cut(value: object) -> str:
    """Return a text or label, cut if it is very long."""
    text = answer_text(value)
    return text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + "…"
