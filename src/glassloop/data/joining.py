"""Join several columns into one text."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

import pyarrow as pa

from glassloop.base.errors import DataError, visible
from glassloop.data.faults import BadRows
from glassloop.data.interfaces import RawSplit
from glassloop.settings.fields import split_names

JOIN = "\n"  # white space to most tokenizers, and a token of its own to those that keep it


def columns_of_text(name: str, found: Container[str]) -> tuple[str, ...]:
    """Return the columns of a text: the one called `name`, else those that it names, separated by commas."""
    return (name,) if name in found else split_names(name)


def with_joined(table: pa.Table, texts: Iterable[str], source: str) -> pa.Table:
    """Return a table with a new column for each text that is joined from several. Empty cells are omitted."""
    for name in texts:
        parts = columns_of_text(name, table.column_names)
        if len(parts) > 1:
            rows = zip(*(text_cells(table[part], part, source) for part in parts), strict=True)
            texts_of_rows = [JOIN.join(cell for cell in row if cell is not None and cell.strip()) for row in rows]
            table = table.append_column(name, pa.array(texts_of_rows, pa.string()))
    return table


def text_cells(column: pa.ChunkedArray, name: str, source: str) -> list[str | None]:
    """Return the cells of a text column. Raise `DataError` if it is another column."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise DataError(
            f"{source}: column {visible(name)} has the type {column.type}, which is not text",
            "join only columns with text: --text",
        )
    cells: list[str | None] = column.to_pylist()
    return cells


class JoinedSplit:
    """A split whose tables have the joined texts as columns."""

    def __init__(self, split: RawSplit, texts: tuple[str, ...]) -> None:
        self.split, self.texts = split, texts
        self.source, self.notes = split.source, split.notes
        self.bad: BadRows | None = split.bad

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows."""
        for table in self.split.tables():
            yield with_joined(table, self.texts, self.source)

    def row_name(self, row: int) -> str:
        """Return what a person calls a row."""
        return self.split.row_name(row)
