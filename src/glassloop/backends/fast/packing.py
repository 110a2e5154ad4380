"""Packed batches: the real tokens of all rows one after the other in one line of numbers, without padding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypedDict, cast

import numpy as np
import torch

from glassloop.base.errors import DataError, SettingsError, listed
from glassloop.data.batches import Batch, Batches, has_no_number, is_standard, refuse_lengths, refuse_other_columns, stacks_rows
from glassloop.data.interfaces import Row
from glassloop.data.rows import LABEL_KEYS, Repeats, RowReader, hides_inside, labels_among

if TYPE_CHECKING:
    from datasets import Dataset


NUMBERS_PER_TOKEN = 6  # id, position, token type, slot in the padded grid, order by id, order by position
GRID_MULTIPLE = 8  # attention is a third slower on widths that are not a multiple of this
LENGTH_MULTIPLE = 32  # on a GPU, shapes are rounded up to multiples of this, so that few graphs are captured
# Rounded lengths give MRPC 11 graphs instead of about 40, and each takes 50 ms to capture.
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
        return self.section(5)

    @property
    def bounds(self) -> torch.Tensor:
        """Return the start of each sequence and the end of the last, as flash attention expects them."""
        start = NUMBERS_PER_TOKEN * self.tokens
        return self.numbers[start : start + self.sequences + 1]

    @property
    def first_tokens(self) -> torch.Tensor:
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
            [Grid(0, self.sequences, self.longest, self.additive_mask)], self.token_of_slot, self.has_token, self.slot_of_token
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


TOKEN_KEYS = ("input_ids", "token_type_ids", "attention_mask")
READ_ROWS = 10_000
HIDDEN = "an attention mask hides tokens inside a row, not only at its end"


class HiddenInsideError(SettingsError):
    """An attention mask hides tokens that are not at the end of their row."""

    def __init__(self) -> None:
        super().__init__(HIDDEN, "use backend plain")


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
    if batches.repeats is not Repeats.SAME:
        return None
    if isinstance(batches.rows, RowReader) and not batches.rows.in_memory:
        batches.rows.survey()
        return HIDDEN if batches.rows.hides_inside else None
    return HIDDEN if any(hides_inside(mask) for mask in masks_of(batches)) else None


def masks_of(batches: Batches) -> Iterator[Ragged]:
    """Yield the attention masks of a data set, of many rows at a time."""
    table = batches.table
    if table is not None and "attention_mask" in table.column_names:
        for part in table.select_columns("attention_mask").iter(READ_ROWS):
            cells = part["attention_mask"].combine_chunks()
            yield cells.flatten().to_numpy(zero_copy_only=False), np.diff(cells.offsets.to_numpy()).astype(np.int32)
    if table is None and "attention_mask" in first_row(batches):
        for start in range(0, len(batches.rows), READ_ROWS):
            numbers = range(start, min(start + READ_ROWS, len(batches.rows)))
            yield join_rows([np.asarray(batches.rows[number]["attention_mask"]) for number in numbers])


def first_row(batches: Batches) -> Row:
    rows = batches.rows
    row: Row = rows.first if isinstance(rows, RowReader) else batches.read(np.zeros(1, dtype=np.int64))[0]
    return row


UPLOAD_TOKENS = 16_384  # batches are uploaded together until they hold this many tokens
# On a CPU, larger groups exceed the cache: 146 to 165 rows per second with 1,024 tokens, 123 to 162 with 4,096.
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
        tokens, others = self.columns(numbers)
        ids = tokens["input_ids"]
        if self.limits is not None:
            check_limits(ids, *self.limits)
        # A token that no row had when the vocabulary was counted has no trained vector.
        vocabulary = self.vocabulary if self.stored is None else None
        if vocabulary is not None and len(unknown := ids[0][vocabulary[ids[0]] < 0]):
            problem = f"rows change between reads: token id {unknown[0]:,} did not occur when they were read before"
            raise DataError(problem, "pass rows that do not change, or use backend plain")
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

    `uncounted` and `limits` are those of `PackedBatches`.
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


def to_device(arrays: list[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Return arrays as tensors on the device, uploaded in one copy."""
    if device.type != "cuda":
        return [torch.from_numpy(array) for array in arrays]
    joined = torch.from_numpy(np.concatenate([array.reshape(-1) for array in arrays])).pin_memory()
    parts = torch.split(joined.to(device, non_blocking=True), [array.size for array in arrays])
    return [part.view(array.shape) if array.ndim > 1 else part for part, array in zip(parts, arrays, strict=True)]
