"""Rows that are the same, or almost: within a split, across splits, with other labels, and with the texts of a pair swapped."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from glassloop.diagnosis.rows import Neighbors, Sample, Survey, normalized
from glassloop.scores.metrics import Array
from glassloop.settings.training import SCORE

CANDIDATE = 0.80  # cosine of neighbors whose words are compared
ALIKE = 0.60  # share of words, and of pairs of words, that near duplicates have in common
LEAST_WORDS = 3  # of near duplicates: shorter texts differ in all that they say
OTHER_SCORE = 0.5  # standard deviations of all scores, from which the scores of two equal texts contradict each other
WORDS = re.compile(r"\w+")


@dataclass(frozen=True)
class Grouped:
    """Rows in groups, such as those with the same texts. Groups are numbered by their first row."""

    rows: Array  # in the order of the groups
    groups: Array  # the group of each row

    @property
    def is_first(self) -> Array:
        """Which rows are the first ones of their groups."""
        first = np.ones(len(self.rows), dtype=bool)
        first[1:] = self.groups[1:] != self.groups[:-1]
        return first

    @property
    def repeats(self) -> Array:
        """All rows but the first one of each group."""
        return np.asarray(self.rows[~self.is_first])

    def each(self) -> Iterator[Array]:
        """Yield the rows of one group after the other."""
        return iter(np.split(self.rows, np.flatnonzero(self.is_first)[1:]) if len(self.rows) else ())

    def where(self, holds: Callable[[Array], bool]) -> Grouped:
        """Return the groups whose rows fulfil a condition."""
        kept = [np.full(len(rows), holds(rows)) for rows in self.each()]
        chosen = np.concatenate(kept) if kept else np.zeros(0, dtype=bool)
        return Grouped(self.rows[chosen], self.groups[chosen])


def grouped_by(keys: Array) -> Grouped:
    """Return the rows whose key other rows have, too."""
    _, firsts, members, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    members = members.reshape(-1)
    rows = np.flatnonzero(counts[members] > 1)
    groups = firsts[members[rows]]
    order = np.lexsort([rows, groups])
    return Grouped(rows[order], groups[order])


def equal_rows(survey: Survey) -> Grouped:
    return grouped_by(survey.row_keys)


def swapped_rows(survey: Survey) -> Grouped:
    """Return pairs that occur in both orders."""
    both = np.sort(survey.keys, axis=1)
    with np.errstate(over="ignore"):
        keys = both[:, 0] * np.uint64(31) + both[:, 1]
    first = survey.keys[:, 0]
    return grouped_by(keys).where(lambda rows: len({*first[rows].tolist()}) > 1)


def contradicts(survey: Survey) -> Callable[[Array], bool]:
    """Return whether rows have labels that cannot all be right."""
    spread = float(survey.labels[survey.labelled].std()) if survey.labelled.any() else 0.0
    least = OTHER_SCORE * spread if survey.examples.task == SCORE else 0.5

    def differ(rows: Array) -> bool:
        labels = survey.labels[rows[survey.labelled[rows]]]
        return len(labels) > 1 and float(labels.max() - labels.min()) > least

    return differ


def rows_in_several_splits(survey: Survey, grouped: Grouped) -> Grouped:
    return grouped.where(lambda rows: len({*survey.splits[rows].tolist()}) > 1)


def rows_with_shared_text(survey: Survey, leaked: Array) -> Array:
    """Return the pairs one text of which is also in another split, without those that are there as a whole."""
    keys, splits = survey.keys.reshape(-1), np.repeat(survey.splits, survey.keys.shape[1])
    first = np.unique(np.stack([keys, splits.astype(np.uint64)]), axis=1)
    several, counts = np.unique(first[0], return_counts=True)
    shared = np.isin(keys, several[counts > 1]).reshape(survey.keys.shape).any(axis=1)
    return np.setdiff1d(np.flatnonzero(shared), leaked)


# --- near duplicates -----------------------------------------------------------------------------------------------------
def shingles(text: str) -> frozenset[str]:
    """Return the words, and the pairs of words, of a text."""
    words = WORDS.findall(normalized(text))
    return frozenset([*words, *(f"{one} {other}" for one, other in pairwise(words))])


def likeness(first: frozenset[str], second: frozenset[str]) -> float:
    """Return the share of shingles that both texts have."""
    return len(first & second) / max(len(first | second), 1)


@dataclass(frozen=True)
class NearPairs:
    """Rows of a sample that are almost the same, in twos."""

    first: Array  # places in the sample
    second: Array
    swapped: Array  # whether the texts of the pair are in the other order

    def __len__(self) -> int:
        return len(self.first)

    def some(self, chosen: Array) -> NearPairs:
        return NearPairs(self.first[chosen], self.second[chosen], self.swapped[chosen])

    def grouped(self, number: int) -> Grouped:
        """Return the rows in connected groups."""
        from scipy.sparse import coo_matrix
        from scipy.sparse.csgraph import connected_components

        graph = coo_matrix((np.ones(len(self)), (self.first, self.second)), shape=(number, number))
        return grouped_by(connected_components(graph, directed=False)[1])


def near_pairs(sample: Sample, neighbors: Neighbors) -> NearPairs:
    """Return the rows that are near in meaning and have most of their words in common, except those that are equal."""
    rows, columns = np.nonzero(neighbors.cosines >= CANDIDATE)
    others, swapped = neighbors.rows[rows, columns], neighbors.swapped[rows, columns]
    keys = sample.survey.keys[sample.rows]
    equal = np.where(swapped[:, None], keys[rows][:, ::-1] == keys[others], keys[rows] == keys[others]).all(axis=1)
    mutual = rows < others  # each two rows once
    seen = {(int(a), int(b)) for a, b, one in zip(rows, others, mutual, strict=True) if one}
    only_back = np.array([(int(b), int(a)) not in seen for a, b in zip(rows, others, strict=True)], dtype=bool)
    chosen = np.flatnonzero(~equal & (mutual | only_back))
    parts = [[*map(shingles, column)] for column in sample.texts]
    kept = [place for place in chosen.tolist() if are_alike(parts, rows[place], others[place], swapped[place])]
    return NearPairs(rows[kept], others[kept], swapped[kept])


def are_alike(parts: Sequence[Sequence[frozenset[str]]], row: int, other: int, swapped: bool) -> bool:
    ordered = parts[::-1] if swapped else parts
    if min(len(part[row]) for part in parts) < 2 * LEAST_WORDS - 1:
        return False
    least = min(likeness(part[row], beside[other]) for part, beside in zip(parts, ordered, strict=True))
    return least >= ALIKE
