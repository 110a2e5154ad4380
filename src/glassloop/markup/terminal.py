"""Texts and tables for the terminal, as rich prints them."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console, JustifyMethod, OverflowMethod
from rich.table import Table
from rich.text import Text

from glassloop.base.errors import printable

BAR_WIDTH = 24  # of the longest stage: the table fits into 80 columns


def text(value: object, style: str = "") -> Text:
    """Return a value as it is: rich would read names in brackets as markup."""
    return Text(printable(str(value)), style)


def bare_table(*columns: str, right: int | None = None, no_wrap: bool = False, overflow: OverflowMethod = "ellipsis") -> Table:
    """Return a table without lines. Columns from `right` on are aligned to the right."""
    table = Table(box=None, header_style="dim", pad_edge=False, show_header=bool(columns))
    for place, name in enumerate(columns):
        justify: JustifyMethod = "left" if right is None or place < right else "right"
        table.add_column(text(name), justify=justify, no_wrap=no_wrap, overflow=overflow)
    return table


def stages_table(stages: Mapping[str, float], title: str) -> Table:
    """Return the stages of a run with their seconds, their share and a bar, and the whole in the last row."""
    table, whole = bare_table(title, "seconds", "share", right=1, no_wrap=True), sum(stages.values())
    table.add_column()
    longest = max(stages.values())
    for title, seconds in stages.items():
        bar = "█" * round(BAR_WIDTH * seconds / longest) if longest > 0 else ""
        table.add_row(text(title), f"{seconds:.2f}", f"{seconds / whole:.0%}" if whole else "", bar)
    table.add_row("in all", f"{whole:.2f}", "", "", style="bold")
    return table


def show_timing(stages: Mapping[str, float], *, resumed: bool) -> None:
    """Print how long each stage took, with a bar; nothing for a run of an earlier version, which did not record it."""
    if stages:
        Console(stderr=True).print(stages_table(stages, "time since the run was resumed" if resumed else "where the time went"))
