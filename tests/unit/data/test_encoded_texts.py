"""Texts as token ids, each with what was cut."""

from __future__ import annotations

import threading

import pytest

from glassloop.data import encoding as encoded_texts
from glassloop.data.encoding import encode_texts, encoded_ahead


def test_each_text_has_its_tokens_and_its_cut(tiny_tokenizer) -> None:
    found = encode_texts(tiny_tokenizer, [["good film", "good " * 20, "a [SEP]"]], 10)
    assert [row.num_tokens for row in found.rows] == [4, 10, 4]
    assert [row.cut.num_tokens for row in found.rows] == [0, 12, 0]
    assert (found.cut.num_rows, found.cut.longest, found.typed.num_rows) == (1, 22, 1)


def test_pairs_say_which_text_was_cut(tiny_tokenizer) -> None:
    (row,) = encode_texts(tiny_tokenizer, [["good"], ["bad " * 20]], 10).rows
    assert (row.cut.num_first, row.cut.num_second) == (0, 1)


def test_the_next_rows_are_tokenized_while_the_last_ones_are_used(tiny_tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded_texts, "AHEAD_ROWS", 2)
    texts, started = ["good", "bad film", "a", "good bad", "film"], [threading.Event() for _ in range(3)]

    def encode(columns):
        started[texts.index(columns[0][0]) // 2].set()
        return encode_texts(tiny_tokenizer, columns, 10)

    found = []
    for place, part in enumerate(encoded_ahead(encode, [texts])):
        assert all(event.wait(5) for event in started[: place + 2]), "the rows after these are under way"
        found += part.rows
    assert found == encode_texts(tiny_tokenizer, [texts], 10).rows
    assert len([*encoded_ahead(encode, [["good"]])]) == 1


def test_a_tokenizer_that_fails_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded_texts, "AHEAD_ROWS", 1)

    def encode(columns):
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        [*encoded_ahead(encode, [["a", "b", "c"]])]
