"""Texts in tables that a spreadsheet would run as a formula: protected with an apostrophe when written, restored when read."""

from __future__ import annotations

import re
from collections.abc import Sequence

STARTS = ("=", "+", "-", "@", "\t", "\r")


# A number, alone or followed by words, which no spreadsheet evaluates. With an operator or a parenthesis it could be a formula.
NUMBER = re.compile(r"[+-] ?(?:\d[\d.,]*|\.\d+)(?:[eE][+-]?\d+)? ?%?(?: [^=+*/^&<>|!(){}\[\];:@\"\t\r\n]*)?")


PREDICTION, SCORE = "prediction", "score_"  # the columns by which a table of predictions is known


def is_formula(text: str) -> bool:
    """Return whether a spreadsheet could run a text, without apostrophes before it, as a formula."""
    bare = text.lstrip("'")  # apostrophes count, so that removing one restores the text
    return bare.startswith(STARTS) and not NUMBER.fullmatch(bare)


def protected(text: str) -> str:
    """Return a text as a cell that no spreadsheet runs: with an apostrophe before a formula."""
    return f"'{text}" if is_formula(text) else text


def restored(cell: str) -> str:
    """Return the text of a cell that `protected` returned."""
    return cell[1:] if cell.startswith("'") and is_formula(cell) else cell


def is_protected_table(columns: Sequence[str]) -> bool:
    """Return whether a table ends with the columns of predictions: then Glassloop wrote it, and protected its cells."""
    if PREDICTION not in columns:
        return False
    last = columns[columns.index(PREDICTION) + 1 :]
    return all(name.startswith(SCORE) for name in last)
