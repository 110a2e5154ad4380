"""Special tokens that somebody typed: counted as the tokenizer reads them, and told."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tokenizers import AddedToken

from glassloop.data.encoding import TypedTokens, special_texts, typed_tokens


@pytest.fixture
def tokenizer(tiny_tokenizer) -> Any:
    return copy.deepcopy(tiny_tokenizer)


def test_rows_are_counted_once_and_tokens_named(tokenizer) -> None:
    first = ["good", "a [SEP] b", "[SEP] [CLS] [SEP]", "[sep] is no token", "[ SEP ]", "good[MASK]"]
    second = ["[SEP]", "[SEP]", "x", "y", "z", "[PAD]"]
    assert typed_tokens([first], tokenizer) == TypedTokens(3, ("[CLS]", "[MASK]", "[SEP]"))
    assert typed_tokens([first, second], tokenizer) == TypedTokens(4, ("[CLS]", "[MASK]", "[PAD]", "[SEP]"))
    assert typed_tokens([["good", "bad"]], tokenizer) == TypedTokens()
    assert typed_tokens([[]], tokenizer) == TypedTokens()


def test_a_counted_row_is_one_that_the_tokenizer_reads_so(tokenizer) -> None:
    """The count is about ids: a typed [SEP] has the id of the real one."""
    sep = tokenizer.sep_token_id
    assert tokenizer("a [SEP] b")["input_ids"].count(sep) == 2
    assert tokenizer("a [sep] b")["input_ids"].count(sep) == 1
    tokenizer.split_special_tokens = True
    if tokenizer("a [SEP] b")["input_ids"].count(sep) == 1:
        assert typed_tokens([["a [SEP] b"]], tokenizer) == TypedTokens()


def test_special_tokens_of_the_user_count_too(tokenizer) -> None:
    tokenizer.add_tokens([AddedToken("<user>", special=True), AddedToken("plainword", special=False)])
    assert "<user>" in special_texts(tokenizer)
    assert typed_tokens([["<user> good", "plainword"]], tokenizer) == TypedTokens(1, ("<user>",))


def test_the_messages() -> None:
    assert TypedTokens().note is None
    assert TypedTokens(1, ("[SEP]",)).note == (
        "1 row contains the text of a special token ([SEP]), which the tokenizer reads as that token"
    )
    both = TypedTokens(1_000, ("[SEP]",)) + TypedTokens(234, ("[CLS]", "\x1b[31m"))
    assert both.note == (
        r"1,234 rows contain the text of a special token (\x1b[31m, [CLS], [SEP]), which the tokenizer reads as that token"
    )
