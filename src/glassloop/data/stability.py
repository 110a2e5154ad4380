"""Whether rows are the same each time they are read: augmentation that draws random numbers makes them differ."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from enum import Enum
from typing import Any

import numpy as np

from glassloop.data.formats import arrow_rows

PROBED_ROWS = 32


class Repeats(Enum):
    """What a second reading gives, and what that means for a run that is resumed."""

    SAME = "the same"
    GLOBAL = "they draw from the global generators, so a resumed run repeats them"
    OWN = "they draw from a generator of their own, which no checkpoint holds, so a resumed run draws others"


def repeats(read: Callable[[], object]) -> Repeats:
    """Read three times and find out whether the results differ, and whose random numbers they draw.

    The global generators are afterwards where they were. Drawing from them counts, even if this reading shows no difference.
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


def rows_repeat(rows: Any) -> Repeats:
    """Find out whether a data set gives the same rows each time; those in memory or in a file do."""
    if isinstance(rows, list | tuple) or arrow_rows(rows) is not None:
        return Repeats.SAME
    numbers = np.unique(np.linspace(0, len(rows) - 1, PROBED_ROWS).astype(int)).tolist()
    return repeats(lambda: [content_of(rows[number]) for number in numbers])


def collator_repeats(collate: Callable[[Any], Mapping[str, Any]], rows: Sequence[Any]) -> Repeats:
    """Find out whether a collator makes the same batch of the same rows each time; it may change the rows it gets."""
    return repeats(lambda: content_of(collate(deepcopy(rows))))


def content_of(row: Any) -> str:
    """Return everything a row or a batch holds as text, whatever its arrays and tensors are called."""
    cells = row if isinstance(row, Mapping) else dict(enumerate(row))
    return "".join(f"{key}{np.asarray(cells[key]).tolist()}" for key in sorted(cells))


def global_states() -> tuple[object, ...]:
    """Return the states of the global generators of Python, NumPy and torch on the CPU."""
    import torch

    kind, keys, *rest = np.random.get_state()
    return random.getstate(), kind, np.asarray(keys).tobytes(), *rest, torch.get_rng_state().numpy().tobytes()
