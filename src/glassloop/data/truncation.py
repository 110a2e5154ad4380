"""Count the rows that are too long for a model and lose tokens, and say what to do about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from glassloop.data.interfaces import Texts

if TYPE_CHECKING:
    from transformers import BatchEncoding

    from glassloop.transformers_types import Tokenizer


@dataclass(frozen=True)
class Truncation:
    """How many rows lost tokens, and on which side of the pair.

    Attributes:
        num_rows: Rows that lost tokens.
        num_first: Rows that lost tokens of the first text.
        num_second: Rows that lost tokens of the second text.
        num_tokens: Tokens that were lost.
        num_shortened: Texts so long that only their first million characters were tokenized. They lost more than `num_tokens`.
        longest: Tokens that the longest of these rows had before.
    """

    num_rows: int = 0
    num_first: int = 0
    num_second: int = 0
    num_tokens: int = 0
    num_shortened: int = 0
    longest: int = 0

    def __add__(self, other: Truncation) -> Truncation:
        return Truncation(
            self.num_rows + other.num_rows,
            self.num_first + other.num_first,
            self.num_second + other.num_second,
            self.num_tokens + other.num_tokens,
            self.num_shortened + other.num_shortened,
            max(self.longest, other.longest),
        )


NOTHING_CUT = Truncation()


@dataclass(frozen=True)
class LengthLimit:
    """How long a row may be, and what a user can do about rows that are longer.

    Attributes:
        max_length: Number of tokens after which a row is cut.
        most: Number of tokens that the model takes at most.
        side: Where the texts are cut: "right" or "left".
        pairs: Whether rows are pairs of texts.
        trained: Whether the model is trained already, so that only another training can use longer rows.
    """

    max_length: int
    most: int
    side: str = "right"
    pairs: bool = False
    trained: bool = False

    def note(self, cut: Truncation, num_rows: int) -> str | None:
        """Return how many of the rows were cut, where, and what to do; None if none was."""
        if not cut.num_rows:
            return None
        end = "beginning" if self.side == "left" else "end"
        lost = f"lost the {end} of the text"
        if self.pairs:
            texts = {"first": cut.num_first, "second": cut.num_second}
            lost = f"lost the {end} of " + " and ".join(f"the {text} text ({n:,})" for text, n in texts.items() if n)
        share = cut.num_rows / max(num_rows, 1)
        shown = f"{share:.0%}" if share >= 0.01 else "less than 1%"
        rows = f"{cut.num_rows:,} of {num_rows:,} {'row' if num_rows == 1 else 'rows'} ({shown})"
        return f"{rows} {lost}: cut to {self.max_length:,} tokens, the longest had {cut.longest:,}; {self.remedy(cut)}"

    def remedy(self, cut: Truncation) -> str:
        """Return what keeps more tokens of the rows that were cut."""
        verb = "train with " if self.trained else "use "
        if self.max_length >= self.most:
            return "this is the model's maximum: split or shorten the texts, or use a model for longer texts"
        if cut.longest <= self.most and not cut.num_shortened:
            return f"{verb}--max_length {cut.longest} to keep everything"
        return f"{verb}--max_length {self.most}, the model's maximum, to keep more"


def kept_parts(tokenizer: Tokenizer, texts: Texts, max_length: int) -> list[list[tuple[int, int]]]:
    """Return, for each row, the first and the last character of each text that the model reads.

    Empty for a tokenizer that does not know the places of its tokens.

    Args:
        tokenizer: The tokenizer.
        texts: One column of texts, or two for pairs.
        max_length: Number of tokens after which a row is cut.
    """
    if not texts[0] or not getattr(tokenizer, "is_fast", False):
        return []
    encoded = tokenizer(*texts, truncation=True, max_length=max_length, return_offsets_mapping=True, verbose=False)
    found = []
    for row, places in enumerate(encoded["offset_mapping"]):
        sides = encoded.sequence_ids(row)
        spans = [[place for place, of in zip(places, sides, strict=True) if of == side] for side in range(len(texts))]
        found.append([(span[0][0], span[-1][1]) if span else (0, 0) for span in spans])
    return found


def cut_by_truncation(encoded: BatchEncoding, texts: Texts, tokenizer: Tokenizer, max_length: int) -> Truncation:
    """Return what some encoded rows lost together."""
    return sum(cut_rows(encoded, texts, tokenizer, max_length).values(), NOTHING_CUT)


def cut_rows(encoded: BatchEncoding, texts: Texts, tokenizer: Tokenizer, max_length: int) -> dict[int, Truncation]:
    """Return what each of some encoded rows lost, by its place. Only full rows are tokenized again, without a limit."""
    found, added = {}, tokenizer.num_special_tokens_to_add(len(texts) > 1)
    for row in (row for row, ids in enumerate(encoded["input_ids"]) if len(ids) >= max_length):
        whole = [len(tokenizer(column[row], add_special_tokens=False, verbose=False)["input_ids"]) for column in texts]
        lost = [length - kept for length, kept in zip(whole, kept_tokens(encoded, row, whole, tokenizer), strict=True)]
        if any(lost):
            found[row] = Truncation(1, int(lost[0] > 0), int(sum(lost[1:]) > 0), sum(lost), longest=sum(whole) + added)
    return found


def kept_tokens(encoded: BatchEncoding, row: int, whole: list[int], tokenizer: Tokenizer) -> list[int]:
    """Return how many of the `whole` tokens of each text a truncated row has kept."""
    if encoded.is_fast:
        sides = encoded.sequence_ids(row)
        return [sides.count(side) for side in range(len(whole))]
    kept = [*whole]  # a tokenizer written in Python does not say; it removes one token after the other from the longer text
    for _ in range(sum(whole) + tokenizer.num_special_tokens_to_add(len(whole) > 1) - len(encoded["input_ids"][row])):
        kept[0 if len(kept) == 1 or kept[0] > kept[1] else 1] -= 1
    return kept
