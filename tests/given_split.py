"""A raw split that a test gives as tables, and a table that is watched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class GivenSplit:
    """Rows as they come from a CSV file: the header is row 1."""

    source: str
    parts: list[pa.Table]
    notes: tuple[str, ...] = ()
    bad: None = None

    def tables(self) -> Iterator[pa.Table]:
        return iter(self.parts)

    def row_name(self, row: int) -> str:
        return f"{self.source}, row {row + 2:,}"

    def row_numbers(self) -> np.ndarray:
        return np.arange(1, sum(part.num_rows for part in self.parts) + 1)


class Watched:
    """A table that counts how often its column names are asked for: Arrow makes a new list of all of them each time."""

    def __init__(self, table: pa.Table) -> None:
        self.table, self.asked = table, 0

    @property
    def column_names(self) -> list[str]:
        self.asked += 1
        return list(self.table.column_names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.table, name)

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        return self.table[name]
