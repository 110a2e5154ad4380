"""Packed batches of a data set: rows read as they lie in their file, packed, and sent to the device ahead of their steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from glassloop.data.batches import Batch, Batches
from glassloop.data.collator import refuse_other_columns
from glassloop.data.row_labels import LABEL_KEYS, labels_among
from glassloop.errors import DataError, SettingsError
from glassloop.speed.packing.layout import FLASH_MULTIPLE, LENGTH_MULTIPLE, Lists, counted, joined, pack

UPLOADED_TOKENS = 16_384  # batches of so many tokens together go to the device in one copy, ahead of their steps
EVALUATED_TOKENS = {"cuda": 16_384, "cpu": 1_024}  # small batches leave a GPU waiting; large ones leave a CPU's cache
LONG_ROW = 512  # so many tokens for each row of the batch size at most, so that a smaller one still saves memory
READ_ROWS = 10_000
TOKEN_KEYS = ("input_ids", "token_type_ids", "attention_mask")


class Column:
    """A column of lists as they lie in the memory-mapped file: rows by number, without copies."""

    def __init__(self, values: list[np.ndarray], offsets: list[np.ndarray]) -> None:
        self.values, self.offsets = values, offsets

    def __getitem__(self, number: int) -> np.ndarray:
        part, row = divmod(int(number), READ_ROWS)
        offsets = self.offsets[part]
        return self.values[part][offsets[row] : offsets[row + 1]]

    def joined(self, numbers: np.ndarray) -> Lists:
        """Some rows, one after the other."""
        if len(self.values) > 1:
            return joined([self[number] for number in numbers])
        starts = self.offsets[0][numbers]
        lengths = self.offsets[0][numbers + 1] - starts
        return self.values[0][np.repeat(starts, lengths) + counted(lengths)], lengths


def read_table(rows: Any) -> dict[str, Any]:
    """The columns of an encoded data set (in arrow format): lists as `Column`, numbers as arrays."""
    parts = [rows[start : start + READ_ROWS] for start in range(0, len(rows), READ_ROWS)]
    found: dict[str, Any] = {}
    for name in parts[0].column_names:
        cells = [part[name].combine_chunks() for part in parts]
        if hasattr(cells[0], "offsets"):
            # Offsets count from the start of the file's own values.
            values = [cell.values.to_numpy(zero_copy_only=False) for cell in cells]
            found[name] = Column(values, [cell.offsets.to_numpy() for cell in cells])
        else:
            found[name] = np.concatenate([cell.to_numpy(zero_copy_only=False) for cell in cells])
    return found


class PackedBatches:
    """The same batches as `Batches`, packed. With a GPU, many at a time are sent to it ahead of their steps."""

    def __init__(
        self, batches: Batches, device: torch.device, first_position: int = 0, vocabulary: torch.Tensor | None = None,
        limits: tuple[int, int] | None = None, *, flash: bool = False,
    ) -> None:  # fmt: skip
        self.padded, self.device, self.first_position = batches, device, first_position
        self.steps = (LENGTH_MULTIPLE, FLASH_MULTIPLE if flash else LENGTH_MULTIPLE) if device.type == "cuda" else None
        self.batch_size, self.order, self.row_hashes = batches.batch_size, batches.order, batches.row_hashes
        self.vocabulary = vocabulary.numpy() if vocabulary is not None else None  # the new number of each token id
        self.limits = limits  # tokens of a row and words that the model has vectors for: kernels do not look
        self.table = read_table(batches.table) if batches.table is not None else None

    def __len__(self) -> int:
        return len(self.padded)

    def epoch(self, epoch: int = 0, skip: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `skip` on."""
        return self.sent(self.order(epoch)[skip:], ordered=True)

    def whole(self, rank: int = 0, num_processes: int = 1) -> Iterator[Batch]:
        """Every `num_processes`-th batch from number `rank` on."""
        plan, lengths = self.order()[rank::num_processes], self.padded.lengths
        if lengths is not None:
            most = min(EVALUATED_TOKENS.get(self.device.type, 1_024), LONG_ROW * self.batch_size)
            plan = regrouped(plan, lengths, most)
        return self.sent(plan, ordered=False)

    def sent(self, plan: list[np.ndarray], *, ordered: bool) -> Iterator[Batch]:
        """The batches on the device, small ones several in one copy."""
        # Rows that are read one by one may draw random numbers: read ahead of a checkpoint, they would be drawn twice.
        most = UPLOADED_TOKENS if self.device.type == "cuda" and self.table is not None else 0
        some: list[Batch] = []
        for place, numbers in enumerate(plan):
            some.append(self.batch(numbers, ordered=ordered))
            if place + 1 < len(plan) and sum(batch.inputs["tokens"] for batch in some) < most:
                continue
            lines = send([batch.inputs["packed"] for batch in some], self.device)
            labels = send([batch.labels for batch in some], self.device) if some[0].labels is not None else [None] * len(some)
            for batch, line, label in zip(some, lines, labels, strict=True):
                yield Batch(batch.inputs | {"packed": line}, label, batch.numbers, batch.size)
            some = []

    def batch(self, numbers: np.ndarray, *, ordered: bool = True) -> Batch:
        """One packed batch in main memory."""
        columns = self.columns(numbers)
        if self.limits is not None:
            refuse_beyond(columns["input_ids"], *self.limits)
        if self.vocabulary is not None and self.table is None:
            refuse_uncounted(columns["input_ids"][0], self.vocabulary)
        types = columns["token_type_ids"][0] if "token_type_ids" in columns else None
        inputs = pack(columns["input_ids"], types, self.first_position, self.steps, self.vocabulary, ordered=ordered)
        return Batch(inputs, labels_among(columns), numbers, len(numbers))  # type: ignore[arg-type]

    def columns(self, numbers: np.ndarray) -> dict[str, Any]:
        """The chosen rows, lists of tokens joined, without what their attention mask takes away at the end."""
        columns: dict[str, Any] = {}
        if self.table is not None:
            for name, column in self.table.items():
                if isinstance(column, Column):
                    columns[name] = [column[row] for row in numbers] if name in LABEL_KEYS else column.joined(numbers)
                else:
                    columns[name] = column[numbers]
        else:
            rows = [self.padded.rows[int(number)] for number in numbers]
            for name in rows[0]:
                cells = [np.asarray(row[name]) for row in rows]
                columns[name] = joined(cells) if name in TOKEN_KEYS else cells
        refuse_other_columns(columns)
        mask, lengths = columns.pop("attention_mask", (np.ones(0), None))
        if not mask.all():
            rows_of, mask = np.repeat(np.arange(len(lengths)), lengths), mask.astype(bool)
            left = np.bincount(rows_of, mask, len(lengths)).astype(np.int32)
            if (mask != (counted(lengths) < left[rows_of])).any():
                raise SettingsError("an attention mask hides tokens within a row, not only behind it", "use backend plain")
            for name in TOKEN_KEYS:
                if name in columns:
                    columns[name] = (columns[name][0][mask], left)
        return columns


def regrouped(plan: list[np.ndarray], lengths: np.ndarray, most: int) -> list[np.ndarray]:
    """The same rows in the same order, in groups of so many tokens at most, or of one row."""
    order = np.concatenate(plan) if plan else np.zeros(0, dtype=np.int64)
    found: list[list[int]] = []
    tokens = most
    for row, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        if tokens + length > most:
            found.append([])
            tokens = 0
        found[-1].append(row)
        tokens += length
    return [np.array(group) for group in found]


def refuse_beyond(rows: Lists, most_tokens: int, num_words: int) -> None:
    """Raise where a row is longer than the model takes, or holds a token it does not know."""
    words, lengths = rows
    if (longest := int(lengths.max())) > most_tokens:
        raise SettingsError(
            f"a row has {longest:,} tokens, the model takes {most_tokens:,}", "encode with a smaller max_length"
        )
    if (largest := int(words.max(initial=0))) >= num_words:
        raise SettingsError(
            f"a row holds the token {largest:,}, the model knows {num_words:,}", "use the model's own tokenizer"
        )


def refuse_uncounted(words: np.ndarray, vocabulary: np.ndarray) -> None:
    """Raise for a token that no row held when their words were counted: it has no vector among those that are trained."""
    if len(unknown := words[vocabulary[words] < 0]):
        problem = f"a row holds the token {unknown[0]:,}, which no row held when it was read before: rows change between reads"
        raise DataError(problem, "give rows that stay the same, or use backend plain")


def send(arrays: list[Any], device: torch.device) -> list[torch.Tensor]:
    """Arrays as tensors on the device, in one copy."""
    if device.type != "cuda":
        return [torch.from_numpy(array) for array in arrays]
    whole = torch.from_numpy(np.concatenate([array.reshape(-1) for array in arrays])).pin_memory().to(device, non_blocking=True)
    parts = torch.split(whole, [array.size for array in arrays])
    return [part.view(array.shape) if array.ndim > 1 else part for part, array in zip(parts, arrays, strict=True)]
