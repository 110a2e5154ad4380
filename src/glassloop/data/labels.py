"""From what a label column holds to the numbers a model learns, by name and never by accident of order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glassloop.config import DataSettings, name_problem
from glassloop.errors import DataError, did_you_mean, listed, visible

CLASSES, SEVERAL, SCORE = "single_label_classification", "multi_label_classification", "regression"
UNLABELLED = -1  # what the public data sets write where the labels are kept secret
MAX_CLASSES = 10_000
SCORE_VALUES = 20  # that many different fractions can only be scores
LARGEST_SCORE = 3.4e38  # what still is a finite number in 32 bits
WHOLE = re.compile(r"-?(0|[1-9]\d*)")


@dataclass(frozen=True)
class LabelSet:
    """The label names and their numbers, fixed for a run."""

    names: tuple[str, ...]

    @property
    def id2label(self) -> dict[int, str]:
        return dict(enumerate(self.names))

    @property
    def label2id(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def numbers_of(self, values: Iterable[str]) -> dict[str, int]:
        """Cell text -> number: by name, or, where no name is a number and all cells are numbers in range, by number."""
        by_number = {str(number): number for number in range(len(self.names))}
        if all(value in by_number for value in values) and not any(number_of(name) is not None for name in self.names):
            return by_number
        return self.label2id


Cell = str | tuple[str, ...] | None


class LabelCells:
    """Which label cell each row of a split holds: the different cells, and four bytes a row that say which."""

    def __init__(self) -> None:
        self.codes_of: dict[Cell, int] = {}
        self.parts: list[np.ndarray] = []
        self.overflowed = False

    def add(self, cells: pa.Array) -> None:
        """Take the cells of the next rows. Beyond `MAX_CLASSES` different texts (scores), new ones are no longer told apart."""
        if pa.types.is_list(cells.type):
            rows = [None if row is None or None in row else tuple(row) for row in cells.to_pylist()]
            codes = (self.codes_of.setdefault(row, len(self.codes_of)) for row in rows)  # lists are never scores
            self.parts.append(np.fromiter(codes, dtype=np.int32, count=len(rows)))
        else:
            encoded = cells.dictionary_encode()
            known = [self.code(value) for value in encoded.dictionary.to_pylist()]
            lookup = np.array(known + ([self.code(None)] if encoded.null_count else []))
            indices = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)
            self.parts.append(lookup.astype(np.int32)[indices])

    def code(self, cell: Cell) -> int:
        if cell not in self.codes_of and len(self.codes_of) >= MAX_CLASSES:
            self.overflowed = True
            return MAX_CLASSES - 1
        return self.codes_of.setdefault(cell, len(self.codes_of))

    @property
    def codes(self) -> np.ndarray:
        """For each row, the number of its cell in `cells`."""
        if len(self.parts) > 1:
            self.parts = [np.concatenate(self.parts)]
        return self.parts[0] if self.parts else np.zeros(0, dtype=np.int32)

    @property
    def cells(self) -> list[Cell]:
        return list(self.codes_of)

    @property
    def are_lists(self) -> bool:
        return any(isinstance(cell, tuple) for cell in self.codes_of)

    def values(self) -> list[str]:
        """The different label texts, one by one where rows hold several."""
        return list(dict.fromkeys(value for cell in self.cells if cell is not None for value in parts_of(cell)))

    def counts(self, rows: np.ndarray | slice = slice(None)) -> Counter[str]:
        """How often each label text occurs in the chosen rows."""
        found: Counter[str] = Counter()
        for cell, number in zip(self.cells, np.bincount(self.codes[rows], minlength=len(self.codes_of)), strict=False):
            for value in parts_of(cell) if cell is not None and number else ():
                found[value] += int(number)
        return found

    def first_row(self, value: str | None) -> int | None:
        """The first row whose cell is, or holds, `value`; None where there is none."""
        wanted = [code for cell, code in self.codes_of.items() if cell == value or (isinstance(cell, tuple) and value in cell)]
        rows = np.flatnonzero(np.isin(self.codes, wanted))
        return int(rows[0]) if len(rows) else None

    @property
    def labelled(self) -> bool:
        """Whether there are labels at all: a column, and not only marks that the labels are kept secret."""
        return not set(self.cells) <= {str(UNLABELLED), f"{UNLABELLED}.0"}


def parts_of(cell: str | tuple[str, ...]) -> tuple[str, ...]:
    return cell if isinstance(cell, tuple) else (cell,)


def label_cells(table: pa.Table, columns: tuple[str, ...], separator: str | None) -> pa.Array:
    """The label cells of a table as text, or as lists of text where a row may have several labels."""
    if len(columns) > 1:
        parts = [as_text(table[name].combine_chunks()) for name in columns]
        rows = zip(*(part.to_pylist() for part in parts), strict=True)
        return pa.array([several_columns(row, columns) for row in rows], pa.list_(pa.string()))
    cells = as_text(table[columns[0]].combine_chunks())
    if separator is not None and not pa.types.is_list(cells.type):
        split = (None if cell is None else cell.split(separator) for cell in cells.to_pylist())
        parted = [None if row is None else [part.strip() for part in row if part.strip()] for row in split]
        return pa.array(parted, pa.list_(pa.string()))
    return cells


def several_columns(row: tuple[str | None, ...], columns: tuple[str, ...]) -> list[str] | None:
    """The names of the columns that hold 1; None where a cell holds neither 0 nor 1."""
    meaning = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}
    if any(cell is None or cell.lower() not in meaning for cell in row):
        return None
    return [name for name, cell in zip(columns, row, strict=True) if cell is not None and meaning[cell.lower()]]


def as_text(cells: pa.Array) -> pa.Array:
    """Any kind of label cell as text; lists stay lists."""
    kind = cells.type
    if pa.types.is_dictionary(kind):
        return as_text(cells.dictionary_decode())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pc.cast(cells, pa.list_(pa.string()))
    if pa.types.is_floating(kind):
        return pa.array([None if cell is None else repr(cell) for cell in cells.to_pylist()], pa.string())
    return pc.cast(cells, pa.string())


def settle_labels(
    found: LabelCells, settings: DataSettings, known: tuple[str, ...] | None, where: Callable[[str | None], str]
) -> tuple[str, LabelSet | None]:
    """The task and its labels, from the cells of the training rows. `where` names the first row that holds a cell.

    Raises `DataError` for cells that cannot be meant: missing, stray blanks, negative, gaps, mixed kinds, fractions.
    """
    values = found.values()
    several = found.are_lists or settings.task == SEVERAL
    if None in found.cells:
        allowed = "0 or 1 in every label column" if len(settings.label_columns) > 1 else "a label in every row"
        raise DataError(f"{where(None)}: the label is missing", f"give {allowed}, or remove the row")
    unnamed = known is None and settings.label_names is None
    if settings.task == SCORE or (settings.task == "auto" and not several and unnamed and are_scores(found)):
        for value in values:
            if number_of(value) is None:
                raise DataError(f"{where(value)}: label {visible(value)} is not a number", "a score must be a finite number")
        return SCORE, None
    if not values:
        raise DataError(f"{where(None)}: no row has a label", "give at least one label, or name the right column with --label")
    given = settings.label_names or (settings.label_columns if len(settings.label_columns) > 1 else known)
    if settings.task == SEVERAL and not found.are_lists:
        raise DataError(
            f"{where(values[0])}: the label is a single value", "name the sign between labels with --label_separator"
        )
    if settings.task == CLASSES and found.are_lists:
        raise DataError(f"{where(values[0])}: the label is a list", "use --task multi_label_classification")
    if given:
        refuse_unknown(values, LabelSet(given), where)
        names = given
    else:
        if found.overflowed or (len(values) > 50 and len(values) > 0.5 * len(found.codes)):
            raise DataError(
                f"{where(values[0])}: the label column holds {len(values):,} different values",
                "name the right column with --label, or use --task regression for scores",
            )
        names = names_of(values, found, where)
    for name in names:
        if problem := name_problem(name):
            raise DataError(f"{where(name)}: {problem}", "use short label names on one line")
    if len(names) < (1 if several else 2):
        raise DataError(f"{where(None)}: all rows have the label {visible(names[0])}", "training needs at least two labels")
    return (SEVERAL if several else CLASSES), LabelSet(tuple(names))


def names_of(values: list[str], found: LabelCells, where: Callable[[str | None], str]) -> tuple[str, ...]:
    """The names in the order of their numbers: whole numbers by size, words by alphabet."""
    for value in values:
        if value != value.strip() or not value:
            raise DataError(
                f"{where(value)}: label {visible(value)} has stray blanks or is empty", "remove the blanks in that row"
            )
    numeric = [value for value in values if number_of(value) is not None]
    if numeric and len(numeric) < len(values):
        words = [value for value in values if number_of(value) is None]
        counts = found.counts()
        odd = min((numeric, words), key=lambda kind: sum(counts[value] for value in kind))
        raise DataError(
            f"{where(odd[0])}: label {visible(odd[0])} among {listed([value for value in values if value not in odd], 6)}: "
            "numbers and words are mixed",
            "write all labels alike, or list the names with --labels",
        )
    if not numeric:
        return tuple(sorted(values))
    for value in values:
        if not WHOLE.fullmatch(value):
            raise DataError(
                f"{where(value)}: label {visible(value)} is not a whole number",
                "fix the row, or use --task regression for scores",
            )
        if int(value) < 0:
            raise DataError(
                f"{where(value)}: label {value} is negative, which elsewhere means that no label is known",
                "remove the row, or write the label as a word",
            )
    numbers = sorted(map(int, values))
    for before, after in pairwise(numbers):
        if after != before + 1:
            raise DataError(
                f"{where(str(after))}: label {after} is out of range: there is a gap in {listed(numbers)}",
                "fix the row, or list all names with --labels if this is meant",
            )
    return tuple(map(str, numbers))


def are_scores(found: LabelCells) -> bool:
    """Whether these cells can only be scores: all numbers, and many different fractions (codes such as 007 are none)."""
    values = found.values()
    fractions = [value for value in values if not value.lstrip("-").isdigit()]
    return len(fractions) > SCORE_VALUES and all(number_of(value) is not None for value in values)


def number_of(value: str) -> float | None:
    """The finite number that `value` writes, else None."""
    try:
        number = float(value)
    except ValueError:
        return None
    written = value == value.strip() and "_" not in value  # Python would read 1_2 as 12
    return number if written and abs(number) <= LARGEST_SCORE else None


def refuse_unknown(values: Iterable[str], labels: LabelSet, where: Callable[[str | None], str]) -> None:
    """Raise for the first cell that names no label."""
    values = list(values)
    numbers = labels.numbers_of(values)
    for value in values:
        if value not in numbers:
            raise DataError(
                f"{where(value)}: label {visible(value)} is not one of {listed(labels.names)}"
                + did_you_mean(value, labels.names),
                "fix the row, or add the label to --labels",
            )


def label_column(found: LabelCells, rows: slice, cells: pa.Array, task: str, numbers: Mapping[str, int]) -> pa.Array:
    """The label cells of some rows as the numbers a model learns; null where the label is not known."""
    if task == SCORE:
        return pa.array([None if cell is None else number_of(cell) for cell in cells.to_pylist()], pa.float32())
    if task == CLASSES:
        lookup = [numbers.get(str(cell)) if cell is not None else None for cell in found.cells]
        return pa.array(lookup, pa.int64()).take(pa.array(found.codes[rows]))
    lists = [
        None
        if cell is None or any(value not in numbers for value in parts_of(cell))
        else sorted({numbers[value] for value in parts_of(cell)})
        for cell in found.cells
    ]
    return pa.array(lists, pa.list_(pa.int64())).take(pa.array(found.codes[rows]))


def no_labels(num_rows: int, task: str) -> pa.Array:
    """The label column of rows whose labels are not given."""
    if task == SEVERAL:
        return pa.array([[]] * num_rows, pa.list_(pa.int64()))
    return pa.array([UNLABELLED] * num_rows, pa.float32() if task == SCORE else pa.int64())
