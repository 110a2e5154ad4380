"""The operations around matrix multiplications in plain torch: their gradients are those of autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import tiny_model
from torch.nn import functional

from glassloop.backends.fast.encoder_parts import embeddings_of, layers_of
from glassloop.backends.fast.operations import TorchOperations
from glassloop.backends.fast.storage import FlatStorage

CPU = torch.device("cpu")


@pytest.fixture
def parts() -> tuple[Any, FlatStorage, TorchOperations]:
    """A layer, its storage, and the operations."""
    model = tiny_model()
    layers = layers_of(model)
    storage = FlatStorage(model, layers, set(), embedding_vectors=embeddings_of(model).vectors)
    storage.open_for_training()
    ops = TorchOperations(CPU)
    ops.before_forward(storage, None, training=True)
    return layers[0], storage, ops


def kept_of(mask: torch.Tensor | None) -> Any:
    return 1.0 if mask is None else mask


def words_of(storage: FlatStorage) -> Any:
    return max(storage.parameters, key=len)


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("more", [False, True])
def test_the_norm_of_a_sum_and_its_gradient(parts, rate: float, more: bool) -> None:
    layer, storage, ops = parts
    x, residual, grad, other = (torch.randn(9, 32, requires_grad=place < 2) for place in range(4))
    y, low, saved = ops.add_and_norm(
        x.detach(), layer.out.weight.detach(), layer.out.bias.detach(), residual.detach(), layer.out_norm.weight.detach(),
        layer.out_norm.bias.detach(), layer.out_norm.eps, rate,
    )  # fmt: skip
    kept = kept_of(saved[3])
    product = functional.linear(x, layer.out.weight, layer.out.bias)
    expected = layer.out_norm(residual + product * kept)
    torch.testing.assert_close(y, expected.detach(), atol=1e-6, rtol=1e-5)
    assert torch.equal(low, y)
    whole = grad + other if more else grad
    names = (residual, product, layer.out.bias, layer.out_norm.weight, layer.out_norm.bias)
    grad_residual, grad_product, grad_bias, grad_gain, grad_shift = torch.autograd.grad(expected, names, whole)
    with torch.no_grad():
        mine = ops.add_and_norm_backward(grad, other if more else None, saved, layer.out, layer.out_norm, storage)
    torch.testing.assert_close(mine[0], grad_residual, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mine[1], grad_product, atol=1e-5, rtol=1e-5)
    for weight, value in ((layer.out.bias, grad_bias), (layer.out_norm.weight, grad_gain), (layer.out_norm.bias, grad_shift)):
        torch.testing.assert_close(weight.grad, value, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("form", ["none", "tanh"])
def test_gelu_and_its_gradient(parts, form: str) -> None:
    layer, storage, ops = parts
    x, grad = torch.randn(9, 32), torch.randn(9, 64)
    pre_activation, active = ops.linear_gelu(x, layer.up.weight.detach(), layer.up.bias.detach(), form)
    before = functional.linear(x, layer.up.weight, layer.up.bias)
    expected = functional.gelu(before, approximate=form)
    torch.testing.assert_close(active, expected.detach())
    grad_before, grad_bias = torch.autograd.grad(expected, (before, layer.up.bias), grad)
    torch.testing.assert_close(
        ops.linear_gelu_backward(grad, pre_activation, layer.up, form, storage), grad_before, atol=1e-6, rtol=1e-5
    )
    torch.testing.assert_close(layer.up.bias.grad, grad_bias, atol=1e-5, rtol=1e-5)


def test_gradients_of_rows_are_added_up_and_the_padding_row_gets_none(parts) -> None:
    _, storage, ops = parts
    weight = words_of(storage)
    first, second = torch.tensor([3, 5, 3, 0]), torch.tensor([5, 7])
    grads = torch.randn(4, 32), torch.randn(2, 32)
    expected = torch.zeros_like(weight).index_add_(0, first, grads[0]).index_add_(0, second, grads[1])
    expected[0] = 0.0
    for rows, grad in zip((first, second), grads, strict=True):
        ops.add_table_gradient(weight, rows, rows, grad, 0, storage)
    torch.testing.assert_close(weight.grad, expected)
    storage.clear_gradients()
    ops.add_table_gradient(weight, second, second, grads[1], 0, storage)
    assert weight.grad.any(1).nonzero().flatten().tolist() == [5, 7], "rows of the step before are zero again"


def test_rows_are_zeroed_even_if_the_user_wrote_into_gradients(parts) -> None:
    """`on_gradients` may add noise to all rows, which must be gone in the next step."""
    _, storage, ops = parts
    weight = words_of(storage)
    rows = torch.tensor([3, 5])
    ops.add_table_gradient(weight, rows, rows, torch.ones(2, 32), 0, storage)
    weight.grad.add_(0.5)
    storage.adopt_gradients()
    storage.clear_gradients()
    ops.add_table_gradient(weight, rows, rows, torch.ones(2, 32), 0, storage)
    assert weight.grad.any(1).nonzero().flatten().tolist() == [3, 5]


def test_gradients_of_token_types(parts) -> None:
    _, storage, ops = parts
    weight = next(weight for weight in storage.parameters if weight.shape == (2, 32))
    rows, grad = torch.tensor([1, 0, 1]), torch.randn(3, 32)
    ops.add_type_gradient(weight, rows, grad, storage)
    torch.testing.assert_close(weight.grad, torch.stack([grad[1], grad[0] + grad[2]]))


def test_gradients_of_neighbours_are_joined(parts) -> None:
    layer, storage, ops = parts
    grads = [torch.randn(9, 32) for _ in range(3)]
    joined = ops.join_gradients(grads, [layer.query, layer.key, layer.value], storage)
    assert torch.equal(joined, torch.cat(grads, 1))
    for part, grad in zip((layer.query, layer.key, layer.value), grads, strict=True):
        torch.testing.assert_close(part.bias.grad, grad.sum(0))


def test_the_low_precision_copy_is_used_only_for_its_own_tensor() -> None:
    ops = TorchOperations(CPU, torch.bfloat16)
    x, copy = torch.randn(2, 3), torch.ones(2, 3, dtype=torch.bfloat16)
    ops.remember_low(x, copy)
    assert ops.to_matmul_dtype(x) is copy
    assert torch.equal(ops.to_matmul_dtype(x.clone()), x.bfloat16())


def test_products_are_added_in_place(parts) -> None:
    _, _, ops = parts
    total, left, right = torch.ones(4, 3), torch.randn(4, 5), torch.randn(5, 3)
    found = ops.add_matmul(total, left, right)
    assert found is total
    torch.testing.assert_close(found, 1 + left @ right)
    low = ops.add_matmul(torch.ones(4, 3), left.bfloat16(), right.bfloat16())
    torch.testing.assert_close(low, 1 + left @ right, atol=0.1, rtol=0.1)
