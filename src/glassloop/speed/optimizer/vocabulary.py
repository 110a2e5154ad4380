"""Train only the word vectors that the data uses: the others get no gradient, so they never change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from glassloop.data.formats import arrow_rows
from glassloop.data.interfaces import Rows
from glassloop.data.row_reader import RowReader
from glassloop.errors import SettingsError
from glassloop.transformers_types import Model

MAX_USED_SHARE = 0.9  # if more of the word vectors are used, a smaller table saves nothing
READ_ROWS = 10_000


class ReducedVocabulary:
    """The used rows of the full table of word vectors, in their order, and the new id of each token."""

    def __init__(self, used: np.ndarray, size: int, device: torch.device) -> None:
        self.used = torch.from_numpy(used).to(device)
        new_ids = np.full(size, -1, dtype=np.int32)
        new_ids[used] = np.arange(len(used), dtype=np.int32)
        self.new_ids = torch.from_numpy(new_ids)

    def select(self, full: torch.Tensor) -> torch.Tensor:
        """Return the used rows of a full table."""
        return full.index_select(0, self.used.to(full.device))

    def expand(self, small: torch.Tensor) -> torch.Tensor:
        """Return a full table with the used rows, and zeros elsewhere: unused rows have no gradient and no moments."""
        table = small.new_zeros(len(self.new_ids), *small.shape[1:])
        return table.index_copy_(0, self.used, small)

    def write_back(self, small: torch.Tensor, full: torch.Tensor) -> None:
        """Copy the trained rows into the full table."""
        full.index_copy_(0, self.used, small)


def choose_vocabulary(model: Model, used: np.ndarray, weight_decay: float) -> ReducedVocabulary | None:
    """Return a smaller table of word vectors; None if weight decay changes every row or if most rows are used."""
    embedding = model.get_input_embeddings()
    if weight_decay > 0 or len(used) > MAX_USED_SHARE * embedding.num_embeddings:
        return None
    return ReducedVocabulary(used, embedding.num_embeddings, embedding.weight.device)


def used_ids(data_sets: Iterable[Rows], size: int, padding: int) -> np.ndarray:
    """Return the token ids that occur in encoded data sets, in order, and always the padding token.

    Raises:
        SettingsError: A row has a token id that the model has no vector for.
    """
    seen = np.zeros(size, dtype=bool)
    seen[padding] = True
    for ids in (ids for rows in data_sets for ids in token_ids(rows)):
        if len(ids) and not 0 <= (wrong := int(ids.min() if ids.min() < 0 else ids.max())) < size:
            problem = f"a row has the token id {wrong:,}, but the vocabulary of the model has only {size:,} tokens"
            raise SettingsError(problem, "use the model's own tokenizer")
        seen[ids] = True
    return np.flatnonzero(seen)


def token_ids(rows: Rows) -> Iterator[np.ndarray]:
    """Yield the token ids of a data set: of many rows at a time if it is an Arrow file, else of one row."""
    if isinstance(rows, RowReader) and not rows.in_memory:
        rows.survey()
        yield np.array(sorted(rows.words), dtype=np.int64)
        return
    stored = arrow_rows(rows)
    if stored is None:
        yield from (np.asarray(rows[number]["input_ids"]) for number in range(len(rows)))
        return
    for start in range(0, len(rows), READ_ROWS):
        yield stored[start : start + READ_ROWS]["input_ids"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
