"""The embeddings of packed tokens: values and gradients are those of the unmodified module."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from families import FAST
from packs import LENGTHS, inputs_of, lively, token_rows

from glassloop.backends.fast.encoder_parts import embeddings_of, layers_of
from glassloop.backends.fast.layers import EmbeddingSum
from glassloop.backends.fast.operations import TorchOperations
from glassloop.backends.fast.packing import Packing
from glassloop.backends.fast.storage import FlatStorage

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
