"""Columns are found without doubt or asked for; label cells become numbers, and what is refused is named with its row."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from given_split import Watched

from glassloop.base.errors import DataError, SettingsError
from glassloop.data import columns as columns_module
from glassloop.runs.record import Columns
from glassloop.settings.training import CLASSES, SCORE, SEVERAL, DataSettings

NAME_THEM = "name the columns with --text, --text_pair and --label"
NAME_TEXT = "name the text column with --text (and --text_pair for pairs)"
OR_JOIN = f"{NAME_TEXT}, or join columns: --text "
NAME_LABEL = "name the label column with --label"
FOUR_NAMES, FOUR, TWO = "text1,text2,text_a,text_b", "text1, text2, text_a, text_b", "Label, target"
KINDS = {
    "text": ["one sentence", "two more words"],
    "word": ["alpha", "beta"],
    "number": ["12", " 3.5 "],
    "int": [1, 2],
    "list": [["a"], ["b"]],
    "empty": ["", None],
}


def find(columns: str, known: columns_module.Known | None = None, **settings) -> Columns:
    """`columns` as "name:kind other:kind"; a name alone holds text."""
    named = [column.partition(":") for column in columns.split()]
    head = pa.table({name: pa.array(KINDS[kind or "text"]) for name, _, kind in named})
    return columns_module.find_columns(head, "d.csv", DataSettings(**settings), known or columns_module.Known())


def test_pairs_and_labels_are_found_by_their_usual_names():
    for change in [str, str.upper, str.capitalize]:
        for pair in columns_module.PAIR_NAMES:
            first, second = map(change, pair)
            wanted = Columns(first, second, ("label",))
            assert find(f"id:number {second} label:word {first}") == wanted
            assert find(f"{first} comment {second} label:word") == wanted  # whatever else holds text
            assert wanted.texts == (first, second)
    for change in [str, str.upper]:
        for name in columns_module.LABEL_NAMES:
            found = find(f"review {change(name)}:number")
            assert found == Columns("review", None, (change(name),))
            assert found.texts == ("review",)
            assert found.label_name == change(name)


def test_one_text_is_found_and_what_the_user_names_is_used():
    for columns, text in [
        ("anything label:word", "anything"),
        ("Review id:number length:int label:word", "Review"),  # numbers are not text
        ("review tags:list label:word", "review"),
        ("text source:word label:word", "text"),  # marks without a blank are not text where one column is called so
        ("source:word Sentence label", "Sentence"),
        ("empty:empty label:word", "empty"),  # to be refused later, with its rows
    ]:
        assert find(columns).texts == (text,)
    for columns, settings, wanted in [
        ("a b label:word", {"text": "b"}, Columns("b", None, ("label",))),
        ("sentence1 sentence2 label:word", {"text": "sentence2"}, Columns("sentence2", None, ("label",))),
        ("a b label:word", {"text": "b", "text_pair": "a"}, Columns("b", "a", ("label",))),
        ("text label:word score:number", {"label": "score"}, Columns("text", None, ("score",))),
        ("text comment", {"label": "comment"}, Columns("text", None, ("comment",))),
        ("id:number label:word", {"text": "id"}, Columns("id", None, ("label",))),
        ("text a:int b:int c:int", {"label": "a, c"}, Columns("text", None, ("a", "c"))),
        ("text a,b:int c:int", {"label": ("a,b",)}, Columns("text", None, ("a,b",))),
    ]:
        assert find(columns, **settings) == wanted
    known = columns_module.Known("a", "b", "stars")
    columns = "a b sentence1 sentence2 label:word stars:int"
    assert find(columns, known) == Columns("a", "b", ("stars",))
    assert find(columns, known, text="b") == Columns("b", None, ("stars",))
    assert find(columns, known, label="label") == Columns("a", "b", ("label",))
    cells = ["1"] * 1000 + ["a sentence"]
    head = pa.table({"text": ["a b"] * 1001, "id": cells, "label": cells})
    assert columns_module.find_columns(head, "d.csv", DataSettings(), columns_module.Known()).texts == ("text",)


def test_a_doubt_is_a_question_and_a_column_that_is_not_there_is_named(refused):
    for columns, problem, remedy in [
        ("a b label:word", "several columns contain text: a, b; found a, b, label", OR_JOIN + "a,b"),
        ("a:word b:word label:word", "several columns contain text: a, b; found a, b, label", OR_JOIN + "a,b"),
        ("a:number b:int label:word", "no column contains text; found a, b, label", NAME_TEXT),
        ("label:word", "no column contains text; found label", NAME_TEXT),
        (
            f"{FOUR.replace(',', '')} label:word",
            f"several columns contain text: {FOUR}; found {FOUR}, label",
            OR_JOIN + FOUR_NAMES,
        ),
        ("text cd label", "several columns contain text: text, cd; found text, cd, label", OR_JOIN + "text,cd"),
        ("text stars:int", "no column is called label; found text, stars", NAME_LABEL),
        ("text lable:int", 'no column is called label; found text, lable; did you mean "lable"?', NAME_LABEL),
        (
            "text Label:int target:int",
            f'several could be the label: {TWO}; found text, {TWO}; did you mean "Label"?',
            NAME_LABEL,
        ),
    ]:
        with refused(f"d.csv: {problem}", remedy):
            find(columns)
    for settings, problem in [
        ({"text": "sentense"}, '"sentense"; found id, sentence, label; did you mean "sentence"?'),
        ({"text": "sentence", "text_pair": "x"}, '"x"; found id, sentence, label'),
        ({"label": "lable"}, '"lable"; found id, sentence, label; did you mean "label"?'),
        ({"label": "label,tone"}, '"tone"; found id, sentence, label'),
    ]:
        with refused(f"d.csv: there is no column {problem}", NAME_THEM):
            find("id:number sentence label:word", **settings)
    with refused('d.csv: column "label" is named as text and as label', "name two different columns"):
        find("text label", text="label")
    with refused('column "label" is named twice', "name each column once", SettingsError):
        find("text label", text="label", label="label")
    assert find("text calm:int loud:int", text="text", label="calm,loud").label_name == "labels"
    problem = 'd.csv: there is a column "labels" in addition to the label columns calm, loud'
    with refused(problem, "rename or remove it: the labels are stored under that name"):
        find("text calm:int loud:int labels:word", text="text", label="calm,loud")
    assert find("text labels:int loud:int", text="text", label="labels,loud").label_name == "labels"
    with refused('d.csv: column "n" has the type int64, which is not text', "join only columns with text: --text"):
        columns_module.with_joined(pa.table({"a": ["x"], "n": [1]}), ["a,n"], "d.csv")


def test_many_label_columns_are_found_without_reading_all_names_for_each(monkeypatch):
    """50,000 columns with 5,000 labels took minutes."""
    monkeypatch.setattr(columns_module, "MOST_KEPT_COLUMNS", 10)
    labels = [f"l{number}" for number in range(40)]
    table = pa.table({"text": ["a b"], **{name: [1] for name in labels}})
    head = Watched(table)
    found = columns_module.find_columns(
        head, "d.csv", DataSettings(text="text", label=",".join(labels)), columns_module.Known()
    )
    assert found.label == tuple(labels)
    assert columns_module.stored_columns(head, found, pa.array([[0]])).column_names == ["text", *labels, "labels"]
    assert head.asked < 10


def cells_of(cells: list, chunk: int = 4) -> columns_module.LabelCells:
    found = columns_module.LabelCells()
    kind = pa.list_(pa.string()) if any(isinstance(cell, list) for cell in cells) else pa.string()
    for start in range(0, len(cells), chunk):
        found.add(pa.array(cells[start : start + chunk], kind))
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("several", [False, True])
def test_label_cells_against_counting_by_hand(seed, several):
    random = np.random.default_rng(seed)
    words = ["x", "y", "z", None]
    cells = [words[number] for number in random.integers(0, 4, 50)]
    if several:
        cells = [None if cell is None else [cell] * int(random.integers(0, 2)) + ["w"] for cell in cells]
    found = cells_of(cells, 7)
    plain = [tuple(cell) if isinstance(cell, list) else cell for cell in cells]
    assert [found.cells[code] for code in found.codes] == plain
    assert (found.are_lists, found.overflowed, found.labelled) == (several, False, True)
    for rows in (slice(None), random.random(50) < 0.5):
        chosen = np.array(plain, dtype=object)[rows]
        parts = [part for cell in chosen if cell is not None for part in ([*cell] if several else [cell])]
        assert found.counts(rows) == {value: parts.count(value) for value in set(parts)}
    for value in ["x", "y", "w", None, "never"]:
        held = [row for row, cell in enumerate(plain) if cell == value or (several and cell and value in cell)]
        assert found.first_row(value) == (held[0] if held else None)
    assert sorted(found.values()) == sorted({part for cell in plain if cell for part in ([*cell] if several else [cell])})


# --- from tables -------------------------------------------------------------------------------------------------
def test_any_kind_of_cell_becomes_text_and_empty_ones_are_omitted():
    for cells, separator, wanted in [
        (pa.array(["a", None, "b"]), None, ["a", None, "b"]),
        (pa.array(["a", None, "b"], pa.large_string()), None, ["a", None, "b"]),
        (pa.array([1, None, -1], pa.int8()), None, ["1", None, "-1"]),
        (pa.array([0.5, 1.0, None, 0.1], pa.float64()), None, ["0.5", "1.0", None, "0.1"]),
        (pa.array([Decimal("0.5")]), None, ["0.5"]),
        (pa.array([True, False, None]), None, ["true", "false", None]),
        (pa.array(["b", "a", "b", None]).dictionary_encode(), None, ["b", "a", "b", None]),
        (pa.array([["a"], [], None, ["b", "c"]]), None, [["a"], [], None, ["b", "c"]]),
        (pa.array([["a"], ["b", "c"]], pa.large_list(pa.string())), ",", [["a"], ["b", "c"]]),
        (pa.array([[1, 0], [0, 1]], pa.list_(pa.int64(), 2)), None, [["1", "0"], ["0", "1"]]),
        (pa.array([[1], [0, 2]]), None, [["1"], ["0", "2"]]),
        (pa.array(["a, b", "", None, "c,,a", " , "]), ",", [["a", "b"], [], None, ["c", "a"], []]),
        (pa.array(["a || b", "c"]), "||", [["a", "b"], ["c"]]),
        (pa.array([12, 3]), "|", [["12"], ["3"]]),
    ]:
        table = pa.table({"text": ["t"] * len(cells), "label": cells})
        for chunked in (table, pa.concat_tables([table.slice(0, 1), table.slice(1)])):
            assert columns_module.label_cells(chunked, ("label",), separator).to_pylist() == wanted
    columns = pa.table({"b": ["1", "0", "TRUE", "2", None], "a": [1, 0, 0, 1, 1], "c": [True, False, False, True, True]})
    assert columns_module.label_cells(columns, ("b", "a", "c"), None).to_pylist() == [["b", "a", "c"], [], ["b"], None, None]
    for kind in [pa.string(), pa.large_string()]:
        table = pa.table({"a": pa.array(["x", "", None, " ", "y "], kind), "b": pa.array(["1", "2", "3", None, "4"], kind)})
        joined = columns_module.with_joined(table, ["a,b", "b"], "d.csv")
        assert columns_module.with_joined(joined, ["a,b"], "d.csv") is joined, "a column of that name comes first"
        assert joined["a,b"].to_pylist() == ["x\n1", "2", "3", "", "y \n4"]
        assert joined.column_names == ["a", "b", "a,b"]


# --- From label cells to numbers: every rule of what is accepted, what it means, and what is said where it is refused.
SPACES = "remove the spaces in that row"
NEGATIVE = "remove the row, or use --task single_label_classification if it is a class"
MIXED = "use only words or only numbers, or list the names with --labels"
RIGHT_COLUMN = "name the right column with --label"
TWO_LABELS = "training needs at least two labels"
NO_LABEL = "add at least one label, or name the right column with --label"
FINITE = "a score must be a finite number"
SHORT = "use short label names on one line"
FIX_ROW = "fix the row, or add the label to --labels"
MISSING, ADD_NUMBERS = "add the label, or remove the row", "add 0 or 1 to every label column, or remove the row"
SEPARATOR, OR_SCORES = "set the separator between labels with --label_separator", "use --task regression for scores"
REGRESSION = "fix the row; use --task single_label_classification for classes, or --task regression for scores"
SCORES, SIX = [f"{place / 8}" for place in range(30)], "0.0, 0.125, 0.25, 0.375, 0.5, 0.625"


def settle(cells: list, known: tuple[str, ...] | None = None, **settings):
    found = cells_of(cells)

    def where(value: str | None) -> str:
        row = found.first_row(value)
        return "d.csv" if row is None else f"d.csv, row {row + 2}"

    task, labels = columns_module.settle_labels(found, DataSettings(**settings), known, where)
    return task, labels.names if labels else None


# --- what is accepted --------------------------------------------------------------------------------------------
def test_what_is_accepted_and_that_labels_are_kept_secret():
    for cells, known, settings, task, names in [
        (["no", "yes", "no"], None, {}, CLASSES, ("no", "yes")),  # words by alphabet, whatever came first
        (["Yes", "no", "yes"], None, {}, CLASSES, ("Yes", "no", "yes")),
        (["two words", "ß", "None", "nan"], None, {}, CLASSES, ("None", "nan", "two words", "ß")),
        (["1_2", "1_10"], None, {}, CLASSES, ("1_10", "1_2")),  # words to a person, though Python would read numbers
        (["1", "0", "2"], None, {}, CLASSES, ("0", "1", "2")),
        ([*map(str, range(12))], None, {}, CLASSES, tuple(map(str, range(12)))),  # by size, not by alphabet
        ([f"{code:03}" for code in range(30)], None, {}, CLASSES, tuple(f"{code:03}" for code in range(30))),  # codes
        (["10", "007", "9"], None, {}, CLASSES, ("007", "10", "9")),  # one leading zero: all are codes, by their text
        (["01", "A1"], None, {}, CLASSES, ("01", "A1")),
        (["b", "a"], ("b", "a"), {}, CLASSES, ("b", "a")),  # the order the source knows
        (["b", "b"], ("b", "a"), {}, CLASSES, ("b", "a")),  # also names that no row holds
        (["0", "1"], ("b", "a"), {}, CLASSES, ("b", "a")),
        (["b", "a"], ("b", "a"), {"labels": "a,b"}, CLASSES, ("a", "b")),  # the user comes first
        (["yes", "no"], None, {"labels": "yes,no,maybe"}, CLASSES, ("yes", "no", "maybe")),
        (["0", "2"], None, {"labels": "bad,fair,good"}, CLASSES, ("bad", "fair", "good")),
        (["1", "3"], None, {"labels": "1,2,3"}, CLASSES, ("1", "2", "3")),
        (["1", "yes"], None, {"labels": "yes,1"}, CLASSES, ("yes", "1")),
        (["-1", "2"], None, {"labels": "-1,2"}, CLASSES, ("-1", "2")),
        (["a, b", "c"], None, {"labels": ("a, b", "c")}, CLASSES, ("a, b", "c")),
        (["0", "1", "0", "7", "2"], None, {}, CLASSES, ("0", "1", "2", "7")),  # any small set of numbers
        (["10.0", "9.0", "9"], None, {}, CLASSES, ("9", "10")),  # as pandas writes whole numbers
        (["1.0", "0.0"], ("no", "yes"), {}, CLASSES, ("no", "yes")),
        (["-2", "-1", "0", "1"], None, {}, CLASSES, ("-2", "-1", "0", "1")),
        (["0.5", "1.0", "1.5"], None, {"task": CLASSES}, CLASSES, ("0.5", "1.0", "1.5")),
        (["true", "false"], None, {}, CLASSES, ("false", "true")),
        (["0.5", "1", "-3"], None, {"task": SCORE}, SCORE, None),
        (["0", "1"], None, {"task": SCORE}, SCORE, None),
        (SCORES, None, {}, SCORE, None),  # so many fractions can only be scores
        ([*SCORES, "1e-3", "-2"], None, {}, SCORE, None),
        ([["b"], ["a", "b"], []], None, {}, SEVERAL, ("a", "b")),
        ([["b"], ["b"]], None, {}, SEVERAL, ("b",)),
        ([["2"], ["1", "0"]], None, {"task": SEVERAL}, SEVERAL, ("0", "1", "2")),
        ([["0"], ["1", "0"]], None, {"labels": "x,y"}, SEVERAL, ("x", "y")),
        ([["x"], []], ("y", "x"), {}, SEVERAL, ("y", "x")),
        ([["b"], ["a", "b"]], None, {"label": "b,a,c"}, SEVERAL, ("b", "a", "c")),  # 0/1 columns keep their order
    ]:
        assert settle(cells, known, **settings) == (task, names)
    marked = [["-1", "-1"], ["-1.0"], ["-1", "0"], ["-1", None], ["-2"]]
    assert [cells_of(cells).labelled for cells in marked] == [False, False, True, True, True]


def test_what_is_refused(refused):
    for cells, settings, problem, remedy in [
        (["a", "b", None, "a", None], {}, ", row 4: the label is missing", MISSING),
        (["1.5", None], {"task": SCORE}, ", row 3: the label is missing", MISSING),
        ([["a"], None], {}, ", row 3: the label is missing", MISSING),
        ([["a"], ["b", None]], {}, ", row 3: the label is missing", MISSING),
        ([["a"], None], {"label": "a,b"}, ", row 3: the label is missing", ADD_NUMBERS),
        (["a", "b", "a "], {}, ', row 4: label "a " has stray spaces or is empty', SPACES),
        (["1", "0", " 1"], {}, ', row 4: label " 1" has stray spaces or is empty', SPACES),
        (["a", "b", ""], {}, ', row 4: label "" has stray spaces or is empty', SPACES),
        (["0", "-1", "1"], {}, ", row 3: label -1 is negative, which usually stands for an unknown label", NEGATIVE),
        (["0", "1", "0", "-100"], {}, ", row 5: label -100 is negative, which usually stands for an unknown label", NEGATIVE),
        (["0", "1", "1", "yes"], {}, ', row 5: label "yes" among 0, 1: numbers and words are mixed', MIXED),
        (["yes", "1", "no", "no"], {}, ', row 3: label "1" among yes, no: numbers and words are mixed', MIXED),
        (["0", "1", "0.5"], {}, ', row 4: label "0.5" is not a whole number', REGRESSION),
        (SCORES[:20], {}, ', row 3: label "0.125" is not a whole number', REGRESSION),  # too few to be sure
        ([*SCORES, "good"], {}, f', row 32: label "good" among {SIX} and 24 more: numbers and words are mixed', MIXED),
        ([f"text {place}" for place in range(60)], {}, ", row 2: the label column has 60 different values", RIGHT_COLUMN),
        ([f"{place:04}" for place in range(60)], {}, ", row 2: the label column has 60 different values", RIGHT_COLUMN),
        ([*map(str, range(60))], {}, ", row 2: the label column has 60 different values", f"{RIGHT_COLUMN}, or {OR_SCORES}"),
        (["a", "a", "a"], {}, ': all rows have the label "a"', TWO_LABELS),
        (["a"], {"labels": "a"}, ': all rows have the label "a"', TWO_LABELS),
        (["a", "b", "c"], {"labels": "a,b"}, ', row 4: label "c" is not one of a, b', FIX_ROW),
        (["good", "bda"], {"labels": "bad,good"}, ', row 3: label "bda" is not one of bad, good; did you mean "bad"?', FIX_ROW),
        (["0", "1", "2"], {"labels": "no,yes"}, ', row 2: label "0" is not one of no, yes', FIX_ROW),
        (["0", "yes"], {"labels": "no,yes"}, ', row 2: label "0" is not one of no, yes', FIX_ROW),
        (["0", "0"], {"labels": "1,2,3"}, ', row 2: label "0" is not one of 1, 2, 3', FIX_ROW),  # a name, never a place
        (SCORES, {"labels": "a,b"}, ', row 2: label "0.0" is not one of a, b', FIX_ROW),
        ([["a"], ["b", "c"]], {"labels": "a,b"}, ', row 3: label "c" is not one of a, b', FIX_ROW),
        ([["a"], ["b "]], {}, ', row 3: label "b " has stray spaces or is empty', SPACES),
        ([[], []], {}, ": no row has a label", NO_LABEL),
        ([[], []], {"task": CLASSES}, ": no row has a label", NO_LABEL),
        (["a,b", "c"], {"task": SEVERAL}, ", row 2: the label is a single value", SEPARATOR),
        ([["a"], ["b"]], {"task": CLASSES}, ", row 2: the label is a list", "use --task multi_label_classification"),
        (["1", "x"], {"task": SCORE}, ', row 3: label "x" is not a number', FINITE),
        (["1", "nan"], {"task": SCORE}, ', row 3: label "nan" is not a number', FINITE),
        (["1", "-inf"], {"task": SCORE}, ', row 3: label "-inf" is not a number', FINITE),
        (["1", "1e39"], {"task": SCORE}, ', row 3: label "1e39" is not a number', FINITE),
        (["1", " 2"], {"task": SCORE}, ', row 3: label " 2" is not a number', FINITE),
        (["1", ""], {"task": SCORE}, ', row 3: label "" is not a number', FINITE),
        (["a", "b\nc"], {}, ', row 3: the name "b\\nc" contains a line break or another control character', SHORT),
        (["a", "b" * 201], {}, f', row 3: the name "{"b" * 39}…" has 201 characters; at most 200 are allowed', SHORT),
    ]:
        with refused(f"d.csv{problem}", remedy):
            settle(cells, **settings)


def test_beyond_the_limit_cells_are_not_distinguished_and_labels_refused(monkeypatch, refused):
    names = [f"class {place:03}" for place in range(60)]
    assert settle(names * 3) == (CLASSES, tuple(names))
    numbers = [str(place) for place in range(150)]
    assert settle(numbers * 2) == (CLASSES, tuple(numbers))
    monkeypatch.setattr(columns_module, "MAX_CLASSES", 5)
    exactly = cells_of(list("abcde") * 2)
    assert (exactly.overflowed, exactly.codes.tolist()) == (False, [0, 1, 2, 3, 4] * 2)
    beyond = cells_of([*"abcde", "f", "g", "a", None])
    assert (beyond.overflowed, beyond.codes.tolist()) == (True, [0, 1, 2, 3, 4, 4, 4, 0, 4])
    lists = [[*"abcdefg"][: 1 + place] for place in range(7)]
    assert [*cells_of(lists).codes] == [*range(7)]  # however many sets of labels there are
    monkeypatch.setattr(columns_module, "MAX_CLASSES", 5)
    with refused("d.csv, row 2: the label column has 5 different values", RIGHT_COLUMN):
        settle([*"abcdef"] * 9)
    assert settle([*"abc"] * 9) == (CLASSES, ("a", "b", "c"))
    assert settle(SCORES, task=SCORE) == (SCORE, None)


# --- numbers -----------------------------------------------------------------------------------------------------
def test_cells_are_names_first_and_become_numbers_only_without_doubt_or_null():
    for names, values, numbers in [
        (("no", "yes"), ["yes"], {"no": 0, "yes": 1}),
        (("no", "yes"), ["1", "0"], {"0": 0, "1": 1}),
        (("no", "yes"), ["1"], {"0": 0, "1": 1}),
        (("no", "yes"), ["1", "2"], {"no": 0, "yes": 1}),  # out of range: then none of them is a number
        *[(("no", "yes"), ["1", "no"], {"no": 0, "yes": 1}), (("0 stars", "007"), ["0", "1"], {"0 stars": 0, "007": 1})],
        *[(("1", "2", "3"), ["1", "2"], {"1": 0, "2": 1, "3": 2}), (("1", "2", "3"), ["0"], {"1": 0, "2": 1, "3": 2})],
        *[(("5", "6", "7"), ["0", "1"], {"5": 0, "6": 1, "7": 2}), (("1", "0"), ["1", "0"], {"1": 0, "0": 1})],
    ]:
        assert columns_module.LabelSet(names, names).numbers_of(iter(values)) == numbers
        without_order = columns_module.LabelSet(names)
        assert without_order.numbers_of(iter(values)) == without_order.label2id
        assert without_order.id2label == dict(enumerate(names))
    for cells, task, numbers, wanted in [
        (["b", "a", None, "x", "a"], CLASSES, {"a": 0, "b": 1}, pa.array([1, 0, None, None, 0], pa.int64())),
        (["1.5", "2", None, "x", "-1e3"], SCORE, {}, pa.array([1.5, 2, None, None, -1000], pa.float32())),
        ([["b", "a"], [], None, ["x", "a"], ["b", "b"]], SEVERAL, {"a": 0, "b": 1}, pa.array([[0, 1], [], None, None, [1]])),
        (["cat", "dog", None, "x", "cat"], SEVERAL, {"dog": 0, "cat": 1}, pa.array([[1], [0], None, None, [1]])),
    ]:
        found = cells_of(cells, 2)
        kind = pa.list_(pa.string()) if any(isinstance(cell, list) for cell in cells) else pa.string()
        for rows in (slice(0, 5), slice(1, 4), slice(2, 2)):
            if task == SCORE:
                numbered = columns_module.scores_of(pa.array(cells[rows], kind))
            else:
                numbered = columns_module.label_lookup(found, task, numbers).take(pa.array(found.codes[rows]))
            assert numbered.equals(wanted[rows])


# --- Labels that a person cannot tell apart: which ones, and how they are written so that the difference can be seen.
def test_names_that_look_alike_are_told_apart(refused) -> None:
    for names, written in [
        (("Good", "good"), ('"Good"', '"good"')),
        (("Größe", "größe"), ('"Größe"', '"größe"')),
        (("caf\u00e9", "cafe\u0301"), (r'"caf\xe9"', r'"cafe\u0301"')),  # composed and not
        (("o\ufb03ce", "office"), (r'"o\ufb03ce"', '"office"')),  # a ligature
        (("good", "go\u200bod"), ('"good"', r'"go\u200bod"')),  # a zero-width space
        (("good", "good\ufe0f"), ('"good"', r'"good\ufe0f"')),  # a variation selector
        (("a b", "a\u00a0b"), ('"a b"', r'"a\xa0b"')),
        (("a b", "a  b"), ('"a b"', '"a  b"')),
        (("spam", "sp\u0430m"), ('"spam"', r'"sp\u0430m"')),  # a Cyrillic a
        (("OK", "\u039fK"), ('"OK"', r'"\u039fK"')),  # a Greek omicron
        (("sci-fi", "sci\u2011fi"), ('"sci-fi"', r'"sci\u2011fi"')),  # a hyphen that does not break
        (("1-2", "1\u20132"), ('"1-2"', r'"1\u20132"')),  # a dash
        (("can't say", "can\u2019t say"), ('"can\'t say"', r'"can\u2019t say"')),  # an apostrophe of a word processor
        (("7", "007"), ('"7"', '"007"')),
    ]:
        assert columns_module.look_alikes([*names, "other", "Other label"]) == [names]
        assert tuple(columns_module.spelled(names)) == written
    assert columns_module.look_alikes(["b", "A", "a", "B"]) == [("b", "B"), ("A", "a")], "groups keep the order of the names"
    for others in (("a", "b"), ("resume", "résumé"), ("1", "10"), ("0", "o"), ("да", "нет"), ("0", "1")):
        assert columns_module.look_alikes(others) == []
    problem = r'here: label "n\u0435g" is not one of neg, pos; it looks like "neg", but has different characters'
    for name, told in {"nеg": problem, "Neg": 'here: label "Neg" is not one of neg, pos; did you mean "neg"?'}.items():
        with refused(told, FIX_ROW):
            columns_module.refuse_unknown(["pos", name], columns_module.LabelSet(("neg", "pos")), lambda value: "here", "train")


# --- Several labels in one cell: lists are read, separators are offered, and single labels stay as they are.
def test_lists_are_read_only_if_all_cells_are_lists():
    for text, items in [
        *[("", []), (" ", []), ("'a'", ["a"]), ("'a', 'b'", ["a", "b"]), ('"a", "b"', ["a", "b"])],
        *[("'a, b', \"it's\"", ["a, b", "it's"]), ("'it\\'s'", ["it's"]), ("a, b c", ["a", "b c"]), ("1, 2.5,", ["1", "2.5"])],
        ("'a' 'b'", None),  # as NumPy writes it: Python would read ab
        ("'a", None),
        ("['a']", None),
    ]:
        assert columns_module.items_of(text) == items
    for cells, lists in [
        (["['a', 'b']", None, " [] "], [["a", "b"], None, []]),
        (["[a, b]", "[c]"], [["a", "b"], ["c"]]),
        (["[POS]", "[NEG]"], None),  # names of classes
        *[(["['a']", "b"], None), (["['a' 'b']"], None), ([None], None), (["a"], None)],
    ]:
        assert columns_module.lists_in(cells) == lists


def where(value: str | None) -> str:
    return "d.csv, row 2"


def test_single_labels_stay_and_a_separator_of_several_is_offered():
    for values in [
        ["a;b", "c;d"],  # the parts occur in no other cell
        *(["a", "b"], ["Arts, Music", "Arts, Film", "Sport"], ["Smith, John", "Smith"], ["and/or", "and", "or"]),
        *(["a;", "b"], ["[POS]", "[NEG]"], ["1", "2"]),
    ]:
        columns_module.refuse_several(values, where)
    for values, separator in [
        *[(["a;b", "a", "b"], ";"), (["a; b", "b ;c", "c;a"], ";"), (["a|b", "b|a"], "|"), (["x,y", "x", "y,z", "z"], ",")],
        (["1;2", "2", "1"], ";"),
    ]:
        with pytest.raises(DataError) as raised:
            columns_module.refuse_several(values, where)
        assert f'--label_separator "{separator}"' in raised.value.remedy
        assert "--task single_label_classification" in raised.value.remedy
