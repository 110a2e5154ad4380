"""What is wrong with rows and tables: refused with their number, or skipped and listed."""

from __future__ import annotations

import csv
from bisect import bisect_right
from pathlib import Path

import pyarrow as pa

from glassloop.base.errors import DataError, counted, visible
from glassloop.base.formulas import protected

SKIP = "to skip such rows: --bad_rows skip"


class BadRows:
    """The rows of some files that cannot be read.

    Args:
        skip: Whether to skip and list them. Otherwise the first one is an error.
        offer: Whether the error suggests to skip such rows. It does so for files that a user can choose the setting for.
    """

    def __init__(self, *, skip: bool = False, offer: bool = False) -> None:
        self.skip, self.offer = skip, offer
        self.rows: dict[Path, dict[int, str]] = {}

    def add(self, path: Path, row: int, problem: str, remedy: str) -> None:
        """Raise `DataError` for a row, or add it to the list if such rows are skipped."""
        if not self.skip:
            raise DataError(f"{path.name}, row {row:,}: {problem}", f"{remedy}; {SKIP}" if self.offer else remedy)
        self.rows.setdefault(path, {})[row] = problem

    @property
    def num_rows(self) -> int:
        """How many rows were skipped."""
        return sum(map(len, self.rows.values()))

    def number_of(self, path: Path, row: int) -> int:
        """Return the number in its file of a row that would have the number `row` if no row had been skipped."""
        skipped = sorted(self.rows.get(path, ()))
        before = 0
        while (found := bisect_right(skipped, row + before)) > before:
            before = found
        return row + before

    def refuse_most(self, path: Path, num_read: int) -> None:
        """Raise `DataError` if most rows of a file were skipped: then something else is wrong with it."""
        skipped = self.rows.get(path, {})
        if len(skipped) > num_read:
            row, problem = next(iter(skipped.items()))
            raise DataError(
                f"{path.name}: {len(skipped):,} of {counted(num_read + len(skipped), 'row', 'rows')} cannot be read, for "
                f"example row {row:,}: {problem}",
                "check the delimiter (--delimiter) and the encoding (--encoding)",
            )

    def write(self, path: Path) -> None:
        """Write the list as a CSV file: file, row and problem."""
        with path.open("w", encoding="utf-8", newline="") as opened:
            writer = csv.writer(opened)
            writer.writerow(["file", "row", "problem"])
            for file, rows in self.rows.items():
                writer.writerows(
                    [protected(visible(file.name, 255)[1:-1]), row, protected(problem)] for row, problem in rows.items()
                )


def sound(table: pa.Table, source: str) -> pa.Table:
    """Return `table` with all its texts as plain strings. Raise `DataError` if its content is damaged.

    Arrow trusts the files it maps: a wrong offset would read other memory, and invalid UTF-8 would end in a traceback.
    """
    try:
        table.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"{source}: the rows are damaged: {error}", "write the data again") from error
    for place, field in enumerate(table.schema):
        if pa.types.is_string_view(field.type) or is_coded_text(field.type):
            table = table.set_column(place, field.name, table[place].cast(pa.string()))
    return table


def is_coded_text(kind: pa.DataType) -> bool:
    """Return whether texts are stored as numbers of a dictionary, as pandas stores categories."""
    text_kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return bool(pa.types.is_dictionary(kind)) and any(is_kind(kind.value_type) for is_kind in text_kinds)


def storable(kind: pa.DataType) -> bool:
    """Return whether `datasets` supports values of this type. It does not support maps, for example."""
    from datasets.features.features import generate_from_arrow_type

    try:
        generate_from_arrow_type(kind)
    except (ValueError, TypeError, NotImplementedError):
        return False
    return True


def refuse_half_character(text: str, what: str) -> None:
    """Raise if a text contains half of a surrogate pair, which cannot be saved or tokenized."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{what} contains {text[error.start]!r}, which is half of a surrogate pair",
            "write the whole character, or remove it",
        ) from error
