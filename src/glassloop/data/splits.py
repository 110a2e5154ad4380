"""Which rows become which split: those with a known label, and a validation split held out from the training rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from glassloop.data.cells import parts_of
from glassloop.data.labels import LabelSet, refuse_other_kind, refuse_unknown
from glassloop.data.survey import Part
from glassloop.errors import DataError, listed
from glassloop.run_folder.record import SELECTION
from glassloop.settings import CLASSES, DataSettings, fold_of

LEAST_HELD_OUT = 10  # texts, if there are as many; small data keeps a row of each class


def rows_with_known_labels(part: Part, labels: LabelSet, holder: str, *, skip: bool) -> Part:
    """Return the part without rows whose label is missing or unknown. Raise `DataError` for them unless `skip` is set."""
    found = part.survey.found
    if not found.labelled:
        return part
    if found.overflowed:
        raise DataError(
            f"{part.raw.source}: the label column has more than {len(found.cells):,} different values",
            "name the right column with --label, or use --task regression for scores",
        )
    if not skip:
        if None in found.cells:
            raise DataError(f"{part.where(None)}: the label is missing", "add the label, or remove the row")
        refuse_unknown(found.values(), labels, part.where, holder)
    refuse_other_kind(found.values(), labels, part.where, holder)
    numbers = labels.numbers_of(found.values())
    known = [cell is not None and all(value in numbers for value in parts_of(cell)) for cell in found.cells]
    rows = np.array(known)[found.codes]
    if not rows.any():
        raise DataError(
            f"{part.raw.source}: no row has one of the labels {listed(labels.names)}", "fix the labels, or omit the split"
        )
    return replace(part, rows=rows)


def limited(part: Part, name: str, settings: DataSettings, notes: list[str]) -> Part:
    """Return a part with at most `limit` of its rows: a random sample in the order of the file."""
    rows = np.flatnonzero(part.rows)
    if settings.limit is None or len(rows) <= settings.limit:
        return part
    chosen = np.random.default_rng(settings.split_seed).choice(rows, settings.limit, replace=False)
    kept = np.zeros(len(part.rows), dtype=bool)
    kept[chosen] = True
    notes.append(f"{name}: {settings.limit:,} of {len(rows):,} rows, drawn at random (limit, split_seed {settings.split_seed})")
    return replace(part, rows=kept)


def hold_out_validation(parts: dict[str, Part], task: str, settings: DataSettings, notes: list[str]) -> dict[str, Part]:
    """Hold out a share of the training rows for validation: stratified by class, equal texts always on the same side."""
    train = parts["train"]
    firsts, groups, strata = grouped(train, slice(None), task)
    random, chosen = np.random.default_rng(settings.split_seed), np.zeros(len(firsts), dtype=bool)
    for members in members_of(strata, firsts):
        size = max(round(len(members) * settings.validation_share), 1) if len(members) > 1 else 0
        chosen[random.permutation(members)[:size]] = True
    most = max(math.ceil(2 * settings.validation_share * len(firsts)), LEAST_HELD_OUT)
    if chosen.sum() > most:  # one row of each of thousands of small classes would be half of the data
        chosen[random.permutation(np.flatnonzero(chosen))[most:]] = False
    cut = chosen[groups]
    if not cut.any() or cut.all():
        raise DataError(
            f"{train.raw.source}: too few different texts to hold out a validation split (equal texts stay on the same side)",
            "add rows, add a validation split, or use --validation_share 0 for none",
        )
    how = "stratified, " if task == CLASSES else ""
    notes.append(
        f"no validation split: held out {cut.sum():,} of {len(cut):,} training rows ({how}split_seed {settings.split_seed})"
    )
    rest = {name: part for name, part in parts.items() if name != "train"}
    return {"train": replace(train, rows=~cut), "validation": replace(train, rows=cut), **rest}


def hold_out_fold(parts: dict[str, Part], task: str, settings: DataSettings, notes: list[str]) -> dict[str, Part]:
    """Hold out one of several folds of the training rows as the selection split.

    Each row is in exactly one fold. Folds are stratified by class, and equal texts are always in the same fold.
    """
    train, (number, folds) = parts["train"], fold_of(settings.selection_fold) or (1, 1)
    rows = np.flatnonzero(train.rows)
    firsts, groups, strata = grouped(train, rows, task)
    random, fold, before = np.random.default_rng(settings.split_seed), np.zeros(len(firsts), dtype=np.int64), 0
    for members in members_of(strata, firsts):
        fold[random.permutation(members)] = (before + np.arange(len(members))) % folds
        before += len(members)
    held_out = np.zeros(len(train.rows), dtype=bool)
    held_out[rows[fold[groups] == number - 1]] = True
    if len(firsts) < folds or held_out.sum() == len(rows):
        raise DataError(
            f"{train.raw.source}: {len(firsts):,} different training texts are too few for {folds:,} folds",
            "add rows, or use fewer folds",
        )
    notes.append(
        f"selection: fold {number} of {folds}, {held_out.sum():,} of {len(rows):,} training rows "
        f"(split_seed {settings.split_seed})"
    )
    rest = {name: part for name, part in parts.items() if name != "train"}
    return {"train": replace(train, rows=train.rows & ~held_out), SELECTION: replace(train, rows=held_out), **rest}


def grouped(part: Part, rows: np.ndarray | slice, task: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Group the rows of a part by their texts. Return the first row of each group, the group of each row, and its class."""
    _, firsts, groups = np.unique(part.survey.keys[rows], return_index=True, return_inverse=True)
    strata = part.survey.found.codes[rows][firsts] if task == CLASSES else np.zeros(len(firsts), dtype=np.int32)
    return firsts, groups, strata


def members_of(strata: np.ndarray, firsts: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the groups of each class, in the order of their rows."""
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        yield members[np.argsort(firsts[members])]
