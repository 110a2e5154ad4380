"""Texts, labels, lengths and duplicates of rows of every kind that a Trainer accepts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset

from glassloop.data import row_reader
from glassloop.data.row_reader import RowReader
from glassloop.report import training as given_rows
from glassloop.report.training import GivenRows, decoded_texts, facts_of, read_given, text_columns
from glassloop.settings.fields import CLASSES, SEVERAL

COLUMNS = {
    "guid": ["a-1", "a-2", "a-3"],
    "first": ["a good film", "a bad film", "a good film"],
    "second": ["it was good", "it was bad", "it was good"],
    "input_ids": [[2, 5, 3], [2, 6, 7, 3], [2, 5, 3]],
    "labels": [1, 0, 1],
}


class Rows:
    """Rows that code of the user returns, as tensors."""

    def __init__(self, number: int = 3) -> None:
        self.number = number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, row: int) -> dict[str, Any]:
        torch.rand(1)
        return {
            "input_ids": torch.tensor([2, 5, 3, 0]),
            "attention_mask": torch.tensor([1, 1, 1, 0]),
            "labels": torch.tensor(1),
        }


def listed() -> list[dict[str, Any]]:
    return [{name: cells[row] for name, cells in COLUMNS.items()} for row in range(3)]


@pytest.mark.parametrize(
    "rows",
    [
        Dataset.from_dict(COLUMNS),
        Dataset.from_dict(COLUMNS).with_format("torch", columns=["input_ids", "labels"]),
        Dataset.from_dict(COLUMNS).with_transform(lambda batch: 1 / 0),
        listed(),
        tuple(listed()),
    ],
    ids=["dataset", "format", "transform", "list", "tuple"],
)
def test_text_columns_labels_and_lengths_are_found(rows: Any) -> None:
    found = read_given(rows)
    assert found is not None
    assert {*found.texts} == {"first", "second"}, "not the column of names"
    assert found.texts["first"][1] == "a bad film"
    assert found.labels is not None
    assert found.labels.tolist() == [1, 0, 1]
    assert found.lengths is not None
    assert found.lengths.tolist() == [3, 4, 3]


def test_rows_of_the_user_are_known_from_an_earlier_reading() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    assert read_given(Rows()) == GivenRows(3), "rows that may be slow are not read for a report"
    assert torch.equal(torch.rand(1), expected)
    reader = RowReader(Rows())
    assert [reader[row]["labels"].item() for row in (2, 0)] == [1, 1]
    assert read_given(reader) == GivenRows(3), "a row was not read"
    reader.survey()
    found = read_given(reader)
    assert found is not None
    assert found.lengths is not None
    assert found.lengths.tolist() == [3, 3, 3], "padding does not count"
    assert found.ids[0] == [2, 5, 3, 0]


def test_only_the_number_of_very_many_rows_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    many = RowReader(Rows(row_reader.MOST_NOTED + 1))
    many.survey()
    assert read_given(many) == GivenRows(row_reader.MOST_NOTED + 1)
    monkeypatch.setattr(given_rows, "MOST_READ", 2)
    assert read_given(Dataset.from_dict(COLUMNS)) == read_given(listed()) == GivenRows(3)
    assert read_given(iter([1])) is read_given(None) is None  # type: ignore[arg-type]
    assert read_given([[1], [2]]) == GivenRows(2)  # type: ignore[arg-type,list-item]


def test_padded_rows_have_their_true_lengths() -> None:
    columns = {"input_ids": [[2, 5, 3], [2, 3, 0]], "attention_mask": [[1, 1, 1], [1, 1, 0]]}
    found = read_given(Dataset.from_dict(columns))
    assert found is not None
    assert found.lengths is not None
    assert found.lengths.tolist() == [3, 2]


def test_the_columns_with_several_words_are_texts() -> None:
    assert text_columns({"id": ["x"], "text": ["two words"]}) == ["text"]
    assert text_columns({"id": ["x"], "word": ["longer"]}) == ["word"]
    assert text_columns({}) == []


def test_tokens_become_texts_and_pairs(tiny_tokenizer) -> None:
    single = tiny_tokenizer(["the good film", "the"])["input_ids"]
    assert decoded_texts(single, tiny_tokenizer) == [{"text": "the good film"}, {"text": "the"}]
    pairs = tiny_tokenizer(["the good film", "the"], ["the film", "good"], padding=True)["input_ids"]
    assert decoded_texts(pairs, tiny_tokenizer)[1] == {"text": "the", "text_pair": "good"}


def test_labels_duplicates_conflicts_and_overlap_are_counted() -> None:
    train = GivenRows(3, {"text": ["a b", "c d", "a b"]}, labels=np.array([0, 1, 1]))
    facts = facts_of(train, ("no", "yes"), CLASSES, None)
    assert (facts.num_rows, facts.label_counts, facts.num_duplicates, facts.num_conflicts) == (3, {"no": 1, "yes": 2}, 1, 1)
    other = GivenRows(2, {"text": ["a b", "e f"]})
    facts = facts_of(other, ("no", "yes"), CLASSES, train.keys())
    assert (facts.num_in_train, facts.unlabelled, len(facts.fingerprint)) == (1, True, 32)
    several = GivenRows(2, labels=np.array([[1, 0], [1, 1]]))
    facts = facts_of(several, ("a", "b"), SEVERAL, None)
    assert (facts.label_counts, facts.fingerprint) == ({"a": 2, "b": 1}, ""), "without texts nothing is known of duplicates"
    assert GivenRows(2, ids=[[1, 2], [1, 2]]).keys()[0] == GivenRows(1, ids=[[1, 2]]).keys()[0]  # type: ignore[index]
