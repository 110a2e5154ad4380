"""A split that is read once into an Arrow file, and from there as often as needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from glassloop.data.bad_rows import BadRows
from glassloop.errors import DataError, listed


class SpooledSplit:
    """The rows of a split in an Arrow file at `path`. Add all tables, then close it, then read it."""

    notes: tuple[str, ...] = ()
    bad: BadRows | None = None

    def __init__(self, path: Path, source: str) -> None:
        self.path, self.source, self.num_rows = path, source, 0
        self.writer: pa.ipc.RecordBatchStreamWriter | None = None
        self.schema: pa.Schema | None = None

    def add(self, table: pa.Table) -> None:
        """Write the next rows. Raise `DataError` if their columns are not those of the rows before."""
        if self.writer is None or self.schema is None:
            self.schema, self.writer = table.schema, pa.ipc.new_stream(str(self.path), table.schema)
        if sorted(table.column_names) == sorted(self.schema.names):
            table = table.select(self.schema.names)
        if table.schema != self.schema:
            one, other = (listed(f"{field.name} ({field.type})" for field in each) for each in (self.schema, table.schema))
            raise DataError(
                f"{self.path.name}: the columns are not the same in all rows: {one} and {other}",
                "give all rows the same columns and types of values",
            )
        self.writer.write_table(table)
        self.num_rows += table.num_rows

    def close(self) -> None:
        """Finish the file."""
        if self.writer is not None:
            self.writer.close()

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows, memory-mapped."""
        if self.writer is not None:
            with pa.memory_map(str(self.path)) as mapped:
                for batch in pa.ipc.open_stream(mapped):
                    yield pa.Table.from_batches([batch])

    def row_name(self, row: int) -> str:
        """Return what a person calls a row."""
        return f"{self.source}, row {row + 1:,}"
