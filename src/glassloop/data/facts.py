"""What is counted in a split before training: labels, duplicates, conflicts, overlap with the training rows, empty texts."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

import numpy as np

from glassloop.data.cells import LabelCells
from glassloop.data.labels import LabelSet
from glassloop.data.lookalikes import look_alikes, spelled
from glassloop.errors import counted, listed, visible
from glassloop.run_folder.record import SplitFacts

SHOWN_GROUPS = 6
IMBALANCED = 0.9  # the share of rows of one label
SHOWN_LABELS = 15  # in tables; beyond, the rest is a number


def text_keys(columns: list[list[str | None]]) -> np.ndarray:
    """Return eight bytes per row, equal for equal texts: they find duplicates without keeping the texts."""
    first, *rest = columns
    rows = zip(first, rest[0], strict=True) if rest else zip(first, strict=True)
    digests = (blake2b("\x1f".join(cell or "" for cell in row).encode(), digest_size=8).digest() for row in rows)
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def facts_of(
    keys: np.ndarray, found: LabelCells, rows: np.ndarray, labels: LabelSet | None, train_keys: np.ndarray | None
) -> SplitFacts:
    """Return the counts of the chosen `rows`. `keys` are those of these rows, `train_keys` those of the training rows."""
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
    """Return one sentence for each thing a person should know before training."""
    notes = []
    for name, fact in facts.items():
        sentences = {
            counted(fact.num_duplicates, "row repeats", "rows repeat") + " the text of another row": fact.num_duplicates,
            counted(fact.num_conflicts, "text has", "texts have") + " more than one label": fact.num_conflicts,
            f"{fact.num_in_train:,} of {fact.num_rows:,} rows are also in train": fact.num_in_train,
            counted(fact.num_empty, "empty text is", "empty texts are") + " kept": fact.num_empty,
            "skipped: " + counted(fact.num_skipped, "row", "rows") + " with a missing or unknown label": fact.num_skipped,
            "there are no labels": fact.unlabelled,
        }
        notes += [f"{name}: {sentence}" for sentence, count in sentences.items() if count]
        if not fact.unlabelled:
            notes += [f"{name}: {sentence}" for sentence in notes_on_rare(fact.label_counts)]
        if name == "train":
            notes += [f"{name}: {sentence}" for sentence in notes_on_imbalance(fact)]
    return notes + notes_on_look_alikes(facts, labels)


def notes_on_rare(counts: dict[str, int]) -> Iterator[str]:
    """Yield a sentence about the labels without rows, and one about those with a single row."""
    for number, rows in enumerate(("no rows", "1 row")):
        rare = [label for label, count in counts.items() if count == number]
        if len(rare) == 1:
            yield f"label {visible(rare[0])} has {rows}"
        elif rare:
            yield f"{len(rare):,} labels have {rows}: {listed(rare, 6)}"


def notes_on_imbalance(fact: SplitFacts) -> Iterator[str]:
    """Yield a sentence if nearly all rows have the same one of several labels."""
    name, count = max(fact.label_counts.items(), key=lambda entry: entry[1], default=("", 0))
    if IMBALANCED <= count / max(sum(fact.label_counts.values()), 1) < 1:
        yield (
            f"label {visible(name)} has {count:,} of {fact.num_rows:,} rows, so accuracy says little; "
            "--class_weights balanced makes all labels count the same"
        )


def notes_on_look_alikes(facts: dict[str, SplitFacts], labels: LabelSet | None) -> list[str]:
    """Return a sentence for each of the first few groups of labels that look alike."""
    groups = look_alikes(labels.names) if labels else []
    notes = []
    for group in groups[:SHOWN_GROUPS]:
        rows = [sum(fact.label_counts.get(name, 0) for fact in facts.values()) for name in group]
        shown = [f"{name} ({counted(number, 'row', 'rows')})" for name, number in zip(spelled(group), rows, strict=True)]
        notes.append(f"these labels look alike but are different classes: {' and '.join(shown)}")
    rest = len(groups) - SHOWN_GROUPS
    return notes + ([f"{counted(rest, 'more group', 'more groups')} of labels look alike"] if rest > 0 else [])
