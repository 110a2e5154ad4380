"""Token ids as the tokenizer itself gives them, truncation counted by hand, and one file on disk for one content."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, Value

import glassloop
from glassloop.base.errors import SettingsError
from glassloop.data import encoding
from glassloop.data.encoding import LengthLimit, Truncation, TypedTokens, encode, lengths_of, notes_on, tokenizer_key
from glassloop.data.sources import load_examples

WORDS = "the a is was good bad film story very not and of to in on it this that unknownword ?! 12345".split(" ")


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path_factory, monkeypatch) -> Path:
    place = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("GLASSLOOP_CACHE", str(place))
    return place


@pytest.fixture
def tokenizer(tiny_tokenizer) -> Any:
    """A copy, so that no test sees what another has done to it."""
    return copy.deepcopy(tiny_tokenizer)


def random_text(random: np.random.Generator, longest: int = 30) -> str:
    return " ".join(random.choice(WORDS, random.integers(1, longest + 1)))


def random_rows(seed: int, pairs: bool, size: int = 60) -> list[dict[str, Any]]:
    random = np.random.default_rng(seed)
    texts = [{"text": f"{place} {random_text(random)}", "label": "ab"[place % 2]} for place in range(size)]
    return [{**row, "text_pair": random_text(random)} for row in texts] if pairs else texts


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


def test_rows_that_just_fit_are_not_cut(tokenizer):
    rows = [{"text": "the " * length, "label": "ab"[length % 2]} for length in (6, 7, 14, 15)]
    found = encode(examples_of(rows), tokenizer, 16)["train"]
    assert (found.lengths.tolist(), found.truncation) == ([8, 9, 16, 16], Truncation(1, 1, 0, 1, longest=17))


def test_a_tokenizer_without_token_types(tokenizer):
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    encoded = encode(examples_of(random_rows(2, pairs=True)), tokenizer, 24)["train"]
    assert encoded.rows.column_names == ["input_ids", "labels"]
    assert 0 < encoded.truncation.num_second <= encoded.truncation.num_rows


@pytest.mark.parametrize(
    ("cells", "settings", "labels", "kind"),
    [
        (["b", "a", "b", "c"], {}, [1, 0, 1, 2], "int64"),
        (["0.5", "-2", "1", "3"], {"task": "regression"}, [0.5, -2.0, 1.0, 3.0], "float32"),
        ([["b"], [], ["c", "a"], ["b", "c"]], {}, [[0, 1, 0], [0, 0, 0], [1, 0, 1], [0, 1, 1]], "float32"),
    ],
)
def test_labels_are_what_a_loss_wants(cells, settings, labels, kind, tokenizer, monkeypatch):
    monkeypatch.setattr(encoding, "ENCODED_ROWS", 3)
    rows = [{"text": f"the {place}", "label": cell} for place, cell in enumerate(cells)]
    found = encode(examples_of(rows, **settings), tokenizer, 8)["train"].rows
    assert found["labels"][:] == labels
    feature = found.features["labels"]
    assert getattr(feature, "feature", feature) == Value(kind)


def test_a_split_without_labels_has_no_column_of_them(tokenizer):
    rows = random_rows(3, pairs=False)
    examples = load_examples({"train": rows, "validation": rows[:4], "test": [{"text": row["text"]} for row in rows]})
    encoded = encode(examples, tokenizer, 16)
    assert encoded["test"].rows.column_names == ["input_ids", "token_type_ids"]
    assert encoded["test"].rows["input_ids"][:] == encoded["train"].rows["input_ids"][:]
    secret = load_examples({"train": rows, "validation": rows[:4], "test": [{**row, "label": "-1"} for row in rows]})
    assert file_of(encode(secret, tokenizer, 16)["test"]) == file_of(encoded["test"])


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
    table = write(
        "d.csv", "id,label,text,text_pair\n" + "".join(f"7,{r['label']},{r['text']},{r['text_pair']}\n" for r in rows)
    )
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
    cased = copy.deepcopy(tokenizer)
    cased.backend_tokenizer.normalizer = None
    left = copy.deepcopy(tokenizer)
    left.truncation_side = "left"
    larger = copy.deepcopy(tokenizer)
    larger.add_tokens(["unknownword"])
    special = copy.deepcopy(tokenizer)
    special.add_special_tokens({"additional_special_tokens": ["good"]})
    names = copy.deepcopy(tokenizer)
    names.model_input_names = ["input_ids", "attention_mask"]
    files = [
        file_of(encode(examples, tokenizer, 24)["train"]),
        *(file_of(encode(examples, other, 24)["train"]) for other in (cased, left, larger, special, names)),
        file_of(encode(examples, tokenizer, 25)["train"]),
        file_of(encode(examples_of([*rows[:-1], {**rows[-1], "text": "new"}]), tokenizer, 24)["train"]),
        file_of(encode(examples_of([*rows[:-1], {**rows[-1], "text_pair": "new"}]), tokenizer, 24)["train"]),
        file_of(encode(examples_of([*rows[:-1], {**rows[-1], "label": "a"}]), tokenizer, 24)["train"]),
        file_of(encode(examples_of(rows[::-1]), tokenizer, 24)["train"]),
        file_of(encode(examples_of([{"text": row["text"], "label": row["label"]} for row in rows]), tokenizer, 24)["train"]),
        file_of(encode(examples_of(rows, text="text_pair", text_pair="text"), tokenizer, 24)["train"]),
    ]
    assert len(set(files)) == len(files)


def test_the_number_of_labels_and_whether_there_are_any_are_content(tokenizer):
    rows = [{"text": f"the {place}", "label": ["a", "b"][: 1 + place % 2]} for place in range(4)]
    for names in ("a,b", "a,b,c"):
        encoded = encode(examples_of(rows, labels=names), tokenizer, 8)["train"]
        assert {len(labels) for labels in encoded.rows["labels"]} == {len(names.split(","))}
    for test in ([{"text": "the"}], [{"text": "the", "label": []}]):
        encoded = encode(load_examples({"train": rows, "validation": rows, "test": test}), tokenizer, 8)["test"]
        assert ("labels" in encoded.rows.column_names) == ("label" in test[0])


def test_numbers_as_classes_and_as_scores_are_other_files(tokenizer):
    rows = [{"text": f"the {place}", "label": str(place % 2)} for place in range(4)]
    classes = encode(examples_of(rows), tokenizer, 8)["train"]
    scores = encode(examples_of(rows, task="regression"), tokenizer, 8)["train"]
    assert (classes.rows.features["labels"], scores.rows.features["labels"]) == (Value("int64"), Value("float32"))


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


def test_a_fault_leaves_no_folder_behind(fresh_cache, tokenizer, monkeypatch):
    examples = examples_of(random_rows(7, pairs=False))
    with monkeypatch.context() as patched:
        patched.setattr(encoding, "cut_by_truncation", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            encode(examples, tokenizer, 24)
    assert list((fresh_cache / "encodings").iterdir()) == []
    encode(examples, tokenizer, 24)


@pytest.mark.parametrize("max_length", [7, 0, -1, 8.0, "64", None, True])
def test_invalid_lengths(max_length, tokenizer, refused):
    examples = examples_of(random_rows(8, pairs=False))
    with refused(f"max_length is {max_length!r}", "use a whole number of 8 or more", SettingsError):
        encode(examples, tokenizer, max_length)


def test_lengths_of_any_encoded_data_set(monkeypatch):
    monkeypatch.setattr(encoding, "ENCODED_ROWS", 4)
    rows = Dataset.from_dict({"input_ids": [[1] * length for length in range(1, 12)], "labels": [0] * 11})
    assert lengths_of(rows).tolist() == list(range(1, 12))
    assert lengths_of(rows.select([5, 0, 9]).with_format("torch")).tolist() == [6, 1, 10]
    assert lengths_of(rows.select([])).tolist() == []
    assert lengths_of(rows.to_list()).tolist() == list(range(1, 12))


def test_typed_special_tokens_are_counted_and_kept_in_the_cache(tokenizer) -> None:
    rows = [{"text": text, "label": label} for text, label in (("good [SEP] film", "a"), ("bad", "b"), ("[CLS] [SEP]", "a"))]
    for _ in range(2):
        encoded = encode(examples_of(rows), tokenizer, 16)
        assert encoded["train"].typed == TypedTokens(2, ("[CLS]", "[SEP]"))
        assert notes_on(encoded, LengthLimit(16, 64)) == [
            "train: 2 rows contain the text of a special token ([CLS], [SEP]), which the tokenizer reads as that token",
            "validation: 1 row contains the text of a special token ([SEP]), which the tokenizer reads as that token",
        ]
    assert notes_on(encode(examples_of(random_rows(1, pairs=True)), tokenizer, 200), LengthLimit(200, 200)) == []


def test_rows_that_were_cut_are_among_the_notes_of_their_split(tokenizer) -> None:
    rows = [{"text": "the " * (20 if row == 3 else 2) + str(row), "label": "ab"[row % 2]} for row in range(20)]
    notes = notes_on(encode(examples_of(rows), tokenizer, 16), LengthLimit(16, 64))
    assert [note.partition(" lost the end of the text: cut to 16 tokens")[0] for note in notes] == [
        "train: 1 of 20 rows (5%)",
        "validation: 1 of 10 rows (10%)",
    ]


def test_a_tokenizer_that_splits_special_tokens_has_another_key(tokenizer) -> None:
    before = tokenizer_key(tokenizer)
    tokenizer.split_special_tokens = True
    assert tokenizer_key(tokenizer) != before


def test_the_lengths_of_a_split_are_summarized() -> None:
    facts = encoding.length_facts(np.array([2, 4, 4, 48]), Truncation(num_rows=1, longest=90))
    assert (facts.mean, facts.median, facts.longest, facts.num_truncated, facts.longest_before) == (14.5, 4.0, 48, 1, 90)
    assert (sum(facts.counts), facts.counts[-1], len(facts.counts)) == (4, 1, 24)
    assert encoding.length_facts(np.array([])) is None
