"""Attention of first tokens with folded matrices: the numbers of keys and values made for all tokens, dropout included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from packs import lively, packing_of, token_rows

from glassloop.speed.attention import attend, attend_backward
from glassloop.speed.elementwise import Masks
from glassloop.speed.layers import layers_of, tables_of
from glassloop.speed.postnorm import attend_firsts, attend_firsts_backward
from glassloop.speed.storage import Storage

CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def masks() -> Masks:
    """The same each time."""
    torch.manual_seed(4)
    found = Masks(torch.device("cpu"))
    found.start()
    return found


def storage_of(model: Any) -> Storage:
    storage = Storage(model, layers_of(model), set(), first_vectors=tables_of(model).vectors)
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
    by_query, by_key, by_value = attend_backward(grad, saved)
    linears = [layer.key, layer.value]
    parts = [inputs, *(part.weight for part in linears), *(part.bias for part in linears)]
    by_parts = torch.autograd.grad([key, value], parts, [by_key, by_value])

    found, kept = attend_firsts(query, x, layer, packing, storage, rate, masks())
    torch.testing.assert_close(found, expected, **CLOSE)
    for times in (1, 2):  # the second is added to the first
        mine = attend_firsts_backward(grad, kept, layer, storage)
        torch.testing.assert_close(mine[0], by_query, **CLOSE)
        torch.testing.assert_close(mine[1], by_parts[0], **CLOSE)
        for part, by_part in zip(parts[1:], by_parts[1:], strict=True):
            torch.testing.assert_close(storage.gradient(part), times * by_part, atol=5e-5, rtol=1e-5)
    if rate:
        whole = attend_firsts(query, x, layer, packing, storage, 0.0, masks())[0]
        assert not torch.allclose(found, whole, atol=0.05), "something was dropped"


def test_the_bias_of_keys_moves_nothing() -> None:
    model, packing = lively("bert"), packing_of(token_rows((7, 2, 11, 5)))
    layer, storage = layers_of(model)[0], storage_of(model)
    x, query = drawn(packing.tokens, 32, seed=1), drawn(4, layer.heads, 32 // layer.heads, seed=2)
    before, saved = attend_firsts(query, x, layer, packing, storage, 0.0, masks())
    attend_firsts_backward(torch.ones_like(query), saved, layer, storage)
    assert storage.gradient(layer.key.bias).count_nonzero() == 0
    with torch.no_grad():
        layer.key.bias.add_(1.0)
    assert torch.equal(before, attend_firsts(query, x, layer, packing, storage, 0.0, masks())[0])
