"""Find label names that look alike: they differ in case, Unicode form, invisible characters, punctuation or alphabet."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator

from glassloop.errors import visible

# Cyrillic and Greek letters that most fonts draw like these Latin ones.
LATIN = str.maketrans(
    "АВЕЅІЈКМНОРСТХУԀԚԜаеѕіјорсхуԁһԛԝΑΒΕΖΗΙΚΜΝΟΡΤΥΧανορυχϲϳ",
    "ABESIJKMHOPCTXYDQWaesijopcxydhqwABEZHIKMNOPTYXavopuxcj",
)
# Dashes and quotes that programs put in the place of those on a keyboard.
PUNCTUATION = str.maketrans("\u2010\u2012\u2013\u2014\u2015\u2212\u2018\u2019\u02bc\u201c\u201d", "------'''\"\"")
INVISIBLE = {"\u034f", "\u115f", "\u1160", "\u3164", "\uffa0", *map(chr, range(0xFE00, 0xFE10))}


def look_alikes(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the groups of two or more names that look alike."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(shape_of(name), []).append(name)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def shape_of(name: str) -> str:
    """Return a name without case, spaces, invisible characters, leading zeros and the choice of alphabet or dash."""
    text = unicodedata.normalize("NFKC", name)
    seen = "".join(sign for sign in text if sign not in INVISIBLE and unicodedata.category(sign) not in ("Cf", "Cc"))
    folded = " ".join(seen.translate(LATIN | PUNCTUATION).casefold().split())
    return folded.lstrip("0") or "0" if folded.isdigit() else folded


def spelled(group: tuple[str, ...]) -> Iterator[str]:
    """Yield each name in quotes; if more than case differs, with escapes for all but ASCII characters."""
    hidden = len({name.lower() for name in group}) > 1
    for name in group:
        yield visible(name.encode("ascii", "backslashreplace").decode() if hidden else name)
