"""The table of `glassloop doctor`: one row per finding, and no text that controls the terminal."""

from __future__ import annotations

import pytest

from glassloop.backends.machine import BAD, FAIR, GOOD, Finding
from glassloop.cli.doctor import show_findings


def test_one_row_per_finding(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    show_findings(
        [
            Finding("Python", GOOD, "3.12.1"),
            Finding("disk", FAIR, "1 GiB free", "free some disk space"),
            Finding("torch", BAD, "[red]broken\x1b[31m", "pip install torch"),
        ]
    )
    assert [line.rstrip().split(maxsplit=2) for line in capsys.readouterr().out.splitlines()] == [
        ["check", "found", "what to do"],
        ["✓", "Python", "3.12.1"],
        ["!", "disk", "1 GiB free           free some disk space"],
        ["✗", "torch", "[red]broken\\x1b[31m  pip install torch"],
    ]
