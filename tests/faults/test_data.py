"""SCENARIOS 27 to 35: bad data get an error with file, row and what to do, and exit code 3; nothing is repaired silently.

The numbers in the test names are those of the scenarios. More files: tests/contract/test_awkward_files.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from glassloop import encode, load_dataset, load_examples
from glassloop.base.errors import DataError, GlassloopError

Write = Callable[[str, str | bytes], Path]
GOOD = "text,label\ngood film,pos\nbad film,neg\nnot good,neg\nvery good,pos\n"


def refused(path: Path | str, **settings: object) -> DataError:
    """The error that loading raises; it must be about the data."""
    with pytest.raises(DataError) as caught:
        load_dataset(str(path), **settings)
    assert caught.value.exit_code == 3
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize(
    ("header", "settings", "expected"),
    [
        ("text,lable", {}, ["text, lable", 'did you mean "lable"?', "--label"]),
        ("text,label", {"text": "txt"}, ['no column "txt"', "text, label", 'did you mean "text"?']),
    ],
)
def test_27_columns_missing(write: Write, header: str, settings: dict, expected: list) -> None:
    error = refused(write("reviews.csv", f"{header}\nx,x\n"), **settings)
    assert "reviews.csv" in error.problem
    assert all(part in str(error) for part in expected), str(error)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["0", "1", "-100"], ["reviews.csv, row 4", "label -100 is negative"]),
        (["1", "0", "1", "yes"], ["reviews.csv, row 5", 'label "yes"', "mixed"]),
        (["pos", "neg", ""], ["reviews.csv, row 4", "empty"]),
    ],
)
def test_28_invalid_labels(write: Write, cells: list[str], expected: list[str]) -> None:
    rows = "".join(f"text number {place},{cell}\n" for place, cell in enumerate(cells))
    error = refused(write("reviews.csv", "text,label\n" + rows))
    assert all(part in str(error) for part in expected), str(error)


def test_28_label_not_in_the_given_names_offers_the_nearest(write: Write) -> None:
    path = write("reviews.csv", "text,label\ngood,positive\nbad,postive\nbad,negative\n")
    error = refused(path, labels=["negative", "positive"])
    assert 'reviews.csv, row 3: label "postive" is not one of negative, positive' in error.problem
    assert 'did you mean "positive"?' in error.problem


def test_29_label_that_training_never_saw(write: Write) -> None:
    write("data/train.csv", GOOD)
    write("data/test.csv", "text,label\nfine,neutral\ngood,pos\n")
    folder = write("data/validation.csv", GOOD).parent
    error = refused(folder)
    assert error.problem.startswith('test.csv, row 2: label "neutral" is not one of neg, pos')
    examples = load_examples(str(folder), unknown_labels="skip")
    assert examples.splits["test"]["text"] == ["good"]
    assert "test: skipped: 1 row with a missing or unknown label" in examples.notes


@pytest.mark.parametrize(
    "texts",
    [
        ["NA", "null", "nan", "None", "N/A", "#N/A"],
        ["👩🏽‍🚀 great", "مرحبا بالعالم", "שלום", "naïve café"],
        ["<script>alert(1)</script>", "=cmd()", "[red]x[/red]", "\x1b[31mred"],  # escaped where tables and pages are written
    ],
    ids=["30 nothing", "32 world", "35 scripts"],
)
def test_words_of_any_kind_stay_text(write: Write, texts: list[str]) -> None:
    path = write("words.csv", "text,label\n" + "".join(f"{text},{place % 2}\n" for place, text in enumerate(texts)))
    splits = load_dataset(str(path), validation_share=0.4)
    assert sorted([*splits["train"]["text"], *splits["validation"]["text"]]) == sorted(texts)


def test_30_empty_texts_are_refused_with_their_rows_or_kept(write: Write) -> None:
    path = write("reviews.csv", GOOD + ",pos\n   ,neg\n")
    error = refused(path)
    assert error.problem == 'reviews.csv, row 6: "text" is empty; so are row 7'
    assert "--empty keep" in error.remedy
    examples = load_examples(str(path), empty="keep")
    assert sum(fact.num_rows for fact in examples.facts.values()) == 6
    assert sum(fact.num_empty for fact in examples.facts.values()) == 2
    assert any("empty text" in note for note in examples.notes)
    error = refused(write("reviews.jsonl", '{"text": "a", "label": "x"}\n{"text": null, "label": "y"}\n'))
    assert error.problem.startswith('reviews.jsonl, row 2: "text" is empty')


@pytest.mark.parametrize("blank", [" ", ""])
def test_31_a_text_of_a_million_characters_is_cut_and_counted(write: Write, tiny_tokenizer, blank: str) -> None:
    long = ("good" + blank) * (1_000_000 // (4 + len(blank)))
    path = write("long.csv", f"text,label\n{long},pos\nbad film,neg\nvery good,pos\nvery bad,neg\n")
    examples = load_examples(str(path), validation_share=0.5)
    encoded = encode(examples, tiny_tokenizer, 64)
    if blank:
        assert sum(part.truncation.num_rows for part in encoded.values()) == 1
        assert max(part.lengths.max() for part in encoded.values()) == 64
    assert sum(len(part.rows) for part in encoded.values()) == 4


def test_34_duplicates_conflicts_and_overlap_are_reported_with_counts(write: Write) -> None:
    write("data/train.csv", GOOD + "good film,pos\nbad film,pos\n")
    folder = write("data/validation.csv", "text,label\ngood film,pos\nnew film,neg\n").parent
    notes = load_examples(str(folder)).notes
    assert "train: 2 rows repeat the text of another row" in notes
    assert "train: 1 text has more than one label" in notes
    assert "validation: 1 of 2 rows are also in train" in notes


def test_34_a_class_with_one_row_is_reported(write: Write) -> None:
    notes = load_examples(str(write("reviews.csv", GOOD + "so so,neutral\n"))).notes
    assert "train: 2 labels have 1 row: neg, neutral" in notes
    assert "validation: 2 labels have no rows: neutral, pos" in notes


@pytest.mark.parametrize("name", ["a\nb", "x" * 300])
@pytest.mark.parametrize("where", ["column", "label"])
def test_38_strange_names_are_refused(write: Write, name: str, where: str) -> None:
    rows = [{"text": "a", "label": name if where == "label" else "x"}, {"text": "b", "label": "y"}]
    if where == "column":
        rows = [{**row, name: "z"} for row in rows]
    refused(write("names.json", json.dumps(rows)))
    with pytest.raises(GlassloopError):
        load_dataset("quickstart", label=name)


@pytest.mark.parametrize("name", ["../secret", "/no/such/place", "a\nb", "x" * 300, "a/b/c"])
def test_38_strange_data_names_are_refused(name: str, own_cache: Path) -> None:
    before = sorted(own_cache.parent.rglob("*"))
    error = refused(name)
    assert "there is no such file or folder" in error.problem
    assert "\n" not in error.problem
    assert sorted(own_cache.parent.rglob("*")) == before


def test_39_no_network_a_hub_name_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    error = refused("someone/some-data")
    assert "the hub cannot be reached" in error.problem
    assert "quickstart" in error.remedy
    assert "--data_dir" in refused("glue/mrpc").remedy
