"""The rows of a file to predict: every row is checked, and its texts are joined as in training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from glassloop.data.bad_rows import BadRows
from glassloop.data.interfaces import Texts
from glassloop.data.joining import columns_of_text, with_joined
from glassloop.data.opening import COMPRESSED
from glassloop.data.readers import SUFFIXES, first_row_number, read_file, refuse_special, supported
from glassloop.data.writers import written_table
from glassloop.errors import DataError, SettingsError, did_you_mean, listed, visible
from glassloop.settings import DataSettings


@dataclass(frozen=True)
class FileRows:
    """Some rows of a file: their columns as they are written, and the texts to predict.

    Attributes:
        first: The number of the first row in the file.
        table: The columns of the file.
        texts: The texts, or the first and the second texts of pairs.
    """

    first: int
    table: pa.Table
    texts: Texts


def checked_rows(
    source: Path, settings: DataSettings, texts: Sequence[str], added: Sequence[str], bad: BadRows
) -> Iterator[FileRows]:
    """Yield the rows of a file.

    Args:
        source: The file.
        settings: How to read it.
        texts: The column with the texts, and that with the second texts of pairs. Each may name several columns.
        added: The columns that predictions will add.
        bad: Where rows that cannot be read are reported.

    Raises:
        DataError: For the first row that cannot be predicted.
        SettingsError: If no text column is named.
    """
    if source.exists():
        refuse_special(source)
    if not source.is_file() or not supported(source):
        raise DataError(
            f"{source}: there is no such data file",
            f"use one of {listed(SUFFIXES)}, or one of these with {listed(COMPRESSED)}",
        )
    number = first_row_number(source, settings)
    for table in read_file(source, settings, bad):
        refuse_columns(source, table.column_names, texts, added)
        table = written_table(table, source.name)
        joined = with_joined(table, texts, source.name)
        columns = [joined[name].to_pylist() for name in texts]
        for name, cells in zip(texts, columns, strict=True):
            for place, cell in enumerate(cells):
                if isinstance(cell, str) and cell:
                    continue
                where = f"{source.name}, row {bad.number_of(source, number + place):,}"
                if cell is None or cell == "":
                    raise DataError(f"{where}: the text is empty", "fill or remove the row")
                raise DataError(f"{where}: {visible(name)} is {visible(cell)}, not text", "name the text column with --text")
        yield FileRows(number, table, columns)
        number += table.num_rows


def refuse_columns(source: Path, found: Sequence[str], texts: Sequence[str], added: Sequence[str]) -> None:
    """Raise if a file does not have the columns of the texts, or has one that predictions would overwrite."""
    if not texts:
        raise SettingsError(f"{source.name}: the text column is not known; found {listed(found)}", "name it with --text")
    for name in (part for text in texts for part in columns_of_text(text, found)):
        if name not in found:
            there = f"found {listed(found)}{did_you_mean(name, found)}"
            raise DataError(
                f"{source.name}: there is no column {visible(name)}; {there}", "name the columns with --text and --text_pair"
            )
    for name in added:
        if name in found:
            raise DataError(
                f"{source.name}: there is already a column {visible(name)}",
                "rename it: predictions are written to a column of that name",
            )
