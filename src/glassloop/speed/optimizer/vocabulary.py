"""A smaller table of word vectors: rows that no text uses get no gradient and never change, so they need not be trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from glassloop.data.formats import arrow_rows
from glassloop.errors import SettingsError
from glassloop.models.interfaces import Model

MAX_USED_SHARE = 0.9  # above this share of used rows there is nothing to gain


class ReducedVocabulary:
    """Which rows of the full table are used, in their order, and the new number of each."""

    def __init__(self, used: np.ndarray, size: int, device: torch.device) -> None:
        self.used = torch.from_numpy(used).to(device)
        numbers = np.full(size, -1, dtype=np.int32)
        numbers[used] = np.arange(len(used), dtype=np.int32)
        self.numbers = torch.from_numpy(numbers)

    def small(self, full: torch.Tensor) -> torch.Tensor:
        """The used rows."""
        return full.index_select(0, self.used.to(full.device))

    def full(self, small: torch.Tensor) -> torch.Tensor:
        """The used rows in a full table of zeros: what an optimizer's moments of unused rows are."""
        table = small.new_zeros(len(self.numbers), *small.shape[1:])
        return table.index_copy_(0, self.used, small)

    def write_back(self, small: torch.Tensor, full: torch.Tensor) -> None:
        """Put the trained rows into the full table."""
        full.index_copy_(0, self.used, small)


def choose_vocabulary(model: Model, used: np.ndarray, weight_decay: float) -> ReducedVocabulary | None:
    """Return a smaller table of word vectors, or None where weight decay changes every row or most rows are used."""
    embedding = model.get_input_embeddings()
    if weight_decay > 0 or len(used) > MAX_USED_SHARE * embedding.num_embeddings:
        return None
    return ReducedVocabulary(used, embedding.num_embeddings, embedding.weight.device)


def used_ids(data_sets: Iterable[Any], size: int, padding: int) -> np.ndarray:
    """Return the token ids that occur in encoded data sets, in order; the padding token always.

    Raises `SettingsError` for an id that the model has no vector for.
    """
    seen = np.zeros(size, dtype=bool)
    seen[padding] = True
    for ids in (ids for rows in data_sets for ids in parts_of(rows)):
        if len(ids) and not 0 <= (wrong := int(ids.min() if ids.min() < 0 else ids.max())) < size:
            problem = f"a row holds the token {wrong:,}, the model knows {size:,}"
            raise SettingsError(problem, "use the model's own tokenizer")
        seen[ids] = True
    return np.flatnonzero(seen)


def parts_of(rows: Any) -> Iterator[np.ndarray]:
    """Yield the token ids of a data set, of many rows at a time where it lies in a file, else of one."""
    column = arrow_rows(rows)
    if column is None:
        yield from (np.asarray(rows[number]["input_ids"]) for number in range(len(rows)))
        return
    for start in range(0, len(rows), 10_000):
        yield column[start : start + 10_000]["input_ids"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
