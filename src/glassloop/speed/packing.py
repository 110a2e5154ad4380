"""Packed batches: the real tokens of all rows one after the other, in one line of numbers, and no padding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from glassloop.data.batches import LABEL_KEYS, Batch, Batches, refuse_strange
from glassloop.errors import SettingsError

UPLOADED_BATCHES = 32  # so many batches go to the device in one copy, ahead of their steps
READ_ROWS = 10_000
STEPS_OF_GRID = 8  # products of attention are a third slower on widths that are no multiple of this
LINES = 6  # numbers kept of each token
STEPS_OF_LENGTH = 32  # on a GPU, shapes are rounded up to multiples of this: few shapes, few graphs


@dataclass(frozen=True)
class Packing:
    """A packed batch on its device. `rows` sequences of at most `longest` tokens; with `filled`, a dummy sequence at the end.

    `numbers` holds, one after the other: token ids, positions, token types, places in a padded grid, the tokens sorted by id
    and by position (each `tokens` long), the sequences' bounds, their first tokens, and the bounds of these.
    """

    numbers: torch.Tensor
    tokens: int
    rows: int
    longest: int
    filled: bool

    def line(self, place: int) -> torch.Tensor:
        return self.numbers[place * self.tokens : (place + 1) * self.tokens]

    @property
    def ids(self) -> torch.Tensor:
        return self.line(0)

    @property
    def positions(self) -> torch.Tensor:
        return self.line(1)

    @property
    def types(self) -> torch.Tensor:
        return self.line(2)

    @property
    def places(self) -> torch.Tensor:
        """Where each token lies in a grid of `sequences` times `longest`."""
        return self.line(3)

    @property
    def by_id(self) -> torch.Tensor:
        """The tokens in the order of their ids: the gradients of one word vector lie together."""
        return self.line(4)

    @property
    def by_position(self) -> torch.Tensor:
        return self.line(5)

    @property
    def bounds(self) -> torch.Tensor:
        """Where each sequence starts, and the end of the last: what attention over packed tokens asks for."""
        start = LINES * self.tokens
        return self.numbers[start : start + self.sequences + 1]

    @property
    def firsts(self) -> torch.Tensor:
        """The first token of each row."""
        start = LINES * self.tokens + self.sequences + 1
        return self.numbers[start : start + self.rows]

    @property
    def first_bounds(self) -> torch.Tensor:
        """The bounds of the first tokens alone, each a sequence of one; the dummy sequence has none."""
        start = LINES * self.tokens + self.sequences + 1 + self.rows
        return self.numbers[start : start + self.sequences + 1]

    @property
    def sequences(self) -> int:
        return self.rows + self.filled

    @cached_property
    def sources(self) -> torch.Tensor:
        """The token that lies in each place of the grid; where there is none, the first of all: any number does there."""
        places = torch.arange(self.longest, dtype=torch.int32, device=self.numbers.device)
        return ((self.bounds[:-1, None] + places) * self.present.view(self.sequences, -1).int()).view(-1)

    @cached_property
    def present(self) -> torch.Tensor:
        """1 where there is a token in the grid, and 0 where there is none."""
        lengths = self.bounds[1:] - self.bounds[:-1]
        return (torch.arange(self.longest, device=lengths.device) < lengths[:, None]).float().view(-1, 1)

    @cached_property
    def padding(self) -> torch.Tensor:
        """What is added to attention scores: 0 where there is a token, and minus infinity (nearly) where there is none."""
        lengths = self.bounds[1:] - self.bounds[:-1]
        absent = torch.arange(self.longest, device=lengths.device) >= lengths[:, None].clamp(min=1)
        return torch.zeros(absent.shape, device=lengths.device).masked_fill_(absent, torch.finfo(torch.float32).min)


class Column:
    """A column of lists as they lie in the memory-mapped file: rows by number, without copies."""

    def __init__(self, values: list[np.ndarray], offsets: list[np.ndarray]) -> None:
        self.values, self.offsets = values, offsets

    def __getitem__(self, number: int) -> np.ndarray:
        part, row = divmod(int(number), READ_ROWS)
        offsets = self.offsets[part]
        return self.values[part][offsets[row] : offsets[row + 1]]


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


def rounded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def pack(
    rows: list[np.ndarray],
    types: list[np.ndarray] | None,
    first_position: int,
    multiple: int = 1,
    vocabulary: np.ndarray | None = None,
) -> dict[str, Any]:
    """The inputs of a packed batch: one line of numbers, and its measures. `vocabulary`: the new number of each token id."""
    lengths = np.array([len(row) for row in rows], dtype=np.int32)
    total = int(lengths.sum())
    tokens, longest = rounded(total, multiple), rounded(int(lengths.max()), max(multiple, STEPS_OF_GRID))
    filled = multiple > 1
    sequences = len(rows) + filled
    numbers = np.zeros(LINES * tokens + 2 * (sequences + 1) + len(rows), dtype=np.int32)
    starts = np.cumsum(lengths, dtype=np.int32) - lengths
    inside = np.arange(total, dtype=np.int32) - np.repeat(starts, lengths)
    ids = np.concatenate(rows)
    numbers[:total] = ids if vocabulary is None else vocabulary[ids]
    numbers[tokens : tokens + total] = inside + first_position
    if types is not None:
        np.concatenate(types, out=numbers[2 * tokens : 2 * tokens + total], casting="same_kind")
    places = numbers[3 * tokens : 4 * tokens]
    places[:total] = np.repeat(np.arange(len(rows), dtype=np.int32) * longest, lengths) + inside
    if tokens > total:
        spare = np.arange(tokens - total, dtype=np.int32)
        numbers[tokens + total : 2 * tokens] = spare + first_position
        places[total:] = len(rows) * longest + spare
    if filled:  # only a GPU needs these
        numbers[4 * tokens : 5 * tokens] = np.argsort(numbers[:tokens], kind="stable")
        numbers[5 * tokens : 6 * tokens] = np.argsort(numbers[tokens : 2 * tokens], kind="stable")
    bounds = numbers[LINES * tokens :]
    bounds[: len(rows)] = starts
    bounds[len(rows)] = total
    if filled:
        bounds[len(rows) + 1] = tokens
    bounds[sequences + 1 : sequences + 1 + len(rows)] = starts
    bounds[sequences + 1 + len(rows) :] = np.minimum(np.arange(sequences + 1), len(rows))
    return {"packed": numbers, "tokens": tokens, "rows": len(rows), "longest": longest, "filled": filled}


class PackedBatches:
    """The same batches as `Batches`, packed. With a GPU, many at a time are sent to it ahead of their steps."""

    def __init__(
        self, batches: Batches, device: torch.device, first_position: int = 0, vocabulary: torch.Tensor | None = None,
        limits: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        self.padded, self.device, self.first_position = batches, device, first_position
        self.multiple = STEPS_OF_LENGTH if device.type == "cuda" else 1
        self.batch_size, self.plan, self.row_hashes = batches.batch_size, batches.plan, batches.row_hashes
        self.vocabulary = vocabulary.numpy() if vocabulary is not None else None  # the new number of each token id
        self.limits = limits  # tokens of a row and words that the model has vectors for: kernels do not look
        self.table = read_table(batches.rows) if batches.in_arrow else None

    def __len__(self) -> int:
        return len(self.padded)

    def epoch(self, epoch: int = 0, skip: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `skip` on."""
        return self.sent(self.plan(epoch)[skip:])

    def whole(self, rank: int = 0, num_processes: int = 1) -> Iterator[Batch]:
        """Every `num_processes`-th batch from number `rank` on."""
        return self.sent(self.plan()[rank::num_processes])

    def sent(self, plan: list[np.ndarray]) -> Iterator[Batch]:
        """The batches on the device, several in one copy."""
        several = UPLOADED_BATCHES if self.device.type == "cuda" else 1
        for start in range(0, len(plan), several):
            some = [self.batch(numbers) for numbers in plan[start : start + several]]
            lines = send([batch.inputs["packed"] for batch in some], self.device)
            labels = send([batch.labels for batch in some], self.device) if some[0].labels is not None else [None] * len(some)
            for batch, line, label in zip(some, lines, labels, strict=True):
                yield Batch(batch.inputs | {"packed": line}, label, batch.numbers, batch.size)

    def batch(self, numbers: np.ndarray) -> Batch:
        """One packed batch in main memory."""
        columns = self.columns(numbers)
        if self.limits is not None:
            refuse_beyond(columns["input_ids"], *self.limits)
        inputs = pack(columns["input_ids"], columns.get("token_type_ids"), self.first_position, self.multiple, self.vocabulary)
        label = next((columns[key] for key in LABEL_KEYS if key in columns), None)
        labels = None
        if label is not None:
            found = np.asarray(label)
            labels = found.astype(np.float32 if found.dtype.kind == "f" else np.int64)
        return Batch(inputs, labels, numbers, len(numbers))  # type: ignore[arg-type]

    def columns(self, numbers: np.ndarray) -> dict[str, Any]:
        """The chosen rows, without what their attention mask takes away at the end."""
        if self.table is not None:
            columns = {name: [column[number] for number in numbers] for name, column in self.table.items()}
        else:
            rows = [self.padded.rows[int(number)] for number in numbers]
            columns = {key: [np.asarray(row[key]) for row in rows] for key in rows[0]}
        refuse_strange(columns)
        masks = columns.pop("attention_mask", None)
        if masks is not None and not all(mask.all() for mask in masks):
            lengths = [int(mask.sum()) for mask in masks]
            if not all(mask[:length].all() for mask, length in zip(masks, lengths, strict=True)):
                raise SettingsError("an attention mask hides tokens within a row, not only behind it", "use backend plain")
            for name in ("input_ids", "token_type_ids"):
                if name in columns:
                    columns[name] = [row[:length] for row, length in zip(columns[name], lengths, strict=True)]
        return columns


def refuse_beyond(rows: list[np.ndarray], most_tokens: int, num_words: int) -> None:
    """Raise where a row is longer than the model takes, or holds a token it does not know."""
    if (longest := max(map(len, rows))) > most_tokens:
        raise SettingsError(
            f"a row has {longest:,} tokens, the model takes {most_tokens:,}", "encode with a smaller max_length"
        )
    if (largest := max(int(row.max(initial=0)) for row in rows)) >= num_words:
        raise SettingsError(
            f"a row holds the token {largest:,}, the model knows {num_words:,}", "use the model's own tokenizer"
        )


def send(arrays: list[Any], device: torch.device) -> list[torch.Tensor]:
    """Arrays as tensors on the device, in one copy."""
    if device.type != "cuda":
        return [torch.from_numpy(array) for array in arrays]
    whole = torch.from_numpy(np.concatenate([array.reshape(-1) for array in arrays])).pin_memory().to(device, non_blocking=True)
    stops = np.cumsum([array.size for array in arrays])
    return [whole[stop - array.size : stop].view(array.shape) for array, stop in zip(arrays, stops.tolist(), strict=True)]
