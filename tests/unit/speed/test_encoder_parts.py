"""The parts of an encoder: found in every family with a layout, and in no other."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from families import FAST, tiny_model
from transformers import AlbertConfig

from glassloop.backends.fast.encoder_parts import (
    embeddings_of,
    head_of,
    layer_calls,
    layers_of,
    projection_of,
    uncounted_token_of,
)


def names_of(model: torch.nn.Module) -> dict[int, str]:
    return {id(weight): name for name, weight in model.named_parameters()}


@pytest.mark.parametrize("family", FAST)
def test_every_weight_of_the_encoder_is_in_a_layer_or_in_a_table(family: str) -> None:
    model = tiny_model(family)
    layers, tables = layers_of(model), embeddings_of(model)
    assert tables is not None
    found = [id(weight) for layer in layers for group in (*layer.matrices, layer.vectors) for weight in group]
    found += [id(table.weight) for table in (tables.words, tables.positions, tables.types) if table is not None]
    found += [id(weight) for weight in tables.vectors]
    assert len(found) == len({*found}), "a weight is in two places"
    left = {name for number, name in names_of(model.base_model).items() if number not in found}
    assert left <= {"pooler.dense.weight", "pooler.dense.bias", "pooler.weight", "pooler.bias"} | {
        f"encoder.embedding_hidden_mapping_in.{kind}" for kind in ("weight", "bias")
    }


@pytest.mark.parametrize("family", FAST)
def test_the_parts_are_what_they_are_called(family: str) -> None:
    model = tiny_model(family)
    for layer in layers_of(model):
        shapes = [[tuple(weight.shape) for weight in group] for group in layer.matrices]
        assert shapes == [[(32, 32)] * 3, [(32, 32)], [(64, 32)], [(32, 64)]]
        assert [len(weight) for weight in layer.vectors] == [32] * 6 + [64, 32, 32, 32]
        assert isinstance(layer.out_norm, torch.nn.LayerNorm)
        assert isinstance(layer.down_norm, torch.nn.LayerNorm)
        assert layer.heads == 2
        assert layer.out is not layer.query
        assert layer.out_norm is not layer.down_norm


@pytest.mark.parametrize("family", FAST)
def test_a_layer_that_is_run_twice_is_found_once(family: str) -> None:
    model = tiny_model(family)
    assert len(layers_of(model)) == (1 if family == "albert" else 2)
    assert layer_calls(model) == ([0, 0] if family == "albert" else [0, 1])


def test_groups_of_layers_run_one_after_the_other() -> None:
    config = AlbertConfig(num_hidden_layers=6, num_hidden_groups=2, inner_group_num=2)
    assert layer_calls(SimpleNamespace(config=config)) == [0, 1] * 3 + [2, 3] * 3


@pytest.mark.parametrize("family", FAST)
def test_the_head_of_every_family_is_found(family: str) -> None:
    model = tiny_model(family)
    head, projection = head_of(model), projection_of(model)
    assert head is not None
    assert head.outputs.out_features == model.config.num_labels
    assert head.dense.weight.shape == (32, 32)
    assert (projection is not None) == (family == "albert")
    assert head_of(tiny_model("modernbert")) is None


def test_dropout_rates_are_those_of_the_modules() -> None:
    model = tiny_model("bert", dropout=0.1)
    layer = layers_of(model)[0]
    layer.module.attention.self.dropout.p = 0.2
    layer.module.output.dropout.p = 0.3
    assert layer.dropout_rates == (0.2, 0.1, 0.3)
    assert layers_of(tiny_model("distilbert", dropout=0.1))[0].dropout_rates == (0.1, 0.0, 0.1)
    assert layers_of(tiny_model("albert", dropout=0.1))[0].dropout_rates == (0.1, 0.1, 0.0)


@pytest.mark.parametrize(("activation", "form"), [("gelu", "none"), ("gelu_new", "tanh"), ("gelu_pytorch_tanh", "tanh")])
def test_the_approximation_of_gelu(activation: str, form: str) -> None:
    assert layers_of(tiny_model(hidden_act=activation))[0].gelu_approximate == form


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("bert", {"hidden_act": "relu"}),
        ("distilbert", {"activation": "relu"}),
        ("bert", {"is_decoder": True}),
        ("bert", {"position_embedding_type": "relative_key"}),
    ],
)
def test_another_form_has_no_fast_layer(family: str, options: dict) -> None:
    assert layers_of(tiny_model(family, **options)) == []


def test_layers_with_other_names_are_not_found() -> None:
    model = tiny_model()
    del model.base_model.encoder.layer[1].intermediate
    assert layers_of(model) == []


def test_tables_with_other_names_are_not_found() -> None:
    model = tiny_model()
    del model.base_model.embeddings.LayerNorm
    assert embeddings_of(model) is None


@pytest.mark.parametrize(
    ("family", "padding", "uncounted"),
    [
        *(("bert", 0, None), ("electra", 0, None), ("distilbert", 0, None)),
        *(("roberta", 0, 0), ("xlm-roberta", 1, 1), ("roberta", 1, 1)),
    ],
)
def test_roberta_counts_positions_after_its_padding_token(family: str, padding: int, uncounted: int | None) -> None:
    assert uncounted_token_of(tiny_model(family, pad_token_id=padding)) == uncounted
