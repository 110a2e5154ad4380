"""Texts and tables for the terminal, as rich prints them."""

from __future__ import annotations

from rich.console import JustifyMethod, OverflowMethod
from rich.table import Table
from rich.text import Text

from glassloop.base.errors import printable


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
