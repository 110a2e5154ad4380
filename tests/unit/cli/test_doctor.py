"""`glassloop doctor`: one row per finding, and only a bad one counts against the machine."""

from __future__ import annotations

import pytest

from glassloop.backends import machine
from glassloop.backends.machine import BAD, FAIR, GOOD, Finding
from glassloop.cli.doctor import doctor

FINDINGS = [
    Finding("Python", GOOD, "3.12.1"),
    Finding("disk", FAIR, "1 GiB free", "free some disk space"),
    Finding("torch", BAD, "[red]broken\x1b[31m", "pip install torch"),
]
ROWS = [
    ["check", "found", "what to do"],
    ["✓", "Python", "3.12.1"],
    ["!", "disk", "1 GiB free           free some disk space"],
    ["✗", "torch", "[red]broken\\x1b[31m  pip install torch"],
]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_one_row_per_finding_and_only_a_bad_one_counts(number: int, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(machine, "examine", lambda: FINDINGS[:number])
    result = doctor()
    assert (result.exit_status, result.content["ok"]) == (int(number == 3), number < 3)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [" ".join(" ".join(row).split()) for row in ROWS[: number + 1]]
