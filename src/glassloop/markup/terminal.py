"""Texts and tables for the terminal, as rich prints them."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from glassloop.base.errors import printable


def text(value: object, style: str = "") -> Text:
    """Return a value as it is: rich would read names in brackets as markup."""
    return Text(printable(str(value)), style)


def bare_table(*columns: str, right: int | None = None, **options: Any) -> Table:
    """Return a table without lines. Columns from `right` on are aligned to the right; rich takes `options` for all of them."""
    table = Table(box=None, header_style="dim", pad_edge=False, show_header=bool(columns))
    for place, name in enumerate(columns):
        table.add_column(text(name), justify="left" if right is None or place < right else "right", **options)
    return table
