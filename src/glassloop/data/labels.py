"""Turn label cells into the class numbers a model learns, always by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from glassloop.data.cells import UNLABELLED, LabelCells, parts_of
from glassloop.data.lookalikes import shape_of, spelled
from glassloop.data.several import refuse_several
from glassloop.errors import DataError, SettingsError, did_you_mean, listed, visible
from glassloop.settings import CLASSES, SCORE, SEVERAL, DataSettings, name_problem

SCORE_VALUES = 20  # more different fractions than this can only be scores
LARGEST_SCORE = 3.4e38  # the largest finite number in 32 bits
WHOLE_FRACTION = re.compile(r"(-?(?:0|[1-9]\d*))\.0+")  # as pandas writes whole numbers beside missing ones
WHOLE = re.compile(r"-?(0|[1-9]\d*)")
CODE = re.compile(r"0\d+")  # a leading zero: nobody writes a number that way
MODEL = "the model"  # whose labels a trained model keeps
OTHER_LABELS = "fix the row, or train the model for other labels: glassloop train --new_head"


@dataclass(frozen=True)
class LabelSet:
    """The label names and their numbers, fixed for a run.

    Attributes:
        names: The names in the order of their numbers.
        order: The names that the cells 0, 1, 2 mean, if the user or the source has said so. Without it, numbers in the data do
            not name labels.
    """

    names: tuple[str, ...]
    order: tuple[str, ...] | None = field(default=None, compare=False)

    @property
    def id2label(self) -> dict[int, str]:
        """The names by their numbers, as in a config of transformers."""
        return dict(enumerate(self.names))

    @property
    def label2id(self) -> dict[str, int]:
        """The numbers by their names, as in a config of transformers."""
        return {name: number for number, name in enumerate(self.names)}

    def numbers_of(self, values: Iterable[str]) -> dict[str, int]:
        """Return the numbers by cell text: names, or places in `order` if all `values` are places and no name is a number.

        1.0 and 1 are the same label.
        """
        values, numbers = [*values], self.label2id
        places = {str(place): numbers[name] for place, name in enumerate(self.order or ())}
        by_place = (
            places and all(whole(value) in places for value in values) and all(number_of(name) is None for name in self.names)
        )
        known = places if by_place else numbers
        alike = {whole(name): number for name, number in known.items()} | known
        return known | {value: alike[whole(value)] for value in values if value not in known and whole(value) in alike}


def settle_labels(
    found: LabelCells,
    settings: DataSettings,
    known: tuple[str, ...] | None,
    where: Callable[[str | None], str],
    outputs: LabelSet | None = None,
) -> tuple[str, LabelSet | None]:
    """Return the task and its labels, from the cells of the training rows. `where` names the first row with a cell.

    `known` are the names in the order that the source gives, `outputs` the labels of a trained model.
    Raise `DataError` for cells that are missing, negative or fractions, have stray spaces or gaps, or mix words and numbers.
    """
    values = found.values()
    several = found.are_lists or settings.task == SEVERAL
    if None in found.cells:
        missing = "0 or 1 to every label column" if len(settings.label_columns) > 1 else "the label"
        raise DataError(f"{where(None)}: the label is missing", f"add {missing}, or remove the row")
    unnamed = known is None and settings.label_names is None and outputs is None
    if settings.task == SCORE or (settings.task == "auto" and not several and unnamed and are_scores(found)):
        for value in values:
            if number_of(value) is None:
                raise DataError(f"{where(value)}: label {visible(value)} is not a number", "a score must be a finite number")
        return SCORE, None
    if not values:
        raise DataError(f"{where(None)}: no row has a label", "add at least one label, or name the right column with --label")
    columns = settings.label_columns if len(settings.label_columns) > 1 else None
    order = order_of(settings, columns or known, outputs)
    given = outputs.names if outputs else settings.label_names or columns or known
    if settings.task == SEVERAL and not found.are_lists:
        raise DataError(
            f"{where(values[0])}: the label is a single value", "set the separator between labels with --label_separator"
        )
    if settings.task == CLASSES and found.are_lists:
        raise DataError(f"{where(values[0])}: the label is a list", "use --task multi_label_classification")
    if given:
        refuse_unknown(values, LabelSet(given, order), where, MODEL if outputs else "the settings")
        names = given
    else:
        if found.overflowed or (len(values) > 50 and len(values) > 0.5 * len(found.codes)):
            raise DataError(
                f"{where(values[0])}: the label column has {len(values):,} different values",
                "name the right column with --label"
                + (", or use --task regression for scores" if all(map(is_number, values)) else ""),
            )
        if settings.task == "auto" and not several:
            refuse_several(values, where)
        names = names_of(values, found, where, fractions=settings.task == CLASSES)
    for name in names:
        if problem := name_problem(name):
            raise DataError(f"{where(name)}: {problem}", "use short label names on one line")
    if len(names) < (1 if several else 2):
        raise DataError(f"{where(None)}: all rows have the label {visible(names[0])}", "training needs at least two labels")
    return (SEVERAL if several else CLASSES), LabelSet(tuple(names), order)


def order_of(settings: DataSettings, known: tuple[str, ...] | None, outputs: LabelSet | None) -> tuple[str, ...] | None:
    """Return the names that numbers in the data mean: given by the user, else by the source, else by the model; or None."""
    order = settings.label_names or known
    if outputs is None or (order and {*order} == {*outputs.names}):
        return order
    if settings.label_names:
        raise SettingsError(
            f"labels is {listed(settings.label_names)}, but the labels of the model are {listed(outputs.names)}",
            "list the labels of the model in the order of the numbers in the data",
        )
    return None if known else outputs.order


def names_of(
    values: list[str], found: LabelCells, where: Callable[[str | None], str], *, fractions: bool = False
) -> tuple[str, ...]:
    """Return the names in the order of their numbers: numbers by size, words and codes such as 007 by alphabet.

    1.0 is the whole number 1, as pandas writes it. Other `fractions` are refused unless the user says that they are classes.
    """
    for value in values:
        if value != value.strip() or not value:
            raise DataError(
                f"{where(value)}: label {visible(value)} has stray spaces or is empty", "remove the spaces in that row"
            )
    if any(map(CODE.fullmatch, values)):
        return tuple(sorted(values))
    numeric = [value for value in values if is_number(value)]
    if numeric and len(numeric) < len(values):
        words = [value for value in values if not is_number(value)]
        counts = found.counts()
        odd = min((numeric, words), key=lambda kind: sum(counts[value] for value in kind))
        raise DataError(
            f"{where(odd[0])}: label {visible(odd[0])} among {listed([value for value in values if value not in odd], 6)}: "
            "numbers and words are mixed",
            "use only words or only numbers, or list the names with --labels",
        )
    if not numeric:
        return tuple(sorted(values))
    for value in values:
        if not WHOLE.fullmatch(whole(value)):
            if fractions:
                return tuple(sorted(values, key=float))
            raise DataError(
                f"{where(value)}: label {visible(value)} is not a whole number",
                "fix the row; use --task single_label_classification for classes, or --task regression for scores",
            )
    negative = [value for value in values if float(value) < 0]
    if len(negative) == 1 and len(values) > 2 and not fractions:  # -1 and 1 are classes, and so are -2, -1, 0
        raise DataError(
            f"{where(negative[0])}: label {negative[0]} is negative, which usually stands for an unknown label",
            "remove the row, or use --task single_label_classification if it is a class",
        )
    return tuple(map(str, sorted({int(whole(value)) for value in values})))


def whole(value: str) -> str:
    """Return 1.0 as 1, and any other text unchanged."""
    return match[1] if (match := WHOLE_FRACTION.fullmatch(value)) else value


def are_scores(found: LabelCells) -> bool:
    """Return whether these cells can only be scores: all are numbers, and there are many different fractions."""
    values = found.values()
    fractions = [value for value in values if not whole(value).lstrip("-").isdigit()]
    return len(fractions) > SCORE_VALUES and all(map(is_number, values))


def is_number(value: str) -> bool:
    """Return whether `value` is a number. Codes such as 007 are not."""
    return number_of(value) is not None and not CODE.fullmatch(value)


def number_of(value: str) -> float | None:
    """Return `value` as a finite number; None if it is not one."""
    try:
        number = float(value)
    except ValueError:
        return None
    written = value == value.strip() and "_" not in value  # Python would read 1_2 as 12
    return number if written and abs(number) <= LARGEST_SCORE else None


def refuse_unknown(values: Iterable[str], labels: LabelSet, where: Callable[[str | None], str], holder: str) -> None:
    """Raise for the first cell that is not a label. `holder` says who has the labels."""
    values = list(values)
    refuse_other_kind(values, labels, where, holder)
    numbers = labels.numbers_of(values)
    for value in values:
        if value not in numbers:
            twin = next((name for name in labels.names if shape_of(name) == shape_of(value)), value)
            if hidden := twin.lower() != value.lower():
                seen, known = spelled((value, twin))
            raise DataError(
                f"{where(value)}: label {seen if hidden else visible(value)} is not one of {listed(labels.names)}"
                + (f"; it looks like {known}, but has different characters" if hidden else did_you_mean(value, labels.names)),
                OTHER_LABELS if holder == MODEL else "fix the row, or add the label to --labels",
            )


def refuse_other_kind(values: list[str], labels: LabelSet, where: Callable[[str | None], str], holder: str) -> None:
    """Raise for numbers if the labels are words, or words if they are numbers, unless an order is given."""
    kinds = [{is_number(name) for name in names} for names in (values, labels.names)]
    if labels.order is None and kinds in ([{True}, {False}], [{False}, {True}]):
        here, there = ("numbers", "words") if kinds[0] == {True} else ("words", "numbers")
        raise DataError(
            f"{where(values[0])}: the labels here are {here} ({listed(values, 6)}), "
            f"but those of {holder} are {there} ({listed(labels.names, 6)})",
            "use the same labels in all splits, or list their names in the order of their numbers: --labels NAME,NAME",
        )


def label_lookup(found: LabelCells, task: str, numbers: Mapping[str, int]) -> pa.Array:
    """Return the label numbers of each different cell; null for a missing or unknown label."""
    if task == CLASSES:
        return pa.array([None if cell is None else numbers.get(str(cell)) for cell in found.cells], pa.int64())
    lists = [
        None
        if cell is None or any(value not in numbers for value in parts_of(cell))
        else sorted({numbers[value] for value in parts_of(cell)})
        for cell in found.cells
    ]
    return pa.array(lists, pa.list_(pa.int64()))


def scores_of(cells: pa.Array) -> pa.Array:
    """Return label cells as scores; null for a cell that is not a finite number."""
    return pa.array([None if cell is None else number_of(cell) for cell in cells.to_pylist()], pa.float32())


def no_labels(num_rows: int, task: str) -> pa.Array:
    """Return the label column of rows without labels."""
    if task == SEVERAL:
        return pa.array([[]] * num_rows, pa.list_(pa.int64()))
    return pa.array([UNLABELLED] * num_rows, pa.float32() if task == SCORE else pa.int64())
