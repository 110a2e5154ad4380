"""Texts as token ids, each with what truncation has cut: for predictions, which nobody stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glassloop.data.interfaces import Row, Texts
from glassloop.data.special_tokens import NONE_TYPED, TypedTokens, typed_tokens
from glassloop.data.tokenizing import tokenized_groups
from glassloop.data.truncation import NOTHING_CUT, Truncation, cut_rows

if TYPE_CHECKING:
    from glassloop.transformers_types import Tokenizer

AHEAD_ROWS = 2_048  # rows that are tokenized while the model runs over those before them


@dataclass(frozen=True)
class EncodedText:
    """The token ids of one text or pair, and what truncation has cut."""

    inputs: Row
    cut: Truncation = NOTHING_CUT

    @property
    def num_tokens(self) -> int:
        """The number of tokens that the model reads."""
        return len(self.inputs["input_ids"])


@dataclass(frozen=True)
class EncodedTexts:
    """Encoded texts, and how many of them contain a special token."""

    rows: Sequence[EncodedText]
    typed: TypedTokens = NONE_TYPED

    @property
    def cut(self) -> Truncation:
        """What truncation has cut from all texts."""
        return sum((row.cut for row in self.rows), NOTHING_CUT)


def encode_texts(tokenizer: Tokenizer, columns: Texts, max_length: int) -> EncodedTexts:
    """Return texts, or pairs in two columns, as token ids.

    Args:
        tokenizer: The tokenizer of the model.
        columns: The texts, or the first and the second texts of pairs.
        max_length: Number of tokens after which a row is cut.
    """
    found: list[EncodedText] = []
    typed = NONE_TYPED
    for encoded, read in tokenized_groups(tokenizer, columns, max_length):
        typed += typed_tokens(read, tokenizer)
        cut = cut_rows(encoded, read, tokenizer, max_length)
        for row in range(len(read[0])):
            found.append(EncodedText({key: encoded[key][row] for key in encoded}, cut.get(row, NOTHING_CUT)))
    return EncodedTexts(found, typed)


def encoded_ahead(encode: Callable[[Texts], EncodedTexts], columns: Texts) -> Iterator[EncodedTexts]:
    """Yield encoded texts some rows at a time. The next rows are tokenized in a thread while the caller uses the last ones.

    Args:
        encode: Returns some rows of the columns as token ids.
        columns: The texts, or the first and the second texts of pairs.
    """
    starts = range(0, len(columns[0]), AHEAD_ROWS)
    if len(starts) < 2:
        yield encode(columns)
        return
    parts = [[column[start : start + AHEAD_ROWS] for column in columns] for start in starts]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(encode, parts[0])
        for part in parts[1:]:
            found, waiting = waiting.result(), pool.submit(encode, part)
            yield found
        yield waiting.result()
