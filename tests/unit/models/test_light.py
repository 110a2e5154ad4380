"""Classifiers without transformers: the same logits for every family of the table, and nothing that is not known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import FAST, VOCABULARY, WITH_TOKEN_TYPES, tiny_model
from safetensors.torch import load_file, save_file

from glassloop.models.families import FAMILIES, families_packed_by
from glassloop.models.light import load_light_model
from glassloop.models.loading import load_model

CPU = torch.device("cpu")
EVERY = tuple(families_packed_by("layers"))
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("bert", {"hidden_act": "gelu_new"}),
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


def both_logits(folder: Path, rows: dict[str, torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
    light = load_light_model(folder, CPU)
    assert light is not None
    with torch.inference_mode():
        return light(**rows).logits.numpy(), load_model(folder).eval()(**rows).logits.numpy()


@pytest.mark.parametrize("on_left", [False, True])
@pytest.mark.parametrize("family", EVERY)
def test_the_logits_are_those_of_transformers(family: str, on_left: bool, tmp_path: Path) -> None:
    found, expected = both_logits(saved(tmp_path, family), padded(family, on_left))
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize(("family", "options"), VARIANTS)
def test_settings_that_change_the_computation(family: str, options: dict[str, Any], tmp_path: Path) -> None:
    found, expected = both_logits(saved(tmp_path, family, **options), padded(family, on_left=False))
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_token_types_are_zero_by_default(tmp_path: Path) -> None:
    rows = padded("distilbert", on_left=False)
    for family in ("bert", "roberta"):
        found, expected = both_logits(saved(tmp_path / family, family), rows)
        np.testing.assert_allclose(found, expected, atol=2e-5)


def test_the_config_names_outputs_and_sizes(tmp_path: Path) -> None:
    light = load_light_model(saved(tmp_path, "bert"), CPU)
    assert light is not None
    assert light.config.id2label == {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}
    assert (light.config.num_labels, light.config.max_position_embeddings) == (3, 80)
    assert light.config.problem_type == "single_label_classification"
    assert not light.training


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "deberta-v2"},
        {"architectures": ["BertForTokenClassification"]},
        {"architectures": ...},
        {"hidden_act": "relu"},
        {"is_decoder": True},
        {"position_embedding_type": "relative_key"},
        {"chunk_size_feed_forward": 4},
        {"a_setting_of_tomorrow": 1},
        {"rope_theta": 10000.0},
        {"quantization_config": {"bits": 4}},
        {"id2label": ...},
        {"id2label": {"0": "a", "2": "b", "3": "c"}},
        {"id2label": {"0": "a", "1": "b"}},
        {"layer_norm_eps": ...},
        {"layer_norm_eps": "tiny"},
        {"pad_token_id": None},
        {"num_hidden_layers": 1},
        {"num_hidden_layers": 3},
        {"num_attention_heads": 3},
        {"num_attention_heads": 0},
        {"max_position_embeddings": 79},
        {"dim": 32},
    ],
    ids=str,
)
def test_what_is_not_known_is_left_to_transformers(changes: dict[str, object], tmp_path: Path) -> None:
    saved(tmp_path, "bert")
    assert load_light_model(tmp_path, CPU) is not None
    assert load_light_model(altered(tmp_path, "config.json", **changes), CPU) is None


def test_an_odd_number_of_attention_heads(tmp_path: Path) -> None:
    """A number of heads that does not divide the width cannot be run by anyone."""
    assert load_light_model(altered(saved(tmp_path, "bert"), "config.json", num_attention_heads=5), CPU) is None


@pytest.mark.parametrize("damage", ["not finite", "half precision", "missing", "more", "two files", "no safetensors"])
def test_unusual_weights_are_left_to_transformers(damage: str, tmp_path: Path) -> None:
    path = saved(tmp_path, "bert") / "model.safetensors"
    weights = load_file(path)
    name = "bert.encoder.layer.1.output.dense.bias"
    if damage == "not finite":
        weights[name][3] = float("nan")
    elif damage == "half precision":
        weights[name] = weights[name].half()
    elif damage == "missing":
        del weights[name]
    elif damage == "more":
        weights["bert.encoder.layer.2.output.dense.bias"] = weights[name].clone()
    elif damage == "two files":
        save_file(weights, tmp_path / "model-00001-of-00002.safetensors")
    save_file(weights, path)
    if damage == "no safetensors":
        path.write_bytes(b"not a safetensors file")
    assert load_light_model(tmp_path, CPU) is None


def test_every_family_with_a_layout_has_a_head() -> None:
    assert all((family.head is None) == (family.layout is None) for family in FAMILIES.values())
    assert {*FAST} <= {*EVERY}
