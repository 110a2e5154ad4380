"""From raw tables to checked examples: what is written, what is cut off, what is refused with its row, what is noted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from datasets import ClassLabel, DatasetDict, List, Value
from given_split import GivenSplit

from glassloop.base.errors import SettingsError
from glassloop.data import columns as columns_module
from glassloop.data import labels as cells_module
from glassloop.data.columns import Known
from glassloop.data.examples import Examples, load_prepared, prepare
from glassloop.data.labels import LabelSet
from glassloop.runs.record import Columns
from glassloop.settings.fields import CLASSES, SCORE, SEVERAL, DataSettings

SAME_COLUMNS = "give every split the columns of the training rows (only test may have no labels)"
FIX_ROW = "fix the row, or add the label to --labels"
KEEP = "fill or remove the rows, or keep them with --empty keep"
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
    ) -> Examples:
        raw = {name: raw_split(name, rows, chunk) for name, rows in splits.items()}
        folder = tmp_path / f"prepared{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        prepare(raw, DataSettings(**(settings or {})), known or Known(), folder, outputs)
        return load_prepared(folder)

    return prepare_rows


def test_rows_come_back_as_they_were_with_label_numbers(prepared):
    rows = [{"id": "7", "label": label, "text": f"text {label}", "n": 1.5} for label in ["b", "a", "b"] * 4]
    found = prepared(train=rows, validation=rows[:3])
    assert isinstance(found.splits, DatasetDict)
    assert found.splits["train"].to_list() == [{**row, "label": "ab".index(row["label"])} for row in rows]
    assert found.splits["train"].features == {
        "id": Value("string"),
        "label": ClassLabel(names=["a", "b"]),
        "text": Value("string"),
        "n": Value("float64"),
    }
    assert (found.columns, found.task, found.labels) == (Columns("text", None, ("label",)), CLASSES, LabelSet(("a", "b")))
    assert found.num_labels == 2
    assert found.facts["train"].label_counts == {"a": 4, "b": 8}
    assert [split.split for split in found.splits.values()] == ["train", "validation"]


def test_rows_are_memory_mapped(prepared):
    for split in prepared(train=TRAIN).splits.values():
        assert [Path(file["filename"]).suffix for file in split.cache_files] == [".arrow"]


@pytest.mark.parametrize(
    ("cells", "settings", "task", "feature", "numbers"),
    [
        (["0.5", "2", "-1"], {"task": SCORE}, SCORE, Value("float32"), [0.5, 2.0, -1.0]),
        ([["b"], ["a", "b"], []], {}, SEVERAL, List(ClassLabel(names=["a", "b"])), [[1], [0, 1], []]),
        (["b", "a|b", ""], {"label_separator": "|"}, SEVERAL, List(ClassLabel(names=["a", "b"])), [[1], [0, 1], []]),
        (["yes", "no", "no"], {"labels": "yes,no"}, CLASSES, ClassLabel(names=["yes", "no"]), [0, 1, 1]),
        (["1", "0", "0"], {"labels": "yes,no"}, CLASSES, ClassLabel(names=["yes", "no"]), [1, 0, 0]),
        ([3, 1, 2], {}, CLASSES, ClassLabel(names=["1", "2", "3"]), [2, 0, 1]),
        ([True, False, True], {}, CLASSES, ClassLabel(names=["false", "true"]), [1, 0, 1]),
    ],
)
def test_every_kind_of_label(cells, settings, task, feature, numbers, prepared):
    rows = [{"text": f"text {place}", "label": cell} for place, cell in enumerate(cells)]
    found = prepared(train=rows, validation=rows, settings=settings)
    assert found.task == task
    assert found.splits["validation"].features["label"] == feature
    assert found.splits["train"]["label"][:] == numbers
    assert found.num_labels == (1 if task == SCORE else len(found.labels.names))


def test_several_columns_of_zero_and_one_become_labels(prepared, refused):
    rows = [{"text": "a", "mean": 1, "kind": 0}, {"text": "b", "mean": 1, "kind": 1}, {"text": "c", "mean": 0, "kind": 0}]
    found = prepared(train=rows, validation=rows, settings={"label": "mean,kind"})
    assert (found.task, found.columns.label_name) == (SEVERAL, "labels")
    assert found.splits["train"].to_list() == [
        {**row, "labels": labels} for row, labels in zip(rows, [[0], [0, 1], []], strict=True)
    ]
    assert found.splits["train"].features["labels"] == List(ClassLabel(names=["mean", "kind"]))
    with refused("train.csv, row 3: the label is missing", "add 0 or 1 to every label column, or remove the row"):
        prepared(train=[rows[0], {**rows[1], "kind": 2}], settings={"label": "mean,kind"})


def test_pairs(prepared):
    rows = [{"premise": f"p {place}", "hypothesis": f"h {place}", "label": "ab"[place % 2]} for place in range(4)]
    found = prepared(train=rows, validation=rows)
    assert found.columns.texts == ("premise", "hypothesis")


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


def test_the_cut_depends_on_the_seed_alone(prepared):
    def cut(rows: list[dict], seed: int, chunk: int = 3) -> list[str]:
        return list(prepared(train=rows, chunk=chunk, settings={"split_seed": seed}).splits["validation"]["text"])

    rows = [{"text": f"text {place}", "label": "ab"[place % 2]} for place in range(60)]
    assert cut(rows, 1) == cut(rows, 1) == cut(rows, 1, chunk=100)
    assert len({tuple(cut(rows, seed)) for seed in range(5)}) == 5


@pytest.mark.parametrize("seed", range(5))
def test_equal_texts_stay_on_one_side_of_the_cut(seed, prepared):
    random = np.random.default_rng(seed)
    rows = [{"text": f"text {random.integers(0, 30)}", "label": "ab"[random.integers(0, 2)]} for _ in range(100)]
    found = prepared(train=rows, settings={"split_seed": seed, "validation_share": 0.3})
    train, validation = set(found.splits["train"]["text"]), set(found.splits["validation"]["text"])
    assert train.isdisjoint(validation)
    assert train | validation == {row["text"] for row in rows}
    assert found.facts["validation"].num_in_train == 0


def test_scores_are_cut_without_strata(prepared):
    rows = [{"text": f"text {place}", "label": str(place / 7)} for place in range(50)]
    found = prepared(train=rows)
    assert found.notes == ["no validation split: held out 5 of 50 training rows (split_seed 42)"]


@pytest.mark.parametrize("name", ["validation", "validation_matched"])
def test_a_split_that_is_there_is_not_cut(name, prepared):
    found = prepared(train=TRAIN, **{name: TRAIN[:4]})
    assert {split: len(rows) for split, rows in found.splits.items()} == {"train": 10, name: 4}
    assert found.notes == [f"{name}: 4 of 4 rows are also in train"]
    assert list(prepared(test=TRAIN).splits) == ["test"]  # and without training rows nothing is cut off


def test_too_few_rows_to_cut(prepared, refused):
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    problem = "train.csv: too few different texts to hold out a validation split (equal texts stay on the same side)"
    remedy = "add rows, add a validation split, or use --validation_share 0 for none"
    with refused(problem, remedy):
        prepared(train=rows)
    with refused(problem, remedy):
        prepared(train=[{"text": "same", "label": "xy"[place % 2]} for place in range(9)])


# --- splits other than training ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "problem", "remedy"),
    [
        ("c", 'label "c" is not one of a, b', FIX_ROW),
        ("aa", 'label "aa" is not one of a, b; did you mean "a"?', FIX_ROW),
        (None, "the label is missing", "add the label, or remove the row"),
        ("-1", 'label "-1" is not one of a, b', FIX_ROW),
    ],
)
def test_labels_that_training_never_saw(cell, problem, remedy, prepared, refused):
    held_out = [*TRAIN[:4], {"text": "new", "label": cell}, {"text": "newer", "label": "b"}]
    with refused(f"validation.csv, row 6: {problem}", remedy):
        prepared(train=TRAIN, validation=held_out)
    found = prepared(train=TRAIN, validation=held_out, settings={"unknown_labels": "skip"})
    assert list(found.splits["validation"]["text"]) == [row["text"] for row in held_out if row["label"] != cell]
    assert found.facts["validation"].num_skipped == 1
    assert "validation: skipped: 1 row with a missing or unknown label" in found.notes


def test_multi_label_splits_with_unknown_labels(prepared, refused):
    train = [{"text": "a", "labels": ["x"]}, {"text": "b", "labels": ["x", "y"]}]
    validation = [{"text": "c", "labels": ["y"]}, {"text": "d", "labels": ["y", "z"]}, {"text": "e", "labels": []}]
    with refused('validation.csv, row 3: label "z" is not one of x, y', FIX_ROW):
        prepared(train=train, validation=validation)
    found = prepared(train=train, validation=validation, settings={"unknown_labels": "skip"})
    assert list(found.splits["validation"]["text"]) == ["c", "e"]


def test_rows_of_training_are_never_skipped(prepared, refused):
    rows = [*TRAIN, {"text": "odd", "label": "c"}]
    for known, settings in ((None, {"labels": "a,b"}), (Known("text", None, "label", ("a", "b"), CLASSES), {})):
        with refused('train.csv, row 12: label "c" is not one of a, b', FIX_ROW):
            prepared(known, train=rows, settings={"unknown_labels": "skip", **settings})
    with refused("train.csv, row 12: the label is missing", "add the label, or remove the row"):
        prepared(train=[*TRAIN, {"text": "odd", "label": None}], settings={"unknown_labels": "skip"})


def test_a_split_of_which_nothing_is_left(prepared, refused):
    held_out = [{"text": "new", "label": "c"}]
    with refused("validation.csv: no row has one of the labels a, b", "fix the labels, or omit the split"):
        prepared(train=TRAIN, validation=held_out, settings={"unknown_labels": "skip"})


def test_more_values_than_are_distinguished_are_never_guessed(prepared, refused, monkeypatch):
    monkeypatch.setattr(cells_module, "MAX_CLASSES", 5)
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


@pytest.mark.parametrize("skip", ["refuse", "skip"])
def test_words_in_one_split_and_numbers_in_another_are_refused(skip, prepared, refused):
    """Which word is 0 would be an accident of the alphabet."""
    settings = {"unknown_labels": skip}
    with refused("validation.csv, row 2: the labels here are numbers (1, 0), but those of train.csv are words (a, b)", ORDER):
        prepared(train=TRAIN, validation=NUMBERS, settings=settings)
    with refused("validation.csv, row 2: the labels here are words (a, b), but those of train.csv are numbers (0, 1)", ORDER):
        prepared(train=NUMBERS * 2, validation=TRAIN, settings=settings)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_numbers_are_read_in_the_order_that_somebody_gave(order, prepared):
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
    with refused(
        "labels is a, c, but the labels of the model are b, a",
        "list the labels of the model in the order of the numbers in the data",
        SettingsError,
    ):
        prepared(train=NUMBERS, outputs=LabelSet(("b", "a")), settings={"labels": "a,c"})


@pytest.mark.parametrize("name", ["test", "test_matched"])
@pytest.mark.parametrize(
    ("cells", "task", "mark"), [("ab", CLASSES, -1), (["0.5", "1"], SCORE, -1.0), ([["a"], ["b"]], SEVERAL, [])]
)
def test_test_may_come_without_labels(name, cells, task, mark, prepared):
    train = [{"text": f"text {place}", "label": cell} for place, cell in enumerate(cells)]
    found = prepared(train=train, validation=train, **{name: [{"text": "new"}]}, settings={"task": task})
    assert found.splits[name].to_list() == [{"text": "new", "label": mark}]
    assert found.splits[name].features == found.splits["train"].features
    assert (found.facts[name].unlabelled, f"{name}: there are no labels" in found.notes) == (True, True)


@pytest.mark.parametrize("mark", [-1, "-1", -1.0])
def test_secret_labels_are_no_labels(mark, prepared):
    found = prepared(train=TRAIN, validation=TRAIN[:2], test=[{"text": "new", "label": mark}])
    assert (found.splits["test"]["label"][:], found.facts["test"].unlabelled) == ([-1], True)


def test_columns_that_a_split_does_not_have(prepared, refused):
    with refused("validation.csv: there is no column label; found text", SAME_COLUMNS):
        prepared(train=TRAIN, validation=[{"text": "new"}])
    with refused("test.csv: there is no column text; found sentence, label", SAME_COLUMNS):
        prepared(train=TRAIN, test=[{"sentence": "new", "label": "a"}])
    with refused("dev2.csv: there is no column text, label; found id", SAME_COLUMNS):
        prepared(train=TRAIN, dev2=[{"id": "1"}])


def test_scores_of_other_splits_must_be_numbers_too(prepared, refused):
    train = [{"text": f"text {place}", "label": str(place / 7)} for place in range(30)]
    with refused("validation.csv, row 7: the label is not a finite number", "fix or remove the row"):
        prepared(train=train, validation=[*train[:5], {"text": "new", "label": "good"}])
    with refused("validation.csv, row 3: the label is not a finite number", "fix or remove the row"):
        prepared(train=train, validation=[train[0], {"text": "new", "label": None}, train[1]])


# --- texts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", ["", "  ", "\t\n", "\u3000", None])
def test_empty_texts_are_refused_with_their_rows_or_kept_and_counted(empty, prepared, refused):
    rows = [{"text": empty if place in (2, 4, 5) else f"text {place}", "label": "ab"[place % 2]} for place in range(9)]
    with refused('train.csv, row 4: "text" is empty; so are row 6, row 7', KEEP):
        prepared(train=rows, chunk=100)
    with refused('train.csv, row 4: "text" is empty', KEEP):
        prepared(train=rows, chunk=1)
    found = prepared(train=rows, validation=TRAIN[:4], settings={"empty": "keep"})
    assert found.splits["train"]["text"][2] == (empty or "")
    assert (found.facts["train"].num_empty, found.facts["validation"].num_empty) == (3, 0)
    assert "train: 3 empty texts are kept" in found.notes


def test_many_empty_texts_are_not_all_listed(prepared, refused):
    rows = [{"a": "x y", "b": "", "label": "ab"[place % 2]} for place in range(20)]
    with refused('train.csv, row 2: "b" is empty; so are row 3, row 4, row 5, row 6, row 7 and 14 more', KEEP):
        prepared(train=rows, chunk=100, settings={"text": "a", "text_pair": "b"})
    found = prepared(train=rows, validation=rows[:3], settings={"text": "a", "text_pair": "b", "empty": "keep"})
    assert found.facts["train"].num_empty == 20


def test_empty_texts_are_counted_on_the_side_of_the_cut_they_are_on(prepared):
    rows = [{"text": "" if place == 3 else f"text {place}", "label": "ab"[place % 2]} for place in range(40)]
    found = prepared(train=rows, settings={"empty": "keep", "validation_share": 0.5})
    for split, fact in found.facts.items():
        assert fact.num_empty == list(found.splits[split]["text"]).count("")
    assert sum(fact.num_empty for fact in found.facts.values()) == 1


def test_what_is_no_text(prepared, refused):
    remedy = "name the text column with --text"
    with refused('train.csv: column "id" has the type int64, which is not text', remedy):
        prepared(train=[{"id": 1, "label": "a"}], settings={"text": "id"})
    with refused(
        'validation.csv, row 3: "text" contains a NUL byte', "remove the byte: the file may be damaged, or not a text file"
    ):
        prepared(train=TRAIN, validation=[TRAIN[0], {"text": "a\0b", "label": "a"}])


def test_a_split_without_rows(prepared, refused):
    with refused("test.csv: there are no rows", "add at least one row"):
        prepared(train=TRAIN, test=[])


def test_large_strings_are_stored_like_all_others(prepared):
    table = pa.table({"text": pa.array(["a", "b"], pa.large_string()), "label": ["x", "y"]})
    assert prepared(train=table, validation=table).splits["train"].features["text"] == Value("string")


# --- what the source knows ---------------------------------------------------------------------------------------


def test_known_names_and_task_are_used_unless_the_user_says_otherwise(prepared):
    known = Known("text", None, "label", ("b", "a", "c"), CLASSES)
    assert prepared(known, train=TRAIN).labels == LabelSet(("b", "a", "c"))
    assert prepared(known, train=TRAIN, settings={"labels": "a,b"}).labels == LabelSet(("a", "b"))
    scored = [{**row, "label": "1"} for row in TRAIN]
    assert prepared(known, train=scored, settings={"task": SCORE}).task == SCORE
    other = [{**row, "tone": "xy"[place % 2]} for place, row in enumerate(TRAIN)]
    assert prepared(known, train=other, settings={"label": "tone"}).labels == LabelSet(("x", "y"))


# --- the fingerprint ---------------------------------------------------------------------------------------------


def test_the_fingerprint_is_that_of_texts_and_label_numbers(prepared):
    def fingerprint(rows: list[dict], **settings) -> str:
        return prepared(train=rows, validation=rows, settings=settings).facts["train"].fingerprint

    rows = [{"text": f"text {place}", "label": "ab"[place % 2]} for place in range(4)]
    first = fingerprint(rows)
    assert fingerprint([{"id": 7, **row} for row in rows]) == first
    assert fingerprint([{"label": row["label"].replace("a", "aa"), "text": row["text"]} for row in rows]) == first
    changed = [
        fingerprint(rows[::-1]),
        fingerprint([*rows[:3], {"text": "text 3!", "label": "b"}]),
        fingerprint([*rows[:3], {"text": "text 3", "label": "a"}]),
        fingerprint(rows, labels="b,a"),
        fingerprint(rows[:3]),
    ]
    assert len({first, *changed}) == 6


def test_a_share_of_0_cuts_nothing(prepared) -> None:
    found = prepared(
        train=[{"text": f"row {row}", "label": str(row % 2)} for row in range(10)], settings={"validation_share": 0}
    )
    assert [*found.splits] == ["train"]
    assert found.facts["train"].num_rows == 10


def test_of_a_very_wide_table_only_the_columns_that_matter_are_kept(prepared, monkeypatch) -> None:
    monkeypatch.setattr(columns_module, "MOST_KEPT_COLUMNS", 4)
    train = [{"text": f"text {place}", "label": "ab"[place % 2], "x": 1, "y": 2, "z": 3} for place in range(9)]
    found = prepared(train=train, validation=[{**row, "text": f"{row['text']} again"} for row in train])
    assert found.splits["train"].column_names == found.splits["validation"].column_names == ["text", "label"]
    assert "of 5 columns only text, label are kept" in found.notes
    narrow = prepared(train=[{name: row[name] for name in ("x", "label", "text", "y")} for row in train])
    assert narrow.splits["train"].column_names == ["x", "label", "text", "y"]
    assert not any("are kept" in note for note in narrow.notes)
