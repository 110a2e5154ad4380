"""Read the runs that are compared, and refuse to compare different rows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from glassloop.errors import ModelError, SettingsError, counted, listed, say, visible
from glassloop.files import near_name, user_path
from glassloop.records import Json
from glassloop.run_folder.layout import is_run, is_seeds_folder, predictions_name, seed_name
from glassloop.run_folder.predictions import predicted_splits, read_predictions
from glassloop.run_folder.record import RunRecord
from glassloop.run_folder.run_json import read_run, record_of
from glassloop.run_folder.seeds_json import read_seeds
from glassloop.statistics.scored import ScoredRows, scored_rows

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
