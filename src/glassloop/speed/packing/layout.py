"""Packed batches: the real tokens of all rows one after the other, in one line of numbers, and no padding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

GRID_MULTIPLE = 8  # products of attention are a third slower on widths that are no multiple of this
LINES = 6  # numbers kept of each token
LENGTH_MULTIPLE = 32  # on a GPU, shapes are rounded up to multiples of this: few shapes, few graphs
FLASH_MULTIPLE = 128  # flash kernels take tokens in blocks of this many: a finer length would save nothing
Lists = tuple[np.ndarray, np.ndarray]  # the values of some lists, one after the other, and their lengths


@dataclass(frozen=True)
class Grid:
    """Some sequences side by side, padded to the longest of them: so many slots of all grids from `start` on."""

    start: int
    sequences: int
    longest: int
    padding: torch.Tensor  # as Packing's, of these sequences

    @property
    def slots(self) -> slice:
        return slice(self.start, self.start + self.sequences * self.longest)


@dataclass(frozen=True)
class Grids:
    """All sequences in grids: the token of each slot (any number does where there is none), the slot of each token."""

    parts: list[Grid]
    sources: torch.Tensor
    present: torch.Tensor
    places: torch.Tensor


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

    @cached_property
    def grids(self) -> Grids:
        """The sequences in one grid, or long and short ones in two, where that spares a tenth of attention's products (CPU)."""
        one = Grids([Grid(0, self.sequences, self.longest, self.padding)], self.sources, self.present, self.places)
        if self.sequences < 2:
            return one
        lengths = np.diff(self.bounds.numpy())
        order, cuts = np.argsort(-lengths, kind="stable"), np.arange(1, self.sequences)
        widths = rounded(np.maximum(lengths[order], 1), GRID_MULTIPLE)
        costs = cuts * self.longest**2 + (self.sequences - cuts) * widths[1:] ** 2
        cut = int(costs.argmin()) + 1
        if costs[cut - 1] > 0.9 * self.sequences * self.longest**2:
            return one
        counts, longests = (cut, self.sequences - cut), (self.longest, int(widths[cut]))
        starts = np.empty(self.sequences, dtype=np.int64)
        starts[order] = np.cumsum([0, *np.repeat(longests, counts)[:-1]])
        places = torch.from_numpy(np.repeat(starts, lengths) + counted(lengths))
        border = cut * self.longest
        slots = border + counts[1] * longests[1]
        sources = torch.zeros(slots, dtype=torch.int32)
        sources[places] = torch.arange(self.tokens, dtype=torch.int32)
        present = torch.zeros(slots, 1).index_fill_(0, places, 1.0)
        padding = (1.0 - present).mul_(torch.finfo(torch.float32).min)
        padding[torch.from_numpy(starts)] = 0.0  # an empty sequence is kept from all but one
        parts = [
            Grid(0, counts[0], longests[0], padding[:border].view(counts[0], -1)),
            Grid(border, counts[1], longests[1], padding[border:].view(counts[1], -1)),
        ]
        return Grids(parts, sources, present, places)


def joined(rows: list[np.ndarray]) -> Lists:
    return np.concatenate(rows), np.array([len(row) for row in rows], dtype=np.int32)


def counted(lengths: np.ndarray) -> np.ndarray:
    """0, 1, 2 … within each of some lists."""
    stops: np.ndarray = np.cumsum(lengths, dtype=np.int32)
    found: np.ndarray = np.arange(stops[-1], dtype=np.int32) - np.repeat(stops - lengths, lengths)
    return found


def rounded(number: Any, multiple: int) -> Any:
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
    multiple, grid = steps or (1, GRID_MULTIPLE)
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
