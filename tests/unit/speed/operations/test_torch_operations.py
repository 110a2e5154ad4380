"""What lies between products: masks that drop the right share and can be drawn again, and gradients that are autograd's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import tiny_model
from packs import inputs_of, token_rows
from torch.nn import functional

from glassloop.speed.encoders.parts import embeddings_of, layers_of
from glassloop.speed.encoders.replaced_layers import ReplacedLayers
from glassloop.speed.operations.torch_operations import PARTS_OF_RATE, DropoutMasks, TorchOperations
from glassloop.speed.optimizer.storage import FlatStorage

CPU = torch.device("cpu")


# --- masks -------------------------------------------------------------------------------------------------------


def started(seed: int = 1) -> DropoutMasks:
    torch.manual_seed(seed)
    masks = DropoutMasks(CPU)
    masks.start()
    return masks


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_the_share_of_zeros_is_the_rate_and_the_rest_is_scaled_by_it(rate: float) -> None:
    mask = started().drawn(torch.empty(1000, 1001), rate)
    assert mask is not None
    assert (mask == 0).float().mean() == pytest.approx(rate, abs=5 * (rate * (1 - rate) / 1e6) ** 0.5)
    part = round(rate * PARTS_OF_RATE)
    gain = float(mask.max())
    assert set(mask.unique().tolist()) == {0.0, gain}
    assert gain == pytest.approx(PARTS_OF_RATE / (PARTS_OF_RATE - part), rel=1e-6)
    assert gain == pytest.approx(1 / (1 - rate), rel=1e-3)


def test_no_place_is_special() -> None:
    """Four masks come from one draw of 64 bits: the four must be independent of each other and of their neighbours."""
    signs = started().drawn(torch.empty(1_000_000), 0.5) - 1
    for place in range(4):
        assert abs(signs[place::4].mean()) < 0.01
    for distance in (1, 2, 3, 4):
        assert abs((signs[:-distance] * signs[distance:]).mean()) < 0.005


def test_the_same_seed_gives_the_same_masks_and_calls_differ() -> None:
    like = torch.empty(50, 7)
    first, second = started(3), started(3)
    drawn = [first.drawn(like, 0.3) for _ in range(3)]
    assert all(torch.equal(mask, second.drawn(like, 0.3)) for mask in drawn)
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], started(4).drawn(like, 0.3))


def test_every_pass_has_masks_of_its_own() -> None:
    masks, like = started(), torch.empty(50, 7)
    first = masks.drawn(like, 0.3)
    masks.start()
    assert not torch.equal(first, masks.drawn(like, 0.3))


def test_without_dropout_nothing_is_drawn() -> None:
    masks = DropoutMasks(CPU)
    assert masks.drawn(torch.empty(3), 0.0) is None
    assert masks.generator is None


def test_dropping_everything_leaves_zeros() -> None:
    assert started().drawn(torch.empty(100), 1.0).abs().sum() == 0


@pytest.mark.parametrize("training", [False, True])
def test_a_packed_evaluation_draws_nothing_from_torchs_random_state(training: bool) -> None:
    model = tiny_model(dropout=0.1).train(training)
    savings = ReplacedLayers(model)
    before = torch.get_rng_state()
    with torch.no_grad():
        answers = [model(**inputs_of(model, token_rows())).logits for _ in range(2)]
    savings.remove()
    assert torch.equal(*answers) != training
    assert torch.equal(before, torch.get_rng_state()) != training


# --- verbs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def parts() -> tuple[Any, FlatStorage, TorchOperations]:
    """A layer, its storage, and the verbs."""
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
    y, low, saved = ops.norm(
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
    by_residual, by_product, by_bias, by_gain, by_shift = torch.autograd.grad(expected, names, whole)
    with torch.no_grad():
        mine = ops.norm_backward(grad, other if more else None, saved, layer.out, layer.out_norm, storage)
    torch.testing.assert_close(mine[0], by_residual, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mine[1], by_product, atol=1e-5, rtol=1e-5)
    for weight, value in ((layer.out.bias, by_bias), (layer.out_norm.weight, by_gain), (layer.out_norm.bias, by_shift)):
        torch.testing.assert_close(weight.grad, value, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("form", ["none", "tanh"])
def test_gelu_and_its_gradient(parts, form: str) -> None:
    layer, storage, ops = parts
    x, grad = torch.randn(9, 32), torch.randn(9, 64)
    raised, active = ops.gelu(x, layer.up.weight.detach(), layer.up.bias.detach(), form)
    before = functional.linear(x, layer.up.weight, layer.up.bias)
    expected = functional.gelu(before, approximate=form)
    torch.testing.assert_close(active, expected.detach())
    by_before, by_bias = torch.autograd.grad(expected, (before, layer.up.bias), grad)
    torch.testing.assert_close(ops.gelu_backward(grad, raised, layer.up, form, storage), by_before, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(layer.up.bias.grad, by_bias, atol=1e-5, rtol=1e-5)


def test_gradients_of_rows_are_added_up_and_the_padding_row_gets_none(parts) -> None:
    _, storage, ops = parts
    weight = words_of(storage)
    first, second = torch.tensor([3, 5, 3, 0]), torch.tensor([5, 7])
    grads = torch.randn(4, 32), torch.randn(2, 32)
    expected = torch.zeros_like(weight).index_add_(0, first, grads[0]).index_add_(0, second, grads[1])
    expected[0] = 0.0
    for rows, grad in zip((first, second), grads, strict=True):
        ops.add_rows(weight, rows, rows, grad, 0, storage)
    torch.testing.assert_close(weight.grad, expected)
    storage.clear_gradients()
    ops.add_rows(weight, second, second, grads[1], 0, storage)
    assert weight.grad.any(1).nonzero().flatten().tolist() == [5, 7], "rows of the step before are zero again"


def test_rows_are_zero_again_even_where_somebody_wrote_into_gradients(parts) -> None:
    """`on_gradients` may add noise to all rows: in the next step none of it is left."""
    _, storage, ops = parts
    weight = words_of(storage)
    rows = torch.tensor([3, 5])
    ops.add_rows(weight, rows, rows, torch.ones(2, 32), 0, storage)
    weight.grad.add_(0.5)
    storage.adopt_gradients()
    storage.clear_gradients()
    ops.add_rows(weight, rows, rows, torch.ones(2, 32), 0, storage)
    assert weight.grad.any(1).nonzero().flatten().tolist() == [3, 5]


def test_gradients_of_token_types(parts) -> None:
    _, storage, ops = parts
    weight = next(weight for weight in storage.parameters if weight.shape == (2, 32))
    rows, grad = torch.tensor([1, 0, 1]), torch.randn(3, 32)
    ops.add_types(weight, rows, grad, storage)
    torch.testing.assert_close(weight.grad, torch.stack([grad[1], grad[0] + grad[2]]))


def test_gradients_of_neighbours_are_joined(parts) -> None:
    layer, storage, ops = parts
    grads = [torch.randn(9, 32) for _ in range(3)]
    joined = ops.join(grads, [layer.query, layer.key, layer.value], storage)
    assert torch.equal(joined, torch.cat(grads, 1))
    for part, grad in zip((layer.query, layer.key, layer.value), grads, strict=True):
        torch.testing.assert_close(part.bias.grad, grad.sum(0))


def test_low_precision_is_remembered_for_the_very_tensor_only() -> None:
    ops = TorchOperations(CPU, torch.bfloat16)
    x, copy = torch.randn(2, 3), torch.ones(2, 3, dtype=torch.bfloat16)
    ops.remember_low(x, copy)
    assert ops.low(x) is copy
    assert torch.equal(ops.low(x.clone()), x.bfloat16())


def test_products_are_added_in_place(parts) -> None:
    _, _, ops = parts
    total, left, right = torch.ones(4, 3), torch.randn(4, 5), torch.randn(5, 3)
    found = ops.add_product(total, left, right)
    assert found is total
    torch.testing.assert_close(found, 1 + left @ right)
    low = ops.add_product(torch.ones(4, 3), left.bfloat16(), right.bfloat16())
    torch.testing.assert_close(low, 1 + left @ right, atol=0.1, rtol=0.1)
