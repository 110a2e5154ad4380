"""Which fast form a model gets."""

from __future__ import annotations

import pytest
import torch
from families import FAST, tiny_model, weights_hash
from packs import inputs_of, lively, packing_of, padded_inputs, token_rows
from torch.nn import functional
from transformers import (
    AlbertConfig,
    AlbertForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    ElectraConfig,
    ElectraForSequenceClassification,
)

from glassloop.backends.fast import inference_model as prepared_linear
from glassloop.backends.fast.inference_model import Group, InferenceLayers, PreparedLinear, filled, groups_of, make_fast_model
from glassloop.backends.fast.training_model import OwnLayers, ReplacedLayers


def test_each_model_gets_the_fast_form_of_its_family() -> None:
    for family, kind in (("bert", ReplacedLayers), ("modernbert", OwnLayers), ("deberta-v2", OwnLayers)):
        fast = make_fast_model(tiny_model(family), torch.float32)
        assert type(fast) is kind
        assert fast.packs == (family != "deberta-v2")
        fast.remove()


# --- Layers for forward passes on a CPU: the numbers of the plain model, weights prepared once, a model left as it was.


@pytest.mark.parametrize("lengths", [(7, 2, 11, 5), (4, 4, 4), (9,), (3, 5, 5, 5, 8, 3)])
@pytest.mark.parametrize("family", FAST)
def test_the_numbers_of_the_plain_model(family: str, lengths: tuple[int, ...]) -> None:
    model, rows = lively(family).eval(), token_rows(lengths)
    with torch.inference_mode():
        wanted = model(**padded_inputs(rows)).logits
        savings = make_fast_model(model, torch.float32, trains=False)
        assert isinstance(savings, InferenceLayers)
        torch.testing.assert_close(model(**inputs_of(model, rows)).logits, wanted, atol=1e-5, rtol=1e-5)
        assert torch.equal(model(**padded_inputs(rows)).logits, wanted), "padded rows use the plain layers"


SMALL = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 40, "initializer_range": 0.3}


OTHER_SHAPES = {
    "groups of several layers": lambda: AlbertForSequenceClassification(
        AlbertConfig(embedding_size=16, num_hidden_layers=6, num_hidden_groups=2, inner_group_num=2, **SMALL)
    ),
    "projected embeddings": lambda: ElectraForSequenceClassification(
        ElectraConfig(embedding_size=12, num_hidden_layers=2, **SMALL)
    ),
    "one layer": lambda: BertForSequenceClassification(BertConfig(num_hidden_layers=1, **SMALL)),
}


@pytest.mark.parametrize("shape", OTHER_SHAPES)
def test_models_of_other_shapes(shape: str) -> None:
    torch.manual_seed(0)
    model, rows = OTHER_SHAPES[shape]().eval(), token_rows((7, 2, 70, 5, 5, 1))
    with torch.inference_mode():
        wanted = model(**padded_inputs(rows)).logits
        assert isinstance(make_fast_model(model, torch.float32, trains=False), InferenceLayers)
        torch.testing.assert_close(model(**inputs_of(model, rows)).logits, wanted, atol=2e-5, rtol=1e-5)


def test_removal_leaves_no_trace() -> None:
    model = lively().eval()
    before = weights_hash(model)
    attributes = {name: {*vars(module)} for name, module in model.named_modules()}
    InferenceLayers(model).remove()
    assert {name: {*vars(module)} for name, module in model.named_modules()} == attributes
    assert weights_hash(model) == before


def test_rows_of_one_length_are_one_group() -> None:
    found = groups_of(packing_of(token_rows((5, 5, 3, 5))))
    assert found == [Group(0, 2, 5), Group(10, 1, 3), Group(13, 1, 5)]


def test_few_different_numbers_of_rows_reach_the_kernels() -> None:
    """oneDNN keeps a kernel for each: with every number, a server would grow by hundreds of megabytes."""
    numbers = {len(filled(torch.ones(number, 2))) for number in range(1, 2_049)}
    assert len(numbers) <= 30
    assert all(len(filled(torch.ones(number, 2))) < number + 256 for number in (1, 127, 129, 1_023, 1_025, 2_000))
    assert filled(torch.ones(17, 2)).sum() == 34


# --- Prepared linear layers compute what torch's do, with and without oneDNN.


@pytest.mark.parametrize("available", [True, False])
@pytest.mark.parametrize("tokens", [1, 7, 600])
def test_the_same_numbers(available: bool, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not available:
        monkeypatch.setattr(prepared_linear, "has_prepared_form", lambda: False)
    torch.manual_seed(0)
    x, residual = torch.randn(tokens, 32), torch.randn(tokens, 48)
    weights, biases = [torch.randn(24, 32), torch.randn(24, 32)], [torch.randn(24), torch.randn(24)]
    with torch.inference_mode():
        linear = PreparedLinear(weights, biases)
        wanted = functional.linear(x, torch.cat(weights), torch.cat(biases))
        torch.testing.assert_close(linear(x), wanted, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(linear.add(x, residual), wanted + residual, atol=1e-5, rtol=1e-5)
        for approximate in ("none", "tanh"):
            torch.testing.assert_close(
                linear.gelu(x, approximate), functional.gelu(wanted, approximate=approximate), atol=1e-5, rtol=1e-4
            )
