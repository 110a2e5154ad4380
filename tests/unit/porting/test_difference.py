"""The diff of a port agrees with that of the standard library."""

from __future__ import annotations

import difflib

import pytest

from glassloop.compat.port import difference

LINES = [f"line {number}" for number in range(30)]
CASES = {
    "nothing": (LINES, LINES),
    "one line": (LINES, [*LINES[:5], "new", *LINES[6:]]),
    "two places": (LINES, [*LINES[:5], *LINES[6:20], "new", "newer", *LINES[20:]]),
    "two close places": (LINES, ["new", *LINES[1:5], *LINES[6:]]),
    "the end": (LINES, [*LINES[:-1], "new"]),
    "added at the end": (LINES, [*LINES, "new"]),
    "one line alone": (["a"], ["b"]),
    "all removed": (["a", "b"], []),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_a_unified_diff(name: str) -> None:
    before, after = CASES[name]
    wanted = difflib.unified_diff(before, after, "n", "n (ported)", lineterm="")
    assert difference("\n".join(before), "\n".join(after), "n").splitlines() == [*wanted]
