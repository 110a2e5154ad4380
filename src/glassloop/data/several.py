"""Several labels in one cell: lists that Python or JSON wrote, and labels with a separator between them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from glassloop.errors import DataError, listed, visible

SEPARATORS = (";", "|", ",")
QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
BARE = r"""[^\s'",\[\]]+(?: +[^\s'",\[\]]+)*"""
ITEM = re.compile(rf"\s*({QUOTED}|{BARE})\s*(?:,|$)")
DECIMAL_COMMA = re.compile(r"-?\d+,\d+")
SINGLE = "use --task single_label_classification if each cell is one class"


def lists_in(cells: Sequence[str | None]) -> list[list[str] | None] | None:
    """Return cells such as "['a', 'b']" as lists; None unless all of them are lists, and one has a quote or a comma."""
    texts = [cell.strip() for cell in cells if cell is not None]
    if not texts or not all(text.startswith("[") and text.endswith("]") for text in texts):
        return None
    if not any(sign in text for text in texts for sign in "'\","):
        return None  # [POS] may be the name of a class
    known = {text: items_of(text[1:-1]) for text in {*texts}}
    if any(items is None for items in known.values()):
        return None
    return [None if cell is None else known[cell.strip()] for cell in cells]


def items_of(text: str) -> list[str] | None:
    """Return the items between the brackets of a list; None if they are not separated by commas."""
    items, place = [], 0
    while text[place:].strip():
        match = ITEM.match(text, place)
        if match is None:
            return None
        items.append(str(ast.literal_eval(match[1])) if match[1][0] in "'\"" else match[1])
        place = match.end()
    return items


def refuse_several(values: Iterable[str], where: Callable[[str | None], str]) -> None:
    """Raise `DataError` if label cells seem to contain several labels each: their parts occur in other cells too."""
    values = [*values]
    lists = [value for value in values if value.strip().startswith("[") and value.strip().endswith("]") and "'" in value]
    if lists:
        raise DataError(
            f"{where(lists[0])}: label {visible(lists[0])} looks like a list, but not all label cells can be read as lists",
            f"write all cells as ['a', 'b'], or {SINGLE}",
        )
    for separator in SEPARATORS:
        parts = {value: {part.strip() for part in value.split(separator)} - {""} for value in values}
        several = [value for value in values if len(parts[value]) > 1]
        if not several:
            continue
        if separator == "," and all(DECIMAL_COMMA.fullmatch(value) or value.lstrip("-").isdigit() for value in values):
            raise DataError(
                f"{where(several[0])}: label {visible(several[0])} is a number with a decimal comma, or two labels",
                'write scores with a point (0.5); for several labels in one cell, use --label_separator ","',
            )
        counts = Counter(part for own in parts.values() for part in own)
        named = {part for value in several for part in parts[value]}
        if 2 * sum(counts[part] > 1 for part in named) > len(named):
            raise DataError(
                f"{where(several[0])}: label {visible(several[0])} looks like several labels: {len(several):,} different cells "
                f"combine {listed(sorted(named), 6)}",
                f'use --label_separator "{separator}" for several labels in one cell, or {SINGLE}',
            )
