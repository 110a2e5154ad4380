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

UPLOADED_TOKENS = 16_384  # batches of so many tokens together go to the device in one copy, ahead of their steps
READ_ROWS = 10_000
STEPS_OF_GRID = 8  # products of attention are a third slower on widths that are no multiple of this
LINES = 6  # numbers kept of each token
STEPS_OF_LENGTH = 32  # on a GPU, shapes are rounded up to multiples of this: few shapes, few graphs
STEPS_OF_FLASH = 128  # flash kernels take tokens in blocks of this many: a finer length would save nothing
TOKEN_KEYS = ("input_ids", "token_type_ids", "attention_mask")
Lists = tuple[np.ndarray, np.ndarray]  # the values of some lists, one after the other, and their lengths


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

    def joined(self, numbers: np.ndarray) -> Lists:
        """Some rows, one after the other."""
        if len(self.values) > 1:
            return joined([self[number] for number in numbers])
        starts = self.offsets[0][numbers]
        lengths = self.offsets[0][numbers + 1] - starts
        return self.values[0][np.repeat(starts, lengths) + counted(lengths)], lengths


def joined(rows: list[np.ndarray]) -> Lists:
    return np.concatenate(rows), np.array([len(row) for row in rows], dtype=np.int32)


def counted(lengths: np.ndarray) -> np.ndarray:
    """0, 1, 2 … within each of some lists."""
    stops: np.ndarray = np.cumsum(lengths, dtype=np.int32)
    found: np.ndarray = np.arange(stops[-1], dtype=np.int32) - np.repeat(stops - lengths, lengths)
    return found


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
    ids: Lists, types: np.ndarray | None, first_position: int, steps: tuple[int, int] | None = None,
    vocabulary: np.ndarray | None = None, *, ordered: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """The inputs of a packed batch: one line of numbers, and its measures.

    `steps`: for a GPU, what the number of tokens and the longest length are rounded up to. `vocabulary`: the new number of each
    token id. `ordered`: with the orders that only gradients on a GPU need.
    """
    words, lengths = ids
    rows, total, filled = len(lengths), len(words), steps is not None
    multiple, grid = steps or (1, STEPS_OF_GRID)
    tokens, longest = rounded(total, multiple), rounded(int(lengths.max()), grid)
    sequences = rows + filled
    numbers = np.zeros(LINES * tokens + 2 * (sequences + 1) + rows, dtype=np.int32)
    starts = np.cumsum(lengths, dtype=np.int32) - lengths
    inside = counted(lengths)
    numbers[:total] = words if vocabulary is None else vocabulary[words]
    numbers[tokens : tokens + total] = inside + first_position
    if types is not None:
        numbers[2 * tokens : 2 * tokens + total] = types
    places = numbers[3 * tokens : 4 * tokens]
    places[:total] = np.repeat(np.arange(rows, dtype=np.int32) * longest, lengths) + inside
    if tokens > total:
        spare = np.arange(tokens - total, dtype=np.int32)
        numbers[tokens + total : 2 * tokens] = spare + first_position
        places[total:] = rows * longest + spare
    if filled and ordered:
        numbers[4 * tokens : 5 * tokens] = np.argsort(numbers[:tokens], kind="stable")
        numbers[5 * tokens : 6 * tokens] = np.argsort(numbers[tokens : 2 * tokens], kind="stable")
    bounds = numbers[LINES * tokens :]
    bounds[:rows] = starts
    bounds[rows] = total
    if filled:
        bounds[rows + 1] = tokens
    bounds[sequences + 1 : sequences + 1 + rows] = starts
    bounds[sequences + 1 + rows :] = np.minimum(np.arange(sequences + 1), rows)
    return {"packed": numbers, "tokens": tokens, "rows": rows, "longest": longest, "filled": filled}


class PackedBatches:
    """The same batches as `Batches`, packed. With a GPU, many at a time are sent to it ahead of their steps."""

    def __init__(
        self, batches: Batches, device: torch.device, first_position: int = 0, vocabulary: torch.Tensor | None = None,
        limits: tuple[int, int] | None = None, *, flash: bool = False,
    ) -> None:  # fmt: skip
        self.padded, self.device, self.first_position = batches, device, first_position
        self.steps = (STEPS_OF_LENGTH, STEPS_OF_FLASH if flash else STEPS_OF_LENGTH) if device.type == "cuda" else None
        self.batch_size, self.plan, self.row_hashes = batches.batch_size, batches.plan, batches.row_hashes
        self.vocabulary = vocabulary.numpy() if vocabulary is not None else None  # the new number of each token id
        self.limits = limits  # tokens of a row and words that the model has vectors for: kernels do not look
        self.table = read_table(batches.rows) if batches.in_arrow else None

    def __len__(self) -> int:
        return len(self.padded)

    def epoch(self, epoch: int = 0, skip: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `skip` on."""
        return self.sent(self.plan(epoch)[skip:], ordered=True)

    def whole(self, rank: int = 0, num_processes: int = 1) -> Iterator[Batch]:
        """Every `num_processes`-th batch from number `rank` on."""
        return self.sent(self.plan()[rank::num_processes], ordered=False)

    def sent(self, plan: list[np.ndarray], *, ordered: bool) -> Iterator[Batch]:
        """The batches on the device, small ones several in one copy."""
        most = UPLOADED_TOKENS if self.device.type == "cuda" else 0
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
        types = columns["token_type_ids"][0] if "token_type_ids" in columns else None
        inputs = pack(columns["input_ids"], types, self.first_position, self.steps, self.vocabulary, ordered=ordered)
        label = next((columns[key] for key in LABEL_KEYS if key in columns), None)
        labels = None
        if label is not None:
            found = np.asarray(label)
            labels = found.astype(np.float32 if found.dtype.kind == "f" else np.int64)
        return Batch(inputs, labels, numbers, len(numbers))  # type: ignore[arg-type]

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
        refuse_strange(columns)
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


def send(arrays: list[Any], device: torch.device) -> list[torch.Tensor]:
    """Arrays as tensors on the device, in one copy."""
    if device.type != "cuda":
        return [torch.from_numpy(array) for array in arrays]
    whole = torch.from_numpy(np.concatenate([array.reshape(-1) for array in arrays])).pin_memory().to(device, non_blocking=True)
    stops = np.cumsum([array.size for array in arrays])
    return [whole[stop - array.size : stop].view(array.shape) for array, stop in zip(arrays, stops.tolist(), strict=True)]
