"""What is counted in a split and worth telling before training: balance, repeats, conflicts, overlap, empties."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from glassloop.data.labels import LabelCells, LabelSet
from glassloop.errors import counted, listed, visible


@dataclass(frozen=True)
class SplitFacts:
    """What was counted in one split."""

    num_rows: int
    label_counts: dict[str, int] = field(default_factory=dict)
    unlabelled: bool = False
    num_duplicates: int = 0
    num_conflicts: int = 0
    num_in_train: int = 0
    num_empty: int = 0
    num_skipped: int = 0
    fingerprint: str = ""


def text_keys(columns: list[list[str | None]]) -> np.ndarray:
    """Eight bytes a row, equal for equal texts: what finds duplicates and overlap without keeping the texts."""
    first, *rest = columns
    rows = zip(first, rest[0], strict=True) if rest else zip(first, strict=True)
    digests = (blake2b("\x1f".join(cell or "" for cell in row).encode(), digest_size=8).digest() for row in rows)
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def facts_of(
    keys: np.ndarray, found: LabelCells, rows: np.ndarray, labels: LabelSet | None, train_keys: np.ndarray | None
) -> SplitFacts:
    """Count what is worth telling about the chosen `rows`: `keys` are theirs, `train_keys` those of the training rows."""
    num_texts, num_conflicts = len(np.unique(keys)), 0
    label_counts: dict[str, int] = {}
    if found.labelled:
        texts_and_labels = np.unique(np.stack([keys, found.codes[rows].astype(np.uint64)]), axis=1)
        num_conflicts = int((np.unique(texts_and_labels[0], return_counts=True)[1] > 1).sum())
        if labels:
            numbers = labels.numbers_of(found.values())
            label_counts = dict.fromkeys(labels.names, 0)
            for value, count in found.counts(rows).items():
                label_counts[labels.names[numbers[value]]] += count
    return SplitFacts(
        num_rows=len(keys),
        label_counts=label_counts,
        unlabelled=not found.labelled,
        num_duplicates=len(keys) - num_texts,
        num_conflicts=num_conflicts,
        num_in_train=0 if train_keys is None else int(np.isin(keys, train_keys).sum()),
    )


def notes_on(facts: dict[str, SplitFacts], labels: LabelSet | None) -> list[str]:
    """One sentence for each thing a person should know before training."""
    notes = []
    for name, fact in facts.items():
        told = {
            counted(fact.num_duplicates, "row repeats", "rows repeat") + " the texts of another row": fact.num_duplicates,
            counted(fact.num_conflicts, "text carries", "texts carry") + " more than one label": fact.num_conflicts,
            f"{fact.num_in_train:,} of {fact.num_rows:,} rows are also in train": fact.num_in_train,
            counted(fact.num_empty, "empty text is", "empty texts are") + " kept": fact.num_empty,
            "skipped: " + counted(fact.num_skipped, "row", "rows") + " with a missing or unknown label": fact.num_skipped,
            "no labels are given": fact.unlabelled,
        }
        notes += [f"{name}: {sentence}" for sentence, count in told.items() if count]
        if not fact.unlabelled:
            rare = [label for label, count in fact.label_counts.items() if count <= 1]
            notes += [
                f"{name}: label {visible(label)} has {fact.label_counts[label] or 'no'} row"
                + "s" * (not fact.label_counts[label])
                for label in rare
            ]
    lowered = [name.lower() for name in labels.names] if labels else []
    alike = [name for name in labels.names if lowered.count(name.lower()) > 1] if labels else []
    return notes + ([f"labels that differ only in capitals: {listed(alike)}"] if alike else [])
