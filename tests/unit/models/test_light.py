"""Classifiers without transformers: the same logits for every family of the table, and nothing that is not known."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from families import FAST, VOCABULARY, WITH_TOKEN_TYPES, families_packed_by, tiny_model, tiny_tokenizer
from run_folders import pooled_model
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, ByteLevelBPETokenizer, Tokenizer, models, pre_tokenizers, trainers

from glassloop.base.errors import ModelError
from glassloop.data.encoding import tokenizer_key, typed_tokens
from glassloop.models.families import FAMILIES
from glassloop.models.light import load_light_model, load_light_tokenizer
from glassloop.models.loading import load_model, load_tokenizer
from glassloop.models.pooled import HEAD_KEY, Pooling

CPU = torch.device("cpu")
EVERY = tuple(families_packed_by("layers"))
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("bert", {"hidden_act": "gelu_new"}),
    ("roberta", {"hidden_act": "gelu_fast"}),
    ("bert", {"num_labels": 1, "problem_type": "regression"}),
    ("bert", {"layer_norm_eps": 0.1}),
    ("roberta", {"pad_token_id": 3, "type_vocab_size": 1}),
    ("electra", {"embedding_size": 16}),
    ("albert", {"num_hidden_layers": 6, "num_hidden_groups": 3, "inner_group_num": 2}),
    ("distilbert", {"activation": "gelu_pytorch_tanh", "n_heads": 4}),
]


def saved(folder: Path, family: str, **options: Any) -> Path:
    """A classifier as a run saves it, with weights so large that a wrong one would show."""
    labels = {"num_labels": 3, "problem_type": "single_label_classification", "initializer_range": 0.2}
    model = tiny_model(family, **(labels | options))
    for weight in model.parameters():
        weight.data += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
    model.save_pretrained(folder)
    return folder


def padded(family: str, on_left: bool) -> dict[str, torch.Tensor]:
    """Five rows of different lengths, padded with the id 0 (or 3, for a family that skips it), and one row that is full."""
    lengths, width = [1, 7, 23, 40, 12], 40
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(4, len(VOCABULARY), (len(lengths), width), generator=generator)
    places = torch.arange(width).expand_as(ids)
    mask = torch.stack([(row >= width - size) if on_left else (row < size) for row, size in zip(places, lengths, strict=True)])
    rows = {"input_ids": torch.where(mask, ids, 0), "attention_mask": mask.long()}
    types = {"token_type_ids": (places > 6).long() * mask}
    return rows | (types if family in WITH_TOKEN_TYPES else {})


def altered(folder: Path, name: str, **changes: object) -> Path:
    path = folder / name
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))
    return folder


def assert_same(folder: Path, rows: dict[str, torch.Tensor]) -> None:
    light = load_light_model(folder, CPU)
    assert light is not None
    with torch.inference_mode():
        logits, expected = light(**rows).logits.numpy(), load_model(folder).eval()(**rows).logits.numpy()
    assert np.abs(expected).max() > 0.01
    np.testing.assert_allclose(logits, expected, atol=2e-5)


@pytest.mark.parametrize("on_left", [False, True])
@pytest.mark.parametrize("family", EVERY)
def test_the_logits_are_those_of_transformers(family: str, on_left: bool, tmp_path: Path) -> None:
    assert_same(saved(tmp_path, family), padded(family, on_left))


@pytest.mark.parametrize(("family", "options"), VARIANTS)
def test_settings_that_change_the_computation(family: str, options: dict[str, Any], tmp_path: Path) -> None:
    assert_same(saved(tmp_path, family, **options), padded(family, on_left=False))


def test_token_types_are_zero_by_default_and_the_config_names_outputs_and_sizes(tmp_path: Path) -> None:
    for family in ("bert", "roberta"):
        assert_same(saved(tmp_path / family, family), padded("distilbert", on_left=False))
    light = load_light_model(saved(tmp_path, "bert"), CPU)
    assert light is not None
    assert light.config.id2label == {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}
    assert (light.config.num_labels, light.config.max_position_embeddings) == (3, 80)
    assert light.config.problem_type == "single_label_classification"
    assert not light.training


POOLINGS = [Pooling("mean"), Pooling("cls", normalize=True), Pooling("max"), Pooling("last"), Pooling("mean", towers=True)]


@pytest.mark.parametrize("on_left", [False, True])
@pytest.mark.parametrize("family", EVERY)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_logits_of_pooled_heads(pooling: Pooling, family: str, on_left: bool, tmp_path: Path) -> None:
    pooled_model(load_model(saved(tmp_path / "head", family)), pooling).save_pretrained(tmp_path)
    rows = padded("bert" if pooling.towers else family, on_left)
    if pooling.towers:  # of every family, types say where the second text begins
        lengths = rows["attention_mask"].sum(1, keepdim=True)
        places = rows["attention_mask"].cumsum(1)
        rows["token_type_ids"] = ((places > (lengths + 1) // 2) & (rows["attention_mask"] == 1)).long()
        rows = {name: value[1:] for name, value in rows.items()}  # the first row has one token
    assert_same(tmp_path, rows)


def test_pooled_heads_that_are_not_known_are_left_to_transformers(tmp_path: Path) -> None:
    pooled_model(tiny_model(num_labels=3, problem_type="single_label_classification"), POOLINGS[0]).save_pretrained(tmp_path)
    config, before = tmp_path / "config.json", (tmp_path / "config.json").read_text()
    assert load_light_model(tmp_path, CPU) is not None
    for change in (
        {"architectures": ["BertForSequenceClassification"]},
        {HEAD_KEY: {"mode": "mean", "normalize": False, "towers": True}},
        {HEAD_KEY: ...},
        {HEAD_KEY: "mean"},
    ):
        assert load_light_model(altered(tmp_path, "config.json", **change), CPU) is None, change
        config.write_text(before)
    with pytest.raises(ModelError, match="does not know the head"):
        load_light_model(altered(tmp_path, "config.json", **{HEAD_KEY: {"mode": "median"}}), CPU)


UNKNOWN: dict[str, list[Any]] = {  # values of settings; without the setting: ...
    "model_type": ["deberta-v2"], "architectures": [["BertForTokenClassification"], ...], "hidden_act": ["relu"],
    "is_decoder": [True], "position_embedding_type": ["relative_key"], "chunk_size_feed_forward": [4],
    "a_setting_of_tomorrow": [1], "rope_theta": [10000.0], "quantization_config": [{"bits": 4}],
    "id2label": [..., {"0": "a", "2": "b", "3": "c"}, {"0": "a", "1": "b"}], "layer_norm_eps": [..., "tiny"],
    "pad_token_id": [None], "num_hidden_layers": [1, 3], "num_attention_heads": [3, 0, 5], "max_position_embeddings": [79],
    "dim": [32],
}  # fmt: skip


def test_settings_that_are_not_known_and_unusual_weights_are_left_to_transformers(tmp_path: Path) -> None:
    config, path = saved(tmp_path, "bert") / "config.json", tmp_path / "model.safetensors"
    before, weights = config.read_text(), load_file(path)
    for name, value in ((name, value) for name, values in UNKNOWN.items() for value in values):
        assert load_light_model(altered(tmp_path, "config.json", **{name: value}), CPU) is None, (name, value)
        config.write_text(before)
    bias, other = "bert.encoder.layer.1.output.dense.bias", "bert.encoder.layer.2.output.dense.bias"
    for damaged in (
        {**weights, bias: torch.cat([weights[bias][1:], torch.tensor([float("nan")])])},
        {**weights, bias: weights[bias].half()},
        {name: weight for name, weight in weights.items() if name != bias},
        {**weights, other: weights[bias].clone()},
    ):
        save_file(damaged, path)
        assert load_light_model(tmp_path, CPU) is None
    path.write_bytes(b"not a safetensors file")
    assert load_light_model(tmp_path, CPU) is None
    save_file(weights, path)
    assert load_light_model(tmp_path, CPU) is not None
    save_file(weights, tmp_path / "model-00001-of-00002.safetensors")
    assert load_light_model(tmp_path, CPU) is None, "in two files"


def test_every_family_with_a_layout_has_a_head() -> None:
    assert all((family.head is None) == (family.layout is None) for family in FAMILIES.values())
    assert {*FAST} <= {*EVERY}


# --- Tokenizers without transformers: the same ids for awkward texts, and only those that a run recorded.
AWKWARD = ["a good film", "", "   \t\n ", "The STORY, isn't it?!", "x" * 300, "verygoodfilm" * 30, "word " * 200]
AWKWARD += [
    "naïve café – Ünïcödé ﬁ ß İ",
    "電影 很好 good film",
    "😀👩‍👩‍👧 flags 🇩🇪",
    "[CLS] a [SEP] b [MASK] [PAD] [UNK] <s> </s> <mask> <pad>",
    " <mask>  [MASK]x x[MASK] <new> new_token[X]",
    "a\u200bb\ufeffc\u00ad\u0000\ufffd\x85",
    "e\u0301 vs é, \u1112\u1161\u11ab",
    "‏שלום עולם‏ مرحبا",
    "1,234.56 $ € % # @user http://a.b/c?d=e&f",
    "trailing space ",
    "<|endoftext|>",
]
CORPUS = [*AWKWARD, "the story is very good and not bad", "this is the first sentence", "that was the second one"] * 3


def bert(name: str = "BertTokenizerFast", **options: Any) -> Any:
    vocabulary = {word: number for number, word in enumerate(VOCABULARY)}
    return getattr(transformers, name)(vocab=vocabulary, model_max_length=64, **options)


def roberta() -> Any:
    trained = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(CORPUS, vocab_size=400, special_tokens=special, show_progress=False)
    content = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) if isinstance(merge, list) else tuple(merge.split(" ")) for merge in content["merges"]]
    return transformers.RobertaTokenizerFast(vocab=content["vocab"], merges=merges, model_max_length=64)


def unigram(name: str) -> Any:
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "<mask>"]
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=special, unk_token="<unk>", show_progress=False)
    trained.train_from_iterator(CORPUS, trainer)
    vocabulary = [tuple(entry) for entry in json.loads(trained.to_str())["model"]["vocab"]]
    return getattr(transformers, name)(vocab=vocabulary, model_max_length=64)


def generic() -> Any:
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    backend = tiny_tokenizer().backend_tokenizer
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=64, **names)


def with_more_tokens() -> Any:
    tokenizer = bert()
    tokenizer.add_tokens(["new_token", AddedToken("<new>", lstrip=True, rstrip=True)])
    tokenizer.add_special_tokens({"additional_special_tokens": ["[X]"]})
    return tokenizer


MAKERS: dict[str, Callable[[], Any]] = {
    "bert": bert,
    "bert cased": lambda: bert(do_lower_case=False, tokenize_chinese_chars=False),
    "bert left": lambda: bert(truncation_side="left", padding_side="left"),
    "bert split": lambda: bert(split_special_tokens=True),
    "more tokens": with_more_tokens,
    "distilbert": lambda: bert("DistilBertTokenizerFast"),
    "roberta": roberta,
    "xlm-roberta": lambda: unigram("XLMRobertaTokenizerFast"),
    "camembert": lambda: unigram("CamembertTokenizerFast"),
    "albert": lambda: unigram("AlbertTokenizerFast"),
    "generic": generic,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name, make in MAKERS.items():
        found[name] = tmp_path_factory.mktemp("tokenizer")
        make().save_pretrained(found[name])
        (found[name] / "config.json").write_text("{}")
    return found


SETTINGS = ("pad_token_id", "pad_token_type_id", "padding_side", "truncation_side", "model_max_length", "model_input_names")


@pytest.mark.parametrize("name", MAKERS)
def test_ids_and_settings_are_those_of_transformers(name: str, folders: dict[str, Path]) -> None:
    known = transformers.AutoTokenizer.from_pretrained(folders[name])
    light = load_light_tokenizer(folders[name], tokenizer_key(known)[:16])
    assert light is not None
    assert {name: getattr(light, name) for name in SETTINGS} == {name: getattr(known, name) for name in SETTINGS}
    assert light.get_vocab() == known.get_vocab()
    for max_length in (8, 9, 20, 64):
        for columns in ([AWKWARD], [AWKWARD, AWKWARD[::-1]], [AWKWARD[::-1], ["the film"] * len(AWKWARD)]):
            options: dict[str, Any] = {"truncation": True, "max_length": max_length, "return_attention_mask": False}
            encoded, expected = light(*columns, **options), known(*columns, **options, verbose=False)
            assert encoded == dict(expected)
            assert all(encoded.sequence_ids(row) == expected.sequence_ids(row) for row in range(len(AWKWARD)))
            assert encoded.is_fast
    for pair in (False, True):
        assert light.num_special_tokens_to_add(pair) == known.num_special_tokens_to_add(pair)
    for text in AWKWARD:
        assert light(text, add_special_tokens=False)["input_ids"] == known(text, add_special_tokens=False)["input_ids"]
    columns = [AWKWARD, AWKWARD[::-1]]
    if name != "bert split":
        assert typed_tokens(columns, light) == typed_tokens(columns, known)


CHANGES: list[Callable[[dict[str, Any]], object]] = [
    lambda content: content["normalizer"].update(lowercase=False),
    lambda content: content["model"]["vocab"].update({"film": 7, "good": 8}),
    lambda content: content["post_processor"]["single"].pop(),
    lambda content: content["added_tokens"][4].update(lstrip=True),
    lambda content: content["model"].update(type="Unknown"),
    lambda content: content.clear(),
]
OTHER_SETTINGS = [{"tokenizer_class": "ElectraTokenizer"}, {"truncation_side": "left"}, {"split_special_tokens": True}]
OTHER_SETTINGS += [{"padding_side": "up"}, {"pad_token": "not a token"}, {"pad_token_type_id": "0"}]
OTHER_SETTINGS += [{"model_max_length": 0}, {"model_max_length": None}]


def test_a_tokenizer_that_changed_or_has_no_checksum_is_left_to_transformers(folders: dict[str, Path], tmp_path: Path) -> None:
    key = tokenizer_key(load_tokenizer(folders["bert"]))[:16]
    for number, change in enumerate([*CHANGES, *OTHER_SETTINGS]):
        folder = Path(shutil.copytree(folders["bert"], tmp_path / str(number)))
        assert load_light_tokenizer(folder, key) is not None
        path = folder / ("tokenizer_config.json" if isinstance(change, dict) else "tokenizer.json")
        content = json.loads(path.read_text())
        content.update(change) if isinstance(change, dict) else change(content)
        path.write_text(json.dumps(content))
        assert load_light_tokenizer(folder, key) is None, number
    for other in (None, "", 3, "0123456789abcdef"):
        assert load_light_tokenizer(folders["bert"], other) is None
    assert load_light_tokenizer(folders["bert"].parent, "0123456789abcdef") is None, "no file"
