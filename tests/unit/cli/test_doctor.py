"""`glassloop doctor`: prints the findings, and only a bad one counts against the machine."""

from __future__ import annotations

import pytest

from glassloop.backends import machine
from glassloop.backends.machine import BAD, FAIR, GOOD, Finding
from glassloop.cli.doctor import doctor


@pytest.mark.parametrize(("state", "can_run"), [(GOOD, True), (FAIR, True), (BAD, False)])
def test_only_a_bad_finding_counts(
    state: str, can_run: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        machine, "examine", lambda: [Finding("Python", GOOD, "3.12"), Finding("disk", state, "full", "empty it")]
    )
    report = doctor()
    assert (report.exit_status, report.content["ok"]) == (0 if can_run else 1, can_run)
    assert "empty it" in capsys.readouterr().out


# --- The table of `glassloop doctor`: one row per finding, and no text that controls the terminal.


def test_one_row_per_finding(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    findings = [
        Finding("Python", GOOD, "3.12.1"),
        Finding("disk", FAIR, "1 GiB free", "free some disk space"),
        Finding("torch", BAD, "[red]broken\x1b[31m", "pip install torch"),
    ]
    monkeypatch.setattr(machine, "examine", lambda: findings)
    doctor()
    assert [line.rstrip().split(maxsplit=2) for line in capsys.readouterr().out.splitlines()] == [
        ["check", "found", "what to do"],
        ["✓", "Python", "3.12.1"],
        ["!", "disk", "1 GiB free           free some disk space"],
        ["✗", "torch", "[red]broken\\x1b[31m  pip install torch"],
    ]
