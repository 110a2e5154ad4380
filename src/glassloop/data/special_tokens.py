"""Count texts that contain a special token, such as "[SEP]" or "<s>", which the tokenizer reads as that token.

transformers does the same, so the ids stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glassloop.errors import counted, listed

if TYPE_CHECKING:
    from glassloop.transformers_types import Tokenizer


@dataclass(frozen=True)
class TypedTokens:
    """How many rows contain the text of a special token, and which tokens these are."""

    num_rows: int = 0
    tokens: tuple[str, ...] = ()

    def __add__(self, other: TypedTokens) -> TypedTokens:
        return TypedTokens(self.num_rows + other.num_rows, tuple(sorted({*self.tokens, *other.tokens})))

    @property
    def note(self) -> str | None:
        """What a person should know; None if there is nothing."""
        if not self.num_rows:
            return None
        rows = counted(self.num_rows, "row contains", "rows contain")
        return f"{rows} the text of a special token ({listed(self.tokens, 5)}), which the tokenizer reads as that token"


NONE_TYPED = TypedTokens()


def special_texts(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the texts of all special tokens and their ids."""
    added = {str(token): number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    named = zip(map(str, tokenizer.all_special_tokens), tokenizer.all_special_ids, strict=True)
    return {text: number for text, number in (*added.items(), *named) if text}


def typed_tokens(columns: Sequence[Sequence[str]], tokenizer: Tokenizer) -> TypedTokens:
    """Count the rows in which the tokenizer finds a special token."""
    specials = special_texts(tokenizer)
    if not specials or getattr(tokenizer, "split_special_tokens", False):
        return NONE_TYPED
    likely = re.compile("|".join(map(re.escape, sorted(specials, key=len, reverse=True))))
    num_rows = 0
    tokens: set[str] = set()
    for texts in zip(*columns, strict=True):
        typed = {match for text in texts for match in likely.findall(text)}
        if typed:  # few rows: only these are tokenized again
            ids = {number for text in texts for number in tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]}
            found = {token for token in typed if specials[token] in ids}
            num_rows, tokens = num_rows + bool(found), tokens | found
    return TypedTokens(num_rows, tuple(sorted(tokens)))
