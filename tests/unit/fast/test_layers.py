"""The embeddings of packed tokens: values and gradients are those of the unmodified module."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from families import FAST, WITH_TOKEN_TYPES
from packs import LENGTHS, inputs_of, lively, packing_of, padded_inputs, plain_gradients, token_rows, weighed

from glassloop.backends.fast.encoder_parts import embeddings_of, layers_of
from glassloop.backends.fast.layers import EmbeddingSum, PostNormLayer, attend_first_tokens, attend_first_tokens_backward
from glassloop.backends.fast.operations import DropoutMasks, TorchOperations, attend, attend_backward
from glassloop.backends.fast.packing import Packing
from glassloop.backends.fast.storage import FlatStorage
from glassloop.backends.fast.training_model import ReplacedLayers

TYPES = [np.arange(length) % 2 for length in LENGTHS]


def rows_with_padding() -> list[np.ndarray]:
    """Some tokens are the padding token: they are embedded like any other, but their vector gets no gradient."""
    rows = token_rows()
    rows[2][-1] = 0
    return rows


def embedded(model: Any, training: bool = False, rate: float = 0.0) -> tuple[torch.Tensor, Packing, FlatStorage]:
    tables = embeddings_of(model)
    tables.dropout.p = rate
    storage = FlatStorage(model, layers_of(model), set(), embedding_vectors=tables.vectors)
    storage.open_for_training()
    ops = TorchOperations(torch.device("cpu"))
    inputs = inputs_of(model, rows_with_padding(), types=None if tables.types is None else TYPES)
    packing = Packing(inputs["packed"], *(inputs[name] for name in ("tokens", "rows", "longest", "has_filler")))
    ops.before_forward(storage, packing, training)
    padding = tables.words.padding_idx
    y = EmbeddingSum.apply(tables.norm.weight, tables, packing, storage, ops, training, -1 if padding is None else padding)
    return y, packing, storage


@pytest.mark.parametrize("family", FAST)
def test_the_vectors_and_gradients_of_the_module(family: str) -> None:
    model = lively(family)
    if family in ("roberta", "xlm-roberta"):
        model.base_model.embeddings.position_embeddings.padding_idx = 0
    twin = copy.deepcopy(model)
    module = twin.base_model.embeddings
    expected = []
    for row, types in zip(rows_with_padding(), TYPES, strict=True):
        given: dict[str, Any] = {"input_ids": torch.from_numpy(row)[None]}  # the module numbers the positions
        if embeddings_of(model).types is not None:
            given["token_type_ids"] = torch.from_numpy(types)[None]
        expected.append(module(**given)[0])
    whole = torch.cat(expected)
    y, packing, _ = embedded(model)
    torch.testing.assert_close(y, whole, atol=1e-5, rtol=1e-5)
    grad = torch.randn(packing.tokens, whole.shape[1])
    whole.backward(grad)
    y.backward(grad)
    for (name, mine), other in zip(model.base_model.embeddings.named_parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, atol=1e-5, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    assert embeddings_of(model).words.weight.grad[0].abs().sum() == 0


def test_dropout_comes_after_the_norm_and_gradients_stop_where_it_dropped() -> None:
    model = lively()
    y, _, _ = embedded(model, training=True, rate=0.5)
    dropped = y == 0
    assert 0.35 < dropped.float().mean() < 0.65
    torch.testing.assert_close(y[~dropped], 2 * embedded(lively())[0][~dropped], atol=1e-5, rtol=1e-5)
    y.backward(torch.ones_like(y))
    shift = embeddings_of(model).norm.bias.grad
    torch.testing.assert_close(shift, 2.0 * (~dropped).sum(0).float())


def test_no_dropout_without_training() -> None:
    assert not (embedded(lively(), training=False, rate=0.5)[0] == 0).any()


# --- One layer over packed tokens, and whole models: values and gradients are those of the unmodified module.


CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def layer_alone(model: Any, x: torch.Tensor, packing: Any, first_tokens_only: bool, training: bool = False) -> torch.Tensor:
    """The first layer over packed tokens."""
    storage = FlatStorage(model, layers_of(model), set(), embedding_vectors=embeddings_of(model).vectors)
    storage.open_for_training()
    ops, layer = TorchOperations(torch.device("cpu")), layers_of(model)[0]
    ops.before_forward(storage, packing, training)
    return PostNormLayer.apply(x, layer.query.weight, layer, packing, storage, ops, training, first_tokens_only, False)


@pytest.mark.parametrize("first_tokens_only", [False, True])
@pytest.mark.parametrize("family", FAST)
def test_a_layer_gives_the_numbers_of_its_module(family: str, first_tokens_only: bool) -> None:
    model = lively(family)
    twin, packing = copy.deepcopy(model), packing_of(token_rows())
    x = torch.randn(packing.tokens, 32, generator=torch.Generator().manual_seed(1))
    mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    found = layer_alone(model, mine, packing, first_tokens_only)
    parts, module = other.split(LENGTHS), layers_of(twin)[0].module
    each = [module(part[None]) for part in parts]
    whole = [(part[0] if isinstance(part, tuple) else part)[0] for part in each]
    expected = torch.stack([part[0] for part in whole]) if first_tokens_only else torch.cat(whole)
    torch.testing.assert_close(found, expected, **CLOSE)
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2))
    found.backward(grad)
    expected.backward(grad)
    torch.testing.assert_close(mine.grad, other.grad, **CLOSE)
    names = [name for name, _ in module.named_parameters()]
    for name, weight, peer in zip(names, layers_of(model)[0].module.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, peer.grad, **CLOSE, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("first_tokens_only", [False, True])
@pytest.mark.parametrize("family", FAST)
def test_all_gradients_equal_those_of_autograd(family: str, first_tokens_only: bool, multiple: int) -> None:
    """Two passes before one step: the second is added to the first."""
    model, twin, rows = lively(family), lively(family), [token_rows(), token_rows((3, 9, 4, 1), seed=8)]
    types = [TYPES, [np.arange(len(row)) % 2 for row in rows[1]]] if family in WITH_TOKEN_TYPES else [None, None]
    savings = ReplacedLayers(model, first_tokens_only=first_tokens_only)
    savings.open_for_training()
    expected: dict[str, torch.Tensor] = {}
    for some, kinds in zip(rows, types, strict=True):
        answer = model(**inputs_of(model, some, multiple, kinds)).logits
        torch.testing.assert_close(answer, twin(**padded_inputs(some, kinds)).logits, **CLOSE)
        weighed(answer).backward()
        savings.after_backward()
        for name, grad in plain_gradients(twin, padded_inputs(some, kinds)).items():
            expected[name] = expected.get(name, torch.zeros_like(grad)) + grad
    assert {name for name, weight in model.named_parameters() if weight.grad is not None} == {*expected}
    for name, weight in model.named_parameters():
        scale = max(1.0, float(expected[name].abs().max()))
        assert (weight.grad - expected[name]).abs().max() <= 1e-5 * scale, name
    assert all(
        grad.abs().max() > 1e-4 for name, grad in expected.items() if "key.bias" not in name and "k_lin.bias" not in name
    )


def test_dropout_rates_reach_their_places() -> None:
    """One rate at a time: each changes the output, and gradients stay finite."""
    packing, x = packing_of(token_rows()), torch.randn(25, 32)
    plain = layer_alone(lively(), x, packing, False)
    for place in range(3):
        model = lively()
        layers_of(model)[0].dropouts[place].p = 0.5
        inside = x.clone().requires_grad_()
        found = layer_alone(model, inside, packing, False, training=True)
        assert (found - plain).abs().max() > 0.01
        found.sum().backward()
        assert torch.isfinite(inside.grad).all()
        assert torch.equal(layer_alone(model, x, packing, False, training=False), plain)


def test_the_gradient_under_dropout_is_that_of_the_masks_that_were_drawn() -> None:
    model, packing = lively(dropout=0.3), packing_of(token_rows((4, 3)))
    x = torch.randn(7, 32, generator=torch.Generator().manual_seed(1))
    grad = torch.randn(7, 32, generator=torch.Generator().manual_seed(2))

    def run(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(9)
        return layer_alone(model, x, packing, False, training=True)

    inside = x.clone().requires_grad_()
    run(inside).backward(grad)
    towards = torch.randn(7, 32, generator=torch.Generator().manual_seed(3))
    slope = ((run(x + 1e-2 * towards) - run(x - 1e-2 * towards)).detach() * grad).sum() / 2e-2
    assert float((inside.grad * towards).sum()) == pytest.approx(float(slope), rel=2e-2, abs=2e-2)


# --- first tokens alone: as with keys and values of all tokens, dropout included ------------------------------------


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def masks() -> DropoutMasks:
    """The same each time."""
    torch.manual_seed(4)
    found = DropoutMasks(torch.device("cpu"))
    found.start()
    return found


def storage_of(model: Any) -> FlatStorage:
    storage = FlatStorage(model, layers_of(model), set(), embedding_vectors=embeddings_of(model).vectors)
    storage.open_for_training()
    return storage


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_the_numbers_of_keys_and_values_of_all_tokens(rate: float, multiple: int) -> None:
    model, packing = lively("bert"), packing_of(token_rows((7, 2, 11, 5)), multiple=multiple)
    layer, storage = layers_of(model)[0], storage_of(model)
    x, grad = drawn(packing.tokens, 32, seed=1), drawn(4, layer.heads, 32 // layer.heads, seed=2)
    query = drawn(*grad.shape, seed=3)

    inputs = x.clone().requires_grad_()
    key, value = (part(inputs).view(packing.tokens, layer.heads, -1) for part in (layer.key, layer.value))
    expected, saved = attend(query, key.detach(), value.detach(), packing, rate, masks())
    grad_query, grad_key, grad_value = attend_backward(grad, saved)
    linears = [layer.key, layer.value]
    parts = [inputs, *(part.weight for part in linears), *(part.bias for part in linears)]
    grad_parts = torch.autograd.grad([key, value], parts, [grad_key, grad_value])

    found, kept = attend_first_tokens(query, x, layer, packing, storage, rate, masks())
    torch.testing.assert_close(found, expected, **CLOSE)
    for times in (1, 2):  # the second is added to the first
        mine = attend_first_tokens_backward(grad, kept, layer, storage)
        torch.testing.assert_close(mine[0], grad_query, **CLOSE)
        torch.testing.assert_close(mine[1], grad_parts[0], **CLOSE)
        for part, grad_part in zip(parts[1:], grad_parts[1:], strict=True):
            torch.testing.assert_close(storage.gradient(part), times * grad_part, atol=5e-5, rtol=1e-5)
    if rate:
        whole = attend_first_tokens(query, x, layer, packing, storage, 0.0, masks())[0]
        assert not torch.allclose(found, whole, atol=0.05), "something was dropped"


def test_the_bias_of_keys_changes_nothing() -> None:
    model, packing = lively("bert"), packing_of(token_rows((7, 2, 11, 5)))
    layer, storage = layers_of(model)[0], storage_of(model)
    x, query = drawn(packing.tokens, 32, seed=1), drawn(4, layer.heads, 32 // layer.heads, seed=2)
    before, saved = attend_first_tokens(query, x, layer, packing, storage, 0.0, masks())
    attend_first_tokens_backward(torch.ones_like(query), saved, layer, storage)
    assert storage.gradient(layer.key.bias).count_nonzero() == 0
    with torch.no_grad():
        layer.key.bias.add_(1.0)
    assert torch.equal(before, attend_first_tokens(query, x, layer, packing, storage, 0.0, masks())[0])
