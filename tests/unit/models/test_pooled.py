"""Classifiers on pooled tokens as folders: what is written, who can load it, and heads that no version knows."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import FAST, tiny_model
from run_folders import make_run, pooled_model, sentence
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForSequenceClassification

from glassloop import Predictor
from glassloop.base.errors import ModelError
from glassloop.models.families import FAMILIES
from glassloop.models.loading import declared_by, load_model, load_tokenizer
from glassloop.models.pooled import HEAD_KEY, Pooling, declared_pooling, pooled, split_towers
from glassloop.settings.training import POOLING_MODES

POOLINGS = [Pooling(mode, normalize) for mode in POOLING_MODES for normalize in (False, True)]
TOWERS = Pooling("mean", towers=True)


def saved(folder: Path, pooling: Pooling, family: str = "bert", **options: Any) -> Path:
    pooled_model(tiny_model(family, **options), pooling).save_pretrained(folder)
    return folder


def content(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


COMMON = {"config.json", "model.safetensors", "modules.json", "1_Pooling/config.json"}


@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_modules_of_sentence_transformers(pooling: Pooling, tmp_path: Path) -> None:
    """The files are those that sentence-transformers writes for these modules; the test below loads them with it."""
    folder = saved(tmp_path, pooling, num_labels=3)
    assert names_in(folder) == COMMON | {"3_Dense/config.json", "3_Dense/model.safetensors"}, "no code and no pickle"
    kinds = [entry["type"].rpartition(".")[2] for entry in content(folder / "modules.json")]
    assert kinds == ["Transformer", "Pooling", *(["Normalize"] if pooling.normalize else []), "Dense"]
    paths = [entry["path"] for entry in content(folder / "modules.json")]
    assert paths == ["", "1_Pooling", *(["2_Normalize"] if pooling.normalize else []), "3_Dense"]
    settings = content(folder / "1_Pooling" / "config.json")
    wanted = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens", "last": "lasttoken"}[pooling.mode]
    assert [name for name, value in settings.items() if value is True] == [f"pooling_mode_{wanted}"]
    assert settings["word_embedding_dimension"] == 32
    dense = content(folder / "3_Dense" / "config.json")
    assert dense == {
        **{"in_features": 32, "out_features": 3, "bias": True},
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    weights, head = load_file(folder / "model.safetensors"), load_file(folder / "3_Dense" / "model.safetensors")
    assert {*head} == {"linear.weight", "linear.bias"}
    for name, value in head.items():
        torch.testing.assert_close(value, weights[name.replace("linear", "head")], rtol=0, atol=0)
    assert content(folder / "config.json")["architectures"] == ["BertModel"], "not a classifier of transformers"
    assert declared_by(folder)[0] == pooling


def test_two_towers_are_no_module_so_the_folder_declares_the_encoder_alone(tmp_path: Path) -> None:
    folder = saved(tmp_path, TOWERS)
    assert names_in(folder) == COMMON
    assert [entry["path"] for entry in content(folder / "modules.json")] == ["", "1_Pooling"]
    assert load_file(folder / "model.safetensors")["head.weight"].shape == (2, 3 * 32 + 1)


@pytest.mark.parametrize("family", FAST)
@pytest.mark.parametrize("pooling", [Pooling("max", normalize=True), TOWERS])
def test_a_saved_model_comes_back_and_transformers_finds_its_encoder(family: str, pooling: Pooling, tmp_path: Path) -> None:
    model = pooled_model(tiny_model(family), pooling)
    model.save_pretrained(tmp_path)
    again = load_model(tmp_path).eval()
    assert type(again) is type(model)
    assert again.pooling == pooling
    assert {name: value.tolist() for name, value in again.state_dict().items()} == {
        name: value.tolist() for name, value in model.state_dict().items()
    }
    logging.disable(logging.WARNING)  # the head is not part of it
    try:
        encoder, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    finally:
        logging.disable(logging.NOTSET)
    missing = {name for name in report["missing_keys"] if not name.startswith("pooler.")}  # a part that it never had
    assert (missing, {*report["unexpected_keys"]}) == (set(), {"head.weight", "head.bias"})
    assert type(encoder).__name__ == FAMILIES[family].encoder
    for name, value in model.base_model.state_dict().items():
        torch.testing.assert_close(encoder.state_dict()[name], value, rtol=0, atol=0)


def test_transformers_would_add_another_head_and_says_so(tmp_path: Path) -> None:
    _, report = AutoModelForSequenceClassification.from_pretrained(saved(tmp_path, POOLINGS[0]), output_loading_info=True)
    assert {"classifier.weight", "classifier.bias"} <= {*report["missing_keys"]}


@pytest.mark.parametrize(
    "head", ["mean", {"mode": "median"}, {"mode": "mean", "dense": 3}, {}, {"mode": "mean", "towers": "yes"}, []]
)
def test_a_head_that_is_not_known_is_refused_and_never_replaced_by_a_fresh_one(head: object, tmp_path: Path) -> None:
    path = saved(tmp_path, POOLINGS[0]) / "config.json"
    path.write_text(json.dumps(content(path) | {HEAD_KEY: head}), encoding="utf-8")
    with pytest.raises(ModelError, match="does not know the head of the model"):
        load_model(tmp_path)


def test_a_file_without_the_head_or_with_another_one_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, POOLINGS[0]) / "model.safetensors"
    weights = load_file(path)
    for damaged in (
        {name: value for name, value in weights.items() if name != "head.bias"},
        {**weights, "head.weight": weights["head.weight"][:, 1:].contiguous()},
    ):
        save_file(damaged, path, {"format": "pt"})
        with pytest.raises(ModelError, match="has no head for its config"):
            load_model(tmp_path)


def test_the_texts_of_pairs_are_taken_apart_wherever_the_padding_is() -> None:
    config = tiny_model(pad_token_id=1).config
    rows = [([5, 6, 7], [8, 9]), ([5], [6, 7, 8, 9])]
    wanted = torch.tensor([[[5, 6, 7, 1], [8, 9, 1, 1]], [[5, 1, 1, 1], [6, 7, 8, 9]]])
    for on_left in (False, True):
        padded = [([0, 0], [0, 0], [0, 0]), *(([*a, *b], [0] * len(a) + [1] * len(b), [1] * 5) for a, b in rows)]
        columns = []
        for column, fill in enumerate((1, 0, 0)):
            cells = [([fill] * 2 + row[column]) if on_left else (row[column] + [fill] * 2) for row in padded[1:]]
            columns.append(torch.tensor(cells))
        ids, types, mask = columns
        found, tokens = split_towers(ids, mask, types, config)
        assert found.tolist() == wanted.tolist()
        assert tokens.tolist() == (wanted != 1).long().tolist()


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_sentence_transformers_returns_the_logits(pooling: Pooling, pairs: bool, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers", reason="pip install sentence-transformers to run this test")
    run = make_run(tmp_path / "run", labels=3, pairs=pairs, rows=2, pooling=pooling)
    texts = [*(sentence(row) for row in range(9)), "very " * 60]
    columns = [texts, texts[::-1]] if pairs else [texts]
    model = library.SentenceTransformer(str(run / "model"), device="cpu")
    model.max_seq_length = 32
    wanted = Predictor(run, device="cpu").logits(*columns)
    found = model.encode([*zip(*columns, strict=True)] if pairs else texts)
    assert wanted.shape == (10, 3)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_sentence_transformers_loads_the_encoder_of_two_towers(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers", reason="pip install sentence-transformers to run this test")
    run = make_run(tmp_path / "run", pairs=True, rows=2, pooling=TOWERS)
    model, texts = load_model(run / "model").eval(), ["a good film", "bad"]
    inputs = load_tokenizer(run / "model")(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        hidden = model.base_model(**inputs).last_hidden_state
    wanted = pooled(hidden, inputs["attention_mask"], "mean").numpy()
    found = library.SentenceTransformer(str(run / "model"), device="cpu").encode(texts)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


# --- what a model declares ------------------------------------------------------------------------------------------------
TRANSFORMER = {"type": "sentence_transformers.models.Transformer", "path": ""}
POOLED = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
NORMALIZED = {"type": "sentence_transformers.sentence_transformer.modules.Normalize", "path": "2_Normalize"}
DENSE = {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}


@pytest.mark.parametrize(
    ("modules", "settings", "wanted", "note"),
    [
        ([TRANSFORMER, POOLED, NORMALIZED], {"pooling_mode_mean_tokens": True}, Pooling("mean", normalize=True), ""),
        ([TRANSFORMER, POOLED], {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, Pooling("cls"), ""),
        ([TRANSFORMER, POOLED], {"pooling_mode_max_tokens": True}, Pooling("max"), ""),
        ([TRANSFORMER, POOLED], {"pooling_mode": "lasttoken"}, Pooling("last"), ""),
        ([TRANSFORMER, POOLED], {"pooling_mode": ["mean"]}, Pooling("mean"), ""),
        ([TRANSFORMER, POOLED], {"word_embedding_dimension": 8}, Pooling("mean"), ""),
        ([TRANSFORMER, POOLED], {"pooling_mode": "weightedmean"}, None, "the pooling weightedmean is not supported"),
        (
            [TRANSFORMER, POOLED],
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            None,
            "the pooling mean and cls is not supported",
        ),
        ([TRANSFORMER, POOLED, DENSE], {"pooling_mode": "mean"}, Pooling("mean"), "its module Dense is not used"),
        ([TRANSFORMER, POOLED], None, None, "modules.json names a pooling without settings"),
        ([TRANSFORMER, {**POOLED, "path": "../1_Pooling"}], {"pooling_mode": "mean"}, None, "a pooling without settings"),
        ([TRANSFORMER], {"pooling_mode": "mean"}, None, ""),
        ("no list", {"pooling_mode": "mean"}, None, ""),
        (None, {"pooling_mode": "mean"}, None, ""),
    ],
)
def test_the_pooling_that_a_sentence_embedding_model_declares(
    modules: object, settings: object, wanted: Pooling | None, note: str
) -> None:
    files = {"modules.json": modules, "1_Pooling/config.json": settings, "../1_Pooling/config.json": settings}
    found, unused = declared_pooling(files.get)  # type: ignore[arg-type]
    assert found == wanted
    assert note in unused
    assert bool(note) == bool(unused)


def test_a_model_without_modules_may_say_how_its_classifiers_pool() -> None:
    for config, wanted in (
        ({"classifier_pooling": "mean"}, Pooling("mean")),
        ({"classifier_pooling": "cls"}, Pooling("cls")),
        ({"classifier_pooling": "both"}, None),
        ({"classifier_pooling": ["mean"]}, None),
        ({}, None),
        (None, None),
    ):
        assert declared_pooling({"config.json": config}.get)[0] == wanted  # type: ignore[arg-type]
