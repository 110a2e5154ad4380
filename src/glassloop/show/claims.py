"""The result of `glassloop verify` as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Claim:
    """Two ways to train that should give equal results, and the largest difference found between them."""

    name: str
    difference: float
    allowed: float

    @property
    def holds(self) -> bool:
        """Return whether the difference is small enough."""
        return self.difference <= self.allowed


def show_claims(claims: Sequence[Claim]) -> None:
    """Print one row per claim: whether it holds, the largest difference found, and the difference allowed."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("", "claim", "largest difference", "allowed"):
        table.add_column(name, justify="right" if name in ("largest difference", "allowed") else "left")
    for claim in claims:
        allowed = "none" if claim.allowed == 0 else f"{claim.allowed:.0e}"
        found = "none" if claim.difference == 0 else f"{claim.difference:.1e}"
        symbol = Text("✓", style="green") if claim.holds else Text("✗", style="red")
        table.add_row(symbol, claim.name, found, allowed)
    Console().print(table)
