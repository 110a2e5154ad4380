"""How a packed batch is laid out: the real tokens of all rows one after the other in one line of numbers, without padding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypedDict, cast

import numpy as np
import torch

NUMBERS_PER_TOKEN = 6  # id, position, token type, slot in the padded grid, order by id, order by position
GRID_MULTIPLE = 8  # attention is a third slower on widths that are not a multiple of this
LENGTH_MULTIPLE = 32  # on a GPU, shapes are rounded up to multiples of this, so that few graphs are captured
FLASH_MULTIPLE = 128  # flash attention processes tokens in blocks of this size, so a finer length would save nothing
Ragged = tuple[np.ndarray, np.ndarray]  # the values of rows of different lengths, joined, and the lengths


class PackedInputs(TypedDict):
    """The inputs of a model for one packed batch; the fields of `Packing` in plain numbers."""

    packed: np.ndarray
    tokens: int
    rows: int
    longest: int
    has_filler: bool


@dataclass(frozen=True)
class Grid:
    """Sequences padded to the longest of them; their slots follow each other from `start` on."""

    start: int
    sequences: int
    longest: int
    additive_mask: torch.Tensor  # like that of `Packing`, for these sequences

    @property
    def slots(self) -> slice:
        return slice(self.start, self.start + self.sequences * self.longest)


@dataclass(frozen=True)
class Grids:
    """All sequences of a batch in one or two padded grids, and the way from tokens to slots and back.

    A slot without a token refers to token 0: its value is never used.
    """

    parts: list[Grid]
    token_of_slot: torch.Tensor
    has_token: torch.Tensor
    slot_of_token: torch.Tensor


@dataclass(frozen=True)
class Packing:
    """A packed batch on its device: `rows` sequences of at most `longest` tokens.

    On a GPU the number of tokens is rounded up, and a filler sequence at the end holds the surplus (`has_filler`).
    `numbers` holds, one after the other: token ids, positions, token types, slots in the padded grid, the tokens sorted by
    id and by position (each `tokens` long), the bounds of the sequences, their first tokens, and the bounds of these.
    """

    numbers: torch.Tensor
    tokens: int
    rows: int
    longest: int
    has_filler: bool

    @classmethod
    def from_inputs(cls, packed: torch.Tensor, inputs: Mapping[str, object]) -> Packing:
        """Return the packing that the inputs of a model describe: those of `PackedInputs`, with `packed` on the device."""
        measures = cast(PackedInputs, inputs)
        return cls(packed, measures["tokens"], measures["rows"], measures["longest"], measures["has_filler"])

    def section(self, index: int) -> torch.Tensor:
        """Return one of the sections of `numbers` that hold a number for each token."""
        return self.numbers[index * self.tokens : (index + 1) * self.tokens]

    @property
    def ids(self) -> torch.Tensor:
        return self.section(0)

    @property
    def positions(self) -> torch.Tensor:
        return self.section(1)

    @property
    def types(self) -> torch.Tensor:
        return self.section(2)

    @property
    def slot_of_token(self) -> torch.Tensor:
        """Return the slot of each token in a grid of `sequences` times `longest`."""
        return self.section(3)

    @property
    def sorted_by_id(self) -> torch.Tensor:
        """Return the tokens sorted by id, so that the gradients of one word vector are adjacent."""
        return self.section(4)

    @property
    def sorted_by_position(self) -> torch.Tensor:
        """Return the tokens sorted by position."""
        return self.section(5)

    @property
    def bounds(self) -> torch.Tensor:
        """Return the start of each sequence and the end of the last, as flash attention expects them."""
        start = NUMBERS_PER_TOKEN * self.tokens
        return self.numbers[start : start + self.sequences + 1]

    @property
    def first_tokens(self) -> torch.Tensor:
        """Return the first token of each row."""
        start = NUMBERS_PER_TOKEN * self.tokens + self.sequences + 1
        return self.numbers[start : start + self.rows]

    @property
    def first_token_bounds(self) -> torch.Tensor:
        """Return the bounds of sequences that hold only the first tokens; the filler sequence is empty."""
        start = NUMBERS_PER_TOKEN * self.tokens + self.sequences + 1 + self.rows
        return self.numbers[start : start + self.sequences + 1]

    @property
    def sequences(self) -> int:
        return self.rows + self.has_filler

    @cached_property
    def token_of_slot(self) -> torch.Tensor:
        """Return the token in each slot of the grid; token 0 where a slot has none, because its value is never used."""
        offsets = torch.arange(self.longest, dtype=torch.int32, device=self.numbers.device)
        return ((self.bounds[:-1, None] + offsets) * self.has_token.view(self.sequences, -1).int()).view(-1)

    @cached_property
    def has_token(self) -> torch.Tensor:
        """Return 1 for each slot of the grid that holds a token, else 0."""
        lengths = self.bounds[1:] - self.bounds[:-1]
        return (torch.arange(self.longest, device=lengths.device) < lengths[:, None]).float().view(-1, 1)

    @cached_property
    def additive_mask(self) -> torch.Tensor:
        """Return what is added to attention scores: 0 for tokens, the lowest fp32 number for padding."""
        lengths = self.bounds[1:] - self.bounds[:-1]
        absent = torch.arange(self.longest, device=lengths.device) >= lengths[:, None].clamp(min=1)
        return torch.zeros(absent.shape, device=lengths.device).masked_fill_(absent, torch.finfo(torch.float32).min)

    @cached_property
    def grids(self) -> Grids:
        """Return one grid, or one for long and one for short sequences if that saves a tenth of the attention (CPU)."""
        one = Grids(
            [Grid(0, self.sequences, self.longest, self.additive_mask)],
            self.token_of_slot,
            self.has_token,
            self.slot_of_token,
        )
        if self.sequences < 2:
            return one
        lengths = np.diff(self.bounds.numpy())
        order, cuts = np.argsort(-lengths, kind="stable"), np.arange(1, self.sequences)
        widths = -(-np.maximum(lengths[order], 1) // GRID_MULTIPLE) * GRID_MULTIPLE
        costs = cuts * self.longest**2 + (self.sequences - cuts) * widths[1:] ** 2
        cut = int(costs.argmin()) + 1
        if costs[cut - 1] > 0.9 * self.sequences * self.longest**2:
            return one
        counts, longests = (cut, self.sequences - cut), (self.longest, int(widths[cut]))
        starts = np.empty(self.sequences, dtype=np.int64)
        starts[order] = np.cumsum([0, *np.repeat(longests, counts)[:-1]])
        slot_of_token = torch.from_numpy(np.repeat(starts, lengths) + positions_within(lengths))
        border = cut * self.longest
        slots = border + counts[1] * longests[1]
        token_of_slot = torch.zeros(slots, dtype=torch.int32)
        token_of_slot[slot_of_token] = torch.arange(self.tokens, dtype=torch.int32)
        has_token = torch.zeros(slots, 1).index_fill_(0, slot_of_token, 1.0)
        mask = (1.0 - has_token).mul_(torch.finfo(torch.float32).min)
        mask[torch.from_numpy(starts)] = 0.0  # the softmax of an empty sequence needs one slot that is not masked
        parts = [
            Grid(0, counts[0], longests[0], mask[:border].view(counts[0], -1)),
            Grid(border, counts[1], longests[1], mask[border:].view(counts[1], -1)),
        ]
        return Grids(parts, token_of_slot, has_token, slot_of_token)


def join_rows(rows: list[np.ndarray]) -> Ragged:
    """Return the values of all rows one after the other, and the lengths of the rows."""
    return np.concatenate(rows), np.array([len(row) for row in rows], dtype=np.int32)


def positions_within(lengths: np.ndarray) -> np.ndarray:
    """Return 0, 1, 2 … for each row of the given lengths, one row after the other."""
    stops: np.ndarray = np.cumsum(lengths, dtype=np.int32)
    positions: np.ndarray = np.arange(stops[-1], dtype=np.int32) - np.repeat(stops - lengths, lengths)
    return positions


def positions_after(uncounted: int, ids: Ragged) -> np.ndarray:
    """Return positions as RoBERTa numbers them: from `uncounted` + 1 on, and `uncounted` itself for tokens with this id."""
    words, lengths = ids
    counts = np.cumsum(words != uncounted, dtype=np.int32)
    starts = np.cumsum(lengths, dtype=np.int32) - lengths
    before = np.concatenate([[0], counts])[starts]  # counted tokens of the rows before
    positions: np.ndarray = np.where(words != uncounted, counts - np.repeat(before, lengths), 0) + uncounted
    return positions


def round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple that is not less than `number`."""
    return -(-number // multiple) * multiple


def pack(
    ids: Ragged,
    types: np.ndarray | None,
    uncounted: int | None = None,
    multiples: tuple[int, int] | None = None,
    vocabulary: np.ndarray | None = None,
    *,
    ordered: bool = True,
) -> PackedInputs:
    """Pack rows of token ids into the inputs of a packed batch.

    Args:
        ids: The token ids of all rows.
        types: The token types of all rows, joined.
        uncounted: The token id that positions start after and skip; None if they start at 0.
        multiples: On a GPU, what the number of tokens and the longest length are rounded up to.
        vocabulary: The new id of each token id, if only some word vectors are trained.
        ordered: Whether to sort the tokens by id and by position, which only gradients on a GPU need.
    """
    words, lengths = ids
    rows, total, has_filler = len(lengths), len(words), multiples is not None
    multiple, grid = multiples or (1, GRID_MULTIPLE)
    tokens, longest = round_up(total, multiple), round_up(int(lengths.max()), grid)
    sequences = rows + has_filler
    numbers = np.zeros(NUMBERS_PER_TOKEN * tokens + 2 * (sequences + 1) + rows, dtype=np.int32)
    starts = np.cumsum(lengths, dtype=np.int32) - lengths
    places = positions_within(lengths)
    numbers[:total] = words if vocabulary is None else vocabulary[words]
    numbers[tokens : tokens + total] = places if uncounted is None else positions_after(uncounted, ids)
    if types is not None:
        numbers[2 * tokens : 2 * tokens + total] = types
    slots = numbers[3 * tokens : 4 * tokens]
    slots[:total] = np.repeat(np.arange(rows, dtype=np.int32) * longest, lengths) + places
    if tokens > total:
        surplus = np.arange(tokens - total, dtype=np.int32)
        numbers[tokens + total : 2 * tokens] = surplus + (0 if uncounted is None else uncounted + 1)
        slots[total:] = rows * longest + surplus
    if has_filler and ordered:
        numbers[4 * tokens : 5 * tokens] = np.argsort(numbers[:tokens], kind="stable")
        numbers[5 * tokens : 6 * tokens] = np.argsort(numbers[tokens : 2 * tokens], kind="stable")
    bounds = numbers[NUMBERS_PER_TOKEN * tokens :]
    bounds[:rows] = starts
    bounds[rows] = total
    if has_filler:
        bounds[rows + 1] = tokens
    bounds[sequences + 1 : sequences + 1 + rows] = starts
    bounds[sequences + 1 + rows :] = np.minimum(np.arange(sequences + 1), rows)
    return {"packed": numbers, "tokens": tokens, "rows": rows, "longest": longest, "has_filler": has_filler}
