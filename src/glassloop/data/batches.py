"""How rows form batches: the order of an epoch, padding or stacking to tensors, and the share of each process."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from glassloop.base.errors import ModelError, SettingsError, listed
from glassloop.base.records import described
from glassloop.data import rows as reading
from glassloop.data.interfaces import CellColumns, Collator, Row, Rows
from glassloop.data.rows import LABEL_KEYS, Repeats, RowReader, arrow_rows, labels_among, numbers_of, random_states_kept

if TYPE_CHECKING:
    from torch import Tensor

    from glassloop.data.interfaces import Tokenizer
    from glassloop.data.rows import TableRows

POOL_BATCHES = 50  # length grouping sorts this many batches' worth of shuffled rows at a time
HASHED_ROWS = 1000


# --- the order of an epoch -----------------------------------------------------------------------------------------
def epoch_order(
    num_examples: int,
    batch_size: int,
    *,
    seed: int | None,
    epoch: int = 0,
    lengths: np.ndarray | None = None,
    drop_last: bool = False,
) -> list[np.ndarray]:
    """Return which rows form which batch of an epoch. The same arguments always give the same order.

    Args:
        num_examples: Number of rows of the data set.
        batch_size: Number of rows of a batch, over all processes.
        seed: Random seed of the order. None keeps the order of the data.
        epoch: Number of the epoch, from 0. Each epoch has its own order.
        lengths: Number of tokens of each row. With it, rows of similar length share a batch: shuffled rows are sorted by length
            within pools of 50 batches, then whole batches are shuffled. A short batch stays the last one.
        drop_last: Whether to drop a last batch that is not full.

    Returns:
        One array of row numbers for each batch.

    Raises:
        SettingsError: If `batch_size` is less than 1.
    """
    if batch_size < 1:
        raise SettingsError(f"the batch size is {batch_size}", "use a whole number of 1 or more")
    # default_rng((seed, epoch)): no two pairs share an order, as they would with seed + epoch, and the line can be
    # copied into any script.
    random = None if seed is None else np.random.default_rng((seed, epoch))
    order = np.arange(num_examples) if random is None else random.permutation(num_examples)
    if lengths is not None:
        pool = batch_size * POOL_BATCHES if random is not None else max(num_examples, 1)
        pools = [order[start : start + pool] for start in range(0, num_examples, pool)]
        order = np.concatenate([rows[np.argsort(-lengths[rows], kind="stable")] for rows in pools] or [order])
    batches = [order[start : start + batch_size] for start in range(0, num_examples, batch_size)]
    short = [batches.pop()] if num_examples % batch_size else []
    if lengths is not None and random is not None:
        batches = [batches[place] for place in random.permutation(len(batches))]
    return batches if drop_last else batches + short


def padding_waste(lengths: np.ndarray, order: Sequence[np.ndarray], multiple: int = 1) -> float:
    """Return the share of tokens that are padding, between 0 and 1.

    Args:
        lengths: Number of tokens of each row.
        order: The rows of each batch, as `epoch_order` returns them.
        multiple: Batches are padded to a multiple of this number.

    Returns:
        Padding tokens divided by all tokens of the padded batches; 0 for no batches.
    """
    padded = sum(len(rows) * padded_width(int(lengths[rows].max()), multiple) for rows in order)
    real = sum(int(lengths[rows].sum()) for rows in order)
    return 1 - real / padded if padded else 0.0


def padded_width(longest: int, multiple: int) -> int:
    return -(-longest // multiple) * multiple


def seed_all(seed: int) -> None:
    """Seed the random number generators of Python, NumPy and torch (all devices).

    Args:
        seed: The random seed.
    """
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


# --- from rows to tensors ------------------------------------------------------------------------------------------
class PaddingCollator:
    """Pads rows to the longest of them, or up to the next multiple, and returns tensors.

    Gives the same batches as transformers' `DataCollatorWithPadding`.

    Args:
        tokenizer: Says which id pads, and on which side.
        pad_to_multiple_of: Pad to a multiple of this number. None pads to the longest row.
        least: Pad to at least this many tokens.

    Attributes:
        fills: The number that pads each column.
        on_left: Whether rows are padded on the left.
        multiple: Rows are padded to a multiple of this number.
        least: Rows are padded to at least this many tokens.

    Raises:
        ModelError: If the tokenizer has no padding token.
    """

    def __init__(self, tokenizer: Tokenizer, pad_to_multiple_of: int | None = None, least: int = 0) -> None:
        if tokenizer.pad_token_id is None:
            raise ModelError("the tokenizer has no padding token", "set one: tokenizer.pad_token = tokenizer.eos_token")
        self.fills = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id, "attention_mask": 0}
        self.on_left = tokenizer.padding_side == "left"
        self.multiple, self.least = pad_to_multiple_of or 1, least

    def __call__(self, rows: Sequence[Row] | CellColumns) -> dict[str, Tensor]:
        """Return the padded batch.

        Args:
            rows: A list of rows, or a dict with a list of cells for each column.

        Returns:
            input_ids, attention_mask, and token_type_ids, labels and other columns of numbers if the rows have them.

        Raises:
            SettingsError: If the rows have a column that a batch cannot contain, such as texts.
            DataError: If the labels are not numbers, or two label columns differ.
        """
        import torch

        columns = rows if isinstance(rows, Mapping) else {key: [row[key] for row in rows] for key in rows[0]}
        others = [key for key in columns if key not in (*self.fills, *LABEL_KEYS)]
        refuse_other_columns(key for key in others if has_no_number(columns[key][0]))
        ids = columns["input_ids"]
        width = padded_width(max(self.least, *(len(row) for row in ids)), self.multiple)
        columns = {"attention_mask": [np.ones(len(row), dtype=np.int64) for row in ids], **columns}
        batch = {key: self.pad(columns[key], width, fill) for key, fill in self.fills.items() if key in columns}
        if (labels := labels_among(columns)) is not None:
            batch["labels"] = torch.from_numpy(labels)
        for key in others:
            refuse_lengths(key, {np.shape(cell) for cell in columns[key]})
            batch[key] = torch.tensor([np.asarray(cell).tolist() for cell in columns[key]])
        return batch

    def pad(self, cells: Sequence[Sequence[int]] | np.ndarray, width: int, fill: int) -> Tensor:
        """Return the `cells` of one column as a tensor that is `width` wide, padded with `fill`."""
        import torch

        padded = np.full((len(cells), width), fill, dtype=np.int64)
        for place, row in enumerate(cells):
            padded[place, slice(width - len(row), None) if self.on_left else slice(len(row))] = row
        return torch.from_numpy(padded)


def stacked(rows: Sequence[Row] | CellColumns) -> dict[str, Tensor]:
    """Return a batch of rows of the same length without their texts, as transformers' `default_data_collator` does."""
    import torch

    if not isinstance(rows, Mapping):
        rows = [row if isinstance(row, Mapping) else vars(row) for row in rows]
        rows = {name: [row[name] for row in rows] for name in rows[0]}
    batch = {}
    for name, cells in rows.items():
        if name in LABEL_KEYS or has_no_number(cells[0]):
            continue
        refuse_lengths(name, {np.shape(cell) for cell in cells})
        whole = isinstance(cells[0], np.ndarray | np.integer) and cells[0].dtype.kind in "iu"  # a file has small integers
        made = np.stack(list(cells)).astype(np.int64) if whole else torch.stack([torch.as_tensor(cell) for cell in cells])
        batch[name] = torch.as_tensor(made)
    if (labels := labels_among(rows)) is not None:
        batch["labels"] = torch.from_numpy(labels)
    return batch


def stacks_rows(collate: object) -> bool:
    """Return whether a collator is `stacked`, or the one of transformers that gives the same batches."""
    name = getattr(collate, "__name__", type(collate).__name__)
    is_same = name in ("default_data_collator", "DefaultDataCollator", "torch_default_data_collator")
    from_transformers = getattr(collate, "__module__", "").startswith("transformers.")
    return collate is stacked or (from_transformers and is_same and getattr(collate, "return_tensors", "pt") == "pt")


def is_standard(collate: object) -> bool:
    """Return whether a collator only pads or stacks rows, so that a batch consists of what the rows contain."""
    return isinstance(collate, PaddingCollator) or stacks_rows(collate)


def collator_of(collate: Collator | None, tokenizer: Tokenizer | None, multiple: int | None) -> Collator:
    """Return the user's collator, or one of Glassloop if there is none or if it would give the same batches."""
    if stacks_rows(collate):
        return stacked
    if collate is not None and type(collate).__name__ != "DataCollatorWithPadding":
        return collate
    tokenizer = getattr(collate, "tokenizer", None) or tokenizer
    if tokenizer is None:
        raise SettingsError("Trainer needs a tokenizer to pad batches", "pass processing_class=tokenizer or data_collator=")
    padding, least = getattr(collate, "padding", True), getattr(collate, "max_length", None)
    if padding == "max_length" and least is not None:
        return PaddingCollator(tokenizer, collate.pad_to_multiple_of, least)  # type: ignore[union-attr]  # of transformers
    if padding not in (True, "longest"):
        return collate  # type: ignore[return-value]  # without a collator, padding is True
    return PaddingCollator(tokenizer, getattr(collate, "pad_to_multiple_of", None) or multiple)


def has_no_number(cell: object) -> bool:
    """Return whether a cell is a text or missing, and so no part of a batch."""
    return cell is None or isinstance(cell, str)


def refuse_lengths(name: str, shapes: set[tuple[int, ...]]) -> None:
    if len(shapes) > 1:
        problem = f"the rows have different lengths of {name}, and nothing pads them"
        raise SettingsError(problem, "pass processing_class=tokenizer, which pads tokens, or data_collator=")


def refuse_other_columns(columns: Iterable[str]) -> None:
    known = ("input_ids", "token_type_ids", "attention_mask", *LABEL_KEYS)
    if others := [key for key in columns if key not in known]:
        problem = f"a batch cannot contain {listed(others)}"
        raise SettingsError(problem, "remove these columns first: dataset.remove_columns([…])")


# --- batches -------------------------------------------------------------------------------------------------------
@described
@dataclass(frozen=True)
class Batch:
    """The rows of one forward pass."""

    inputs: dict[str, Tensor] = field(
        metadata={"help": "This process's share of the rows, as tensors by the names under which a model takes them."}
    )
    labels: Tensor | None = field(metadata={"help": "The labels of that share; None if the rows have none."})
    numbers: np.ndarray = field(metadata={"help": "Which rows of the data set the share holds."})
    size: int = field(metadata={"help": "Number of rows over all processes."})
    padded: Callable[[], Batch] | None = field(
        default=None,
        metadata={"help": "Returns the same rows padded, if this batch is packed and code of a user calls the model."},
    )


class Batches:
    """The batches of encoded rows, epoch by epoch; with several processes, this one's share of each.

    Args:
        rows: What `encode` returned, a `datasets.Dataset`, a list of dicts, or another object with `len()` and `[number]`.
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
        self.rows, self.collate, self.batch_size, self.seed = rows, collate, batch_size, seed
        self.table = table = arrow_rows(rows) if is_standard(collate) else None
        if table is not None:  # only if each cell is a number or a list of numbers
            types = zip(table.column_names, table.data.schema.types, strict=True)
            lists = (hasattr(kind, "value_type") and kind.num_fields == 1 for name, kind in types if name not in LABEL_KEYS)
            self.table = table if all(lists) else None
        self.lengths = None
        if group_by_length and isinstance(rows, RowReader):
            self.lengths = rows.lengths(seed)
        elif group_by_length:
            with random_states_kept(seed=seed or 0):  # random rows: the same lengths, and so the same order, after a resume
                self.lengths = reading.lengths_of(rows)
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
        rows = self.read(chosen) if self.table is None else arrow_columns(self.table, chosen)
        inputs = dict(self.collate(rows))  # type: ignore[arg-type]  # a standard collator takes columns
        return Batch(inputs, inputs.pop("labels", None), mine, len(numbers))

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
        return Repeats.SAME if self.table is not None else reading.repeats_of(self.rows)

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
        return np.array([reading.hash_of(row) for group in groups for row in group], dtype=np.int64)

    def known_row_hashes(self) -> np.ndarray | None:
        """Return `row_hashes` with zeros for rows that were not read yet, if a pass over all may be slow; None if it is not."""
        rows = self.rows
        if not isinstance(rows, RowReader) or rows.in_memory or self.num_processes > 1 or self.repeats is not Repeats.SAME:
            return None
        return rows.known_hashes()


def arrow_columns(table: TableRows, numbers: np.ndarray) -> dict[str, np.ndarray | Sequence[np.ndarray]]:
    """Return the cells of the chosen rows of a table in Arrow format by column, straight from the memory-mapped file."""
    chosen = table[numbers.tolist()]
    columns: dict[str, np.ndarray | Sequence[np.ndarray]] = {}
    for name in chosen.column_names:
        cells = chosen[name].combine_chunks()
        if name in LABEL_KEYS and not hasattr(cells, "offsets"):
            columns[name] = numbers_of(cells)
        else:
            values, offsets = numbers_of(cells.values), numbers_of(cells.offsets)
            columns[name] = [values[start:stop] for start, stop in pairwise(offsets)]
    return columns
