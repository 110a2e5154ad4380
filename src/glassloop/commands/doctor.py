"""`glassloop doctor`: check this machine and print what to improve."""

from __future__ import annotations

from glassloop.machine import BAD, examine
from glassloop.show.findings import show_findings


def check_machine() -> bool:
    """Print what was found on this machine. Return whether Glassloop can run on it."""
    findings = examine()
    show_findings(findings)
    return all(finding.state != BAD for finding in findings)
