"""Rows that lose tokens: how many, where, and what to do."""

from __future__ import annotations

import pytest

from glassloop.data.encoding import NOTHING_CUT, LengthLimit, Truncation, kept_parts


def test_counts_are_added_and_the_longest_row_is_kept() -> None:
    found = Truncation(1, 1, 0, 5, 1, longest=20) + Truncation(2, 1, 2, 7, 0, longest=70)
    assert found == Truncation(3, 2, 2, 12, 1, longest=70)
    assert found + NOTHING_CUT == found


def test_nothing_is_said_about_rows_that_fit() -> None:
    assert LengthLimit(128, 512).note(NOTHING_CUT, 100) is None


@pytest.mark.parametrize(
    ("limit", "cut", "rows", "note"),
    [
        (
            LengthLimit(128, 512),
            Truncation(37, 37, 0, 900, longest=200),
            408,
            "37 of 408 rows (9%) lost the end of the text: cut to 128 tokens, the longest had 200; "
            "use --max_length 200 to keep everything",
        ),
        (
            LengthLimit(128, 512, "left"),
            Truncation(1, 1, 0, 9, longest=137),
            1000,
            "1 of 1,000 rows (less than 1%) lost the beginning of the text: cut to 128 tokens, the longest had 137; "
            "use --max_length 137 to keep everything",
        ),
        (
            LengthLimit(128, 512, pairs=True),
            Truncation(4, 3, 2, 900, longest=800),
            8,
            "4 of 8 rows (50%) lost the end of the first text (3) and the second text (2): cut to 128 tokens, "
            "the longest had 800; use --max_length 512, the model's maximum, to keep more",
        ),
        (
            LengthLimit(512, 512, pairs=True, trained=True),
            Truncation(4, 0, 4, 900, longest=800),
            4,
            "4 of 4 rows (100%) lost the end of the second text (4): cut to 512 tokens, the longest had 800; "
            "this is the model's maximum: split or shorten the texts, or use a model for longer texts",
        ),
        (
            LengthLimit(16, 512, trained=True),
            Truncation(1, 1, 0, 9, longest=20),
            1,
            "1 of 1 row (100%) lost the end of the text: cut to 16 tokens, the longest had 20; "
            "train with --max_length 20 to keep everything",
        ),
        (
            LengthLimit(16, 512),
            Truncation(1, 1, 0, 9, 1, longest=400),  # shortened before it was tokenized: nobody knows its length
            1,
            "1 of 1 row (100%) lost the end of the text: cut to 16 tokens, the longest had 400; "
            "use --max_length 512, the model's maximum, to keep more",
        ),
    ],
)
def test_a_note_says_how_many_where_and_what_to_do(limit: LengthLimit, cut: Truncation, rows: int, note: str) -> None:
    assert limit.note(cut, rows) == note


def test_the_characters_that_a_model_reads_are_found(tiny_tokenizer) -> None:
    first, second = "the film was good and bad", "this story was very good"
    whole, cut = kept_parts(tiny_tokenizer, [[first, first * 9], [second, second]], 512), None
    assert whole[0] == [(0, len(first)), (0, len(second))]
    ((cut, _),) = kept_parts(tiny_tokenizer, [[first], [second]], 10)
    assert cut[0] == 0
    assert 0 < cut[1] < len(first)
    assert kept_parts(tiny_tokenizer, [[]], 10) == []
