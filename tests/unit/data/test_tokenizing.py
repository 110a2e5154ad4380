"""Long texts: cut before they are tokenized, with the ids of the whole text, for every kind of tokenizer."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from glassloop.base.errors import ModelError
from glassloop.data import encoding as tokenizing
from glassloop.data.encoding import Truncation, encode, groups_of, most_characters, shortened, tokenized_groups
from glassloop.data.sources import load_examples

LETTERS = "etaoinshrdlu"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def random_text(seed: int, size: int, blank: str = " ") -> str:
    chance, text = random.Random(seed), ""
    while len(text) < size:
        text += (
            "".join(chance.choices(LETTERS, k=chance.randint(1, 12)))
            + (chance.choice(". , é 北 \n -".split(" ")) or blank)
            + blank
        )
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
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    """One of the three kinds of tokenizers in use, trained on a few words."""
    made, trainer = KINDS[request.param]()
    made.train_from_iterator([random_text(seed, 400) for seed in range(40)], trainer)
    ids = [(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ids)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizing, "MOST_CHARACTERS", 1500)
    monkeypatch.setattr(tokenizing, "MOST_CHARACTERS_PER_TOKEN", 24)
    monkeypatch.setattr(tokenizing, "GROUP_CHARACTERS", 4000)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("blank", [" ", "\n\t ", ""], ids=["words", "other blanks", "no blanks"])
def test_ids_are_those_of_the_whole_text(blank, pairs, side, tokenizer):
    tokenizer.truncation_side = side
    first = [random_text(seed, size, blank) for seed, size in enumerate((5, 1499, 1501, 1502, 4000, 20_000, 80, 1510))]
    columns = [first, [random_text(seed, 30 + seed, blank) for seed in range(len(first))]] if pairs else [first]
    found = [ids for encoded, _ in tokenized_groups(tokenizer, columns, 60) for ids in encoded["input_ids"]]
    assert found == tokenizer(*columns, truncation=True, max_length=60)["input_ids"]


def test_only_what_is_beyond_the_limit_is_cut_and_between_words():
    text = "one two three four"
    assert shortened(text, len(text)) is text
    assert shortened(text, 13) == shortened(text, 14) == "one two three"
    assert shortened(text, 12) == shortened(text, 8) == "one two"
    assert shortened(text, 4) == shortened(text, 3) == "one"
    assert shortened(text, 5, "left") == shortened(text, 6, "left") == " four"
    assert shortened(text, 11, "left") == " three four"
    assert shortened("x" * 5000, 3000) == shortened("x" * 5000, 3000, "left") == "x" * 3000, "there is nowhere else to cut"
    assert shortened("a " + "x" * 5000, 3000) == "a " + "x" * 2998, "a word without end is no word"


def test_the_limit_grows_with_what_a_model_takes():
    assert most_characters(512) == 1_000_000
    assert most_characters(100_000) == 6_400_000


@pytest.mark.parametrize("size", [1, 999, 2_000_000])
def test_groups_are_neighbours_and_bounded(size):
    sizes = [random.Random(place).choice([1, size, size // 3, 3 * size]) for place in range(50)]
    rows = [list(range(50))[part] for part in groups_of(sizes)]
    assert [row for part in rows for row in part] == list(range(50))
    assert all(len(part) == 1 or sum(sizes[row] for row in part) <= tokenizing.GROUP_CHARACTERS for part in rows)
    assert [*groups_of([])] == []


@pytest.mark.parametrize("kind", ["words", "no blanks", "blanks"])
def test_a_text_of_ten_million_characters_is_read_in_part_and_counted(kind, tiny_tokenizer, monkeypatch, tmp_path):
    monkeypatch.setenv("GLASSLOOP_CACHE", str(tmp_path))
    monkeypatch.setattr(tokenizing, "MOST_CHARACTERS", 50_000)  # for speed; the limit is tested above
    size = 10_000_000
    text = {"words": "the film was good and " * (size // 22), "no blanks": "x" * size, "blanks": "the" + " " * size + "end"}[
        kind
    ]
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
    assert Truncation().num_shortened == 0


def test_a_tokenizer_that_fails_is_an_error_of_the_model() -> None:
    """WordPiece without its unknown token fails at the first word that it does not know."""
    pieces = Tokenizer(models.WordPiece(vocab={"[PAD]": 0, "good": 1}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, pad_token="[PAD]")
    assert [*tokenized_groups(tokenizer, [["good"]], 8)]
    with pytest.raises(ModelError) as caught:
        [*tokenized_groups(tokenizer, [["bad"]], 8)]
    assert caught.value.problem == "the tokenizer failed: Exception: WordPiece error: Missing [UNK] token from the vocabulary"
    assert caught.value.remedy == "download the model again: its tokenizer files are damaged or do not belong together"


def test_too_little_memory_is_no_error_of_the_model() -> None:
    class Large:
        truncation_side = "right"

        def __call__(self, *_: Any, **__: Any) -> None:
            raise MemoryError

    with pytest.raises(MemoryError):
        [*tokenized_groups(Large(), [["bad"]], 8)]
