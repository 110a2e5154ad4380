"""A raw split that a test gives as tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class GivenSplit:
    """Rows as they come from a CSV file: the header is row 1."""

    source: str
    parts: list[pa.Table]
    notes: tuple[str, ...] = ()

    def tables(self) -> Iterator[pa.Table]:
        return iter(self.parts)

    def row_name(self, row: int) -> str:
        return f"{self.source}, row {row + 2:,}"
