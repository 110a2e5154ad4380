"""Packed batches: the real tokens of all rows one after the other, in one line of numbers, and no padding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

STEPS_OF_GRID = 8  # products of attention are a third slower on widths that are no multiple of this
LINES = 6  # numbers kept of each token
STEPS_OF_LENGTH = 32  # on a GPU, shapes are rounded up to multiples of this: few shapes, few graphs
STEPS_OF_FLASH = 128  # flash kernels take tokens in blocks of this many: a finer length would save nothing
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


def joined(rows: list[np.ndarray]) -> Lists:
    return np.concatenate(rows), np.array([len(row) for row in rows], dtype=np.int32)


def counted(lengths: np.ndarray) -> np.ndarray:
    """0, 1, 2 … within each of some lists."""
    stops: np.ndarray = np.cumsum(lengths, dtype=np.int32)
    found: np.ndarray = np.arange(stops[-1], dtype=np.int32) - np.repeat(stops - lengths, lengths)
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
