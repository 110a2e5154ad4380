"""Texts as token ids, each with what was cut."""

from __future__ import annotations

from glassloop.data.encoded_texts import encode_texts


def test_each_text_has_its_tokens_and_its_cut(tiny_tokenizer) -> None:
    found = encode_texts(tiny_tokenizer, [["good film", "good " * 20, "a [SEP]"]], 10)
    assert [row.num_tokens for row in found.rows] == [4, 10, 4]
    assert [row.cut.num_tokens for row in found.rows] == [0, 12, 0]
    assert (found.cut.num_rows, found.cut.longest, found.typed.num_rows) == (1, 22, 1)


def test_pairs_say_which_text_was_cut(tiny_tokenizer) -> None:
    (row,) = encode_texts(tiny_tokenizer, [["good"], ["bad " * 20]], 10).rows
    assert (row.cut.num_first, row.cut.num_second) == (0, 1)
