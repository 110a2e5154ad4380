"""From texts to token ids, cached by content. Truncation is counted."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from glassloop.cache import open_or_build
from glassloop.data.examples import Examples
from glassloop.data.formats import arrow_rows
from glassloop.data.interfaces import Rows
from glassloop.data.special_tokens import NONE_TYPED, TypedTokens, typed_tokens
from glassloop.data.tokenizing import most_characters, tokenized_groups
from glassloop.data.truncation import NOTHING_CUT, LengthLimit, Truncation, cut_by_truncation
from glassloop.errors import SettingsError
from glassloop.run_folder.record import LengthFacts
from glassloop.settings import SEVERAL
from glassloop.stages import advance, stage

if TYPE_CHECKING:
    from datasets import Dataset
    from tokenizers import Tokenizer as Backend

    from glassloop.transformers_types import Tokenizer

FORMAT = 4
ROWS_NAME, COUNTS_NAME = "rows.arrow", "counts.json"
ID_KINDS: dict[str, type] = {"input_ids": np.int32, "token_type_ids": np.int8}
ENCODED_ROWS = 10_000
LEAST_LENGTH = 8
LENGTH_BINS = 24  # of the histogram in the record of a run


@dataclass(frozen=True)
class Encoding:
    """One encoded split.

    Attributes:
        rows: Memory-mapped rows with input_ids, token_type_ids if the model takes them, and labels.
        lengths: Number of tokens of each row.
        truncation: How many rows and tokens were cut.
        typed: How many rows contain the text of a special token.
    """

    rows: Dataset
    lengths: np.ndarray
    truncation: Truncation
    typed: TypedTokens = NONE_TYPED

    def notes(self, limit: LengthLimit) -> list[str]:
        """Return what a person should know about the rows.

        Args:
            limit: The number of tokens that the rows were cut to.
        """
        return [note for note in (limit.note(self.truncation, len(self.rows)), self.typed.note) if note]


def encode(examples: Examples, tokenizer: Tokenizer, max_length: int) -> dict[str, Encoding]:
    """Return all splits as token ids. The result is cached by texts, tokenizer and length.

    Args:
        examples: What `load_examples` returned.
        tokenizer: What `load_tokenizer` returned, or any tokenizer of transformers.
        max_length: Number of tokens after which a row is cut.

    Returns:
        An `Encoding` for each split.

    Raises:
        SettingsError: If `max_length` is less than 8.
        ModelError: If the tokenizer fails.
    """
    if not isinstance(max_length, int) or max_length < LEAST_LENGTH:
        raise SettingsError(f"max_length is {max_length!r}", f"use a whole number of {LEAST_LENGTH} or more")
    tokens_key = tokenizer_key(tokenizer)
    encoded = {}
    for name, fact in examples.facts.items():
        parts = [FORMAT, fact.fingerprint, tokens_key, max_length, examples.task, examples.num_labels, fact.unlabelled]
        key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
        build = partial(write_encoding, examples=examples, name=name, tokenizer=tokenizer, max_length=max_length)
        with stage(f"tokenizing {name}", fact.num_rows):
            encoded[name] = open_or_build("encodings", key, build, partial(load_encoding, split=name))
    return encoded


def notes_on(encoded: dict[str, Encoding], limit: LengthLimit) -> list[str]:
    """Return what a person should know about each split: rows that were cut, and special tokens in the texts."""
    return [f"{name}: {note}" for name, split in encoded.items() for note in split.notes(limit)]


def length_facts(lengths: np.ndarray, cut: Truncation = NOTHING_CUT) -> LengthFacts | None:
    """Return how long the rows of a split are; None if it is empty."""
    if not len(lengths):
        return None
    longest = int(lengths.max())
    counts = np.histogram(lengths, bins=min(LENGTH_BINS, max(longest, 1)), range=(0, max(longest, 1)))[0]
    mean, median = round(float(lengths.mean()), 2), float(np.median(lengths))
    return LengthFacts(mean, median, longest, cut.num_rows, cut.longest, tuple(map(int, counts)))


def load_encoding(folder: Path, split: str) -> Encoding:
    """Return an encoded split from the cache, memory-mapped."""
    from datasets import Dataset

    rows = Dataset.from_file(str(folder / ROWS_NAME), split=split)
    counts = json.loads((folder / COUNTS_NAME).read_text(encoding="utf-8"))
    typed = TypedTokens(counts["typed"]["num_rows"], tuple(counts["typed"]["tokens"]))
    return Encoding(rows, lengths_of(rows), Truncation(**counts["truncation"]), typed)


def lengths_of(rows: Rows) -> np.ndarray:
    """Return the number of tokens of each row, if possible without reading the tokens."""
    table = arrow_rows(rows)
    if table is None:
        return np.array([len(rows[number]["input_ids"]) for number in range(len(rows))], dtype=np.int32)
    tables = table.select_columns("input_ids").iter(ENCODED_ROWS)
    parts = [pc.list_value_length(table["input_ids"].combine_chunks()).to_numpy(zero_copy_only=False) for table in tables]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)


def write_encoding(folder: Path, examples: Examples, name: str, tokenizer: Tokenizer, max_length: int) -> None:
    """Tokenize one split into an Arrow file in `folder`, and write the counts beside it."""
    label = None if examples.facts[name].unlabelled else examples.columns.label_name
    cut, num_shortened, typed, writer = NOTHING_CUT, 0, NONE_TYPED, None
    for table in examples.splits[name].with_format("arrow").iter(ENCODED_ROWS):
        texts = [table[column].to_pylist() for column in examples.columns.texts]
        num_shortened += sum(len(text) > most_characters(max_length) for column in texts for text in column)
        ids: dict[str, list[list[int]]] = {}
        for encoded, read in tokenized_groups(tokenizer, texts, max_length):
            cut += cut_by_truncation(encoded, read, tokenizer, max_length)
            typed += typed_tokens(read, tokenizer)
            advance(len(read[0]))
            for kind in ID_KINDS.keys() & encoded.keys():
                ids.setdefault(kind, []).extend(encoded[kind])
        columns = {kind: id_lists(ids[kind], dtype) for kind, dtype in ID_KINDS.items() if kind in ids}
        if label:
            columns["labels"] = model_labels(table[label].combine_chunks(), examples.task, examples.num_labels)
        written = pa.table(columns)
        if writer is None:
            writer = pa.ipc.new_stream(str(folder / ROWS_NAME), written.schema)
        writer.write_table(written)
    if writer is not None:
        writer.close()
    counts = {"truncation": asdict(replace(cut, num_shortened=num_shortened)), "typed": asdict(typed)}
    (folder / COUNTS_NAME).write_text(json.dumps(counts), encoding="utf-8")


def id_lists(rows: list[list[int]], kind: type) -> pa.Array:
    """Return lists of small whole numbers as one Arrow array."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    values: np.ndarray = np.fromiter(chain.from_iterable(rows), dtype=kind, count=int(offsets[-1]))
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def model_labels(cells: pa.Array, task: str, num_labels: int) -> pa.Array:
    """Return labels in the form that a loss takes: a class number, a score, or 0 or 1 for each label."""
    if task != SEVERAL:
        return cells
    rows = np.zeros((len(cells), num_labels), dtype=np.float32)
    for row, numbers in enumerate(cells.to_pylist()):
        rows[row, numbers] = 1.0
    offsets = np.arange(0, rows.size + 1, num_labels, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(rows.ravel()))


def tokenizer_key(tokenizer: Tokenizer) -> str:
    """Return a checksum of all that changes the ids: vocabulary, normalization, special tokens, side of truncation."""
    if backend := getattr(tokenizer, "backend_tokenizer", None):
        state = backend_state(backend)
    else:
        settings = {
            name: repr(value) for name, value in getattr(tokenizer, "init_kwargs", {}).items() if name != "name_or_path"
        }
        state = json.dumps([sorted(tokenizer.get_vocab().items()), settings], sort_keys=True)
    split_special = getattr(tokenizer, "split_special_tokens", False)
    return key_of(state, type(tokenizer).__name__, tokenizer.truncation_side, tokenizer.model_input_names, split_special)


def backend_state(backend: Backend) -> str:
    """Return everything that a tokenizer of the `tokenizers` library does, as JSON."""
    return plain_state(backend.to_str())


@lru_cache(maxsize=1)
def plain_state(text: str) -> str:
    """Return the JSON of a tokenizer with its keys in order and without the settings of its last call."""
    state = json.loads(text)
    state.pop("truncation", None)  # set by the last call, not a property of the tokenizer
    state.pop("padding", None)
    return json.dumps(state, sort_keys=True)


def key_of(state: str, kind: object, truncation_side: object, input_names: list[str], split_special: object) -> str:
    """Return the checksum of a tokenizer: of its `state` as JSON, its class, and its settings that change the ids."""
    settings = json.dumps([kind, truncation_side, input_names, split_special])
    return hashlib.sha256(f"[{state}, {settings[1:]}".encode()).hexdigest()
