"""Texts to token ids in bounded memory: rows are tokenized in groups, and very long texts are cut first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from glassloop.data.interfaces import Texts
from glassloop.errors import GlassloopError, ModelError, resource_error

if TYPE_CHECKING:
    from transformers import BatchEncoding

    from glassloop.transformers_types import Tokenizer

MOST_CHARACTERS = 1_000_000  # a tokenizer needs about 200 bytes and 2 microseconds per character
MOST_CHARACTERS_PER_TOKEN = 64  # for a max_length beyond 15,000; words have 4 to 6 per token
GROUP_CHARACTERS = 2_000_000
LAST_WORD = re.compile(r"\s\S{0,1000}\Z")
FIRST_WORD = re.compile(r"\A\S{0,1000}(?=\s)")


def most_characters(max_length: int) -> int:
    """Return how many characters of a text are tokenized at most."""
    return max(MOST_CHARACTERS, MOST_CHARACTERS_PER_TOKEN * max_length)


def shortened(text: str, limit: int, side: str = "right") -> str:
    """Return `text` cut to `limit` characters, between two words if possible, on the `side` where truncation cuts.

    A tokenizer reads word by word, so the ids of the kept words are those of the whole text. Far more words are kept than a
    model takes.
    """
    if len(text) <= limit:
        return text
    if side == "left":
        kept = text[-limit:]
        return FIRST_WORD.sub("", kept)
    kept = text[:limit]
    return kept if text[limit].isspace() else LAST_WORD.sub("", kept)


def tokenized_groups(tokenizer: Tokenizer, columns: Texts, max_length: int) -> Iterator[tuple[BatchEncoding, Texts]]:
    """Tokenize rows, truncated to `max_length`; yield groups of encoded rows with their texts.

    `columns` has the texts, or the first and the second texts of pairs.
    """
    limit = most_characters(max_length)
    columns = [[shortened(text, limit, tokenizer.truncation_side) for text in column] for column in columns]
    for rows in groups_of([sum(map(len, texts)) for texts in zip(*columns, strict=True)]):
        texts = [column[rows] for column in columns]
        yield tokenized(tokenizer, texts, max_length), texts


def tokenized(tokenizer: Tokenizer, texts: Texts, max_length: int) -> BatchEncoding:
    """Return some rows as token ids. Raise `ModelError` if the tokenizer fails with an exception of any kind."""
    try:
        return tokenizer(*texts, truncation=True, max_length=max_length, return_attention_mask=False, verbose=False)
    except Exception as error:
        if isinstance(error, GlassloopError) or resource_error(error):
            raise
        raise ModelError(
            f"the tokenizer failed: {type(error).__name__}: {error}",
            "download the model again: its tokenizer files are damaged or do not belong together",
        ) from error


def groups_of(sizes: list[int]) -> Iterator[slice]:
    """Yield slices of adjacent rows whose sizes add up to at most `GROUP_CHARACTERS`, or single rows."""
    start, total = 0, 0
    for row, size in enumerate(sizes):
        if row > start and total + size > GROUP_CHARACTERS:
            yield slice(start, row)
            start, total = row, 0
        total += size
    if start < len(sizes):
        yield slice(start, len(sizes))
