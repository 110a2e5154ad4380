"""What is counted before training, against counting by hand; and the sentences that tell it."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pytest

from glassloop.data.examples import facts_of, notes_on, text_keys
from glassloop.data.labels import LabelCells, LabelSet
from glassloop.runs.record import SplitFacts

NUMBERED = LabelSet(("no", "yes"), ("no", "yes"))


def cells_of(*chunks: list) -> LabelCells:
    found = LabelCells()
    for chunk in chunks:
        found.add(pa.array(chunk))
    return found


def test_keys_are_equal_for_equal_texts_only():
    texts = ["a", "b", "a", "", None, "A", "a ", "ä"]
    keys = text_keys([texts])
    assert keys.dtype == np.uint64
    assert (keys[0] == keys[2], keys[3] == keys[4]) == (True, True)
    assert len(set(keys.tolist())) == 6
    pairs = text_keys([["a", "ab", "a", "b", "a"], ["bc", "c", "bc", "a", ""]])
    assert pairs[0] == pairs[2]
    assert len({*pairs.tolist(), *text_keys([["abc", "a"]]).tolist()}) == 6  # where the first text ends matters


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("several", [False, True])
def test_counts_are_those_of_counting_by_hand(seed, several):
    random = np.random.default_rng(seed)
    texts = [f"text {number}" for number in random.integers(0, 40, 60)]
    train = [f"text {number}" for number in random.integers(0, 80, 30)]
    labels = [["x", "y", "z"][number] for number in random.integers(0, 3, 60)]
    cells = [sorted({label, "x"}) for label in labels] if several else labels
    chosen = random.random(60) < 0.8
    rows = np.flatnonzero(chosen)
    fact = facts_of(
        text_keys([texts])[chosen], cells_of(cells[:25], cells[25:]), chosen, LabelSet(("x", "y", "z", "w")), text_keys([train])
    )
    different = defaultdict(set)
    for row in rows:
        different[texts[row]].add(tuple(cells[row]))
    counts = Counter(value for row in rows for value in (cells[row] if several else [cells[row]]))
    assert fact == SplitFacts(
        num_rows=len(rows),
        label_counts={name: counts[name] for name in "xyzw"},
        num_duplicates=len(rows) - len(different),
        num_conflicts=sum(len(found) > 1 for found in different.values()),
        num_in_train=sum(texts[row] in set(train) for row in rows),
    )
    assert min(fact.num_duplicates, fact.num_conflicts, fact.num_in_train) > 0  # else nothing was shown


def test_a_text_with_three_labels_is_one_conflict():
    fact = facts_of(text_keys([["a"] * 3]), cells_of(["x", "y", "z"]), np.ones(3, bool), LabelSet(("x", "y", "z")), None)
    assert (fact.num_duplicates, fact.num_conflicts, fact.num_in_train) == (2, 1, 0)


def test_labels_written_as_numbers_count_under_their_names():
    fact = facts_of(text_keys([["a", "b", "c"]]), cells_of(["1", "0", "1"]), np.ones(3, bool), NUMBERED, None)
    assert fact.label_counts == {"no": 1, "yes": 2}


@pytest.mark.parametrize("found", [cells_of(), cells_of(["-1", "-1"])])
def test_without_labels_there_is_no_balance_and_no_conflict(found):
    fact = facts_of(text_keys([["a", "a"]]), found, np.ones(2, bool), LabelSet(("x", "y")), None)
    assert fact == SplitFacts(num_rows=2, unlabelled=True, num_duplicates=1)


def test_scores_have_no_balance():
    fact = facts_of(text_keys([["a", "a"]]), cells_of(["0.5", "1.5"]), np.ones(2, bool), None, None)
    assert fact == SplitFacts(num_rows=2, num_duplicates=1, num_conflicts=1)


@pytest.mark.parametrize(
    ("fact", "sentences"),
    [
        ({"label_counts": {"x": 2, "y": 3}}, []),
        ({"num_duplicates": 1234}, ["1,234 rows repeat the text of another row"]),
        ({"num_conflicts": 3}, ["3 texts have more than one label"]),
        ({"num_in_train": 2}, ["2 of 5,000 rows are also in train"]),
        ({"num_empty": 4}, ["4 empty texts are kept"]),
        (
            {"num_duplicates": 1, "num_conflicts": 1},
            ["1 row repeats the text of another row", "1 text has more than one label"],
        ),
        ({"num_skipped": 5}, ["skipped: 5 rows with a missing or unknown label"]),
        ({"unlabelled": True}, ["there are no labels"]),
        ({"unlabelled": True, "label_counts": {"x": 0}}, ["there are no labels"]),
        ({"label_counts": {"x": 1, "y": 0, "z": 2}}, ['label "y" has no rows', 'label "x" has 1 row']),
        (
            {"num_skipped": 1000, "num_duplicates": 2, "label_counts": {"a\nb": 0}},
            [
                "2 rows repeat the text of another row",
                "skipped: 1,000 rows with a missing or unknown label",
                'label "a\\nb" has no rows',
            ],
        ),
    ],
)
def test_each_thing_worth_knowing_is_a_sentence(fact, sentences):
    facts = {"train": SplitFacts(num_rows=9), "test": SplitFacts(num_rows=5000, **fact)}
    assert notes_on(facts, LabelSet(("x", "y"))) == [f"test: {sentence}" for sentence in sentences]


def test_labels_that_look_alike_are_reported():
    facts = {
        "train": SplitFacts(num_rows=9, label_counts={"No": 4, "Yes": 2, "no": 3, "maybe": 2}),
        "test": SplitFacts(num_rows=9, label_counts={"No": 4, "Yes": 2, "no": 1998, "maybe": 2}),
    }
    note = 'these labels look alike but are different classes: "No" (8 rows) and "no" (2,001 rows)'
    assert notes_on(facts, LabelSet(("No", "Yes", "no", "maybe"))) == [note]
    assert notes_on(facts, None) == []


def test_many_rare_labels_are_one_short_note():
    """3,000 classes are not 3,000 lines."""
    names = tuple(f"class {number}" for number in range(3000))
    facts = {"train": SplitFacts(num_rows=3000, label_counts={name: number % 2 for number, name in enumerate(names)})}
    notes = notes_on(facts, LabelSet(names))
    assert notes == [
        "train: 1,500 labels have no rows: class 0, class 2, class 4, class 6, class 8, class 10 and 1,494 more",
        "train: 1,500 labels have 1 row: class 1, class 3, class 5, class 7, class 9, class 11 and 1,494 more",
    ]


def test_nearly_all_rows_with_one_label_are_reported_for_the_training_rows() -> None:
    counts = {"ok": 990, "spam": 10}
    facts = {"train": SplitFacts(1000, counts), "validation": SplitFacts(1000, counts)}
    assert notes_on(facts, LabelSet(("ok", "spam"))) == [
        'train: label "ok" has 990 of 1,000 rows, so accuracy says little; '
        "--class_weights balanced makes all labels count the same"
    ]
    assert notes_on({"train": SplitFacts(1000, {"ok": 899, "spam": 101})}, None) == []
    assert notes_on({"train": SplitFacts(10)}, None) == []
