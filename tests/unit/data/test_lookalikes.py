"""Labels that a person cannot tell apart: which ones, and how they are written so that the difference can be seen."""

from __future__ import annotations

import pytest

from glassloop.data.labels import look_alikes, spelled


@pytest.mark.parametrize(
    ("names", "written"),
    [
        (("Good", "good"), ('"Good"', '"good"')),
        (("Größe", "größe"), ('"Größe"', '"größe"')),
        (("caf\u00e9", "cafe\u0301"), (r'"caf\xe9"', r'"cafe\u0301"')),  # composed and not
        (("o\ufb03ce", "office"), (r'"o\ufb03ce"', '"office"')),  # a ligature
        (("good", "go\u200bod"), ('"good"', r'"go\u200bod"')),  # a zero-width space
        (("good", "good\ufe0f"), ('"good"', r'"good\ufe0f"')),  # a variation selector
        (("a b", "a\u00a0b"), ('"a b"', r'"a\xa0b"')),
        (("a b", "a  b"), ('"a b"', '"a  b"')),
        (("spam", "sp\u0430m"), ('"spam"', r'"sp\u0430m"')),  # a Cyrillic a
        (("OK", "\u039fK"), ('"OK"', r'"\u039fK"')),  # a Greek omicron
        (("sci-fi", "sci\u2011fi"), ('"sci-fi"', r'"sci\u2011fi"')),  # a hyphen that does not break
        (("1-2", "1\u20132"), ('"1-2"', r'"1\u20132"')),  # a dash
        (("can't say", "can\u2019t say"), ('"can\'t say"', r'"can\u2019t say"')),  # an apostrophe of a word processor
        (("7", "007"), ('"7"', '"007"')),
    ],
)
def test_names_that_look_alike(names: tuple[str, ...], written: tuple[str, ...]) -> None:
    assert look_alikes([*names, "other", "Other label"]) == [names]
    assert tuple(spelled(names)) == written


@pytest.mark.parametrize("names", [("a", "b"), ("resume", "résumé"), ("1", "10"), ("0", "o"), ("да", "нет"), ("0", "1")])
def test_names_that_do_not(names: tuple[str, ...]) -> None:
    assert look_alikes(names) == []


def test_several_groups_keep_the_order_of_the_names() -> None:
    assert look_alikes(["b", "A", "a", "B", "c", "C"]) == [("b", "B"), ("A", "a"), ("c", "C")]
