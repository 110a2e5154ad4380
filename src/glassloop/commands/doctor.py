"""`glassloop doctor`: check this machine and print what to improve."""

from __future__ import annotations

from glassloop.command_result import CommandResult
from glassloop.machine import BAD, examine
from glassloop.show.findings import show_findings


def check_machine() -> CommandResult:
    """Print what was found on this machine. The exit status is 1 if Glassloop cannot run on it."""
    findings = examine()
    show_findings(findings)
    can_run = all(finding.state != BAD for finding in findings)
    return CommandResult({"ok": can_run, "findings": findings}, 0 if can_run else 1)
