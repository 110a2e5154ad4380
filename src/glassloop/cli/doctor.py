"""`glassloop doctor`: check this machine and print what to improve."""

from __future__ import annotations

from glassloop.base.output import CommandResult
from glassloop.cli.options import Json


def doctor(as_json: Json = False) -> CommandResult:
    """Check this machine and suggest improvements."""
    from rich.console import Console

    from glassloop.backends.machine import BAD, FAIR, GOOD, examine
    from glassloop.markup.terminal import bare_table, text

    findings = examine()
    symbols = {GOOD: ("✓", "green"), FAIR: ("!", "yellow"), BAD: ("✗", "red")}
    table = bare_table("", "check", "found", "what to do", overflow="fold")
    for finding in findings:
        table.add_row(text(*symbols[finding.state]), finding.name, text(finding.found), text(finding.remedy, "dim"))
    Console().print(table)
    can_run = all(finding.state != BAD for finding in findings)
    return CommandResult({"ok": can_run, "findings": findings}, 0 if can_run else 1)
