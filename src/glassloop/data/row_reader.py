"""Rows that are read one by one, often by code of the user: without unused columns, and no more often than needed.

A `__getitem__` may decode, tokenize or augment, so a pass over all rows is expensive. What a training must know about them
(hashes, lengths, words, masks, texts for the report) is noted when a row is read for another reason. If it must be known
before the first step, the rows that are read for it are kept, up to a limit, and handed out when their batch is due.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from functools import cached_property
from hashlib import blake2b

import numpy as np

from glassloop.data.interfaces import Row, Rows
from glassloop.data.rows import LABEL_KEYS, Repeats, cells_of, content_of, rows_repeat

MOST_AHEAD = 64 * 2**20  # bytes of rows that are kept until their batch is due


MOST_NOTED = 2_000  # rows whose texts, tokens and labels are kept for the report


REPORTED = ("input_ids", "attention_mask", *LABEL_KEYS)


class RowReader:
    """Reads the rows of a data set that is not a file, and remembers what it has read.

    Args:
        rows: A list of rows, or another object with `len()` and `[number]`.
        taken: The columns to keep; None keeps all. Rows that are no dicts stay as they are.
        say: Called once with the columns that are dropped.

    Attributes:
        rows: The rows of the user, unchanged.
        in_memory: Whether the rows are a list, so that reading them costs nothing.
        number: The number of rows when reading began.
        noted: Texts, tokens and labels of the rows that were read, for the report; of few rows only.
    """

    def __init__(
        self, rows: Rows, taken: Container[str] | None = None, say: Callable[[list[str]], None] = lambda names: None
    ) -> None:
        self.rows, self.taken, self._say = rows, taken, say
        self.in_memory, self.number = isinstance(rows, list | tuple), len(rows)
        self.noted: dict[int, dict[str, object]] = {}
        self.words: set[int] = set()  # token ids that occur in the rows that were read
        self.hides_inside = False  # an attention mask hides tokens inside a row that was read
        self._hashes = np.zeros(len(rows), dtype=np.int64)  # 0: not read yet
        self._lengths: np.ndarray | None = None
        self._seen_lengths = np.full(len(rows), -1, dtype=np.int32)
        self._ahead: dict[int, Row] = {}
        self._bytes_ahead = 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Row:
        row = self._ahead.pop(number, None)
        if row is None:
            return self._read(number)
        self._bytes_ahead -= size_of(row)
        return row

    def look(self, number: int, *, keep: bool = False) -> Row:
        """Return a row before its batch is due, and keep it until then if there is room.

        Rows that are not known to repeat are kept only if `keep` says so: a training must draw them when their batch is due.
        """
        if number in self._ahead:
            return self._ahead[number]
        row = self._read(number)
        size = size_of(row)
        keep = keep or vars(self).get("repeats") is Repeats.SAME
        if keep and not self.in_memory and self._bytes_ahead + size <= MOST_AHEAD:
            self._ahead[number] = row
            self._bytes_ahead += size
        return row

    def _read(self, number: int) -> Row:
        row = self.rows[number]
        if self.in_memory:
            return self._chosen(row)
        if len(self.rows) <= MOST_NOTED and number not in self.noted and isinstance(row, Mapping):
            self.noted[number] = {name: row[name] for name in row if isinstance(row[name], str) or name in REPORTED}
        row = self._chosen(row)
        if not self._hashes[number]:
            self._note(number, row)
        return row

    def _chosen(self, row: Row) -> Row:
        """Return a row without columns that are not taken; of dicts only, as transformers does."""
        if self.taken is None or not isinstance(row, dict):
            return row
        if unused := [name for name in row if name not in self.taken]:
            self._say(unused)
            return {name: cell for name, cell in row.items() if name in self.taken}
        return row

    def _note(self, number: int, row: Row) -> None:
        """Remember what a training must know about a row."""
        self._hashes[number] = hash_of(row)
        if not isinstance(row, Mapping) or np.ndim(ids := row.get("input_ids", 0)) != 1:
            return
        self._seen_lengths[number] = len(ids)
        self.words.update(np.asarray(ids).tolist())
        if (mask := row.get("attention_mask")) is not None and not self.hides_inside:
            values = np.asarray(mask)
            self.hides_inside = hides_inside((values, np.array([len(values)], dtype=np.int32)))

    @cached_property
    def first(self) -> Row:
        """The first row, which shows columns and labels; read once."""
        return self.look(0)

    @cached_property
    def repeats(self) -> Repeats:
        """Whether rows are the same each time they are read; a few rows are read to find out."""
        return rows_repeat(self.rows)

    def survey(self) -> None:
        """Read every row that was not read yet, so that words, masks and hashes of all rows are known."""
        for number in np.flatnonzero(self._hashes == 0).tolist():
            self.look(number)

    def known_hashes(self) -> np.ndarray:
        """Return eight bytes for each row as the model gets it; zero for rows that were not read yet."""
        return self._hashes.copy()

    def row_hashes(self) -> np.ndarray:
        """Return eight bytes for each row as the model gets it."""
        if self.in_memory:
            return np.array([hash_of(self[number]) for number in range(len(self))], dtype=np.int64)
        self.survey()
        return self.known_hashes()

    def lengths(self, seed: int | None) -> np.ndarray:
        """Return the number of tokens of each row.

        Args:
            seed: The seed of a training, with which random rows are read: they have the same lengths, and so the same order,
                after a resume. None for an evaluation.
        """
        from glassloop.data.seeding import random_states_kept  # here: it needs torch, which `glassloop data` does not load

        if self._lengths is not None:
            return self._lengths
        if self.in_memory or (seed is not None and self.repeats is not Repeats.SAME):
            with random_states_kept(seed=seed or 0):
                lengths = [len(self.rows[number]["input_ids"]) for number in range(len(self))]
            self._lengths = np.array(lengths, dtype=np.int32)
            return self._lengths
        if vars(self).get("repeats") is not Repeats.SAME:  # each evaluation reads such rows in the same order
            return np.array([len(self.look(number, keep=True)["input_ids"]) for number in range(len(self))], dtype=np.int32)
        for number in np.flatnonzero(self._seen_lengths < 0).tolist():
            self._seen_lengths[number] = len(self.look(number)["input_ids"])
        self._lengths = self._seen_lengths
        return self._lengths

    def release(self) -> None:
        """Drop the rows that are kept until their batch is due."""
        self._ahead.clear()
        self._bytes_ahead = 0


def repeats_of(rows: Rows) -> Repeats:
    """Return whether a data set gives the same rows each time; a reader finds out once."""
    return rows.repeats if isinstance(rows, RowReader) else rows_repeat(rows)


def hash_of(row: Row) -> int:
    """Return eight bytes of a row as a number."""
    return int.from_bytes(blake2b(content_of(row).encode(), digest_size=8).digest(), "little", signed=True)


def size_of(row: Row) -> int:
    """Return the approximate size of a row in memory, in bytes."""
    cells = [cell for _, cell in cells_of(row)]
    return sum(getattr(cell, "nbytes", 0) or 40 * len(cell) if hasattr(cell, "__len__") else 40 for cell in cells)


def hides_inside(mask: tuple[np.ndarray, np.ndarray]) -> bool:
    """Return whether a mask hides a token that is followed by a visible one, or a whole row, or is not of 0 and 1.

    Args:
        mask: The masks of some rows one after the other, and the length of each.
    """
    values, lengths = mask
    starts = (np.cumsum(lengths) - lengths)[lengths > 0]
    follows = np.ones(len(values), dtype=bool)
    follows[starts] = False
    visible, odd = values != 0, (values != 0) & (values != 1)
    appears = visible[1:] > visible[:-1]
    return bool(odd.any() or (lengths == 0).any() or not visible[starts].all() or (appears & follows[1:]).any())
