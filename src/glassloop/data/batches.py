"""The batches of a data set: rows in the order of an epoch, collated, this process's share of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from glassloop.data.collator import is_standard
from glassloop.data.encoding import lengths_of
from glassloop.data.interfaces import Collator, Row, Rows
from glassloop.data.order import epoch_order, random_states_kept
from glassloop.data.rows import LABEL_KEYS, Repeats, RowReader, arrow_rows, hash_of, repeats_of

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor

HASHED_ROWS = 1000


@dataclass(frozen=True)
class Batch:
    """The rows of one forward pass.

    Attributes:
        inputs: This process's share of the rows, as tensors by the names under which a model takes them.
        labels: The labels of that share; None if the rows have none.
        numbers: Which rows of the data set the share holds.
        size: Number of rows over all processes.
    """

    inputs: dict[str, Tensor]
    labels: Tensor | None
    numbers: np.ndarray
    size: int


class Batches:
    """The batches of encoded rows, epoch by epoch; with several processes, this one's share of each.

    Args:
        rows: A `datasets.Dataset`, a list of dicts, or another object with `len()` and `[number]`.
        collate: Makes a batch of rows, for example a `PaddingCollator`.
        batch_size: Number of rows of a batch, over all processes.
        seed: Random seed of the order. None keeps the order of the rows.
        group_by_length: Whether rows of similar length share a batch.
        drop_last: Whether to drop a last batch that is not full.
        rank: The number of this process, from 0.
        num_processes: Number of processes that share each batch.

    Attributes:
        lengths: Number of tokens of each row; None unless rows are grouped by length.
        table: The rows in Arrow format; None if they are read one by one.
    """

    def __init__(
        self,
        rows: Rows,
        collate: Collator,
        batch_size: int,
        *,
        seed: int | None = None,
        group_by_length: bool = False,
        drop_last: bool = False,
        rank: int = 0,
        num_processes: int = 1,
    ) -> None:
        self.table = table_for(rows, collate)
        self.rows = rows
        self.collate, self.batch_size, self.seed = collate, batch_size, seed
        self.lengths = None
        if group_by_length and isinstance(rows, RowReader):
            self.lengths = rows.lengths(seed)
        elif group_by_length:
            with random_states_kept(seed=seed or 0):  # random rows: the same lengths, and so the same order, after a resume
                self.lengths = lengths_of(rows)
        self.drop_last, self.rank, self.num_processes = drop_last, rank, num_processes

    def order(self, epoch: int = 0) -> list[np.ndarray]:
        """Return which rows form which batch of the epoch with the number `epoch`, over all processes."""
        return epoch_order(
            len(self.rows), self.batch_size, seed=self.seed, epoch=epoch, lengths=self.lengths, drop_last=self.drop_last
        )

    def __len__(self) -> int:
        whole, rest = divmod(len(self.rows), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def epoch(self, epoch: int = 0, skip: int = 0) -> Iterator[Batch]:
        """Yield the batches of the epoch `epoch`, without the first `skip`: resuming skips part of a list."""
        # Collated in this process, 0.2 ms per batch from memory-mapped rows: worker processes would only add
        # failure modes.
        for numbers in self.order(epoch)[skip:]:
            yield self.batch(numbers[self.rank :: self.num_processes], numbers)

    def whole(self, rank: int = 0, num_processes: int = 1) -> Iterator[Batch]:
        """Yield every `num_processes`-th batch from number `rank` on, whole: how processes share an evaluation."""
        # Whole batches here, so that every logit is the same with any number of processes. Training batches are
        # shared by rows (numbers[rank::n]), which keeps the rows of each step.
        for numbers in self.order()[rank::num_processes]:
            yield self.batch(numbers, numbers)

    def batch(self, mine: np.ndarray, numbers: np.ndarray) -> Batch:
        """Return this process's share `mine` of the batch `numbers`; an empty share holds one row that contributes nothing."""
        chosen = mine if len(mine) else numbers[:1]
        if self.table is not None:
            inputs = dict(self.collate(arrow_columns(self.table, chosen)))  # type: ignore[arg-type]  # a standard collator
        else:
            inputs = dict(self.collate(self.read(chosen)))
        labels = inputs.pop("labels", None)
        return Batch(inputs, labels, mine, len(numbers))

    def first_labels(self) -> Tensor | None:
        """Return the labels of a batch that holds the first row only; None if rows have none."""
        if isinstance(self.rows, RowReader):
            return dict(self.collate([copy(self.rows.first)])).get("labels")  # a collator may change the rows it gets
        first = np.zeros(1, dtype=np.int64)
        return self.batch(first, first).labels

    def read(self, numbers: np.ndarray) -> list[Row]:
        """Return the rows with these `numbers` one by one."""
        if self.table is None:
            return [self.rows[int(number)] for number in numbers]
        columns = arrow_columns(self.table, numbers)
        return [{key: cells[place] for key, cells in columns.items()} for place in range(len(numbers))]

    @cached_property
    def repeats(self) -> Repeats:
        """Whether rows are the same each time they are read; a few rows are read once to find out."""
        return Repeats.SAME if self.table is not None else repeats_of(self.rows)

    def row_hashes(self) -> np.ndarray:
        """Return eight bytes for each row as the model gets it, in the order of the data, to see whether and where it changed.

        All are zero if rows differ between reads: reading them would draw random numbers.
        """
        if self.repeats is not Repeats.SAME:
            return np.zeros(len(self.rows), dtype=np.int64)
        if isinstance(self.rows, RowReader):
            return self.rows.row_hashes()
        starts = range(0, len(self.rows), HASHED_ROWS)
        groups = (self.read(np.arange(start, min(start + HASHED_ROWS, len(self.rows)))) for start in starts)
        return np.array([hash_of(row) for group in groups for row in group], dtype=np.int64)

    def known_row_hashes(self) -> np.ndarray | None:
        """Return `row_hashes` with zeros for rows that were not read yet, if a pass over all may be slow; None if it is not."""
        rows = self.rows
        if not isinstance(rows, RowReader) or rows.in_memory or self.num_processes > 1 or self.repeats is not Repeats.SAME:
            return None
        return rows.known_hashes()


def table_for(rows: Rows, collate: Collator) -> Dataset | None:
    """Return rows in Arrow format if a collator only pads or stacks them, and each cell is a number or a list of numbers."""
    table = arrow_rows(rows) if is_standard(collate) else None
    if table is None:
        return None
    types = dict(zip(table.column_names, table.data.schema.types, strict=True))
    lists = all(hasattr(kind, "value_type") and kind.num_fields == 1 for name, kind in types.items() if name not in LABEL_KEYS)
    return table if lists else None


def arrow_columns(table: Dataset, numbers: np.ndarray) -> dict[str, np.ndarray | Sequence[np.ndarray]]:
    """Return the cells of the chosen rows of a `Dataset` in Arrow format by column, straight from the memory-mapped file."""
    chosen = table[numbers.tolist()]
    columns: dict[str, np.ndarray | Sequence[np.ndarray]] = {}
    for name in chosen.column_names:
        cells = chosen[name].combine_chunks()
        if name in LABEL_KEYS and not hasattr(cells, "offsets"):
            columns[name] = cells.to_numpy(zero_copy_only=False)
        else:
            values, offsets = cells.values.to_numpy(zero_copy_only=False), cells.offsets.to_numpy()
            columns[name] = [values[start:stop] for start, stop in pairwise(offsets)]
    return columns
