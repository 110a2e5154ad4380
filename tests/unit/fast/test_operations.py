"""Attention over packed tokens: the numbers of torch's own attention over each sequence alone, forward and backward."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from families import tiny_model
from packs import LENGTHS, inputs_of, masks_of, packing_of, storage_of, token_rows
from torch.nn import functional

from glassloop.backends.fast import operations
from glassloop.backends.fast.encoder_parts import layers_of
from glassloop.backends.fast.operations import KernelLauncher, TorchOperations, attend, attend_backward
from glassloop.backends.fast.training_model import OwnLayers, ReplacedLayers

HEADS, WIDTH = 2, 8
CPU = torch.device("cpu")


def drawn(number: int, seed: int) -> torch.Tensor:
    return torch.randn(number, HEADS, WIDTH, generator=torch.Generator().manual_seed(seed))


def alone(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: list[int], window: int) -> torch.Tensor:
    """torch's attention over one sequence after the other."""
    found, start = [], 0
    for length in lengths:
        parts = [part[start : start + length].transpose(0, 1) for part in (query, key, value)]
        place = torch.arange(length)
        seen = (place[:, None] - place).abs() <= window if window >= 0 else None
        found.append(functional.scaled_dot_product_attention(*parts, attn_mask=seen).transpose(0, 1))
        start += length
    return torch.cat(found)


@pytest.mark.parametrize("window", [-1, 0, 2, 100])
@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("first_tokens_only", [False, True])
def test_each_sequence_is_attended_alone(window: int, multiple: int, first_tokens_only: bool) -> None:
    packing = packing_of(token_rows(), multiple=multiple)
    spare = packing.tokens - sum(LENGTHS)
    lengths = [*LENGTHS, *([spare] if spare else [])]
    query, key, value = (drawn(packing.tokens, seed).requires_grad_() for seed in range(3))
    expected = alone(query, key, value, lengths, window)
    firsts = packing.first_tokens.long()
    if first_tokens_only:
        expected = expected[firsts]
    grad = drawn(len(expected), 9)
    if not first_tokens_only and spare:
        grad[-spare:] = 0.0  # nothing is asked of what only fills a shape
    grad_query, grad_key, grad_value = torch.autograd.grad(expected, (query, key, value), grad)
    asked = query.detach()[firsts] if first_tokens_only else query.detach()
    found, saved = attend(asked, key.detach(), value.detach(), packing, 0.0, masks_of(), window)
    torch.testing.assert_close(found, expected.detach(), atol=1e-5, rtol=1e-5)
    mine = attend_backward(grad, saved)
    wanted = (grad_query[firsts] if first_tokens_only else grad_query, grad_key, grad_value)
    torch.testing.assert_close(mine[:3], wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize(
    ("lengths", "rate", "grids"),
    [((7, 6, 8, 5), 0.0, 1), ((7, 6, 8, 5), 0.3, 1), ((9, 40, 3, 8, 33, 7, 1), 0.0, 2)],  # masks differ in two grids
    ids=["one grid", "dropout", "long and short rows"],
)
def test_query_key_and_value_together_are_attended_like_each_alone(lengths, rate: float, grids: int, multiple: int) -> None:
    packing = packing_of(token_rows(lengths), multiple=multiple)
    shapes = [(grid.sequences, grid.longest) for grid in packing.grids.parts]
    assert shapes == [(2, 40), (5 + packing.has_filler, 16)] if grids == 2 else len(shapes) == 1
    heads, grad = torch.stack([drawn(packing.tokens, seed) for seed in range(3)], 1), drawn(packing.tokens, 9)
    out, saved = operations.attend_qkv(heads, packing, rate, masks_of())
    (together,) = operations.attend_qkv_backward(grad, saved)
    expected, saved = attend(*heads.unbind(1), packing, rate, masks_of())
    each = [part.reshape(packing.tokens, -1) for part in attend_backward(grad, saved)]
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(together, torch.cat(each, 1), atol=1e-6, rtol=1e-5)


def test_dropout_in_two_grids_drops_the_same_both_ways() -> None:
    """Zero queries attend to all tokens equally, so with values of one the output is the kept share."""
    packing = packing_of(token_rows((40, 9, 38, 8)))
    assert len(packing.grids.parts) == 2
    heads = torch.stack([torch.zeros(95, HEADS, WIDTH), drawn(95, 1), torch.ones(95, HEADS, WIDTH)], 1)
    out, saved = operations.attend_qkv(heads, packing, 0.3, masks_of())
    for rows in (out[:40], out[40:49], out[49:87], out[87:]):
        assert rows.std() > 0.01
        assert rows.mean() == pytest.approx(1.0, abs=0.15)
    (found,) = operations.attend_qkv_backward(torch.ones(95, HEADS, WIDTH), saved)
    grad_value = found.view(95, 3, HEADS, WIDTH)[:, 2]
    assert grad_value.sum() == pytest.approx(float(out.sum()), rel=1e-4)


def test_an_empty_sequence_at_the_end_gives_finite_numbers() -> None:
    packing = packing_of(token_rows((3, 5)), multiple=8)
    assert packing.bounds.tolist()[-2:] == [8, 8]
    found, saved = attend(drawn(8, 0), drawn(8, 1), drawn(8, 2), packing, 0.0, masks_of())
    assert all(torch.isfinite(part).all() for part in (found, *attend_backward(drawn(8, 3), saved)))


def test_the_gradient_with_dropout_is_that_of_the_same_masks() -> None:
    packing = packing_of(token_rows((4, 3)))
    query, key, value = (drawn(7, seed).double() for seed in range(3))
    grad = drawn(7, 5).double()

    def run(query: torch.Tensor) -> tuple[torch.Tensor, tuple]:
        return attend(query, key, value, packing, 0.4, masks_of())

    grad_query = attend_backward(grad, run(query)[1])[0]
    for place in ((0, 0, 0), (3, 1, 2), (6, 0, 7)):
        more, less = query.clone(), query.clone()
        more[place] += 1e-6
        less[place] -= 1e-6
        slope = ((run(more)[0] - run(less)[0]) * grad).sum() / 2e-6
        assert grad_query[place] == pytest.approx(float(slope), abs=1e-6)


@pytest.mark.parametrize("before", [False, True])
def test_gradients_are_summed_in_order_only_where_needed(before: bool) -> None:
    torch.use_deterministic_algorithms(before)
    try:
        for needed in (False, True):
            with operations.summing_in_order(needed):
                assert torch.are_deterministic_algorithms_enabled() is (needed or before)
            assert torch.are_deterministic_algorithms_enabled() is before
        with pytest.raises(ValueError, match="as it was"), operations.summing_in_order(True):
            raise ValueError("the flag is as it was")
        assert torch.are_deterministic_algorithms_enabled() is before
    finally:
        torch.use_deterministic_algorithms(False)


# --- Dropout masks drop the right share, and the same random state draws the same masks.
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_the_share_of_zeros_is_the_rate_and_the_rest_is_scaled_by_it(rate: float) -> None:
    mask = masks_of().draw(torch.empty(1000, 1001), rate)
    assert (mask == 0).float().mean() == pytest.approx(rate, abs=5 * (rate * (1 - rate) / 1e6) ** 0.5)
    part = round(rate * operations.RATE_STEPS)
    gain = float(mask.max())
    assert set(mask.unique().tolist()) == {0.0, gain}
    assert gain == pytest.approx(operations.RATE_STEPS / (operations.RATE_STEPS - part), rel=1e-6)
    assert gain == pytest.approx(1 / (1 - rate), rel=1e-3)


def test_masks_of_adjacent_places_are_independent() -> None:
    """Four masks come from one draw of 64 bits: the four must be independent of each other and of their neighbours."""
    signs = masks_of().draw(torch.empty(1_000_000), 0.5) - 1
    assert all(abs(signs[place::4].mean()) < 0.01 for place in range(4))
    for distance in (1, 2, 3, 4):
        assert abs((signs[:-distance] * signs[distance:]).mean()) < 0.005


def test_the_same_seed_gives_the_same_masks_calls_differ_and_nothing_is_drawn_without_dropout() -> None:
    like = torch.empty(50, 7)
    first, second = masks_of(3), masks_of(3)
    drawn = [first.draw(like, 0.3) for _ in range(3)]
    assert all(torch.equal(mask, second.draw(like, 0.3)) for mask in drawn)
    first.start()
    assert not torch.equal(drawn[0], first.draw(like, 0.3)), "every pass draws new masks"
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], masks_of(4).draw(like, 0.3))
    masks = operations.DropoutMasks(CPU)
    assert masks.draw(torch.empty(3), 0.0) is None
    assert masks.generator is None
    assert masks.draw(torch.empty(100), 1.0).abs().sum() == 0


@pytest.mark.parametrize(("family", "training"), [("bert", False), ("bert", True), ("modernbert", False)])
def test_a_packed_evaluation_draws_nothing_from_torchs_random_state(family: str, training: bool) -> None:
    model = tiny_model(family, dropout=0.1).train(training)
    savings = ReplacedLayers(model) if family == "bert" else OwnLayers(model, packs=True)
    before = torch.get_rng_state()
    with torch.no_grad():
        answers = [model(**inputs_of(model, token_rows())).logits for _ in range(2)]
    savings.remove()
    assert torch.equal(*answers) != training
    assert torch.equal(before, torch.get_rng_state()) != training


# --- The operations around matrix multiplications in plain torch: their gradients are those of autograd.
@pytest.fixture
def parts() -> tuple[Any, Any, TorchOperations]:
    model, ops = tiny_model(), TorchOperations(CPU)
    storage = storage_of(model)
    ops.before_forward(storage, None, training=True)
    return layers_of(model)[0], storage, ops


@pytest.mark.parametrize("form", ["none", "tanh"])
def test_gelu_and_its_gradient(parts, form: str) -> None:
    layer, storage, ops = parts
    x, grad = torch.randn(9, 32), torch.randn(9, 64)
    with torch.no_grad():
        pre_activation, active = ops.linear_gelu(x, layer.up, form, storage)
    before = functional.linear(x, layer.up.weight, layer.up.bias)
    expected = functional.gelu(before, approximate=form)
    torch.testing.assert_close(active, expected.detach())
    grad_before, grad_bias = torch.autograd.grad(expected, (before, layer.up.bias), grad)
    torch.testing.assert_close(
        ops.linear_gelu_backward(grad, pre_activation, layer.up, form, storage), grad_before, atol=1e-6, rtol=1e-5
    )
    torch.testing.assert_close(layer.up.bias.grad, grad_bias, atol=1e-5, rtol=1e-5)


def test_gradients_of_rows_are_added_up_the_padding_row_gets_none_and_others_are_zero_again(parts) -> None:
    _, storage, ops = parts
    weight = max(storage.parameters, key=len)  # the word vectors
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
    weight.grad.add_(0.5)  # as on_gradients may: the noise must be gone in the next step
    storage.adopt_gradients()
    storage.clear_gradients()
    ops.add_table_gradient(weight, first[:2], first[:2], torch.ones(2, 32), 0, storage)
    assert weight.grad.any(1).nonzero().flatten().tolist() == [3, 5]


def test_the_low_precision_copy_is_used_only_for_its_own_tensor() -> None:
    ops = TorchOperations(CPU, torch.bfloat16)
    x, copy = torch.randn(2, 3), torch.ones(2, 3, dtype=torch.bfloat16)
    ops.last_low = (x, copy)
    assert ops.to_matmul_dtype(x) is copy
    assert torch.equal(ops.to_matmul_dtype(x.clone()), x.bfloat16())


class Kernel:
    """Record each call and its thread."""

    def __init__(self, fails: bool = False) -> None:
        self.ran: list[Any] = []
        self.warmed: list[Any] = []
        self.loaded, self.fails = 0, fails

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **options: self.ran.append((grid, args, options))

    def warmup(self, *args: Any, grid: tuple[int, ...], **options: Any) -> Any:
        if self.fails:
            raise RuntimeError("no compiler")
        self.warmed.append((grid, args, options, threading.get_ident()))
        return self

    @property
    def run(self) -> None:
        self.loaded += 1


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda number: nullcontext())


def test_a_launch_runs_its_kernel_and_recorded_kernels_are_compiled_and_not_run() -> None:
    launch, kernel = KernelLauncher(), Kernel()
    launch(kernel, (3,), 1, 2, BLOCK=4)
    assert (kernel.ran, kernel.warmed) == ([((3,), (1, 2), {"BLOCK": 4})], [])
    first, second = Kernel(), Kernel()
    with operations.compile_instead_of_running(launch):
        launch(first, (3,), 1, BLOCK=4)
        launch(second, (5, 2), "x")
        launch(first, (3,), 7, BLOCK=8)
        assert not first.warmed, "nothing is compiled before all launches are recorded"
    assert [entry[:3] for entry in first.warmed] == [((3,), (1,), {"BLOCK": 4}), ((3,), (7,), {"BLOCK": 8})]
    assert (first.loaded, second.loaded) == (2, 1)
    assert first.ran == second.ran == []
    assert threading.get_ident() not in {entry[3] for entry in first.warmed + second.warmed}
    launch(first, (1,))
    assert first.ran == [((1,), (), {})], "afterwards launches run again"


def test_a_kernel_that_does_not_compile_is_left_to_its_first_launch_and_an_error_ends_the_recording() -> None:
    launch, good, bad = KernelLauncher(), Kernel(), Kernel(fails=True)
    with operations.compile_instead_of_running(launch):
        launch(bad, (1,))
        launch(good, (1,))
    assert good.loaded == 1
    kernel = Kernel()

    def stumble() -> None:
        with operations.compile_instead_of_running(launch):
            launch(kernel, (1,))
            raise ValueError("oh")

    with pytest.raises(ValueError, match="oh"):
        stumble()
    assert launch.recorded is None
    assert kernel.ran == kernel.warmed == []
