"""Packed batches: the real tokens of all rows one after the other in one line of numbers, without padding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple, TypedDict, cast

import numpy as np
import torch

from glassloop.base.errors import DataError, SettingsError, listed
from glassloop.data.batches import Batch, Batches, has_no_number, is_standard, refuse_lengths, refuse_other_columns, stacks_rows
from glassloop.data.interfaces import Row
from glassloop.data.rows import LABEL_KEYS, Repeats, RowReader, hides_inside, labels_among, numbers_of

if TYPE_CHECKING:
    from glassloop.data.rows import TableRows

NUMBERS_PER_TOKEN = 6  # id, position, token type, slot in the padded grid, order by id, order by position
GRID_MULTIPLE = 8  # attention is a third slower on widths that are not a multiple of this
LENGTH_MULTIPLE = 32  # on a GPU, shapes are rounded up to multiples of this, so that few graphs are captured
# Rounded lengths give MRPC 11 graphs instead of about 40, and each takes 50 ms to capture.
FLASH_MULTIPLE = 128  # flash attention processes tokens in blocks of this size, so a finer length would save nothing
UPLOAD_TOKENS = 16_384  # batches are uploaded together until they hold this many tokens
# On a CPU, larger groups exceed the cache: 146 to 165 rows per second with 1,024 tokens, 123 to 162 with 4,096.
EVALUATION_TOKENS = {"cuda": 16_384, "cpu": 1_024}  # small batches leave a GPU idle; large ones do not fit a CPU's cache
TOKENS_PER_ROW = 512  # an evaluation batch holds at most this times the batch size, so a smaller one saves memory
READ_ROWS = 10_000
TOKEN_KEYS = ("input_ids", "token_type_ids", "attention_mask")
HIDDEN = "an attention mask hides tokens inside a row, not only at its end"

Ragged = tuple[np.ndarray, np.ndarray]  # the values of rows of different lengths, joined, and the lengths


class PackedInputs(TypedDict):
    """The inputs of a model for one packed batch; the arguments of `Packing`."""

    packed: np.ndarray
    tokens: int
    rows: int
    longest: int
    has_filler: bool


class Grid(NamedTuple):
    """Sequences padded to the longest of them."""

    slots: slice  # those of these sequences among the slots of all grids
    sequences: int
    longest: int
    additive_mask: torch.Tensor  # like that of `Packing`, for these sequences


class Grids(NamedTuple):
    """All sequences of a batch in one or two grids. A slot without a token refers to token 0: its value is never used."""

    parts: list[Grid]
    token_of_slot: torch.Tensor
    has_token: torch.Tensor
    slot_of_token: torch.Tensor


class Packing:
    """A packed batch on its device: `rows` sequences of at most `longest` tokens."""

    # On a GPU the number of tokens is rounded up, and a filler sequence at the end holds the surplus (`has_filler`).
    def __init__(self, numbers: torch.Tensor, tokens: int, rows: int, longest: int, has_filler: bool) -> None:
        self.numbers, self.tokens, self.rows, self.longest, self.has_filler = numbers, tokens, rows, longest, has_filler
        self.sequences = rows + has_filler
        # Equal ids are adjacent in `sorted_by_id`, so the gradients of one word vector are. Slots are places in a grid of
        # `sequences` times `longest`. `bounds` are the starts of the sequences and the end of the last, as flash attention
        # expects them; in those of the first tokens the filler sequence is empty.
        (
            self.ids, self.positions, self.types, self.slot_of_token, self.sorted_by_id, self.sorted_by_position,
            self.bounds, self.first_tokens, self.first_token_bounds,
        ) = torch.split(numbers, [tokens] * NUMBERS_PER_TOKEN + [self.sequences + 1, rows, self.sequences + 1])  # fmt: skip

    @classmethod
    def from_inputs(cls, packed: torch.Tensor, inputs: Mapping[str, object]) -> Packing:
        numbers = cast(PackedInputs, inputs)
        return cls(packed, numbers["tokens"], numbers["rows"], numbers["longest"], numbers["has_filler"])

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
        everything = Grid(slice(None), self.sequences, self.longest, self.additive_mask)
        one = Grids([everything], self.token_of_slot, self.has_token, self.slot_of_token)
        if self.sequences < 2:
            return one
        lengths = np.diff(self.bounds.numpy())
        order, cuts = np.argsort(-lengths, kind="stable"), np.arange(1, self.sequences)
        widths = -(-np.maximum(lengths[order], 1) // GRID_MULTIPLE) * GRID_MULTIPLE
        costs = cuts * self.longest**2 + (self.sequences - cuts) * widths[1:] ** 2
        cut = int(costs.argmin()) + 1
        if costs[cut - 1] > 0.9 * self.sequences * self.longest**2:
            return one
        others, short = self.sequences - cut, int(widths[cut])
        starts = np.empty(self.sequences, dtype=np.int64)
        starts[order] = np.cumsum([0, *np.repeat((self.longest, short), (cut, others))[:-1]])
        slot_of_token = torch.from_numpy(np.repeat(starts, lengths) + positions_within(lengths))
        border = cut * self.longest
        slots = border + others * short
        token_of_slot = torch.zeros(slots, dtype=torch.int32)
        token_of_slot[slot_of_token] = torch.arange(self.tokens, dtype=torch.int32)
        has_token = torch.zeros(slots, 1).index_fill_(0, slot_of_token, 1.0)
        mask = (1.0 - has_token).mul_(torch.finfo(torch.float32).min)
        mask[torch.from_numpy(starts)] = 0.0  # the softmax of an empty sequence needs one slot that is not masked
        parts = [
            Grid(slice(border), cut, self.longest, mask[:border].view(cut, -1)),
            Grid(slice(border, slots), others, short, mask[border:].view(others, -1)),
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


def pack(
    ids: Ragged, types: np.ndarray | None, uncounted: int | None = None, multiples: tuple[int, int] | None = None,
    vocabulary: np.ndarray | None = None, *, ordered: bool = True,
) -> PackedInputs:  # fmt: skip
    """Pack rows of token ids and their joined token types into the inputs of a packed batch."""
    # `multiples`: on a GPU, what the number of tokens and the longest length are rounded up to. `ordered`: sort the tokens by
    # id and by position, which only gradients on a GPU need.
    words, lengths = ids
    rows, total, has_filler = len(lengths), len(words), multiples is not None
    multiple, grid = multiples or (1, GRID_MULTIPLE)
    tokens, longest = -(-total // multiple) * multiple, -(-int(lengths.max()) // grid) * grid
    sequences = rows + has_filler
    numbers = np.zeros(NUMBERS_PER_TOKEN * tokens + 2 * (sequences + 1) + rows, dtype=np.int32)
    of_tokens = numbers[: NUMBERS_PER_TOKEN * tokens].reshape(NUMBERS_PER_TOKEN, tokens)
    starts, places = np.cumsum(lengths, dtype=np.int32) - lengths, positions_within(lengths)
    of_tokens[0, :total] = words if vocabulary is None else vocabulary[words]
    if uncounted is None:
        of_tokens[1, :total] = places
    else:  # as RoBERTa numbers them
        counts = np.cumsum(words != uncounted, dtype=np.int32)
        before = np.concatenate([[0], counts])[starts]  # counted tokens of the rows before
        of_tokens[1, :total] = np.where(words != uncounted, counts - np.repeat(before, lengths), 0) + uncounted
    if types is not None:
        of_tokens[2, :total] = types
    of_tokens[3, :total] = np.repeat(np.arange(rows, dtype=np.int32) * longest, lengths) + places
    surplus = np.arange(tokens - total, dtype=np.int32)
    of_tokens[1, total:] = surplus + (0 if uncounted is None else uncounted + 1)
    of_tokens[3, total:] = rows * longest + surplus
    if has_filler and ordered:
        of_tokens[4:] = np.argsort(of_tokens[:2], axis=1, kind="stable")
    bounds = numbers[NUMBERS_PER_TOKEN * tokens :]
    bounds[:rows] = starts
    bounds[rows] = total
    bounds[sequences] = tokens
    bounds[sequences + 1 : sequences + 1 + rows] = starts
    bounds[sequences + 1 + rows :] = np.minimum(np.arange(sequences + 1), rows)
    return {"packed": numbers, "tokens": tokens, "rows": rows, "longest": longest, "has_filler": has_filler}


class HiddenInsideError(SettingsError):
    """An attention mask hides tokens that are not at the end of their row."""


def why_not_columns(batches: Batches) -> str | None:
    """Return why rows like the first one cannot be packed: they have no token ids, or columns beside them. None if they can."""
    if not isinstance(batches, Batches) or not is_standard(batches.collate):
        return "the batches are those of a DataLoader or of a custom collator"
    if not stacks_rows(batches.collate) and batches.table is not None:
        return None  # its columns are lists of tokens, and labels
    row = first_row(batches)
    if not isinstance(row, Mapping) or np.ndim(row.get("input_ids", 0)) != 1:
        return "a row has no list of input_ids"
    others = [name for name, cell in row.items() if name not in (*TOKEN_KEYS, *LABEL_KEYS) and not has_no_number(cell)]
    return f"the rows have {listed(others)}" if others else None


def why_not_masks(batches: Batches) -> str | None:
    """Return why the attention masks of rows do not allow packing; None if they do. Rows that change are not read."""
    # All masks, because a single odd row would give wrong numbers. An evaluation needs no such check: an odd batch is
    # run padded.
    rows, table = batches.rows, batches.table
    if batches.repeats is not Repeats.SAME:
        return None
    hides = False
    if isinstance(rows, RowReader) and not rows.in_memory:
        rows.survey()
        hides = rows.hides_inside
    elif table is not None and "attention_mask" in table.column_names:
        mask = read_columns(table.select_columns("attention_mask"))["attention_mask"]
        hides = isinstance(mask, ListColumn) and mask.hides_inside()
    elif table is None and "attention_mask" in first_row(batches):
        parts = (range(start, min(start + READ_ROWS, len(rows))) for start in range(0, len(rows), READ_ROWS))
        hides = any(hides_inside(join_rows([np.asarray(rows[place]["attention_mask"]) for place in part])) for part in parts)
    return HIDDEN if hides else None


def why_not_twice(batches: Batches) -> str | None:
    """Return why the rows of a batch cannot be read packed and padded; None if they can."""
    return None if batches.repeats is Repeats.SAME else "the training rows differ between reads"


def first_row(batches: Batches) -> Row:
    rows = batches.rows
    return rows.first if isinstance(rows, RowReader) else batches.read(np.zeros(1, dtype=np.int64))[0]


class ListColumn:
    """A column of lists in a memory-mapped file: rows are read by number, without copies."""

    def __init__(self, parts: list[tuple[np.ndarray, np.ndarray]]) -> None:
        self.parts = parts  # values and offsets, which count from the start of the file's own values

    def __getitem__(self, number: int) -> np.ndarray:
        part, row = divmod(int(number), READ_ROWS)
        values, offsets = self.parts[part]
        return values[offsets[row] : offsets[row + 1]]

    def join(self, numbers: np.ndarray) -> Ragged:
        if len(self.parts) > 1:
            return join_rows([self[number] for number in numbers])
        values, offsets = self.parts[0]
        lengths = offsets[numbers + 1] - offsets[numbers]
        return values[np.repeat(offsets[numbers], lengths) + positions_within(lengths)], lengths

    def hides_inside(self) -> bool:
        """Return whether this is an attention mask that hides tokens inside a row, not only at its end."""
        return any(hides_inside((values[offsets[0] : offsets[-1]], np.diff(offsets))) for values, offsets in self.parts)

    def sums(self) -> np.ndarray:
        """Return the sum of each row, none of which is empty."""
        return np.concatenate([np.add.reduceat(cells[: at[-1]], at[:-1], dtype=np.int64) for cells, at in self.parts])


def read_columns(rows: TableRows) -> dict[str, ListColumn | np.ndarray]:
    """Return the columns of an encoded data set in Arrow format: lists as `ListColumn`, numbers as arrays."""
    parts = [rows[start : start + READ_ROWS] for start in range(0, len(rows), READ_ROWS)]
    columns: dict[str, ListColumn | np.ndarray] = {}
    for name in parts[0].column_names:
        cells = [part[name].combine_chunks() for part in parts]
        if hasattr(cells[0], "offsets"):
            columns[name] = ListColumn([(numbers_of(cell.values), numbers_of(cell.offsets)) for cell in cells])
        else:
            columns[name] = np.concatenate([numbers_of(cell) for cell in cells])
    return columns


class PackedBatches:
    """The batches of `Batches`, packed, in their order. Several at a time are uploaded to a GPU ahead of their steps."""

    # Positions start after the id `uncounted` and skip it. `vocabulary` is the new id of each token id, if only some word
    # vectors are trained. `limits` are the most tokens of a row, and the number of word vectors. With `towers`, a row is two
    # sequences. With `keeps_padded`, a batch can also return its rows padded.
    def __init__(
        self, batches: Batches, device: torch.device, uncounted: int | None = None, vocabulary: torch.Tensor | None = None,
        limits: tuple[int, int] | None = None, *, flash: bool = False, towers: bool = False, keeps_padded: bool = False,
    ) -> None:  # fmt: skip
        self.keeps_padded = keeps_padded
        self.padded, self.device, self.uncounted, self.limits, self.towers = batches, device, uncounted, limits, towers
        self.multiples = (LENGTH_MULTIPLE, FLASH_MULTIPLE if flash else LENGTH_MULTIPLE) if device.type == "cuda" else None
        self.batch_size, self.order, self.row_hashes = batches.batch_size, batches.order, batches.row_hashes
        self.vocabulary = vocabulary.numpy() if vocabulary is not None else None
        self.stored = read_columns(batches.table) if batches.table is not None else None

    def __len__(self) -> int:
        return len(self.padded)

    def epoch(self, epoch: int = 0, skip: int = 0) -> Iterator[Batch]:
        return self.upload(self.order(epoch)[skip:], ordered=True)

    def whole(self, rank: int = 0, num_processes: int = 1) -> Iterator[Batch]:
        """Yield this process's batches of a pass over all rows; rows of known lengths are grouped by number of tokens."""
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
            except HiddenInsideError:  # this batch stays padded
                yield self.padded.batch(numbers, numbers)

    def upload(self, order: list[np.ndarray], *, ordered: bool) -> Iterator[Batch]:
        """Yield the batches on the device; several small ones are uploaded in one copy."""
        # Rows that are not stored may draw random numbers when read. Reading ahead of a checkpoint would draw them twice.
        most = UPLOAD_TOKENS if self.device.type == "cuda" and self.stored is not None else 0
        pending: list[tuple[PackedInputs, np.ndarray | None, np.ndarray]] = []
        for index, numbers in enumerate(order):
            tokens, others = self.columns(numbers)
            tokens = two_sequences(tokens) if self.towers else tokens
            inputs = packed_tokens(tokens, self.uncounted, self.limits, self.multiples, self.vocabulary, ordered=ordered)
            pending.append((inputs, labels_among(others), numbers))
            if index + 1 < len(order) and sum(inputs["tokens"] for inputs, _, _ in pending) < most:
                continue
            lines = to_device([inputs["packed"] for inputs, _, _ in pending], self.device)
            arrays = [labels for _, labels, _ in pending if labels is not None]
            labels: list[torch.Tensor] | list[None] = to_device(arrays, self.device) if arrays else [None] * len(pending)
            for (inputs, _, rows), line, label in zip(pending, lines, labels, strict=True):
                padded = partial(self.padded.batch, rows, rows) if self.keeps_padded else None
                yield Batch({**inputs, "packed": line}, label, rows, len(rows), padded)  # type: ignore[dict-item]
            pending = []

    def columns(self, numbers: np.ndarray) -> tuple[dict[str, Ragged], dict[str, np.ndarray | list[np.ndarray]]]:
        """Return the chosen rows: columns of tokens, and the other columns."""
        tokens: dict[str, Ragged] = {}
        others: dict[str, np.ndarray | list[np.ndarray]] = {}
        stacks = stacks_rows(self.padded.collate)
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
            for name in [name for name, cell in rows[0].items() if name in LABEL_KEYS or not (stacks and has_no_number(cell))]:
                others[name] = [np.asarray(row[name]) for row in rows]
            tokens = {name: join_rows(others.pop(name)) for name in TOKEN_KEYS if name in others}  # type: ignore[arg-type]
        refuse_other_columns([*tokens, *others])
        if stacks:
            refuse_lengths("input_ids", {(int(length),) for length in tokens["input_ids"][1]})
        return tokens, others


def packed_rows(rows: Sequence[Row], uncounted: int | None, limits: tuple[int, int], *, towers: bool = False) -> PackedInputs:
    """Return tokenized rows as one packed batch for a CPU. Further arguments are those of `PackedBatches`."""
    refuse_other_columns([*rows[0]])
    tokens = {name: join_rows([np.asarray(row[name]) for row in rows]) for name in rows[0]}
    return packed_tokens(two_sequences(tokens) if towers else tokens, uncounted, limits, ordered=False)


def two_sequences(tokens: dict[str, Ragged]) -> dict[str, Ragged]:
    """Return the tokens of pairs with twice as many rows: token types say which of two texts a token belongs to."""
    types, lengths = tokens["token_type_ids"]
    second = np.bincount(np.repeat(np.arange(len(lengths)), lengths), types, len(lengths)).astype(np.int32)
    parts = np.stack([lengths - second, second], 1).ravel().astype(np.int32)
    return {name: (values, parts) for name, (values, _) in tokens.items() if name != "token_type_ids"}


def packed_tokens(
    tokens: dict[str, Ragged], uncounted: int | None, limits: tuple[int, int] | None, multiples: tuple[int, int] | None = None,
    vocabulary: np.ndarray | None = None, *, ordered: bool,
) -> PackedInputs:  # fmt: skip
    """Pack columns of tokens without those that the attention mask hides. Raise if the model does not accept them."""
    mask, lengths = tokens.pop("attention_mask", (np.ones(1), np.ones(1)))
    if not mask.all():
        if hides_inside((mask, lengths)):
            raise HiddenInsideError(HIDDEN, "use backend plain")
        row_of_token = np.repeat(np.arange(len(lengths)), lengths)
        visible = np.bincount(row_of_token, mask, len(lengths)).astype(np.int32)
        tokens = {name: (values[mask.astype(bool)], visible) for name, (values, _) in tokens.items()}
    words, lengths = tokens["input_ids"]
    if limits is not None:  # kernels do not check them
        if (longest := int(lengths.max())) > limits[0]:
            problem = f"a row has {longest:,} tokens, but the model accepts at most {limits[0]:,}"
            raise SettingsError(problem, "encode with a smaller max_length")
        if (largest := int(words.max(initial=0))) >= limits[1]:
            problem = f"a row has the token id {largest:,}, but the vocabulary of the model has only {limits[1]:,} tokens"
            raise SettingsError(problem, "use the model's own tokenizer")
    # A token that no row had when the vocabulary was counted has no trained vector.
    if vocabulary is not None and len(unknown := words[vocabulary[words] < 0]):
        problem = f"rows change between reads: token id {unknown[0]:,} did not occur when they were read before"
        raise DataError(problem, "pass rows that do not change, or use backend plain")
    types = tokens["token_type_ids"][0] if "token_type_ids" in tokens else None
    return pack((words, lengths), types, uncounted, multiples, vocabulary, ordered=ordered)


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


def to_device(arrays: list[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Return arrays as tensors on the device, uploaded in one copy."""
    if device.type != "cuda":
        return [torch.from_numpy(array) for array in arrays]
    joined = torch.from_numpy(np.concatenate([array.reshape(-1) for array in arrays])).pin_memory()
    parts = torch.split(joined.to(device, non_blocking=True), [array.size for array in arrays])
    return [part.view(array.shape) if array.ndim > 1 else part for part, array in zip(parts, arrays, strict=True)]
