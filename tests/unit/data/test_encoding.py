"""Texts as token ids, each with what was cut."""

from __future__ import annotations

import copy
import json
import random
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, Value
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

import glassloop
from glassloop.base.errors import ModelError, SettingsError
from glassloop.data import encoding
from glassloop.data.encoding import Counts, LengthLimit, Truncation, TypedTokens, encode, shortened, tokenizer_key, typed_tokens
from glassloop.data.examples import length_facts
from glassloop.data.rows import lengths_of
from glassloop.data.sources import load_examples

pytestmark = pytest.mark.usefixtures("fresh_cache")


def test_each_text_has_its_tokens_its_cut_and_its_kept_part(tiny_tokenizer) -> None:
    found = encoding.encode_texts(tiny_tokenizer, [["good film", "good " * 20, "a [SEP]"]], 10)
    assert [row.num_tokens for row in found.rows] == [4, 10, 4]
    assert [row.cut.num_tokens for row in found.rows] == [0, 12, 0]
    assert (found.cut.num_rows, found.cut.longest, found.typed.num_rows) == (1, 22, 1)
    (row,) = encoding.encode_texts(tiny_tokenizer, [["good"], ["bad " * 20]], 10).rows
    assert (row.cut.num_first, row.cut.num_second) == (0, 1), "pairs say which text was cut"
    first, second = "the film was good and bad", "this story was very good"
    whole, cut = encoding.kept_parts(tiny_tokenizer, [[first, first * 9], [second, second]], 512), None
    assert whole[0] == [(0, len(first)), (0, len(second))]
    ((cut, _),) = encoding.kept_parts(tiny_tokenizer, [[first], [second]], 10)
    assert cut[0] == 0
    assert 0 < cut[1] < len(first)
    assert encoding.kept_parts(tiny_tokenizer, [[]], 10) == []


def test_the_next_rows_are_tokenized_while_the_last_ones_are_used(tiny_tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "AHEAD_ROWS", 2)
    texts, started = ["good", "bad film", "a", "good bad", "film"], [threading.Event() for _ in range(3)]

    def encode(columns):
        started[texts.index(columns[0][0]) // 2].set()
        return encoding.encode_texts(tiny_tokenizer, columns, 10)

    found = []
    for place, part in enumerate(encoding.encoded_ahead(encode, [texts])):
        assert all(event.wait(5) for event in started[: place + 2]), "the rows after these are under way"
        found += part.rows
    assert found == encoding.encode_texts(tiny_tokenizer, [texts], 10).rows
    assert len([*encoding.encoded_ahead(encode, [["good"]])]) == 1


# --- Special tokens that somebody typed: counted as the tokenizer reads them, and told.
@pytest.fixture
def tokenizer(tiny_tokenizer) -> Any:
    """A copy, so that no test sees what another has done to it."""
    return copy.deepcopy(tiny_tokenizer)


def test_typed_special_tokens_are_counted_as_the_tokenizer_reads_them(tokenizer) -> None:
    first = ["good", "a [SEP] b", "[SEP] [CLS] [SEP]", "[sep] is no token", "[ SEP ]", "good[MASK]"]
    second = ["[SEP]", "[SEP]", "x", "y", "z", "[PAD]"]
    assert typed_tokens([first], tokenizer) == TypedTokens(3, ("[CLS]", "[MASK]", "[SEP]"))
    assert typed_tokens([first, second], tokenizer) == TypedTokens(4, ("[CLS]", "[MASK]", "[PAD]", "[SEP]"))
    assert typed_tokens([["good", "bad"]], tokenizer) == TypedTokens()
    assert typed_tokens([[]], tokenizer) == TypedTokens()
    # The count is about ids: a typed [SEP] has the id of the real one.
    sep = tokenizer.sep_token_id
    assert tokenizer("a [SEP] b")["input_ids"].count(sep) == 2
    assert tokenizer("a [sep] b")["input_ids"].count(sep) == 1
    tokenizer.split_special_tokens = True
    if tokenizer("a [SEP] b")["input_ids"].count(sep) == 1:
        assert typed_tokens([["a [SEP] b"]], tokenizer) == TypedTokens()


# --- Long texts: cut before they are tokenized, with the ids of the whole text, for every kind of tokenizer.
LETTERS = "etaoinshrdlu"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def random_text(seed: int, size: int, blank: str = " ") -> str:
    chance, text = random.Random(seed), ""
    while len(text) < size:
        word, sign = "".join(chance.choices(LETTERS, k=chance.randint(1, 12))), chance.choice(". , é 北 \n -".split(" "))
        text += word + (sign or blank) + blank
    return text[:size]


def word_pieces() -> tuple[Tokenizer, Any]:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    return made, trainers.WordPieceTrainer(vocab_size=150, special_tokens=SPECIAL)


def byte_pairs() -> tuple[Tokenizer, Any]:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return made, trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet)


def unigrams() -> tuple[Tokenizer, Any]:
    made = Tokenizer(models.Unigram())
    made.normalizer, made.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    return made, trainers.UnigramTrainer(vocab_size=150, special_tokens=SPECIAL, unk_token="[UNK]")


KINDS = {"WordPiece": word_pieces, "byte-level BPE": byte_pairs, "Unigram": unigrams}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer_tokenizing(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    """One of the three kinds of tokenizers in use, trained on a few words."""
    made, trainer = KINDS[request.param]()
    made.train_from_iterator([random_text(seed, 400) for seed in range(40)], trainer)
    ids = [(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ids)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MOST_CHARACTERS", 1500)
    monkeypatch.setattr(encoding, "MOST_CHARACTERS_PER_TOKEN", 24)
    monkeypatch.setattr(encoding, "GROUP_CHARACTERS", 4000)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("blank", [" ", "\n\t ", ""], ids=["words", "other blanks", "no blanks"])
def test_ids_are_those_of_the_whole_text(blank, pairs, side, tokenizer_tokenizing):
    tokenizer_tokenizing.truncation_side = side
    first = [random_text(seed, size, blank) for seed, size in enumerate((5, 1499, 1501, 1502, 4000, 20_000, 80, 1510))]
    columns = [first, [random_text(seed, 30 + seed, blank) for seed in range(len(first))]] if pairs else [first]
    found = [ids for group in encoding.tokenized_groups(tokenizer_tokenizing, columns, 60) for ids in group.ids["input_ids"]]
    assert found == tokenizer_tokenizing(*columns, truncation=True, max_length=60)["input_ids"]


def test_only_what_is_beyond_the_limit_is_cut_between_words_and_groups_are_bounded():
    text = "one two three four"
    assert shortened(text, len(text)) is text
    assert shortened(text, 13) == shortened(text, 14) == "one two three"
    assert shortened(text, 12) == shortened(text, 8) == "one two"
    assert shortened(text, 4) == shortened(text, 3) == "one"
    assert shortened(text, 5, "left") == shortened(text, 6, "left") == " four"
    assert shortened(text, 11, "left") == " three four"
    assert shortened("x" * 5000, 3000) == shortened("x" * 5000, 3000, "left") == "x" * 3000, "there is nowhere else to cut"
    assert shortened("a " + "x" * 5000, 3000) == "a " + "x" * 2998, "a word without end is no word"
    for size in [1, 999, 2_000_000]:
        sizes = [random.Random(place).choice([1, size, size // 3, 3 * size]) for place in range(50)]
        rows = [list(range(50))[part] for part in encoding.groups_of(sizes)]
        assert [row for part in rows for row in part] == list(range(50))
        assert all(len(part) == 1 or sum(sizes[row] for row in part) <= encoding.GROUP_CHARACTERS for part in rows)
    assert [*encoding.groups_of([])] == []


@pytest.mark.parametrize("kind", ["words", "no blanks", "blanks"])
def test_a_text_of_ten_million_characters_is_read_in_part_and_counted(kind, tiny_tokenizer, monkeypatch, tmp_path):
    monkeypatch.setenv("GLASSLOOP_CACHE", str(tmp_path))
    monkeypatch.setattr(encoding, "MOST_CHARACTERS", 50_000)  # for speed; the limit is tested above
    size = 10_000_000
    texts = {"words": "the film was good and " * (size // 22), "no blanks": "x" * size, "blanks": "the" + " " * size + "end"}
    text = texts[kind]
    seen: list[int] = []
    call = type(tiny_tokenizer).__call__

    def watched(self: Any, *columns: Any, **options: Any) -> Any:
        seen.extend(len(text) for column in columns for text in ([column] if isinstance(column, str) else column))
        return call(self, *columns, **options)

    monkeypatch.setattr(type(tiny_tokenizer), "__call__", watched)
    examples = load_examples({"train": [{"text": text, "label": "a"}, {"text": "a film", "label": "b"}]}, validation_share=0)
    encoded = encode(examples, tiny_tokenizer, 32)["train"]
    assert max(seen) <= 50_000
    assert encoded.truncation.num_shortened == 1
    if kind == "words":
        assert encoded.rows["input_ids"][0] == tiny_tokenizer(text[:2000], truncation=True, max_length=32)["input_ids"]
        assert encoded.truncation.num_rows == 1
        assert encoded.truncation.num_tokens > 5_000, "a lower bound"
    most = [encoding.most_characters(length) for length in (512, 100_000)]
    assert most == [50_000, 6_400_000], "it grows with what a model takes"


def test_a_tokenizer_that_fails_is_an_error_of_the_model() -> None:
    """WordPiece without its unknown token fails at the first word that it does not know."""
    pieces = Tokenizer(models.WordPiece(vocab={"[PAD]": 0, "good": 1}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, pad_token="[PAD]")
    assert [*encoding.tokenized_groups(tokenizer, [["good"]], 8)]
    with pytest.raises(ModelError) as caught:
        [*encoding.tokenized_groups(tokenizer, [["bad"]], 8)]
    assert caught.value.problem == "the tokenizer failed: Exception: WordPiece error: Missing [UNK] token from the vocabulary"
    assert caught.value.remedy == "download the model again: its tokenizer files are damaged or do not belong together"

    class Large:
        truncation_side = "right"

        def __call__(self, *_: Any, **__: Any) -> None:
            raise MemoryError

    with pytest.raises(MemoryError):  # not the fault of the model
        [*encoding.tokenized_groups(Large(), [["bad"]], 8)]


# --- Rows that lose tokens: how many, where, and what to do.
def test_counts_are_added_and_a_note_says_how_many_where_and_what_to_do() -> None:
    found = Truncation(1, 1, 0, 5, 1, longest=20) + Truncation(2, 1, 2, 7, 0, longest=70)
    assert found == Truncation(3, 2, 2, 12, 1, longest=70)
    assert found + Truncation() == found
    assert LengthLimit(128, 512).notes(Counts(100)) == []
    limit, ends = LengthLimit(128, 512), "which the tokenizer reads as that token"
    one, both = TypedTokens(1, ("[SEP]",)), TypedTokens(1_000, ("[SEP]",)) + TypedTokens(234, ("[CLS]", "\x1b[31m"))
    assert limit.notes(Counts(9, typed=one)) == [f"1 row contains the text of a special token ([SEP]), {ends}"]
    text = r"1,234 rows contain the text of a special token (\x1b[31m, [CLS], [SEP])"
    assert limit.notes(Counts(9, typed=both)) == [f"{text}, {ends}"]
    for limit, cut, rows, lost, remedy in [
        (WIDE, (37, 37, 0, 900, 0, 200), 408, f"37 of 408 rows (9%) {FIRST}", f"use {KEEPS_ALL}"),
        (LEFT, (1, 1, 0, 9, 0, 200), 1000, "1 of 1,000 rows (less than 1%) lost the beginning of the text", f"use {KEEPS_ALL}"),
        (
            PAIRS,
            (4, 3, 2, 9, 0, 800),
            8,
            "4 of 8 rows (50%) lost the end of the first text (3) and the second text (2)",
            USE_MORE,
        ),
        (FULL, (4, 0, 4, 900, 0, 800), 4, "4 of 4 rows (100%) lost the end of the second text (4)", LONGEST),
        (replace(SHORT, trained=True), (1, 1, 0, 9, 0, 200), 1, f"1 of 1 row (100%) {FIRST}", f"train with {KEEPS_ALL}"),
        (SHORT, (1, 1, 0, 9, 1, 400), 1, f"1 of 1 row (100%) {FIRST}", USE_MORE),  # shortened before it was tokenized
    ]:
        places = f"cut to {limit.max_length} tokens, the longest had {cut[-1]}"
        assert limit.notes(Counts(rows, Truncation(*cut))) == [f"{lost}: {places}; {remedy}"]


KEEPS_ALL, USE_MORE = "--max_length 200 to keep everything", "use --max_length 512, the model's maximum, to keep more"
WIDE, SHORT, FIRST = LengthLimit(128, 512), LengthLimit(16, 512), "lost the end of the text"
LEFT, PAIRS, FULL = replace(WIDE, side="left"), replace(WIDE, pairs=True), LengthLimit(512, 512, pairs=True, trained=True)
LONGEST = "this is the model's maximum: split or shorten the texts, or use a model for longer texts"


WORDS = "the a is was good bad film story very not and of to in on it this that unknownword ?! 12345".split(" ")


def random_words(random: np.random.Generator, longest: int = 30) -> str:
    return " ".join(random.choice(WORDS, random.integers(1, longest + 1)))


def random_rows(seed: int, pairs: bool, size: int = 60) -> list[dict[str, Any]]:
    random = np.random.default_rng(seed)
    texts = [{"text": f"{place} {random_words(random)}", "label": "ab"[place % 2]} for place in range(size)]
    return [{**row, "text_pair": random_words(random)} for row in texts] if pairs else texts


def examples_of(rows: list[dict[str, Any]], **settings) -> glassloop.Examples:
    return load_examples({"train": rows, "validation": rows[: len(rows) // 2]}, **settings)


def file_of(encoded: encoding.Encoding) -> str:
    (file,) = encoded.rows.cache_files
    return str(file["filename"])


@pytest.mark.parametrize("chunk", [7, 10_000])
@pytest.mark.parametrize("max_length", [8, 17, 64])
@pytest.mark.parametrize("pairs", [False, True])
def test_ids_are_those_of_the_tokenizer(pairs, max_length, chunk, tokenizer, monkeypatch):
    monkeypatch.setattr(encoding, "ENCODED_ROWS", chunk)
    rows = random_rows(1, pairs)
    encoded = encode(examples_of(rows), tokenizer, max_length)
    for split, part in {"train": rows, "validation": rows[:30]}.items():
        texts = [[row[column] for row in part] for column in (["text", "text_pair"] if pairs else ["text"])]
        direct = tokenizer(*texts, truncation=True, max_length=max_length)
        found = encoded[split].rows
        assert found.column_names == ["input_ids", "token_type_ids", "labels"]
        assert (found["input_ids"][:], found["token_type_ids"][:]) == (direct["input_ids"], direct["token_type_ids"])
        assert found["labels"][:] == [place % 2 for place in range(len(part))]
        assert encoded[split].lengths.tolist() == [len(ids) for ids in direct["input_ids"]]
        assert max(encoded[split].lengths) <= max_length


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pairs", [False, True])
def test_truncation_is_counted_like_by_hand(pairs, seed, side, tokenizer):
    tokenizer.truncation_side = side
    rows, max_length = random_rows(seed, pairs), 24
    found = encode(examples_of(rows), tokenizer, max_length)["train"].truncation
    cut = first = second = tokens = longest = 0
    for row in rows:
        texts = [row["text"], row["text_pair"]] if pairs else [row["text"]]
        whole = tokenizer(*texts)["token_type_ids"]
        kept = tokenizer(*texts, truncation=True, max_length=max_length)["token_type_ids"]
        lost = [whole.count(kind) - kept.count(kind) for kind in (0, 1)]
        cut, first, second, tokens = cut + (sum(lost) > 0), first + (lost[0] > 0), second + (lost[1] > 0), tokens + sum(lost)
        longest = max(longest, len(whole))
    assert found == Truncation(cut, first, second, tokens, longest=longest)
    assert 0 < cut < len(rows)
    assert (0 < second < cut) == pairs
    fits = [{"text": "the " * length, "label": "ab"[length % 2]} for length in (21, 22, 23)]
    assert encode(examples_of(fits), tokenizer, max_length)["train"].truncation == Truncation(1, 1, 0, 1, longest=25)


def test_labels_are_what_a_loss_wants_and_a_split_without_them_has_no_column(tokenizer, monkeypatch):
    for cells, settings, labels, kind in [
        (["b", "a", "b", "c"], {}, [1, 0, 1, 2], "int64"),
        (["0.5", "-2", "1", "3"], {"task": "regression"}, [0.5, -2.0, 1.0, 3.0], "float32"),
        ([["b"], [], ["c", "a"], ["b", "c"]], {}, [[0, 1, 0], [0, 0, 0], [1, 0, 1], [0, 1, 1]], "float32"),
    ]:
        monkeypatch.setattr(encoding, "ENCODED_ROWS", 3)
        rows = [{"text": f"the {place}", "label": cell} for place, cell in enumerate(cells)]
        found = encode(examples_of(rows, **settings), tokenizer, 8)["train"].rows
        assert found["labels"][:] == labels
        feature = found.features["labels"]
        assert getattr(feature, "feature", feature) == Value(kind)
    rows = random_rows(3, pairs=False)
    examples = load_examples({"train": rows, "validation": rows[:4], "test": [{"text": row["text"]} for row in rows]})
    encoded = encode(examples, tokenizer, 16)
    assert encoded["test"].rows.column_names == ["input_ids", "token_type_ids"]
    assert encoded["test"].rows["input_ids"][:] == encoded["train"].rows["input_ids"][:]
    secret = load_examples({"train": rows, "validation": rows[:4], "test": [{**row, "label": "-1"} for row in rows]})
    assert file_of(encode(secret, tokenizer, 16)["test"]) == file_of(encoded["test"])
    rows = [{"text": f"the {place}", "label": ["a", "b"][: 1 + place % 2]} for place in range(4)]
    for names in ("a,b", "a,b,c"):
        encoded = encode(examples_of(rows, labels=names), tokenizer, 8)["train"]
        assert {len(labels) for labels in encoded.rows["labels"]} == {len(names.split(","))}
    for test in ([{"text": "the"}], [{"text": "the", "label": []}]):
        encoded = encode(load_examples({"train": rows, "validation": rows, "test": test}), tokenizer, 8)["test"]
        assert ("labels" in encoded.rows.column_names) == ("label" in test[0])
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    encoded = encode(examples_of(random_rows(2, pairs=True)), tokenizer, 24)["train"]
    assert encoded.rows.column_names == ["input_ids", "labels"]
    assert 0 < encoded.truncation.num_second <= encoded.truncation.num_rows


@pytest.mark.parametrize("pairs", [False, True])
def test_a_tokenizer_written_in_python(pairs):
    from transformers import ByT5Tokenizer

    tokenizer, rows = ByT5Tokenizer(), random_rows(9, pairs)
    encoded = encode(examples_of(rows), tokenizer, 40)["train"]
    columns = [[row[name] for row in rows] for name in ("text", "text_pair")[: 1 + pairs]]
    assert encoded.rows["input_ids"][:] == tokenizer(*columns, truncation=True, max_length=40, verbose=False)["input_ids"]
    lost = []
    for ids, *texts in zip(encoded.rows["input_ids"], *columns, strict=True):
        parts = tokenizer.decode(ids).split("</s>")[:-1]  # a byte is a token, and every text ends with this one
        lost.append([len(text) - len(part) for text, part in zip(texts, parts, strict=True)])
    assert encoded.truncation == Truncation(
        num_rows=sum(any(row) for row in lost),
        num_first=sum(row[0] > 0 for row in lost),
        num_second=sum(row[-1] > 0 for row in lost) if pairs else 0,
        num_tokens=sum(map(sum, lost)),
        longest=encoded.truncation.longest,
    )
    assert encoded.truncation.longest == max(len(ids) for ids in tokenizer(*columns, verbose=False)["input_ids"])
    assert encoded.truncation.num_rows > 0


# --- the cache ---------------------------------------------------------------------------------------------------
def test_the_same_content_is_encoded_once(write, tokenizer, monkeypatch):
    rows = random_rows(4, pairs=True)
    lines = write("d.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    cells = "".join(f"7,{row['label']},{row['text']},{row['text_pair']}\n" for row in rows)
    table = write("d.csv", f"id,label,text,text_pair\n{cells}")
    first = encode(load_examples(lines), tokenizer, 24)
    monkeypatch.setattr(encoding, "write_encoding", lambda *_: pytest.fail("encoded again"))
    second = encode(load_examples(table), tokenizer, 24)
    for split in ("train", "validation"):
        assert file_of(first[split]) == file_of(second[split])
        assert first[split].truncation == second[split].truncation
        assert (first[split].lengths == second[split].lengths).all()


def test_other_content_is_another_file(tokenizer):
    rows = random_rows(5, pairs=True)
    examples = examples_of(rows)
    cased, left, larger, special, names, split = others = [copy.deepcopy(tokenizer) for _ in range(6)]
    cased.backend_tokenizer.normalizer = None
    left.truncation_side = "left"
    larger.add_tokens(["unknownword"])
    special.add_special_tokens({"additional_special_tokens": ["good"]})
    names.model_input_names = ["input_ids", "attention_mask"]
    split.split_special_tokens = True
    changed = [[*rows[:-1], {**rows[-1], name: "new"}] for name in ("text", "text_pair")]
    changed += [[*rows[:-1], {**rows[-1], "label": "a"}], rows[::-1]]
    changed.append([{"text": row["text"], "label": row["label"]} for row in rows])
    encoded = [
        *(encode(examples, other, 24) for other in (tokenizer, *others)),
        encode(examples, tokenizer, 25),
        *(encode(examples_of(other), tokenizer, 24) for other in changed),
        encode(examples_of(rows, text="text_pair", text_pair="text"), tokenizer, 24),
    ]
    assert len({file_of(found["train"]) for found in encoded}) == len(encoded)


@pytest.mark.parametrize(
    "call", [{"padding": "max_length", "max_length": 40}, {"truncation": True, "max_length": 9}, {"padding": True}]
)
def test_what_an_earlier_call_left_behind_does_not_matter(call, tokenizer, monkeypatch):
    examples = examples_of(random_rows(6, pairs=False))
    key, first = tokenizer_key(tokenizer), encode(examples, tokenizer, 24)["train"]
    tokenizer(["the film", "the story is good"], **call)
    assert tokenizer_key(tokenizer) == key
    monkeypatch.setenv("GLASSLOOP_CACHE", str(Path(file_of(first)).parent / "another"))
    again = encode(examples_of(random_rows(6, pairs=False)), tokenizer, 24)["train"]
    assert again.rows["input_ids"][:] == first.rows["input_ids"][:]
    assert again.truncation == first.truncation


def test_the_key_of_a_tokenizer_written_in_python():
    def slow(**changes: Any) -> SimpleNamespace:
        described = {"vocab": {"a": 0, "b": 1}, "truncation_side": "right", "model_input_names": ["input_ids"], **changes}
        return SimpleNamespace(get_vocab=lambda: described["vocab"], **described)

    assert tokenizer_key(slow()) == tokenizer_key(slow(vocab={"b": 1, "a": 0}))
    others = [slow(), slow(vocab={"a": 1, "b": 0}), slow(truncation_side="left"), slow(model_input_names=[])]
    others += [slow(init_kwargs={"do_lower_case": True}), slow(split_special_tokens=True)]
    assert len(set(map(tokenizer_key, others))) == 6
    moved = [slow(init_kwargs={"do_lower_case": True, "name_or_path": place}) for place in ("here", "there")]
    assert len(set(map(tokenizer_key, moved))) == 1


def test_a_fault_leaves_no_folder_behind_and_invalid_lengths_are_refused(fresh_cache, tokenizer, monkeypatch, refused):
    examples = examples_of(random_rows(7, pairs=False))
    with monkeypatch.context() as patched:
        patched.setattr(encoding, "cut_rows", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            encode(examples, tokenizer, 24)
    assert list((fresh_cache / "encodings").iterdir()) == []
    encode(examples, tokenizer, 24)
    for max_length in [7, 0, -1, 8.0, "64", None, True]:
        with refused(f"max_length is {max_length!r}", "use a whole number of 8 or more", SettingsError):
            encode(examples, tokenizer, max_length)


def test_lengths_of_any_encoded_data_set(monkeypatch) -> None:
    monkeypatch.setattr("glassloop.data.rows.LENGTH_ROWS", 4)
    rows = Dataset.from_dict({"input_ids": [[1] * length for length in range(1, 12)], "labels": [0] * 11})
    assert lengths_of(rows).tolist() == list(range(1, 12))
    assert lengths_of(rows.select([5, 0, 9]).with_format("torch")).tolist() == [6, 1, 10]
    assert lengths_of(rows.select([])).tolist() == []
    assert lengths_of(rows.to_list()).tolist() == list(range(1, 12))
    facts = length_facts(np.array([2, 4, 4, 48]), num_cut=1, longest_whole=90)
    assert (facts.mean, facts.median, facts.longest, facts.num_truncated, facts.longest_before) == (14.5, 4.0, 48, 1, 90)
    assert (sum(facts.counts), facts.counts[-1], len(facts.counts)) == (4, 1, 24)
    assert length_facts(np.array([])) is None


def test_special_tokens_and_cuts_are_kept_in_the_cache_and_noted(tokenizer) -> None:
    rows = [{"text": text, "label": label} for text, label in (("good [SEP] film", "a"), ("bad", "b"), ("[CLS] [SEP]", "a"))]
    for _ in range(2):
        encoded = encode(examples_of(rows), tokenizer, 16)
        assert encoded["train"].typed == TypedTokens(2, ("[CLS]", "[SEP]"))
        assert encoding.notes_on(encoded, LengthLimit(16, 64)) == [
            "train: 2 rows contain the text of a special token ([CLS], [SEP]), which the tokenizer reads as that token",
            "validation: 1 row contains the text of a special token ([SEP]), which the tokenizer reads as that token",
        ]
    assert encoding.notes_on(encode(examples_of(random_rows(1, pairs=True)), tokenizer, 200), LengthLimit(200, 200)) == []
    rows = [{"text": "the " * (20 if row == 3 else 2) + str(row), "label": "ab"[row % 2]} for row in range(20)]
    notes = encoding.notes_on(encode(examples_of(rows), tokenizer, 16), LengthLimit(16, 64))
    assert [note.partition(" lost the end of the text: cut to 16 tokens")[0] for note in notes] == [
        "train: 1 of 20 rows (5%)",
        "validation: 1 of 10 rows (10%)",
    ]
    tokenizer.add_tokens([AddedToken("<user>", special=True), AddedToken("plainword", special=False)])
    assert typed_tokens([["<user> good", "plainword"]], tokenizer) == TypedTokens(1, ("<user>",))
