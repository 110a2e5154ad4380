"""From raw tables to checked examples: what is written, what is cut off, what is refused with its row, what is noted."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from datasets import ClassLabel, DatasetDict, List, Value
from given_split import GivenSplit, Watched

from glassloop.base.errors import SettingsError
from glassloop.data import columns as columns_module
from glassloop.data import examples as surveys
from glassloop.data.columns import Known, LabelCells, LabelSet
from glassloop.data.examples import hold_out_fold, notes_on, text_keys
from glassloop.runs.record import Columns, SplitFacts
from glassloop.settings.training import CLASSES, SCORE, SEVERAL, DataSettings

SAME_COLUMNS = "give every split the columns of the training rows (only test may have no labels)"
FIX_ROW = "fix the row, or add the label to --labels"
KEEP = "fill or remove the rows, or keep them with --empty keep"
COLUMNS = Columns("text", None, ("label",))
TRAIN = [{"text": f"text {place}", "label": "ab"[place % 2]} for place in range(10)]


def raw_split(name: str, rows: list[dict] | pa.Table, chunk: int = 3) -> GivenSplit:
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows)
    parts = [table.slice(start, chunk) for start in range(0, len(table), chunk)]
    return GivenSplit(f"{name}.csv", parts)


@pytest.fixture
def prepared(tmp_path: Path):
    """Prepares splits of rows, given by name, and loads what was written."""

    def prepare_rows(
        known: Known | None = None, settings: dict | None = None, chunk: int = 3, outputs: LabelSet | None = None, **splits
    ) -> surveys.Examples:
        raw = {name: raw_split(name, rows, chunk) for name, rows in splits.items()}
        folder = tmp_path / f"prepared{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        surveys.prepare(raw, DataSettings(**(settings or {})), known or Known(), folder, outputs)
        return surveys.load_prepared(folder)

    return prepare_rows


def test_rows_come_back_as_they_were_with_numbers_for_every_kind_of_label(prepared, refused):
    rows = [{"id": "7", "label": label, "text": f"text {label}", "n": 1.5} for label in ["b", "a", "b"] * 4]
    found = prepared(train=rows, validation=rows[:3])
    assert isinstance(found.splits, DatasetDict)
    assert found.splits["train"].to_list() == [{**row, "label": "ab".index(row["label"])} for row in rows]
    kinds = {"id": Value("string"), "label": ClassLabel(names=["a", "b"]), "text": Value("string"), "n": Value("float64")}
    assert found.splits["train"].features == kinds
    assert (found.columns, found.task, found.labels) == (Columns("text", None, ("label",)), CLASSES, LabelSet(("a", "b")))
    assert found.num_labels == 2
    assert found.facts["train"].label_counts == {"a": 4, "b": 8}
    assert [split.split for split in found.splits.values()] == ["train", "validation"]
    table = pa.table({"text": pa.array(["a", "b"], pa.large_string()), "label": ["x", "y"]})
    assert prepared(train=table, validation=table).splits["train"].features["text"] == Value("string")
    for cells, settings, task, feature, numbers in [
        (["0.5", "2", "-1"], {"task": SCORE}, SCORE, Value("float32"), [0.5, 2.0, -1.0]),
        ([["b"], ["a", "b"], []], {}, SEVERAL, List(ClassLabel(names=["a", "b"])), [[1], [0, 1], []]),
        (["b", "a|b", ""], {"label_separator": "|"}, SEVERAL, List(ClassLabel(names=["a", "b"])), [[1], [0, 1], []]),
        (["yes", "no", "no"], {"labels": "yes,no"}, CLASSES, ClassLabel(names=["yes", "no"]), [0, 1, 1]),
        (["1", "0", "0"], {"labels": "yes,no"}, CLASSES, ClassLabel(names=["yes", "no"]), [1, 0, 0]),
        ([3, 1, 2], {}, CLASSES, ClassLabel(names=["1", "2", "3"]), [2, 0, 1]),
        ([True, False, True], {}, CLASSES, ClassLabel(names=["false", "true"]), [1, 0, 1]),
    ]:
        rows = [{"text": f"text {place}", "label": cell} for place, cell in enumerate(cells)]
        found = prepared(train=rows, validation=rows, settings=settings)
        assert found.task == task
        assert found.splits["validation"].features["label"] == feature
        assert found.splits["train"]["label"][:] == numbers
        assert found.num_labels == (1 if task == SCORE else len(found.labels.names))
    rows = [{"text": "a", "mean": 1, "kind": 0}, {"text": "b", "mean": 1, "kind": 1}, {"text": "c", "mean": 0, "kind": 0}]
    found = prepared(train=rows, validation=rows, settings={"label": "mean,kind"})
    assert (found.task, found.columns.label_name) == (SEVERAL, "labels")
    assert found.splits["train"]["labels"][:] == [[0], [0, 1], []]
    assert found.splits["train"].remove_columns("labels").to_list() == rows
    assert found.splits["train"].features["labels"] == List(ClassLabel(names=["mean", "kind"]))
    with refused("train.csv, row 3: the label is missing", "add 0 or 1 to every label column, or remove the row"):
        prepared(train=[rows[0], {**rows[1], "kind": 2}], settings={"label": "mean,kind"})


# --- the validation cut ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_the_cut_is_stratified_and_reported(share, prepared):
    rows = [{"text": f"text {place}", "label": "aaab"[place % 4]} for place in range(80)]
    found = prepared(train=rows, settings={"validation_share": share, "split_seed": 7})
    size = round(80 * share)
    assert found.facts["validation"].label_counts == {"a": size * 3 // 4, "b": size // 4}
    assert found.facts["train"].label_counts == {"a": 60 - size * 3 // 4, "b": 20 - size // 4}
    assert found.notes[0] == f"no validation split: held out {size} of 80 training rows (stratified, split_seed 7)"
    both = [*found.splits["train"]["text"], *found.splits["validation"]["text"]]
    assert Counter(both) == Counter(row["text"] for row in rows)
    for split in found.splits.values():  # in the order of the data
        numbers = [int(text.split()[1]) for text in split["text"]]
        assert numbers == sorted(numbers)


def test_the_cut_depends_on_the_seed_alone_and_needs_rows(prepared, refused):
    def cut(rows: list[dict], seed: int, chunk: int = 3) -> list[str]:
        return list(prepared(train=rows, chunk=chunk, settings={"split_seed": seed}).splits["validation"]["text"])

    rows = [{"text": f"text {place}", "label": "ab"[place % 2]} for place in range(60)]
    assert cut(rows, 1) == cut(rows, 1) == cut(rows, 1, chunk=100)
    assert len({tuple(cut(rows, seed)) for seed in range(5)}) == 5
    scores = prepared(train=[{"text": f"text {place}", "label": str(place / 7)} for place in range(50)])
    assert scores.notes == ["no validation split: held out 5 of 50 training rows (split_seed 42)"], "without strata"
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    problem = "train.csv: too few different texts to hold out a validation split (equal texts stay on the same side)"
    remedy = "add rows, add a validation split, or use --validation_share 0 for none"
    with refused(problem, remedy):
        prepared(train=rows)
    with refused(problem, remedy):
        prepared(train=[{"text": "same", "label": "xy"[place % 2]} for place in range(9)])


@pytest.mark.parametrize("seed", range(5))
def test_equal_texts_stay_on_one_side_of_the_cut(seed, prepared):
    random = np.random.default_rng(seed)
    rows = [{"text": f"text {random.integers(0, 30)}", "label": "ab"[random.integers(0, 2)]} for _ in range(100)]
    found = prepared(train=rows, settings={"split_seed": seed, "validation_share": 0.3})
    train, validation = set(found.splits["train"]["text"]), set(found.splits["validation"]["text"])
    assert train.isdisjoint(validation)
    assert train | validation == {row["text"] for row in rows}
    assert found.facts["validation"].num_in_train == 0


def test_a_split_that_is_there_is_not_cut(prepared):
    for name in ["validation", "validation_matched"]:
        found = prepared(train=TRAIN, **{name: TRAIN[:4]})
        assert {split: len(rows) for split, rows in found.splits.items()} == {"train": 10, name: 4}
        assert found.notes == [f"{name}: 4 of 4 rows are also in train"]
    assert list(prepared(test=TRAIN).splits) == ["test"]  # and without training rows nothing is cut off


# --- splits other than training ----------------------------------------------------------------------------------
def test_labels_that_training_never_saw_are_refused_or_skipped_but_never_in_training(prepared, refused):
    for cell, problem, remedy in [
        ("c", 'label "c" is not one of a, b', FIX_ROW),
        ("aa", 'label "aa" is not one of a, b; did you mean "a"?', FIX_ROW),
        (None, "the label is missing", "add the label, or remove the row"),
        ("-1", 'label "-1" is not one of a, b', FIX_ROW),
    ]:
        held_out = [*TRAIN[:4], {"text": "new", "label": cell}, {"text": "newer", "label": "b"}]
        with refused(f"validation.csv, row 6: {problem}", remedy):
            prepared(train=TRAIN, validation=held_out)
        found = prepared(train=TRAIN, validation=held_out, settings={"unknown_labels": "skip"})
        assert list(found.splits["validation"]["text"]) == [row["text"] for row in held_out if row["label"] != cell]
        assert found.facts["validation"].num_skipped == 1
        assert "validation: skipped: 1 row with a missing or unknown label" in found.notes
    rows = [*TRAIN, {"text": "odd", "label": "c"}]
    for known, settings in ((None, {"labels": "a,b"}), (Known("text", None, "label", ("a", "b"), CLASSES), {})):
        with refused('train.csv, row 12: label "c" is not one of a, b', FIX_ROW):
            prepared(known, train=rows, settings={"unknown_labels": "skip", **settings})
    with refused("train.csv, row 12: the label is missing", "add the label, or remove the row"):
        prepared(train=[*TRAIN, {"text": "odd", "label": None}], settings={"unknown_labels": "skip"})
    train = [{"text": "a", "labels": ["x"]}, {"text": "b", "labels": ["x", "y"]}]
    validation = [{"text": "c", "labels": ["y"]}, {"text": "d", "labels": ["y", "z"]}, {"text": "e", "labels": []}]
    with refused('validation.csv, row 3: label "z" is not one of x, y', FIX_ROW):
        prepared(train=train, validation=validation)
    found = prepared(train=train, validation=validation, settings={"unknown_labels": "skip"})
    assert list(found.splits["validation"]["text"]) == ["c", "e"]
    with refused("validation.csv: no row has one of the labels x, y", "fix the labels, or omit the split"):
        prepared(train=train, validation=validation[1:2], settings={"unknown_labels": "skip"})


def test_more_values_than_are_distinguished_are_never_guessed(prepared, refused, monkeypatch):
    monkeypatch.setattr(columns_module, "MAX_CLASSES", 5)
    names = [*"abcdefgh"]
    single = [{"text": f"text {name}", "label": name} for name in names]
    remedy = "name the right column with --label, or use --task regression for scores"
    for skip in ("refuse", "skip"):
        with refused("validation.csv: the label column has more than 5 different values", remedy):
            prepared(train=single[:3], validation=single, settings={"unknown_labels": skip})
    with refused("train.csv: the label column has more than 5 different values", remedy):
        prepared(train=single, validation=single[:3], settings={"labels": ",".join(names)})
    several = [{"text": f"text {place}", "label": names[place:]} for place in range(8)]
    found = prepared(train=several, validation=several, settings={"labels": ",".join(names)})
    assert found.splits["train"]["label"][:] == [[*range(place, 8)] for place in range(8)]


NUMBERS = [{"text": f"new {number}", "label": number} for number in ("1", "0", "1")]
ORDER = "use the same labels in all splits, or list their names in the order of their numbers: --labels NAME,NAME"


def test_words_in_one_split_and_numbers_in_another_need_an_order_that_somebody_gave(prepared, refused):
    """Which word is 0 would be an accident of the alphabet."""
    numbers = "validation.csv, row 2: the labels here are numbers (1, 0), but those of train.csv are words (a, b)"
    words = "validation.csv, row 2: the labels here are words (a, b), but those of train.csv are numbers (0, 1)"
    for settings in ({"unknown_labels": "refuse"}, {"unknown_labels": "skip"}):
        with refused(numbers, ORDER):
            prepared(train=TRAIN, validation=NUMBERS, settings=settings)
        with refused(words, ORDER):
            prepared(train=NUMBERS * 2, validation=TRAIN, settings=settings)
    for order in [("a", "b"), ("b", "a")]:
        for known, settings in ((None, {"labels": order}), (Known("text", None, "label", order), {})):
            found = prepared(known, train=TRAIN, validation=NUMBERS, settings=settings)
            assert (found.labels, found.labels.order) == (LabelSet(order), order)
            assert found.splits["validation"]["label"][:] == [1, 0, 1]
            assert found.splits["train"]["label"][:4] == [order.index(row["label"]) for row in TRAIN[:4]]
            mixed = prepared(known, train=NUMBERS * 2, validation=TRAIN, settings=settings)
            assert mixed.splits["train"]["label"][:3] == [1, 0, 1]


def test_the_outputs_of_a_model_keep_their_numbers(prepared, refused):
    """Another order of the same names says what numbers in the data mean, not what the model's outputs are."""
    found = prepared(train=TRAIN, outputs=LabelSet(("b", "a")))
    assert (found.labels, found.splits["train"]["label"][0]) == (LabelSet(("b", "a")), "ba".index(TRAIN[0]["label"]))
    with refused("train.csv, row 2: the labels here are numbers (1, 0), but those of the model are words (b, a)", ORDER):
        prepared(train=NUMBERS, outputs=LabelSet(("b", "a")))
    found = prepared(train=NUMBERS, outputs=LabelSet(("b", "a")), settings={"labels": "a,b", "validation_share": 0})
    assert (found.labels, found.labels.order) == (LabelSet(("b", "a")), ("a", "b"))
    assert found.splits["train"]["label"][:] == [0, 1, 0]
    ordered = prepared(train=NUMBERS, outputs=LabelSet(("b", "a"), ("a", "b")), settings={"validation_share": 0})
    assert ordered.splits["train"]["label"][:] == [0, 1, 0]
    remedy = "list the labels of the model in the order of the numbers in the data"
    with refused("labels is a, c, but the labels of the model are b, a", remedy, SettingsError):
        prepared(train=NUMBERS, outputs=LabelSet(("b", "a")), settings={"labels": "a,c"})


def test_test_may_come_without_labels_or_with_secret_ones_but_not_without_a_column_of_text(prepared, refused):
    for name in ["test", "test_matched"]:
        for cells, task, mark in [("ab", CLASSES, -1), (["0.5", "1"], SCORE, -1.0), ([["a"], ["b"]], SEVERAL, [])]:
            train = [{"text": f"text {place}", "label": cell} for place, cell in enumerate(cells)]
            found = prepared(train=train, validation=train, **{name: [{"text": "new"}]}, settings={"task": task})
            assert found.splits[name].to_list() == [{"text": "new", "label": mark}]
            assert found.splits[name].features == found.splits["train"].features
            assert (found.facts[name].unlabelled, f"{name}: there are no labels" in found.notes) == (True, True)
    for mark in [-1, "-1", -1.0]:
        found = prepared(train=TRAIN, validation=TRAIN[:2], test=[{"text": "new", "label": mark}])
        assert (found.splits["test"]["label"][:], found.facts["test"].unlabelled) == ([-1], True)
    with refused("validation.csv: there is no column label; found text", SAME_COLUMNS):
        prepared(train=TRAIN, validation=[{"text": "new"}])
    with refused("test.csv: there is no column text; found sentence, label", SAME_COLUMNS):
        prepared(train=TRAIN, test=[{"sentence": "new", "label": "a"}])
    with refused("dev2.csv: there is no column text, label; found id", SAME_COLUMNS):
        prepared(train=TRAIN, dev2=[{"id": "1"}])
    train = [{"text": f"text {place}", "label": str(place / 7)} for place in range(30)]
    with refused("validation.csv, row 7: the label is not a finite number", "fix or remove the row"):
        prepared(train=train, validation=[*train[:5], {"text": "new", "label": "good"}])
    with refused("validation.csv, row 3: the label is not a finite number", "fix or remove the row"):
        prepared(train=train, validation=[train[0], {"text": "new", "label": None}, train[1]])


# --- texts -------------------------------------------------------------------------------------------------------
def test_empty_texts_are_refused_with_their_rows_or_kept_and_counted_and_what_is_no_text(prepared, refused):
    for empty in ["", "  ", "\t\n", "\u3000", None]:
        rows = [{"text": empty if place in (2, 4, 5) else f"text {place}", "label": "ab"[place % 2]} for place in range(9)]
        with refused('train.csv, row 4: "text" is empty; so are row 6, row 7', KEEP):
            prepared(train=rows, chunk=100)
        with refused('train.csv, row 4: "text" is empty', KEEP):
            prepared(train=rows, chunk=1)
        many = [{"text": empty if place < 20 else "a", "label": "ab"[place % 2]} for place in range(21)]
        with refused('train.csv, row 2: "text" is empty; so are row 3, row 4, row 5, row 6, row 7 and 14 more', KEEP):
            prepared(train=many, chunk=100, settings={"text": "text"})
        found = prepared(train=rows, validation=TRAIN[:4], settings={"empty": "keep"})
        assert found.splits["train"]["text"][2] == (empty or "")
        assert (found.facts["train"].num_empty, found.facts["validation"].num_empty) == (3, 0)
        assert "train: 3 empty texts are kept" in found.notes
    rows = [{"text": "" if place == 3 else f"text {place}", "label": "ab"[place % 2]} for place in range(40)]
    found = prepared(train=rows, settings={"empty": "keep", "validation_share": 0.5})
    for split, fact in found.facts.items():
        assert fact.num_empty == list(found.splits[split]["text"]).count("")
    assert sum(fact.num_empty for fact in found.facts.values()) == 1
    with refused("test.csv: there are no rows", "add at least one row"):
        prepared(train=TRAIN, test=[])
    remedy = "name the text column with --text"
    with refused('train.csv: column "id" has the type int64, which is not text', remedy):
        prepared(train=[{"id": 1, "label": "a"}], settings={"text": "id"})
    remedy = "remove the byte: the file may be damaged, or not a text file"
    with refused('validation.csv, row 3: "text" contains a NUL byte', remedy):
        prepared(train=TRAIN, validation=[TRAIN[0], {"text": "a\0b", "label": "a"}])


# --- the fingerprint ---------------------------------------------------------------------------------------------
def test_the_fingerprint_and_what_the_source_knows(prepared):
    def fingerprint(rows: list[dict], **settings) -> str:
        return prepared(train=rows, validation=rows, settings=settings).facts["train"].fingerprint

    rows = [{"text": f"text {place}", "label": "ab"[place % 2]} for place in range(4)]
    first = fingerprint(rows)
    assert fingerprint([{"id": 7, **row} for row in rows]) == first
    assert fingerprint([{"label": row["label"].replace("a", "aa"), "text": row["text"]} for row in rows]) == first
    last = [{"text": "text 3!", "label": "b"}, {"text": "text 3", "label": "a"}]
    changed = [fingerprint(other) for other in (rows[::-1], rows[:3], *([*rows[:3], row] for row in last))]
    assert len({first, *changed, fingerprint(rows, labels="b,a")}) == 6
    known = Known("text", None, "label", ("b", "a", "c"), CLASSES)
    assert prepared(known, train=TRAIN).labels == LabelSet(("b", "a", "c"))
    assert prepared(known, train=TRAIN, settings={"labels": "a,b"}).labels == LabelSet(("a", "b"))
    scored = [{**row, "label": "1"} for row in TRAIN]
    assert prepared(known, train=scored, settings={"task": SCORE}).task == SCORE
    other = [{**row, "tone": "xy"[place % 2]} for place, row in enumerate(TRAIN)]
    assert prepared(known, train=other, settings={"label": "tone"}).labels == LabelSet(("x", "y"))


# --- What is counted before training, against counting by hand; and the sentences that tell it.
def cells_of(*chunks: list) -> LabelCells:
    found = LabelCells()
    for chunk in chunks:
        found.add(pa.array(chunk))
    return found


def test_equal_texts_have_equal_keys_and_are_counted():
    texts = ["a", "b", "a", "", None, "A", "a ", "ä"]
    keys = text_keys([texts])
    assert keys.dtype == np.uint64
    assert (keys[0] == keys[2], keys[3] == keys[4]) == (True, True)
    assert len(set(keys.tolist())) == 6
    pairs = text_keys([["a", "ab", "a", "b", "a"], ["bc", "c", "bc", "a", ""]])
    assert pairs[0] == pairs[2]
    assert len({*pairs.tolist(), *text_keys([["abc", "a"]]).tolist()}) == 6  # where the first text ends matters
    fact = facts(["a"] * 3, cells_of(["x", "y", "z"]), LabelSet(("x", "y", "z")))
    assert (fact.num_duplicates, fact.num_conflicts, fact.num_in_train) == (2, 1, 0), "three labels are one conflict"
    numbered = LabelSet(("no", "yes"), ("no", "yes"))
    assert facts([*"abc"], cells_of(["1", "0", "1"]), numbered).label_counts == {"no": 1, "yes": 2}
    for found in (cells_of(), cells_of(["-1", "-1"])):
        assert facts(["a", "a"], found, LabelSet(("x", "y"))) == SplitFacts(num_rows=2, unlabelled=True, num_duplicates=1)
    scores = facts(["a", "a"], cells_of(["0.5", "1.5"]), None)
    assert scores == SplitFacts(num_rows=2, num_duplicates=1, num_conflicts=1)


def facts(texts: list[str], found: LabelCells, labels: LabelSet | None, rows=slice(None), train=None) -> SplitFacts:
    chosen = np.zeros(len(texts), bool)
    chosen[rows] = True
    part = surveys.Part(GivenSplit("d.csv", []), COLUMNS, found, text_keys([texts]), np.zeros(len(texts)), chosen)
    return surveys.facts_of(part, labels, None if train is None else text_keys([train]))


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
    fact = facts(texts, cells_of(cells[:25], cells[25:]), LabelSet(("x", "y", "z", "w")), chosen, train)
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


def test_each_thing_worth_knowing_is_a_sentence_also_of_labels_that_look_alike_or_are_rare():
    for fact, sentences in [
        ({"label_counts": {"x": 2, "y": 3}}, []),
        ({"num_duplicates": 1234}, ["1,234 rows repeat the text of another row"]),
        ({"num_conflicts": 3}, ["3 texts have more than one label"]),
        ({"num_in_train": 2}, ["2 of 5,000 rows are also in train"]),
        ({"num_empty": 4}, ["4 empty texts are kept"]),
        ({"num_duplicates": 1}, ["1 row repeats the text of another row"]),
        ({"num_conflicts": 1}, ["1 text has more than one label"]),
        ({"num_skipped": 5}, ["skipped: 5 rows with a missing or unknown label"]),
        ({"unlabelled": True}, ["there are no labels"]),
        ({"unlabelled": True, "label_counts": {"x": 0}}, ["there are no labels"]),
        ({"label_counts": {"x": 1, "y": 0, "z": 2}}, ['label "y" has no rows', 'label "x" has 1 row']),
        ({"num_empty": 1, "label_counts": {"a\nb": 0}}, ["1 empty text is kept", 'label "a\\nb" has no rows']),
    ]:
        facts = {"train": SplitFacts(num_rows=9), "test": SplitFacts(num_rows=5000, **fact)}
        assert notes_on(facts, LabelSet(("x", "y"))) == [f"test: {sentence}" for sentence in sentences]
    facts = {
        "train": SplitFacts(num_rows=9, label_counts={"No": 4, "Yes": 2, "no": 3, "maybe": 2}),
        "test": SplitFacts(num_rows=9, label_counts={"No": 4, "Yes": 2, "no": 1998, "maybe": 2}),
    }
    note = 'these labels look alike but are different classes: "No" (8 rows) and "no" (2,001 rows)'
    assert notes_on(facts, LabelSet(("No", "Yes", "no", "maybe"))) == [note]
    assert notes_on(facts, None) == []
    # 3,000 classes are not 3,000 lines.
    names = tuple(f"class {number}" for number in range(3000))
    facts = {"train": SplitFacts(num_rows=3000, label_counts={name: number % 2 for number, name in enumerate(names)})}
    notes = notes_on(facts, LabelSet(names))
    assert notes[0] == "train: 1,500 labels have no rows: class 0, class 2, class 4, class 6, class 8, class 10 and 1,494 more"
    assert notes[1:] == ["train: 1,500 labels have 1 row: class 1, class 3, class 5, class 7, class 9, class 11 and 1,494 more"]
    counts = {"ok": 990, "spam": 10}
    facts = {"train": SplitFacts(1000, counts), "validation": SplitFacts(1000, counts)}
    remedy = "--class_weights balanced makes all labels count the same"
    told = f'train: label "ok" has 990 of 1,000 rows, so accuracy says little; {remedy}'
    assert notes_on(facts, LabelSet(("ok", "spam"))) == [told]
    assert notes_on({"train": SplitFacts(1000, {"ok": 899, "spam": 101})}, None) == []
    assert notes_on({"train": SplitFacts(10)}, None) == []


# --- Which rows become which split: unknown labels are refused or skipped, and validation is held out fairly.
def part_of(texts: list[str], labels: list[str | None]) -> surveys.Part:
    table = pa.table({"text": texts, "label": pa.array(labels, pa.string())})
    return surveys.survey_split("train", GivenSplit("d.csv", [table]), table, Columns("text", None, ("label",)), DataSettings())


def test_small_classes_do_not_empty_the_training_rows() -> None:
    """One row of each class is held out, but not of each class that has only a few."""
    few, many = (
        [(2, 20, 2), (2, 10, 2), (10, 20, 2), (50, 150, 15), (77, 200, 20)],
        [(2000, 6000, 600), (2000, 20_000, 2000), (2, 1000, 100)],
    )
    for classes, rows, held_out in few + many:
        part = part_of([f"text {row}" for row in range(rows)], [f"c{row % classes}" for row in range(rows)])
        found = surveys.hold_out_validation({"train": part}, CLASSES, DataSettings(), [])
        assert int(found["validation"].rows.sum()) == held_out
        assert len(np.unique(part.found.codes[found["train"].rows])) == classes, "each class can be learned"


@pytest.mark.parametrize("task", [CLASSES, SCORE])
def test_folds_are_disjoint_and_complete_and_equal_texts_stay_together(task: str) -> None:
    texts = [f"text {number % 80}" for number in range(120)]
    labels = ["x" if number % 80 < 60 else "y" for number in range(120)]
    found, notes = [], list[str]()
    for number in range(1, 5):
        parts = hold_out_fold({"train": part_of(texts, labels)}, task, DataSettings(selection_fold=f"{number}/4"), notes)
        assert [*parts] == ["train", "selection"]
        assert (parts["train"].rows ^ parts["selection"].rows).all()
        assert not {*parts["train"].keys.tolist()} & {*parts["selection"].keys.tolist()}
        found.append(parts["selection"])
        if task == CLASSES:
            rare = {text for text, cut, label in zip(texts, found[-1].rows, labels, strict=True) if cut and label == "y"}
            assert len(rare) == 5
    assert np.sum([part.rows for part in found], axis=0).tolist() == [1] * 120, "every row is in one fold"
    assert notes[1] == f"selection: fold 2 of 4, {found[1].rows.sum()} of 120 training rows (split_seed 42)"


def test_a_fold_keeps_rows_that_were_held_out_before_apart(refused) -> None:
    whole = part_of([f"t {row}" for row in range(50)], ["x", "y"] * 25)
    parts = surveys.hold_out_validation({"train": whole}, CLASSES, DataSettings(), [])
    found = hold_out_fold(parts, CLASSES, DataSettings(selection_fold="1/5"), [])
    assert [*found] == ["train", "selection", "validation"]
    assert sum(part.rows.astype(int) for part in found.values()).tolist() == [1] * 50
    part = part_of(["a", "b", "c", "a"], ["x", "y", "x", "x"])
    with refused("d.csv: 3 different training texts are too few for 5 folds", "add rows, or use fewer folds"):
        hold_out_fold({"train": part}, CLASSES, DataSettings(selection_fold="2/5"), [])


def test_very_wide_tables_keep_few_columns_and_are_surveyed_fast(prepared, monkeypatch) -> None:
    labels = tuple(f"l{number}" for number in range(40))
    table = pa.table({"text": ["a", "b"], **{name: ["0", "1"] for name in labels}})
    head = Watched(table)
    surveys.survey_split("train", GivenSplit("d.csv", [table]), head, Columns("text", None, labels), DataSettings())
    assert head.asked < 10
    monkeypatch.setattr(columns_module, "MOST_KEPT_COLUMNS", 4)
    train = [{"text": f"text {place}", "label": "ab"[place % 2], "x": 1, "y": 2, "z": 3} for place in range(9)]
    found = prepared(train=train, validation=[{**row, "text": f"{row['text']} again"} for row in train])
    assert found.splits["train"].column_names == found.splits["validation"].column_names == ["text", "label"]
    assert "of 5 columns only text, label are kept" in found.notes
    narrow = prepared(train=[{name: row[name] for name in ("x", "label", "text", "y")} for row in train])
    assert narrow.splits["train"].column_names == ["x", "label", "text", "y"]
    assert not any("are kept" in note for note in narrow.notes)


def test_rare_classes_give_no_more_validation_rows_than_the_share_of_all() -> None:
    for large, small in ((50 * [6], 50 * [3]), (30 * [5], 70 * [2])):
        taken = surveys.stratum_sizes([*large, *small], 0.1, np.random.default_rng(0))
        assert taken == [1] * len(large) + [0] * len(small)  # each of the larger ones has given one
