"""Rows that are read once into an Arrow file, and from there as often as needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from glassloop.errors import DataError, listed


def spooled(tables: Iterator[pa.Table], path: Path) -> Callable[[], Iterator[pa.Table]]:
    """Read `tables` once into an Arrow file; what comes back reads that file, memory-mapped, as often as called."""
    schema: Any = None
    writer = None
    for table in tables:
        if writer is None:
            schema, writer = table.schema, pa.ipc.new_stream(str(path), table.schema)
        if sorted(table.column_names) == sorted(schema.names):
            table = table.select(schema.names)
        if table.schema != schema:
            one, other = (listed(f"{field.name} ({field.type})" for field in each) for each in (schema, table.schema))
            raise DataError(
                f"{path.name}: the columns are not the same in all rows: {one} and {other}",
                "give all rows the same columns and kinds of values",
            )
        writer.write_table(table)
    if writer is not None:
        writer.close()

    def read_again() -> Iterator[pa.Table]:
        if writer is not None:
            with pa.memory_map(str(path)) as mapped:
                for batch in pa.ipc.open_stream(mapped):
                    yield pa.Table.from_batches([batch])

    return read_again
