"""Packed batches of a data set: rows are read from the Arrow file, packed, and uploaded ahead of their steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from glassloop.data.batches import Batch, Batches
from glassloop.data.collator import refuse_other_columns
from glassloop.data.interfaces import Row
from glassloop.data.row_labels import LABEL_KEYS, labels_among
from glassloop.data.row_reader import hides_inside
from glassloop.data.stacking import has_no_number, refuse_lengths, stacks_rows
from glassloop.errors import DataError, SettingsError
from glassloop.speed.packing.layout import (
    FLASH_MULTIPLE,
    LENGTH_MULTIPLE,
    PackedInputs,
    Ragged,
    join_rows,
    pack,
    positions_within,
)
from glassloop.speed.packing.packable import READ_ROWS, TOKEN_KEYS, HiddenInsideError

if TYPE_CHECKING:
    from datasets import Dataset

UPLOAD_TOKENS = 16_384  # batches are uploaded together until they hold this many tokens
EVALUATION_TOKENS = {"cuda": 16_384, "cpu": 1_024}  # small batches leave a GPU idle; large ones do not fit a CPU's cache
TOKENS_PER_ROW = 512  # an evaluation batch holds at most this times the batch size, so a smaller one saves memory


class ListColumn:
    """A column of lists in a memory-mapped file: rows are read by number, without copies."""

    def __init__(self, values: list[np.ndarray], offsets: list[np.ndarray]) -> None:
        self.values, self.offsets = values, offsets

    def __getitem__(self, number: int) -> np.ndarray:
        part, row = divmod(int(number), READ_ROWS)
        offsets = self.offsets[part]
        return self.values[part][offsets[row] : offsets[row + 1]]

    def join(self, numbers: np.ndarray) -> Ragged:
        """Return the chosen rows one after the other."""
        if len(self.values) > 1:
            return join_rows([self[number] for number in numbers])
        starts = self.offsets[0][numbers]
        lengths = self.offsets[0][numbers + 1] - starts
        return self.values[0][np.repeat(starts, lengths) + positions_within(lengths)], lengths

    def hides_inside(self) -> bool:
        """Return whether this is an attention mask that hides tokens inside a row, not only at its end."""
        return any(hides_inside((values[offsets[0] : offsets[-1]], np.diff(offsets))) for values, offsets in self.parts())

    def sums(self) -> np.ndarray:
        """Return the sum of each row, none of which is empty."""
        return np.concatenate([np.add.reduceat(values, offsets[:-1], dtype=np.int64) for values, offsets in self.parts()])

    def parts(self) -> Iterator[Ragged]:
        """Yield the values of some rows, and where each of these rows starts and ends."""
        for values, offsets in zip(self.values, self.offsets, strict=True):
            yield values[: offsets[-1]], offsets


def read_columns(rows: Dataset) -> dict[str, ListColumn | np.ndarray]:
    """Return the columns of an encoded data set in Arrow format: lists as `ListColumn`, numbers as arrays."""
    parts = [rows[start : start + READ_ROWS] for start in range(0, len(rows), READ_ROWS)]
    columns: dict[str, ListColumn | np.ndarray] = {}
    for name in parts[0].column_names:
        cells = [part[name].combine_chunks() for part in parts]
        if hasattr(cells[0], "offsets"):
            # Offsets count from the start of the file's own values.
            values = [cell.values.to_numpy(zero_copy_only=False) for cell in cells]
            columns[name] = ListColumn(values, [cell.offsets.to_numpy() for cell in cells])
        else:
            columns[name] = np.concatenate([cell.to_numpy(zero_copy_only=False) for cell in cells])
    return columns


@dataclass(frozen=True)
class HostBatch:
    """A packed batch in main memory."""

    inputs: PackedInputs
    labels: np.ndarray | None
    numbers: np.ndarray


class PackedBatches:
    """The batches of `Batches`, packed. Several at a time are uploaded to a GPU ahead of their steps.

    Args:
        batches: The padded batches, which decide the order of the rows.
        device: Where the packed batches go.
        uncounted: The token id that positions start after and skip; None if they start at 0.
        vocabulary: The new id of each token id, if only some word vectors are trained.
        limits: The most tokens of a row, and the number of word vectors. Kernels do not check them.
        flash: Whether flash attention will run, whose lengths are rounded up further.
    """

    def __init__(
        self, batches: Batches, device: torch.device, uncounted: int | None = None, vocabulary: torch.Tensor | None = None,
        limits: tuple[int, int] | None = None, *, flash: bool = False,
    ) -> None:  # fmt: skip
        self.padded, self.device, self.uncounted = batches, device, uncounted
        self.multiples = (LENGTH_MULTIPLE, FLASH_MULTIPLE if flash else LENGTH_MULTIPLE) if device.type == "cuda" else None
        self.batch_size, self.order, self.row_hashes = batches.batch_size, batches.order, batches.row_hashes
        self.vocabulary = vocabulary.numpy() if vocabulary is not None else None
        self.limits, self.stacks = limits, stacks_rows(batches.collate)
        self.stored = read_columns(batches.table) if batches.table is not None else None

    def __len__(self) -> int:
        return len(self.padded)

    def epoch(self, epoch: int = 0, skip: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, without the first `skip`."""
        return self.upload(self.order(epoch)[skip:], ordered=True)

    def whole(self, rank: int = 0, num_processes: int = 1) -> Iterator[Batch]:
        """Yield this process's batches of a pass over all rows; rows of known lengths are grouped by number of tokens.

        A batch whose attention mask hides tokens inside a row is yielded padded.
        """
        order, lengths = self.order()[rank::num_processes], self.padded.lengths
        mask = self.stored.get("attention_mask") if self.stored is not None else None
        if isinstance(mask, ListColumn):
            if mask.hides_inside():
                yield from self.padded.whole(rank, num_processes)
                return
            lengths = mask.sums()
            order = [np.argsort(-lengths, kind="stable")[rank::num_processes]]
        if lengths is not None:
            most = min(EVALUATION_TOKENS.get(self.device.type, 1_024), TOKENS_PER_ROW * self.batch_size)
            order = regroup(order, lengths, most)
        if self.stored is not None:
            yield from self.upload(order, ordered=False)
            return
        for numbers in order:
            try:
                yield from self.upload([numbers], ordered=False)
            except HiddenInsideError:
                yield self.padded.batch(numbers, numbers)

    def upload(self, order: list[np.ndarray], *, ordered: bool) -> Iterator[Batch]:
        """Yield the batches on the device; several small ones are uploaded in one copy."""
        # Rows that are not stored may draw random numbers when read. Reading ahead of a checkpoint would draw them twice.
        most = UPLOAD_TOKENS if self.device.type == "cuda" and self.stored is not None else 0
        pending: list[HostBatch] = []
        for index, numbers in enumerate(order):
            pending.append(self.batch(numbers, ordered=ordered))
            if index + 1 < len(order) and sum(batch.inputs["tokens"] for batch in pending) < most:
                continue
            packed = to_device([batch.inputs["packed"] for batch in pending], self.device)
            given = [batch.labels for batch in pending if batch.labels is not None]
            labels: list[torch.Tensor] | list[None] = to_device(given, self.device) if given else [None] * len(pending)
            for batch, line, label in zip(pending, packed, labels, strict=True):
                inputs = {**batch.inputs, "packed": line}
                yield Batch(inputs, label, batch.numbers, len(batch.numbers))  # type: ignore[arg-type]
            pending = []

    def batch(self, numbers: np.ndarray, *, ordered: bool = True) -> HostBatch:
        """Return one packed batch in main memory."""
        tokens, others = self.columns(numbers)
        ids = tokens["input_ids"]
        if self.limits is not None:
            check_limits(ids, *self.limits)
        if self.vocabulary is not None and self.stored is None:
            check_known_tokens(ids[0], self.vocabulary)
        types = tokens["token_type_ids"][0] if "token_type_ids" in tokens else None
        inputs = pack(ids, types, self.uncounted, self.multiples, self.vocabulary, ordered=ordered)
        return HostBatch(inputs, labels_among(others), numbers)

    def columns(self, numbers: np.ndarray) -> tuple[dict[str, Ragged], dict[str, np.ndarray | list[np.ndarray]]]:
        """Return the chosen rows: columns of tokens without hidden ones at the end of a row, and the other columns."""
        tokens: dict[str, Ragged] = {}
        others: dict[str, np.ndarray | list[np.ndarray]] = {}
        if self.stored is not None:
            for name, column in self.stored.items():
                if not isinstance(column, ListColumn):
                    others[name] = column[numbers]
                elif name in LABEL_KEYS:
                    others[name] = [column[row] for row in numbers]
                else:
                    tokens[name] = column.join(numbers)
        else:
            rows = [self.padded.rows[int(number)] for number in numbers]
            dropped = [name for name, cell in rows[0].items() if has_no_number(cell)] if self.stacks else []
            for name in [name for name in rows[0] if name not in dropped or name in LABEL_KEYS]:
                cells = [np.asarray(row[name]) for row in rows]
                if name in TOKEN_KEYS:
                    tokens[name] = join_rows(cells)
                else:
                    others[name] = cells
        refuse_other_columns([*tokens, *others])
        if self.stacks:
            refuse_lengths("input_ids", {(int(length),) for length in tokens["input_ids"][1]})
        return without_hidden(tokens), others


def packed_rows(rows: Sequence[Row], uncounted: int | None, limits: tuple[int, int]) -> PackedInputs:
    """Return tokenized rows as one packed batch for a CPU. Raise if the model does not accept them.

    Args:
        rows: The rows.
        uncounted: The token id that positions start after and skip; None if they start at 0.
        limits: The most tokens of a row, and the number of word vectors.
    """
    refuse_other_columns([*rows[0]])
    tokens = without_hidden({name: join_rows([np.asarray(row[name]) for row in rows]) for name in rows[0]})
    check_limits(tokens["input_ids"], *limits)
    types = tokens["token_type_ids"][0] if "token_type_ids" in tokens else None
    return pack(tokens["input_ids"], types, uncounted, ordered=False)


def without_hidden(tokens: dict[str, Ragged]) -> dict[str, Ragged]:
    """Remove the attention mask and the tokens that it hides at the end of rows."""
    if "attention_mask" not in tokens:
        return tokens
    mask, lengths = tokens.pop("attention_mask")
    if mask.all():
        return tokens
    row_of_token = np.repeat(np.arange(len(lengths)), lengths)
    visible = np.bincount(row_of_token, mask, len(lengths)).astype(np.int32)
    if hides_inside((mask, lengths)):
        raise HiddenInsideError
    return {name: (values[mask.astype(bool)], visible) for name, (values, _) in tokens.items()}


def regroup(order: list[np.ndarray], lengths: np.ndarray, most: int) -> list[np.ndarray]:
    """Return the same rows in the same order, in groups of at most `most` tokens or of one row."""
    rows = np.concatenate(order) if order else np.zeros(0, dtype=np.int64)
    groups: list[list[int]] = []
    tokens = most
    for row, length in zip(rows.tolist(), lengths[rows].tolist(), strict=True):
        if tokens + length > most:
            groups.append([])
            tokens = 0
        groups[-1].append(row)
        tokens += length
    return [np.array(group) for group in groups]


def check_limits(rows: Ragged, most_tokens: int, num_words: int) -> None:
    """Raise if a row is longer than the model accepts or has a token that the model does not know."""
    words, lengths = rows
    if (longest := int(lengths.max())) > most_tokens:
        problem = f"a row has {longest:,} tokens, but the model accepts at most {most_tokens:,}"
        raise SettingsError(problem, "encode with a smaller max_length")
    if (largest := int(words.max(initial=0))) >= num_words:
        problem = f"a row has the token id {largest:,}, but the vocabulary of the model has only {num_words:,} tokens"
        raise SettingsError(problem, "use the model's own tokenizer")


def check_known_tokens(words: np.ndarray, vocabulary: np.ndarray) -> None:
    """Raise if a row has a token that no row had when the vocabulary was counted, so that it has no trained vector."""
    if len(unknown := words[vocabulary[words] < 0]):
        problem = f"rows change between reads: token id {unknown[0]:,} did not occur when they were read before"
        raise DataError(problem, "pass rows that do not change, or use backend plain")


def to_device(arrays: list[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Return arrays as tensors on the device, uploaded in one copy."""
    if device.type != "cuda":
        return [torch.from_numpy(array) for array in arrays]
    joined = torch.from_numpy(np.concatenate([array.reshape(-1) for array in arrays])).pin_memory()
    parts = torch.split(joined.to(device, non_blocking=True), [array.size for array in arrays])
    return [part.view(array.shape) if array.ndim > 1 else part for part, array in zip(parts, arrays, strict=True)]
