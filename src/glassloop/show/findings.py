"""The state of this machine as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from glassloop.errors import printable
from glassloop.machine import BAD, FAIR, GOOD, Finding

SYMBOLS = {GOOD: ("✓", "green"), FAIR: ("!", "yellow"), BAD: ("✗", "red")}


def show_findings(findings: Sequence[Finding]) -> None:
    """Print one row per finding: its state, what was found, and what to do."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("", "check", "found", "what to do"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        symbol, style = SYMBOLS[finding.state]
        remedy = Text(printable(finding.remedy), style="dim")
        table.add_row(Text(symbol, style=style), finding.name, Text(printable(finding.found)), remedy)
    Console().print(table)
