"""The comparison of runs as values: metrics with intervals, differences with tests and verdicts, settings and single rows."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from glassloop.base.errors import ModelError, SettingsError, counted, listed, visible
from glassloop.base.files import home_name, near_name, user_path
from glassloop.base.output import say
from glassloop.base.records import Json
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
from glassloop.scores.intervals import OF_CLASSES, OF_LABELS, OF_SCORES, ScoredRows, has_rows_right, scored_rows
from glassloop.scores.metrics import Array, Measures, default_measures
from glassloop.settings.training import CLASSES, SCORE, TrainingArguments

Entry: TypeAlias = dict[str, Json]
VALIDATION = "validation"


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a run, or the runs of several seeds.

    Attributes:
        name: How the user called it.
        folders: The run folder of each seed.
        records: The record of each run.
    """

    name: str
    folders: Mapping[int, Path]
    records: Mapping[int, RunRecord]

    @property
    def record(self) -> RunRecord:
        """The record of the first run."""
        return next(iter(self.records.values()))


@dataclass(frozen=True)
class SideRows:
    """A side with its predictions for the rows that all sides share.

    Attributes:
        side: The side.
        seeds: The predictions of each seed as arrays.
        entries: The lines of the predictions file of each seed.
    """

    side: Side
    seeds: Mapping[int, ScoredRows]
    entries: Mapping[int, Sequence[Entry]]

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
    """A row on which the first and another side differ.

    Attributes:
        row: Its number in the split, from 0.
        first: Share of the first side's seeds that get it right, or its mean absolute error.
        second: The same for the other side.
        entry: Texts and label.
        first_answer: The prediction of the first side's first seed.
        second_answer: The prediction of the other side's first seed.
    """

    row: int
    first: float
    second: float
    entry: Entry
    first_answer: object
    second_answer: object


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
    """The comparison of all sides with the first.

    Attributes:
        split: The split whose rows were compared.
        num_rows: Number of rows.
        sides: The sides with their predictions.
        measures: The metrics.
        settings: The settings that differ, with the value of each side.
        conclusions: For each metric, the results of all sides and their comparisons with the first.
        rows: For each other side, the rows on which it differs from the first.
    """

    split: str
    num_rows: int
    sides: tuple[SideRows, ...]
    measures: Measures
    settings: dict[str, list[str]]
    conclusions: dict[str, Conclusion]
    rows: tuple[RowDifferences, ...]

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
    known = OF_CLASSES if task == CLASSES else OF_SCORES if task == SCORE else OF_LABELS
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
