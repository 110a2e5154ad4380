"""Which columns are found without being named, and that every doubt is a question that lists what there is."""

from __future__ import annotations

import pyarrow as pa
import pytest
from given_split import Watched

from glassloop.base.errors import SettingsError
from glassloop.data import columns as columns_module
from glassloop.data.columns import LABEL_NAMES, PAIR_NAMES, Known, find_columns, stored_columns, with_joined
from glassloop.runs.record import Columns
from glassloop.settings.training import DataSettings

NAME_THEM = "name the columns with --text, --text_pair and --label"
NAME_TEXT = "name the text column with --text (and --text_pair for pairs)"
OR_JOIN = f"{NAME_TEXT}, or join columns: --text "
NAME_LABEL = "name the label column with --label"
KINDS = {
    "text": ["one sentence", "two more words"],
    "word": ["alpha", "beta"],
    "number": ["12", " 3.5 "],
    "int": [1, 2],
    "list": [["a"], ["b"]],
    "empty": ["", None],
}


def find(columns: str, known: Known | None = None, **settings) -> Columns:
    """`columns` as "name:kind other:kind"; a name alone holds text."""
    named = [column.partition(":") for column in columns.split()]
    head = pa.table({name: pa.array(KINDS[kind or "text"]) for name, _, kind in named})
    return find_columns(head, "d.csv", DataSettings(**settings), known or Known())


@pytest.mark.parametrize("change", [str, str.upper, str.capitalize])
@pytest.mark.parametrize("pair", PAIR_NAMES)
def test_pairs_are_found_by_their_usual_names(pair, change):
    first, second = map(change, pair)
    wanted = Columns(first, second, ("label",))
    assert find(f"id:number {second} label:word {first}") == wanted
    assert find(f"{first} comment {second} label:word") == wanted  # whatever else holds text
    assert wanted.texts == (first, second)


@pytest.mark.parametrize("change", [str, str.upper])
@pytest.mark.parametrize("name", LABEL_NAMES)
def test_the_label_is_found_by_its_usual_names(name, change):
    found = find(f"review {change(name)}:number")
    assert found == Columns("review", None, (change(name),))
    assert found.texts == ("review",)
    assert found.label_name == change(name)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ("anything label:word", "anything"),
        ("Review id:number length:int label:word", "Review"),  # numbers are not text
        ("review tags:list label:word", "review"),
        ("text source:word label:word", "text"),  # marks without a blank are not text where one column is called so
        ("source:word Sentence label", "Sentence"),
        ("empty:empty label:word", "empty"),  # to be refused later, with its rows
    ],
)
def test_one_text_is_found(columns, text):
    assert find(columns).texts == (text,)


@pytest.mark.parametrize(
    ("columns", "problem", "remedy"),
    [
        ("a b label:word", "several columns contain text: a, b; found a, b, label", OR_JOIN + "a,b"),
        ("a:word b:word label:word", "several columns contain text: a, b; found a, b, label", OR_JOIN + "a,b"),
        ("a:number b:int label:word", "no column contains text; found a, b, label", NAME_TEXT),
        ("label:word", "no column contains text; found label", NAME_TEXT),
        (
            "text1 text2 text_a text_b label:word",
            "several columns contain text: text1, text2, text_a, text_b; found text1, text2, text_a, text_b, label",
            OR_JOIN + "text1,text2,text_a,text_b",
        ),
        ("text cd label", "several columns contain text: text, cd; found text, cd, label", OR_JOIN + "text,cd"),
        ("text stars:int", "no column is called label; found text, stars", NAME_LABEL),
        ("text lable:int", 'no column is called label; found text, lable; did you mean "lable"?', NAME_LABEL),
        (
            "text Label:int target:int",
            'several could be the label: Label, target; found text, Label, target; did you mean "Label"?',
            NAME_LABEL,
        ),
    ],
)
def test_a_doubt_is_a_question(columns, problem, remedy, refused):
    with refused(f"d.csv: {problem}", remedy):
        find(columns)


@pytest.mark.parametrize(
    ("columns", "settings", "wanted"),
    [
        ("a b label:word", {"text": "b"}, Columns("b", None, ("label",))),
        ("sentence1 sentence2 label:word", {"text": "sentence2"}, Columns("sentence2", None, ("label",))),
        ("a b label:word", {"text": "b", "text_pair": "a"}, Columns("b", "a", ("label",))),
        ("text label:word score:number", {"label": "score"}, Columns("text", None, ("score",))),
        ("text comment", {"label": "comment"}, Columns("text", None, ("comment",))),
        ("id:number label:word", {"text": "id"}, Columns("id", None, ("label",))),
        ("text a:int b:int c:int", {"label": "a, c"}, Columns("text", None, ("a", "c"))),
        ("text a,b:int c:int", {"label": ("a,b",)}, Columns("text", None, ("a,b",))),
    ],
)
def test_what_the_user_names_is_used(columns, settings, wanted):
    assert find(columns, **settings) == wanted


def test_what_the_source_knows_comes_after_the_user_and_before_the_names():
    known = Known("a", "b", "stars")
    columns = "a b sentence1 sentence2 label:word stars:int"
    assert find(columns, known) == Columns("a", "b", ("stars",))
    assert find(columns, known, text="b") == Columns("b", None, ("stars",))
    assert find(columns, known, label="label") == Columns("a", "b", ("label",))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"text": "sentense"}, '"sentense"; found id, sentence, label; did you mean "sentence"?'),
        ({"text": "sentence", "text_pair": "x"}, '"x"; found id, sentence, label'),
        ({"label": "lable"}, '"lable"; found id, sentence, label; did you mean "label"?'),
        ({"label": "label,tone"}, '"tone"; found id, sentence, label'),
    ],
)
def test_a_column_that_is_not_there(settings, problem, refused):
    with refused(f"d.csv: there is no column {problem}", NAME_THEM):
        find("id:number sentence label:word", **settings)


def test_one_column_is_not_text_and_label(refused):
    with refused('d.csv: column "label" is named as text and as label', "name two different columns"):
        find("text label", text="label")
    with refused('column "label" is named twice', "name each column once", SettingsError):
        find("text label", text="label", label="label")


def test_a_column_is_numbers_by_its_first_thousand_cells():
    cells = ["1"] * 1000 + ["a sentence"]
    head = pa.table({"text": ["a b"] * 1001, "id": cells, "label": cells})
    assert find_columns(head, "d.csv", DataSettings(), Known()).texts == ("text",)


def test_the_column_of_several_labels_replaces_no_other(refused):
    assert find("text calm:int loud:int", text="text", label="calm,loud").label_name == "labels"
    with refused(
        'd.csv: there is a column "labels" in addition to the label columns calm, loud',
        "rename or remove it: the labels are stored under that name",
    ):
        find("text calm:int loud:int labels:word", text="text", label="calm,loud")
    assert find("text labels:int loud:int", text="text", label="labels,loud").label_name == "labels"


def test_many_label_columns_are_found_without_reading_all_names_for_each(monkeypatch):
    """50,000 columns with 5,000 labels took minutes."""
    monkeypatch.setattr(columns_module, "MOST_KEPT_COLUMNS", 10)
    labels = [f"l{number}" for number in range(40)]
    table = pa.table({"text": ["a b"], **{name: [1] for name in labels}})
    head = Watched(table)
    found = find_columns(head, "d.csv", DataSettings(text="text", label=",".join(labels)), Known())
    assert found.label == tuple(labels)
    assert stored_columns(head, found, pa.array([[0]])).column_names == ["text", *labels, "labels"]
    assert head.asked < 10


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_empty_cells_are_omitted(kind):
    table = pa.table({"a": pa.array(["x", "", None, " ", "y "], kind), "b": pa.array(["1", "2", "3", None, "4"], kind)})
    joined = with_joined(table, ["a,b", "b"], "d.csv")
    assert with_joined(joined, ["a,b"], "d.csv") is joined, "a column of that name comes first"
    assert joined["a,b"].to_pylist() == ["x\n1", "2", "3", "", "y \n4"]
    assert joined.column_names == ["a", "b", "a,b"]


def test_only_texts_are_joined(refused):
    with refused('d.csv: column "n" has the type int64, which is not text', "join only columns with text: --text"):
        with_joined(pa.table({"a": ["x"], "n": [1]}), ["a,n"], "d.csv")
