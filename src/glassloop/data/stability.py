"""Find out whether rows are the same each time they are read. Random augmentation makes them differ."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from enum import Enum

import numpy as np

from glassloop.data.formats import arrow_rows
from glassloop.data.interfaces import Collator, Row, Rows

PROBED_ROWS = (4, 32)  # at least and at most; each is read three times, so few rows of a small data set


class Repeats(Enum):
    """What a second reading gives, and what that means for a resumed run."""

    SAME = "the same"
    GLOBAL = "they use the global random generators, so a resumed run repeats them"
    OWN = "they use their own random generator, which is not in a checkpoint, so a resumed run draws different ones"


def repeats(read: Callable[[], object]) -> Repeats:
    """Read three times; return whether the results differ, and which random generator they use.

    The global generators are restored. Using them counts as random, even if this reading shows no difference.
    """
    from glassloop.seeding import random_states_kept  # here: it needs torch, which `glassloop data` does not load

    with random_states_kept():
        before = global_states()
        first = read()
        drew = global_states() != before
        second = read()
    with random_states_kept():
        again = read()  # with the global generators where they were for the first
    if again != first or (second != first and not drew):
        return Repeats.OWN
    return Repeats.GLOBAL if drew else Repeats.SAME


def rows_repeat(rows: Rows) -> Repeats:
    """Return whether a data set gives the same rows each time. Rows in memory or in a file do."""
    if isinstance(rows, list | tuple) or arrow_rows(rows) is not None:
        return Repeats.SAME
    few, many = PROBED_ROWS
    probed = min(max(few, len(rows) // many), many)
    numbers = np.unique(np.linspace(0, len(rows) - 1, probed).astype(int)).tolist()
    return repeats(lambda: [content_of(rows[number]) for number in numbers])


def collator_repeats(collate: Collator, rows: Sequence[Row]) -> Repeats:
    """Return whether a collator makes the same batch of the same rows each time. It gets copies, which it may change."""
    return repeats(lambda: content_of(collate(deepcopy(rows))))


def content_of(row: object) -> str:
    """Return all cells of a row or a batch as text, whatever the types of their arrays."""
    return "".join(f"{key}{text_of(cell)}" for key, cell in cells_of(row))


def cells_of(row: object) -> list[tuple[object, object]]:
    """Return the cells of a row, a batch or an object with attributes, each with its name or place."""
    if isinstance(row, Mapping):
        return [(key, row[key]) for key in sorted(row)]
    if isinstance(row, Iterable):
        return [*enumerate(row)]
    return sorted(vars(row).items()) if hasattr(row, "__dict__") else [(0, row)]


def text_of(cell: object) -> str:
    """Return a cell as text; of an array its numbers."""
    try:
        return str(np.asarray(cell).tolist())
    except ValueError:  # lists of different lengths
        return str(cell)


def global_states() -> tuple[object, ...]:
    """Return the states of the global generators of Python, NumPy and torch on the CPU."""
    import torch

    kind, keys, *rest = np.random.get_state()
    return random.getstate(), kind, np.asarray(keys).tobytes(), *rest, torch.get_rng_state().numpy().tobytes()
