"""Which examples go into which batch, a pure function of seed, epoch and data; and how a batch is padded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from glassloop.data.encoding import lengths_of
from glassloop.data.formats import arrow_rows
from glassloop.data.stability import Repeats, content_of, rows_repeat
from glassloop.errors import DataError, ModelError, SettingsError, listed, visible

if TYPE_CHECKING:
    from datasets import Dataset
    from torch import Tensor

HASHED_ROWS = 1000
POOL_BATCHES = 50  # length grouping sorts this many batches' worth of shuffled rows at a time
LABEL_KEYS = ("labels", "label", "label_ids")
KIND_REMEDY = "give whole numbers, or set problem_type"


@dataclass(frozen=True)
class Batch:
    """The rows of one forward pass: this process's share, which examples they are, and how many all processes hold."""

    inputs: dict[str, Tensor]
    labels: Tensor | None
    numbers: np.ndarray
    size: int


def plan_epoch(
    num_examples: int,
    batch_size: int,
    *,
    seed: int | None,
    epoch: int = 0,
    lengths: np.ndarray | None = None,
    drop_last: bool = False,
) -> list[np.ndarray]:
    """The batches of an epoch as arrays of example numbers, the same whenever it is asked.

    `seed` None: in the order of the data. With `lengths`, rows of like length share a batch: the shuffled rows are sorted
    by length within pools of 50 batches, then whole batches are shuffled; a short batch stays the last one.
    """
    if batch_size < 1:
        raise SettingsError(f"the batch size is {batch_size}", "use a whole number of 1 or more")
    order = np.arange(num_examples)
    random = None if seed is None else np.random.default_rng((seed, epoch))
    if random is not None:
        order = random.permutation(num_examples)
    if lengths is not None:
        pool = batch_size * POOL_BATCHES if random is not None else max(num_examples, 1)
        pools = [order[start : start + pool] for start in range(0, num_examples, pool)]
        order = np.concatenate([rows[np.argsort(-lengths[rows], kind="stable")] for rows in pools] or [order])
    batches = [order[start : start + batch_size] for start in range(0, num_examples, batch_size)]
    short = [batches.pop()] if num_examples % batch_size else []
    if lengths is not None and random is not None:
        batches = [batches[place] for place in random.permutation(len(batches))]
    return batches if drop_last else batches + short


def padding_waste(lengths: np.ndarray, plan: Sequence[np.ndarray], multiple: int = 1) -> float:
    """The share of a plan's padded tokens that are padding, between 0 and 1."""
    padded = sum(len(rows) * padded_width(int(lengths[rows].max()), multiple) for rows in plan)
    real = sum(int(lengths[rows].sum()) for rows in plan)
    return 1 - real / padded if padded else 0.0


def padded_width(longest: int, multiple: int) -> int:
    return -(-longest // multiple) * multiple


class PaddingCollator:
    """Rows to tensors, padded to the longest of them and no further (or up to the next multiple).

    Gives what transformers' `DataCollatorWithPadding` gives, and like it takes a list of dicts or a dict of lists.
    """

    def __init__(self, tokenizer: Any, pad_to_multiple_of: int | None = None) -> None:
        if tokenizer.pad_token_id is None:
            raise ModelError("the tokenizer has no padding token", "set one: tokenizer.pad_token = tokenizer.eos_token")
        self.fills = {
            "input_ids": tokenizer.pad_token_id,
            "token_type_ids": tokenizer.pad_token_type_id,
            "attention_mask": 0,
        }
        self.on_left = tokenizer.padding_side == "left"
        self.multiple = pad_to_multiple_of or 1

    def __call__(self, rows: Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Any]]) -> dict[str, Tensor]:
        """The padded batch: input_ids, token_type_ids where there are any, attention_mask, labels where there are any."""
        import torch

        columns = rows if isinstance(rows, Mapping) else {key: [row[key] for row in rows] for key in rows[0]}
        refuse_strange(columns)
        ids = columns["input_ids"]
        width = padded_width(max(len(row) for row in ids), self.multiple)
        columns = {"attention_mask": [np.ones(len(row), dtype=np.int64) for row in ids], **columns}
        batch = {key: self.pad(columns[key], width, fill) for key, fill in self.fills.items() if key in columns}
        if (labels := labels_among(columns)) is not None:
            batch["labels"] = torch.from_numpy(labels)
        return batch

    def pad(self, rows: Sequence[Any], width: int, fill: int) -> Tensor:
        import torch

        padded = np.full((len(rows), width), fill, dtype=np.int64)
        for place, row in enumerate(rows):
            if self.on_left:
                padded[place, width - len(row) :] = row
            else:
                padded[place, : len(row)] = row
        return torch.from_numpy(padded)


def collator_of(given: Any, tokenizer: Any, multiple: int | None) -> Callable[[Any], Any]:
    """Return the user's collator; ours where none is given or where it is known to give the same."""
    if given is not None and type(given).__name__ != "DataCollatorWithPadding":
        return given  # type: ignore[no-any-return]
    tokenizer = getattr(given, "tokenizer", None) or tokenizer
    if tokenizer is None:
        raise SettingsError("Trainer needs a tokenizer to pad batches", "give processing_class=tokenizer or data_collator=")
    if given is not None and getattr(given, "padding", True) not in (True, "longest"):
        return given  # type: ignore[no-any-return]
    return PaddingCollator(tokenizer, getattr(given, "pad_to_multiple_of", None) or multiple)


def labels_among(columns: Mapping[str, Any]) -> np.ndarray | None:
    """Return the labels of some rows as a loss takes them, None where there are none; raise where two columns differ."""
    found = {key: np.asarray(columns[key]) for key in LABEL_KEYS if key in columns}
    if not found:
        return None
    (first, labels), *others = found.items()
    for key, other in others:
        if not np.array_equal(labels, other):
            row = int(np.argmax([not np.array_equal(*pair) for pair in zip(labels, other, strict=True)]))
            values = f"{labels[row]} and {other[row]}"
            problem = f"{visible(first)} and {visible(key)} hold different values ({values})"
            raise DataError(problem, "remove the column that is not the label")
    if labels.dtype.kind not in "fiub":
        raise DataError(f"the labels are of the kind {labels.dtype}, not numbers", KIND_REMEDY)
    return labels.astype(np.float32 if labels.dtype.kind == "f" else np.int64)


def refuse_strange(columns: Iterable[str]) -> None:
    """Raise where rows hold what a batch cannot."""
    known = ("input_ids", "token_type_ids", "attention_mask", *LABEL_KEYS)
    if strange := [key for key in columns if key not in known]:
        raise SettingsError(f"a batch cannot hold {listed(strange)}", "remove these columns first: dataset.remove_columns([…])")


class Batches:
    """The batches of an encoded `Dataset`, epoch by epoch; with several processes, this one's share of each."""

    def __init__(
        self,
        rows: Dataset | Sequence[Mapping[str, Any]],
        collate: Callable[[Any], dict[str, Tensor]],
        batch_size: int,
        *,
        seed: int | None = None,
        group_by_length: bool = False,
        drop_last: bool = False,
        rank: int = 0,
        num_processes: int = 1,
    ) -> None:
        table = arrow_rows(rows) if isinstance(collate, PaddingCollator) else None
        self.in_arrow = table is not None
        self.rows = rows if table is None else table
        self.collate, self.batch_size, self.seed = collate, batch_size, seed
        self.lengths = None
        if group_by_length:
            from glassloop.seeding import random_states_kept  # here: it needs torch, which `glassloop data` does not load

            with random_states_kept(seed=seed or 0):  # random rows: the same lengths, and so the same order, after a resume
                self.lengths = lengths_of(rows)
        self.drop_last, self.rank, self.num_processes = drop_last, rank, num_processes

    def plan(self, epoch: int = 0) -> list[np.ndarray]:
        """Which examples each batch of an epoch holds, over all processes."""
        return plan_epoch(
            len(self.rows),
            self.batch_size,
            seed=self.seed,
            epoch=epoch,
            lengths=self.lengths,
            drop_last=self.drop_last,
        )

    def __len__(self) -> int:
        whole, rest = divmod(len(self.rows), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def epoch(self, epoch: int = 0, skip: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `skip` on: resuming is skipping part of a list."""
        for numbers in self.plan(epoch)[skip:]:
            yield self.batch(numbers[self.rank :: self.num_processes], numbers)

    def whole(self, rank: int = 0, num_processes: int = 1) -> Iterator[Batch]:
        """Every `num_processes`-th batch from number `rank` on, whole: how processes share a pass that trains nothing."""
        for numbers in self.plan()[rank::num_processes]:
            yield self.batch(numbers, numbers)

    def batch(self, mine: np.ndarray, numbers: np.ndarray) -> Batch:
        """The batch of `numbers`, as far as it is `mine`; an empty share holds one row that counts for nothing."""
        chosen = mine if len(mine) else numbers[:1]
        rows = self.columns(chosen) if self.in_arrow else self.read(chosen)
        inputs = dict(self.collate(rows))
        labels = inputs.pop("labels", None)
        return Batch(inputs, labels, mine, len(numbers))

    def read(self, numbers: np.ndarray) -> list[Mapping[str, Any]]:
        """The chosen rows, each on its own."""
        if not self.in_arrow:
            return [self.rows[int(number)] for number in numbers]
        columns = self.columns(numbers)
        return [{key: cells[place] for key, cells in columns.items()} for place in range(len(numbers))]

    @cached_property
    def repeats(self) -> Repeats:
        """Whether rows are the same each time they are read; found out once, by reading a few of them."""
        return Repeats.SAME if self.in_arrow else rows_repeat(self.rows)

    def row_hashes(self) -> np.ndarray:
        """Eight bytes for each row as the model gets it, in the order of the data: tells whether, and where, data changed.

        All zero where rows differ between reads: they are not read, because that would draw random numbers.
        """
        if self.repeats is not Repeats.SAME:
            return np.zeros(len(self.rows), dtype=np.int64)
        digests = []
        for start in range(0, len(self.rows), HASHED_ROWS):
            numbers = np.arange(start, min(start + HASHED_ROWS, len(self.rows)))
            columns = self.columns(numbers) if self.in_arrow else None
            for place, number in enumerate(numbers):
                row = {key: cells[place] for key, cells in columns.items()} if columns else self.rows[int(number)]
                digests.append(blake2b(content_of(row).encode(), digest_size=8).digest())
        return np.frombuffer(b"".join(digests), dtype=np.int64).copy()

    def columns(self, numbers: np.ndarray) -> dict[str, Any]:
        """The chosen rows as arrays, straight from the memory-mapped file."""
        table = self.rows[numbers.tolist()]
        columns: dict[str, Any] = {}
        for name in table.column_names:
            cells = table[name].combine_chunks()
            if name in LABEL_KEYS and not hasattr(cells, "offsets"):
                columns[name] = cells.to_numpy(zero_copy_only=False)
            else:
                values, offsets = cells.values.to_numpy(zero_copy_only=False), cells.offsets.to_numpy()
                columns[name] = [values[start:stop] for start, stop in pairwise(offsets)]
        return columns
