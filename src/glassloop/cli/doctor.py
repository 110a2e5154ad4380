"""`glassloop doctor`: check this machine and print what to improve."""

from __future__ import annotations

from glassloop.base.errors import printable
from glassloop.base.output import CommandResult
from glassloop.cli.options import Json


def doctor(as_json: Json = False) -> CommandResult:
    """Check this machine and suggest improvements."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from glassloop.backends.machine import BAD, FAIR, GOOD, examine

    findings = examine()
    symbols = {GOOD: ("✓", "green"), FAIR: ("!", "yellow"), BAD: ("✗", "red")}
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("", "check", "found", "what to do"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        remedy = Text(printable(finding.remedy), style="dim")
        table.add_row(Text(*symbols[finding.state]), finding.name, Text(printable(finding.found)), remedy)
    Console().print(table)
    can_run = all(finding.state != BAD for finding in findings)
    return CommandResult({"ok": can_run, "findings": findings}, 0 if can_run else 1)
