"""`glassloop doctor`: prints the findings, and only a bad one counts against the machine."""

from __future__ import annotations

import pytest

from glassloop.backends import machine
from glassloop.backends.machine import BAD, FAIR, GOOD, Finding
from glassloop.cli import doctor


@pytest.mark.parametrize(("state", "can_run"), [(GOOD, True), (FAIR, True), (BAD, False)])
def test_only_a_bad_finding_counts(
    state: str, can_run: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        machine, "examine", lambda: [Finding("Python", GOOD, "3.12"), Finding("disk", state, "full", "empty it")]
    )
    report = doctor.check_machine()
    assert (report.exit_status, report.content["ok"]) == (0 if can_run else 1, can_run)
    assert "empty it" in capsys.readouterr().out
