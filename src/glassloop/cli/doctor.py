"""`glassloop doctor`: check this machine and print what to improve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from glassloop.base.errors import printable
from glassloop.base.result import CommandResult
from glassloop.cli.options import Json

if TYPE_CHECKING:
    from glassloop.backends.machine import Finding


def show_findings(findings: Sequence[Finding]) -> None:
    """Print one row per finding: its state, what was found, and what to do."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from glassloop.backends.machine import BAD, FAIR, GOOD

    symbols = {GOOD: ("✓", "green"), FAIR: ("!", "yellow"), BAD: ("✗", "red")}
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("", "check", "found", "what to do"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        symbol, style = symbols[finding.state]
        remedy = Text(printable(finding.remedy), style="dim")
        table.add_row(Text(symbol, style=style), finding.name, Text(printable(finding.found)), remedy)
    Console().print(table)


def check_machine() -> CommandResult:
    """Print what was found on this machine. The exit status is 1 if Glassloop cannot run on it."""
    from glassloop.backends.machine import BAD, examine

    findings = examine()
    show_findings(findings)
    can_run = all(finding.state != BAD for finding in findings)
    return CommandResult({"ok": can_run, "findings": findings}, 0 if can_run else 1)


def doctor_command(as_json: Json = False) -> CommandResult:
    """Check this machine and suggest improvements."""
    return check_machine()
