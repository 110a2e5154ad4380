"""What the rows that a user gives to a Trainer say: texts, labels, lengths and duplicates, for the report of a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glassloop.data.facts import text_keys
from glassloop.data.formats import is_dataset
from glassloop.data.interfaces import Row, Rows
from glassloop.data.row_labels import LABEL_KEYS, cells_of
from glassloop.data.row_reader import RowReader
from glassloop.run_folder.record import SplitFacts
from glassloop.settings import CLASSES, SEVERAL
from glassloop.transformers_types import Tokenizer

MOST_READ = 200_000  # rows; of more, only the number is known
MOST_TEXTS = 2  # columns
SAMPLE = 50  # rows that show which columns hold texts
IDS, MASK = "input_ids", "attention_mask"


@dataclass(frozen=True)
class GivenRows:
    """The columns of a data set that a report needs.

    Attributes:
        number: Number of rows.
        texts: The columns with texts.
        ids: The tokens of each row; empty if they are not known.
        lengths: Number of tokens of each row; None if it is not known.
        labels: The labels as the user gave them; None if there are none.
    """

    number: int
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ids: Sequence[Sequence[int]] = ()
    lengths: np.ndarray | None = None
    labels: np.ndarray | None = None

    def keys(self) -> np.ndarray | None:
        """Return eight bytes per row, equal for equal texts or tokens; None if neither is known."""
        if self.texts:
            return text_keys([[*cells] for cells in self.texts.values()])
        if not len(self.ids):
            return None
        digests = (blake2b(np.asarray(row, dtype=np.int32).tobytes(), digest_size=8).digest() for row in self.ids)
        return np.frombuffer(b"".join(digests), dtype=np.uint64)


def read_given(rows: Rows | None) -> GivenRows | None:
    """Return what rows say, without their transforms; of very many rows, or rows that were not all read, only the number.

    Rows that code of the user returns may be slow to read. Only what was noted when they were read is used.
    """
    if rows is None or not hasattr(rows, "__len__"):
        return None
    number = len(rows)
    reader, rows = (rows, rows.rows) if isinstance(rows, RowReader) else (None, rows)
    if is_dataset(rows):
        return of_table(rows.with_format("arrow")[:]) if 0 < number <= MOST_READ else GivenRows(number)
    found: Sequence[Row] = rows if isinstance(rows, list | tuple) else []
    if reader is not None and len(reader.noted) == number:
        found = [reader.noted[place] for place in range(number)]
    if not 0 < len(found) <= MOST_READ:
        return GivenRows(number)
    if not all(isinstance(row, Mapping) for row in found):
        return GivenRows(number)
    names = [name for name in found[0] if all(name in row for row in found)]
    return of_columns({name: [plain(row[name]) for row in found] for name in names if is_wanted(found[0][name], name)}, number)


def is_wanted(value: object, name: str) -> bool:
    """Return whether a column may hold texts, tokens or labels."""
    return isinstance(value, str) or name in (IDS, MASK, *LABEL_KEYS)


def plain(value: object) -> object:
    """Return a tensor or an array as numbers and lists."""
    return value.tolist() if hasattr(value, "tolist") else value


def of_table(table: pa.Table) -> GivenRows:
    """Return what the columns of an Arrow table say."""
    kinds = {name: table.schema.field(name).type for name in table.column_names}
    texts = {name: table[name] for name, kind in kinds.items() if pa.types.is_string(kind) or pa.types.is_large_string(kind)}
    labels = next((cells_of(table[name].combine_chunks()) for name in LABEL_KEYS if name in kinds and name not in texts), None)
    chosen = text_columns({name: cells[:SAMPLE].to_pylist() for name, cells in texts.items()})
    ids: Sequence[Sequence[int]] = ()
    lengths = None
    if IDS in kinds and hasattr(table[IDS].combine_chunks(), "offsets"):
        lengths = pc.list_value_length(table[IDS]).to_numpy().astype(np.int64)
        if MASK in kinds and len({*lengths.tolist()}) == 1:  # padded to one length
            lengths = np.array([sum(row) for row in table[MASK].to_pylist()])
        ids = () if chosen else table[IDS].to_pylist()
    words = {name: [cell or "" for cell in texts[name].to_pylist()] for name in chosen}
    return GivenRows(table.num_rows, words, ids, lengths, None if labels is None else np.asarray(labels))


def of_columns(columns: Mapping[str, Sequence[object]], number: int) -> GivenRows:
    """Return what rows that were read one by one say."""
    texts = {name: cells for name, cells in columns.items() if name not in LABEL_KEYS and isinstance(cells[0], str)}
    chosen = text_columns({name: cells[:SAMPLE] for name, cells in texts.items()})
    labels = next((columns[name] for name in LABEL_KEYS if name in columns), None)
    ids: Sequence[Sequence[int]] = columns.get(IDS, ())  # type: ignore[assignment]
    masks: Sequence[Sequence[int]] = columns.get(MASK, ())  # type: ignore[assignment]
    lengths = np.array([len(row) for row in ids]) if len(ids) else None
    if lengths is not None and len(masks) and len({*lengths.tolist()}) == 1:
        lengths = np.array([sum(row) for row in masks])
    words = {name: [str(cell) for cell in texts[name]] for name in chosen}
    return GivenRows(number, words, ids, lengths, None if labels is None else np.asarray(labels))


def text_columns(samples: Mapping[str, Sequence[object]]) -> list[str]:
    """Return the columns with texts: those in which most cells have several words, else the one with the longest cells."""
    found = {name: [cell for cell in cells if isinstance(cell, str)] for name, cells in samples.items()}
    worded = [name for name, cells in found.items() if cells and 2 * sum(len(cell.split()) > 1 for cell in cells) > len(cells)]
    longest = sorted(found, key=lambda name: -sum(map(len, found[name])))[:1]
    return (worded or longest)[:MOST_TEXTS]


def decoded_texts(ids: Sequence[Sequence[int]], tokenizer: Tokenizer) -> list[dict[str, str]]:
    """Return the texts of rows of tokens; the two texts of a pair where a separator divides them."""
    special = {*tokenizer.all_special_ids}
    end = getattr(tokenizer, "sep_token_id", None)
    rows = [segments(row, special, end) for row in ids]
    pairs = max(map(len, rows), default=0) == MOST_TEXTS
    parts = [row if pairs else [[token for part in row for token in part]] for row in rows]
    words = iter(tokenizer.batch_decode([part for row in parts for part in row]))
    names = ("text", "text_pair")
    return [{name: next(words) for name, _ in zip(names, row, strict=False)} for row in parts]


def segments(row: Sequence[int], special: set[int], end: int | None) -> list[list[int]]:
    """Return the tokens of a row without special ones, divided at the separators."""
    found: list[list[int]] = [[]]
    for token in row:
        if token == end:
            found.append([])
        elif token not in special:
            found[-1].append(token)
    return [part for part in found if part] or [[]]


def facts_of(rows: GivenRows, names: tuple[str, ...], task: str, train_keys: np.ndarray | None) -> SplitFacts:
    """Return the counts of a split. Without texts and tokens there is no fingerprint, and nothing is known of duplicates.

    Args:
        rows: The rows.
        names: The label names.
        task: The task.
        train_keys: The keys of the training rows, to count those of another split that are among them.
    """
    keys, labels = rows.keys(), rows.labels
    counts: dict[str, int] = {}
    if labels is not None and task in (CLASSES, SEVERAL) and labels.dtype.kind in "iubf":
        known = labels.ndim == 2 and labels.shape[1] == len(names)
        flat = labels.astype(np.int64).ravel()
        sums = labels.sum(axis=0) if known else np.bincount(flat[flat >= 0], minlength=len(names))  # -100: ignored
        counts = {name: int(number) for name, number in zip(names, sums, strict=False)}
    if keys is None:
        return SplitFacts(rows.number, counts)
    num_conflicts = 0
    if labels is not None and labels.ndim == 1 and task == CLASSES:
        both = np.unique(np.stack([keys, labels.astype(np.uint64)]), axis=1)
        num_conflicts = int((np.unique(both[0], return_counts=True)[1] > 1).sum())
    return SplitFacts(
        rows.number,
        counts,
        unlabelled=labels is None,
        num_duplicates=len(keys) - len(np.unique(keys)),
        num_conflicts=num_conflicts,
        num_in_train=0 if train_keys is None else int(np.isin(keys, train_keys).sum()),
        fingerprint=blake2b(keys.tobytes(), digest_size=16).hexdigest(),
    )
