"""Rows that are unusual, labels that something else than the meaning predicts, and groups on which the model does worse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from glassloop.diagnosis.duplicates import WORDS
from glassloop.diagnosis.labels import HeldOut
from glassloop.diagnosis.rows import NO_SCRIPT, Neighbors, Sample, Survey, normalized
from glassloop.models.linear import fit_linear
from glassloop.scores.calibration import output_losses, prior_outputs, skill_of
from glassloop.scores.metrics import Array
from glassloop.scores.statistics import holm, wilson
from glassloop.settings.training import CLASSES, SCORE

NEAREST_OF_OUTLIER = 5
FAR = 3.0  # quartile distances above the upper quartile, beyond which a distance is an outlier (Tukey)
LEAST_DISTANCE = 0.4  # cosine distance below which no row is an outlier
USUAL_SCRIPT = 0.95  # share of the rows in one script, from which another one is unusual
MOST_FITTED = 5_000  # rows of the regressions on lengths and on one text
LENGTH_SKILL = 0.10  # share of the loss of the class frequencies that lengths alone may save
SIDE_SKILL, SIDE_SHARE = 0.15, 0.6  # that one text may save, and the share of what both texts save
LEAST_ROWS_OF_WORD, SURE_WORD, SHARE_OF_LABEL = 20, 0.9, 0.10
FEW_GROUPS, LEAST_OF_GROUP, WORSE_BY, SURE_GROUP = 30, 30, 0.10, 0.001
LENGTH_PARTS = 4


def outliers(neighbors: Neighbors) -> tuple[Array, Array]:
    """Return the rows that are far from their nearest rows, the farthest first, and the distance of every row."""
    distances = 1 - neighbors.cosines[:, :NEAREST_OF_OUTLIER].mean(axis=1)
    low, high = np.quantile(distances, [0.25, 0.75])
    far = np.flatnonzero(distances > max(high + FAR * (high - low), LEAST_DISTANCE))
    return far[np.argsort(-distances[far], kind="stable")], distances


def in_another_script(survey: Survey) -> Array:
    """Return the rows whose script is not that of almost all rows."""
    none = survey.script_names.index(NO_SCRIPT)
    counts = np.bincount(survey.scripts, minlength=len(survey.script_names))
    counts[none] = 0
    if counts.max() < USUAL_SCRIPT * counts.sum():
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero((survey.scripts != counts.argmax()) & (survey.scripts != none))


# --- shortcuts -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Skills:
    """How much of the loss of the class frequencies a regression saves that reads all, or only a part, of the rows."""

    both: float
    length: float
    sides: tuple[float, ...] = ()


def skills_of(sample: Sample, held: HeldOut, num_labels: int, method_is_frozen: bool = True) -> Skills:
    """Fit regressions on the lengths alone and, of pairs, on each text alone."""
    rows, targets, groups = held.rows, held.targets, sample.groups[held.rows]
    if len(rows) > MOST_FITTED:
        chosen = np.sort(np.random.default_rng(0).choice(len(rows), MOST_FITTED, replace=False))
        rows, targets, groups = rows[chosen], targets[chosen], groups[chosen]

    def skill(features: Array) -> float:
        model = fit_linear(features.astype(np.float32), targets, sample.task, num_labels, groups, all_held_out=True)
        return skill_of(model.held_out, targets, sample.task, num_labels)

    losses = output_losses(np.log(np.clip(held.expected, 1e-12, 1)), held.targets, CLASSES) if sample.task == CLASSES else None
    if losses is None:
        both = skill(sample.features[rows]) if sample.survey.is_pairs else 1.0
    else:
        prior = np.tile(prior_outputs(held.targets, CLASSES, num_labels), (len(held.targets), 1))
        both = 1 - float(losses.mean()) / max(float(output_losses(prior, held.targets, CLASSES).mean()), 1e-12)
    sides = [skill(sample.vectors[rows, place]) for place in range(2)] if sample.survey.is_pairs else []
    return Skills(both, skill(length_features(sample)[rows]), tuple(sides))


def length_features(sample: Sample) -> Array:
    """Return numbers from which a linear model can predict any smooth function of the lengths of the texts."""
    columns: list[Array] = []
    logs = [np.log1p(np.array([len(text) for text in column], dtype=np.float64)) for column in sample.texts]
    words = [np.log1p(np.array([text.count(" ") for text in column], dtype=np.float64)) for column in sample.texts]
    for values in [*logs, *words, *([logs[0] - logs[1]] if len(logs) > 1 else [])]:
        centered = (values - values.mean()) / max(float(values.std()), 1e-9)
        columns += [centered, centered**2, *(np.maximum(centered - knot, 0) for knot in (-1.0, 0.0, 1.0))]
    return np.stack(columns, axis=1)


@dataclass(frozen=True)
class SureWord:
    """A word whose rows almost all have one label."""

    word: str
    label: str
    rows: Array  # places in `HeldOut`
    share: float  # of its rows that have the label


def sure_words(sample: Sample, held: HeldOut, names: Sequence[str]) -> list[SureWord]:
    """Return the words that predict a label: in many of its rows, and hardly in others."""
    if sample.task != CLASSES:
        return []
    members: dict[str, list[int]] = {}
    for place, row in enumerate(held.rows.tolist()):
        for word in {word for column in sample.texts for word in WORDS.findall(normalized(column[row]))}:
            members.setdefault(word, []).append(place)
    counts, found = np.bincount(held.targets, minlength=len(names)), []
    for word, places in members.items():
        if len(places) < LEAST_ROWS_OF_WORD:
            continue
        rows = np.array(places)
        labels = np.bincount(held.targets[rows], minlength=len(names))
        label = int(labels.argmax())
        usual = counts[label] / len(held.targets)
        sure = wilson(int(labels[label]), len(rows)).low > max(SURE_WORD, (1 + usual) / 2)
        if sure and labels[label] >= SHARE_OF_LABEL * counts[label]:
            found.append(SureWord(word, names[label], rows, labels[label] / len(rows)))
    return sorted(found, key=lambda word: -len(word.rows))


# --- groups --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class WeakGroup:
    """A part of the rows that the model predicts worse than the others."""

    name: str
    rows: Array  # places in `HeldOut`
    score: float
    others: float


def weak_groups(sample: Sample, held: HeldOut) -> list[WeakGroup]:
    """Return the groups of rows, by column, length and truncation, that are predicted clearly worse than the other rows."""
    right, spread = held.right, float(held.right.std()) or 1.0
    least = WORSE_BY if sample.task != SCORE else WORSE_BY * 5 * spread
    groups = [
        (name, mask) for name, mask in parts_of(sample, held) if LEAST_OF_GROUP <= mask.sum() < len(mask) - LEAST_OF_GROUP
    ]
    found, p_values = [], []
    for name, mask in groups:
        inside, outside = right[mask], right[~mask]
        error = (inside.var() / len(inside) + outside.var() / len(outside)) ** 0.5 or 1e-9
        p_values.append(float(normal_tail((outside.mean() - inside.mean()) / error)))
        found.append(WeakGroup(name, np.flatnonzero(mask), float(inside.mean()), float(outside.mean())))
    sure = [value < SURE_GROUP for value in holm(p_values)] if p_values else []
    chosen = [group for group, is_sure in zip(found, sure, strict=True) if is_sure and group.others - group.score > least]
    return sorted(chosen, key=lambda group: group.score - group.others)


def normal_tail(value: float) -> float:
    from scipy.stats import norm

    return float(norm.sf(value))


def parts_of(sample: Sample, held: HeldOut) -> Iterator[tuple[str, Array]]:
    lengths = sample.lengths[held.rows]
    edges = np.unique(np.quantile(lengths, np.linspace(0, 1, LENGTH_PARTS + 1)[1:-1]).astype(int)).tolist()
    for low, high in zip([0, *edges], [*edges, int(lengths.max())], strict=True):
        yield f"{low + 1} to {high} tokens", (lengths > low) & (lengths <= high)
    yield "truncated", sample.cut[held.rows] > 0
    survey = sample.survey
    known = {*survey.examples.columns.texts, *survey.examples.columns.label, survey.examples.columns.label_name}
    for column in dict.fromkeys(name for rows in survey.examples.rows.values() for name in rows.column_names):
        if column in known:
            continue
        cells = [str(cell) for cell in survey.cells(column, sample.rows[held.rows])]
        values = sorted({*cells})
        if 2 <= len(values) <= FEW_GROUPS:
            yield from ((f"{column} = {value}", np.array([cell == value for cell in cells])) for value in values)
