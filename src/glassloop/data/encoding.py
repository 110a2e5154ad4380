"""From texts to token ids, in bounded memory and cached by content. Truncation and special tokens are counted."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from glassloop.base.cache import open_or_build
from glassloop.base.errors import GlassloopError, ModelError, SettingsError, counted, listed, resource_error
from glassloop.base.output import advance, stage
from glassloop.base.records import decoded, described, entry
from glassloop.data.interfaces import Row, Texts
from glassloop.data.rows import ArrowRows, arrow_array, lengths_of
from glassloop.settings.training import SEVERAL

if TYPE_CHECKING:
    from transformers import BatchEncoding

    from glassloop.data.examples import Examples
    from glassloop.data.interfaces import Tokenizer


# --- what is counted in texts --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TypedTokens:
    """How many rows contain the text of a special token, and which tokens these are."""

    num_rows: int = 0
    tokens: tuple[str, ...] = ()

    def __add__(self, other: TypedTokens) -> TypedTokens:
        return TypedTokens(self.num_rows + other.num_rows, tuple(sorted({*self.tokens, *other.tokens})))


@dataclass(frozen=True)
class Truncation:
    """How many rows lost tokens, and on which side of the pair."""

    num_rows: int = 0  # rows that lost tokens
    num_first: int = 0  # rows that lost tokens of the first text
    num_second: int = 0  # rows that lost tokens of the second text
    num_tokens: int = 0  # tokens that were lost
    # texts so long that only their first million characters were tokenized. They lost more than `num_tokens`.
    num_shortened: int = 0
    longest: int = 0  # tokens that the longest of these rows had before

    def __add__(self, other: Truncation) -> Truncation:
        sums = {name: value + getattr(other, name) for name, value in vars(self).items()}
        return Truncation(**{**sums, "longest": max(self.longest, other.longest)})


NONE_TYPED, NOTHING_CUT = TypedTokens(), Truncation()


@dataclass(frozen=True)
class Counts:
    """What was counted in the texts of some rows."""

    rows: int = 0
    cut: Truncation = NOTHING_CUT
    typed: TypedTokens = NONE_TYPED

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.rows + other.rows, self.cut + other.cut, self.typed + other.typed)


@dataclass(frozen=True)
class LengthLimit:
    """How long a row may be, and what a user can do about rows that are longer."""

    max_length: int  # number of tokens after which a row is cut
    most: int  # number of tokens that the model takes at most
    side: str = "right"  # where the texts are cut: "right" or "left"
    pairs: bool = False  # whether rows are pairs of texts
    trained: bool = False  # whether the model is trained already, so that only another training can use longer rows

    def notes(self, counts: Counts) -> list[str]:
        """Return what a person should know: how many rows were cut, where, and what to do; and typed special tokens."""
        notes, cut, typed = [], counts.cut, counts.typed
        if cut.num_rows:
            end = "beginning" if self.side == "left" else "end"
            texts = {"the first text": cut.num_first, "the second text": cut.num_second}
            parts = " and ".join(f"{text} ({n:,})" for text, n in texts.items() if n) if self.pairs else "the text"
            share = cut.num_rows / max(counts.rows, 1)
            percent = f"{share:.0%}" if share >= 0.01 else "less than 1%"
            verb = "train with" if self.trained else "use"
            if self.max_length >= self.most:
                remedy = "this is the model's maximum: split or shorten the texts, or use a model for longer texts"
            elif cut.longest <= self.most and not cut.num_shortened:
                remedy = f"{verb} --max_length {cut.longest} to keep everything"
            else:
                remedy = f"{verb} --max_length {self.most}, the model's maximum, to keep more"
            rows = f"{cut.num_rows:,} of {counted(counts.rows, 'row', 'rows')} ({percent}) lost the {end} of {parts}"
            notes.append(f"{rows}: cut to {self.max_length:,} tokens, the longest had {cut.longest:,}; {remedy}")
        if typed.num_rows:
            rows = counted(typed.num_rows, "row contains", "rows contain")
            tokens = listed(typed.tokens, 5)
            notes.append(f"{rows} the text of a special token ({tokens}), which the tokenizer reads as that token")
        return notes


def typed_tokens(columns: Sequence[Sequence[str]], tokenizer: Tokenizer) -> TypedTokens:
    # "[SEP]" in a text stays the token that transformers makes of it; splitting it would give other ids. But who types
    # <s> rarely means a token, so such rows are reported.
    added = ((str(token), number) for number, token in tokenizer.added_tokens_decoder.items() if token.special)
    named = zip(map(str, tokenizer.all_special_tokens), tokenizer.all_special_ids, strict=True)
    specials = {text: number for text, number in (*added, *named) if text}
    if not specials or getattr(tokenizer, "split_special_tokens", False):
        return NONE_TYPED
    likely = re.compile("|".join(map(re.escape, sorted(specials, key=len, reverse=True))))
    found = NONE_TYPED
    for texts in zip(*columns, strict=True):
        typed = {match for text in texts for match in likely.findall(text)}
        if typed:  # few rows: only these are tokenized again
            ids = {number for text in texts for number in tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]}
            if tokens := tuple(token for token in typed if specials[token] in ids):
                found += TypedTokens(1, tokens)
    return found


def cut_rows(encoded: BatchEncoding, texts: Texts, tokenizer: Tokenizer, max_length: int) -> dict[int, Truncation]:
    """Return what each of some encoded rows lost, by its place. Only full rows are tokenized again, without a limit."""
    found, added = {}, tokenizer.num_special_tokens_to_add(len(texts) > 1)
    for row in (row for row, ids in enumerate(encoded["input_ids"]) if len(ids) >= max_length):
        whole = [len(tokenizer(column[row], add_special_tokens=False, verbose=False)["input_ids"]) for column in texts]
        if encoded.is_fast:
            sides = encoded.sequence_ids(row)
            kept = [sides.count(side) for side in range(len(whole))]
        else:  # a tokenizer written in Python does not say; it removes one token after the other from the longer text
            kept = [*whole]
            for _ in range(sum(whole) + added - len(encoded["input_ids"][row])):
                kept[0 if len(kept) == 1 or kept[0] > kept[1] else 1] -= 1
        lost = [length - left for length, left in zip(whole, kept, strict=True)]
        if any(lost):
            found[row] = Truncation(1, int(lost[0] > 0), int(sum(lost[1:]) > 0), sum(lost), longest=sum(whole) + added)
    return found


def kept_parts(tokenizer: Tokenizer, texts: Texts, max_length: int, *, towers: bool = False) -> list[list[tuple[int, int]]]:
    """Return, for each row, the first and the last character of each text that the model reads."""
    if not texts[0] or not getattr(tokenizer, "is_fast", False):  # one that does not know the places of its tokens
        return []
    if towers:
        apart = [kept_parts(tokenizer, [column], max_length) for column in texts]
        return [[span for (span,) in spans] for spans in zip(*apart, strict=True)]
    encoded = tokenizer(*texts, truncation=True, max_length=max_length, return_offsets_mapping=True, verbose=False)
    found = []
    for row, places in enumerate(encoded["offset_mapping"]):
        sides = encoded.sequence_ids(row)
        spans = [[place for place, of in zip(places, sides, strict=True) if of == side] for side in range(len(texts))]
        found.append([(span[0][0], span[-1][1]) if span else (0, 0) for span in spans])
    return found


# --- tokenizing in bounded memory ----------------------------------------------------------------------------------
# 50 MB of text took 10.8 GB and 170 s for 512 tokens. The cut is between two words, so the ids are those of the whole text.
MOST_CHARACTERS = 1_000_000  # a tokenizer needs about 200 bytes and 2 microseconds per character
MOST_CHARACTERS_PER_TOKEN = 64  # for a max_length beyond 15,000; words have 4 to 6 per token
GROUP_CHARACTERS = 2_000_000
AHEAD_ROWS = 2_048  # rows that are tokenized while the model runs over those before them
LAST_WORD = re.compile(r"\s\S{0,1000}\Z")
FIRST_WORD = re.compile(r"\A\S{0,1000}(?=\s)")


def most_characters(max_length: int) -> int:
    return max(MOST_CHARACTERS, MOST_CHARACTERS_PER_TOKEN * max_length)


def shortened(text: str, limit: int, side: str = "right") -> str:
    """Return `text` cut to `limit` characters, between two words if possible, on the `side` where truncation cuts."""
    if len(text) <= limit:
        return text
    if side == "left":
        return FIRST_WORD.sub("", text[-limit:])
    return text[:limit] if text[limit].isspace() else LAST_WORD.sub("", text[:limit])


class EncodedGroup(NamedTuple):
    """Some rows as token ids by the name of the input, what truncation cut from them by their place, and their texts."""

    ids: Mapping[str, list[list[int]]]
    cut: dict[int, Truncation]
    texts: Texts


def tokenized_groups(tokenizer: Tokenizer, columns: Texts, max_length: int, *, towers: bool = False) -> Iterator[EncodedGroup]:
    """Tokenize rows, truncated to `max_length`, and yield groups of them. With `towers`, each text of a pair on its own."""
    limit = most_characters(max_length)
    columns = [[shortened(text, limit, tokenizer.truncation_side) for text in column] for column in columns]
    for rows in groups_of([sum(map(len, texts)) for texts in zip(*columns, strict=True)]):
        texts = [column[rows] for column in columns]
        if not towers:
            encoded = tokenized(tokenizer, texts, max_length)
            yield EncodedGroup(encoded, cut_rows(encoded, texts, tokenizer, max_length), texts)
            continue
        apart = [tokenized(tokenizer, [column], max_length) for column in texts]
        cut: dict[int, Truncation] = {}
        for place, (encoded, column) in enumerate(zip(apart, texts, strict=True)):
            for row, lost in cut_rows(encoded, [column], tokenizer, max_length).items():
                sides = replace(lost, num_first=int(place == 0), num_second=int(place == 1))
                cut[row] = replace(cut[row] + sides, num_rows=1) if row in cut else sides
        yield EncodedGroup(joined_towers([encoded["input_ids"] for encoded in apart]), cut, texts)


def joined_towers(ids: Sequence[list[list[int]]]) -> dict[str, list[list[int]]]:
    """Return both texts of each pair as one row, each with its own special tokens; token types say where a token belongs."""
    rows = [*zip(*ids, strict=True)]
    types = [[place for place, part in enumerate(row) for _ in part] for row in rows]
    return {"input_ids": [[*chain.from_iterable(row)] for row in rows], "token_type_ids": types}


def tokenized(tokenizer: Tokenizer, texts: Texts, max_length: int) -> BatchEncoding:
    """Return some rows as token ids. Raise `ModelError` if the tokenizer fails with an exception of any kind."""
    try:
        return tokenizer(*texts, truncation=True, max_length=max_length, return_attention_mask=False, verbose=False)
    except Exception as error:
        if isinstance(error, GlassloopError) or resource_error(error):
            raise
        remedy = "download the model again: its tokenizer files are damaged or do not belong together"
        raise ModelError(f"the tokenizer failed: {type(error).__name__}: {error}", remedy) from error


def groups_of(sizes: list[int]) -> Iterator[slice]:
    """Yield slices of adjacent rows whose sizes add up to at most `GROUP_CHARACTERS`, or single rows."""
    start, total = 0, 0
    for row, size in enumerate(sizes):
        if row > start and total + size > GROUP_CHARACTERS:
            yield slice(start, row)
            start, total = row, 0
        total += size
    if start < len(sizes):
        yield slice(start, len(sizes))


# --- texts to predict ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class EncodedText:
    """The token ids of one text or pair, and what truncation has cut."""

    inputs: Row
    cut: Truncation = NOTHING_CUT

    @property
    def num_tokens(self) -> int:
        return len(self.inputs["input_ids"])


@dataclass(frozen=True)
class EncodedTexts:
    """Encoded texts, and how many of them contain a special token."""

    rows: Sequence[EncodedText]
    typed: TypedTokens = NONE_TYPED

    @property
    def cut(self) -> Truncation:
        return sum((row.cut for row in self.rows), NOTHING_CUT)


def encode_texts(tokenizer: Tokenizer, columns: Texts, max_length: int, *, towers: bool = False) -> EncodedTexts:
    found: list[EncodedText] = []
    typed = NONE_TYPED
    for ids, cut, read in tokenized_groups(tokenizer, columns, max_length, towers=towers):
        typed += typed_tokens(read, tokenizer)
        rows = range(len(read[0]))
        found += [EncodedText({key: ids[key][row] for key in ids}, cut.get(row, NOTHING_CUT)) for row in rows]
    return EncodedTexts(found, typed)


def encoded_ahead(encode: Callable[[Texts], EncodedTexts], columns: Texts) -> Iterator[EncodedTexts]:
    """Yield encoded texts some rows at a time. The next rows are tokenized in a thread while the caller uses the last ones."""
    starts = range(0, len(columns[0]), AHEAD_ROWS)
    if len(starts) < 2:
        yield encode(columns)
        return
    parts = [[column[start : start + AHEAD_ROWS] for column in columns] for start in starts]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(encode, parts[0])
        for part in parts[1:]:
            found, waiting = waiting.result(), pool.submit(encode, part)
            yield found
        yield waiting.result()


# --- splits to train on --------------------------------------------------------------------------------------------
FORMAT = 4
ROWS_NAME, COUNTS_NAME = "rows.arrow", "counts.json"
ID_KINDS: dict[str, type] = {"input_ids": np.int32, "token_type_ids": np.int8}
ENCODED_ROWS = 10_000
LEAST_LENGTH = 8


@described
@dataclass(frozen=True)
class Encoding:
    """One encoded split."""

    rows: ArrowRows = field(
        metadata={
            "help": "Memory-mapped rows with input_ids, token_type_ids if the model takes them, and labels. They have the "
            "methods of a `datasets.Dataset`, and `rows.to_dataset()` is one."
        }
    )
    lengths: np.ndarray = field(metadata={"help": "Number of tokens of each row."})
    truncation: Truncation = field(metadata={"help": "How many rows and tokens were cut."})
    typed: TypedTokens = entry(NONE_TYPED, "How many rows contain the text of a special token.")

    def notes(self, limit: LengthLimit) -> list[str]:
        """Return what a person should know about rows that were cut to a `limit`."""
        return limit.notes(Counts(len(self.rows), self.truncation, self.typed))


def encode(examples: Examples, tokenizer: Tokenizer, max_length: int, *, towers: bool = False) -> dict[str, Encoding]:
    """Return all splits as token ids. The result is cached by texts, tokenizer and length.

    Args:
        examples: What `load_examples` returned.
        tokenizer: What `load_tokenizer` returned, or any tokenizer of transformers.
        max_length: Number of tokens after which a row is cut.
        towers: Whether each text of a pair is encoded, and cut, on its own, for a model with two towers.

    Returns:
        An `Encoding` for each split.

    Raises:
        SettingsError: If `max_length` is less than 8.
        ModelError: If the tokenizer fails.
    """
    if not isinstance(max_length, int) or max_length < LEAST_LENGTH:
        raise SettingsError(f"max_length is {max_length!r}", f"use a whole number of {LEAST_LENGTH} or more")
    tokens_key = tokenizer_key(tokenizer)
    towers = towers and examples.columns.text_pair is not None
    encoded = {}
    for name, fact in examples.facts.items():
        parts = [FORMAT, fact.fingerprint, tokens_key, max_length, examples.task, examples.num_labels, fact.unlabelled]
        key = hashlib.sha256(json.dumps([*parts, *(["towers"] if towers else [])]).encode()).hexdigest()[:32]
        build = partial(write_encoding, examples=examples, name=name, tokenizer=tokenizer, max_length=max_length, towers=towers)
        with stage(f"tokenizing {name}", fact.num_rows, "tokenizing"):
            encoded[name] = open_or_build("encodings", key, build, load_encoding)
    return encoded


def notes_on(encoded: dict[str, Encoding], limit: LengthLimit) -> list[str]:
    """Return what a person should know about each split: rows that were cut, and special tokens in the texts."""
    return [f"{name}: {note}" for name, split in encoded.items() for note in split.notes(limit)]


def load_encoding(folder: Path) -> Encoding:
    rows = ArrowRows(folder / ROWS_NAME)
    counts = json.loads((folder / COUNTS_NAME).read_text(encoding="utf-8"))
    return Encoding(rows, lengths_of(rows), decoded(Truncation, counts["truncation"]), decoded(TypedTokens, counts["typed"]))


def write_encoding(
    folder: Path, examples: Examples, name: str, tokenizer: Tokenizer, max_length: int, *, towers: bool = False
) -> None:
    """Tokenize one split into an Arrow file in `folder`, and write the counts beside it."""
    label = None if examples.facts[name].unlabelled else examples.columns.label_name
    cut, num_shortened, typed, writer = NOTHING_CUT, 0, NONE_TYPED, None
    for table in examples.rows[name].with_format("arrow").iter(ENCODED_ROWS):
        texts = [table[column].to_pylist() for column in examples.columns.texts]
        num_shortened += sum(len(text) > most_characters(max_length) for column in texts for text in column)
        ids: dict[str, list[list[int]]] = {}
        for found, lost, read in tokenized_groups(tokenizer, texts, max_length, towers=towers):
            cut += sum(lost.values(), NOTHING_CUT)
            typed += typed_tokens(read, tokenizer)
            advance(len(read[0]))
            for kind in ID_KINDS.keys() & found.keys():
                ids.setdefault(kind, []).extend(found[kind])
        columns = {}
        for kind, dtype in ID_KINDS.items():
            if kind in ids:
                lengths = [len(row) for row in ids[kind]]
                values: np.ndarray = np.fromiter(chain.from_iterable(ids[kind]), dtype=dtype, count=sum(lengths))
                columns[kind] = lists_of(values, lengths)
        if label:
            labels = table[label].combine_chunks()
            if examples.task == SEVERAL:  # the form that a loss takes: 0 or 1 for each label
                marks = np.zeros((len(labels), examples.num_labels), dtype=np.float32)
                for row, numbers in enumerate(labels.to_pylist()):
                    marks[row, numbers] = 1.0
                labels = lists_of(marks.ravel(), [examples.num_labels] * len(labels))
            columns["labels"] = labels
        written = pa.table(columns)
        writer = writer or pa.ipc.new_stream(str(folder / ROWS_NAME), written.schema)
        writer.write_table(written)
    if writer is not None:
        writer.close()
    counts = {"truncation": asdict(replace(cut, num_shortened=num_shortened)), "typed": asdict(typed)}
    (folder / COUNTS_NAME).write_text(json.dumps(counts), encoding="utf-8")


def lists_of(values: np.ndarray, lengths: Sequence[int]) -> pa.Array:
    inner = arrow_array(values, pa.from_numpy_dtype(values.dtype))
    return pa.ListArray.from_arrays(arrow_array(np.cumsum([0, *lengths], dtype=np.int32), pa.int32()), inner)


def tokenizer_key(tokenizer: Tokenizer) -> str:
    """Return a checksum of all that changes the ids: vocabulary, normalization, special tokens, side of truncation."""
    if backend := getattr(tokenizer, "backend_tokenizer", None):
        state = backend_state(backend.to_str())
    else:
        options = getattr(tokenizer, "init_kwargs", {})
        settings = {name: repr(value) for name, value in options.items() if name != "name_or_path"}
        state = json.dumps([sorted(tokenizer.get_vocab().items()), settings], sort_keys=True)
    split_special = getattr(tokenizer, "split_special_tokens", False)
    kind = getattr(tokenizer, "kind", type(tokenizer).__name__)  # one that is loaded without transformers says its class
    return key_of(state, kind, tokenizer.truncation_side, tokenizer.model_input_names, split_special)


@lru_cache(maxsize=1)
def backend_state(text: str) -> str:
    """Return the JSON of a tokenizer of `tokenizers` with its keys in order and without the settings of its last call."""
    state = json.loads(text)
    return json.dumps({name: state[name] for name in state if name not in ("truncation", "padding")}, sort_keys=True)


def key_of(state: str, kind: object, truncation_side: object, input_names: list[str], split_special: object) -> str:
    """Return the checksum of a tokenizer: of its `state` as JSON, its class, and its settings that change the ids."""
    settings = json.dumps([kind, truncation_side, input_names, split_special])
    return hashlib.sha256(f"[{state}, {settings[1:]}".encode()).hexdigest()
