"""Attention over packed tokens: the numbers of torch's own attention over each sequence alone, forward and backward."""

from __future__ import annotations

import pytest
import torch
from packs import LENGTHS, packing_of, token_rows
from torch.nn import functional

from glassloop.backends.fast.operations import (
    DropoutMasks,
    attend,
    attend_backward,
    attend_qkv,
    attend_qkv_backward,
    can_flash,
    from_grid,
    summing_in_order,
    to_grid,
)

HEADS, WIDTH = 2, 8


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


def masks() -> DropoutMasks:
    found = DropoutMasks(torch.device("cpu"))
    found.start()
    return found


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
    found, saved = attend(asked, key.detach(), value.detach(), packing, 0.0, masks(), window)
    torch.testing.assert_close(found, expected.detach(), atol=1e-5, rtol=1e-5)
    mine = attend_backward(grad, saved)
    torch.testing.assert_close(mine[0], grad_query[firsts] if first_tokens_only else grad_query, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mine[1], grad_key, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mine[2], grad_value, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("multiple", [1, 8])
def test_query_key_and_value_together_are_attended_like_each_alone(multiple: int, rate: float) -> None:
    packing = packing_of(token_rows((7, 6, 8, 5)), multiple=multiple)
    assert len(packing.grids.parts) == 1, "with the same masks, then"
    heads = torch.stack([drawn(packing.tokens, seed) for seed in range(3)], 1)
    grad = drawn(packing.tokens, 9)
    torch.manual_seed(1)
    out, saved = attend_qkv(heads, packing, rate, masks())
    (together,) = attend_qkv_backward(grad, saved)
    torch.manual_seed(1)
    expected, saved = attend(*heads.unbind(1), packing, rate, masks())
    found = [part.reshape(packing.tokens, -1) for part in attend_backward(grad, saved)]
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(together, torch.cat(found, 1), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("multiple", [1, 8])
def test_long_and_short_rows_have_a_grid_each(multiple: int) -> None:
    packing = packing_of(token_rows((9, 40, 3, 8, 33, 7, 1)), multiple=multiple)
    assert [(grid.sequences, grid.longest) for grid in packing.grids.parts] == [(2, 40), (5 + packing.has_filler, 16)]
    heads = torch.stack([drawn(packing.tokens, seed) for seed in range(3)], 1)
    grad = drawn(packing.tokens, 9)
    out, saved = attend_qkv(heads, packing, 0.0, masks())
    expected, others = attend(*heads.unbind(1), packing, 0.0, masks())
    torch.testing.assert_close(out, expected, atol=1e-6, rtol=1e-5)
    found = [part.reshape(packing.tokens, -1) for part in attend_backward(grad, others)]
    torch.testing.assert_close(attend_qkv_backward(grad, saved)[0], torch.cat(found, 1), atol=1e-6, rtol=1e-5)


def test_dropout_in_two_grids_drops_the_same_both_ways() -> None:
    """Zero queries attend to all tokens equally, so with values of one the output is the kept share."""
    packing = packing_of(token_rows((40, 9, 38, 8)))
    assert len(packing.grids.parts) == 2
    heads = torch.stack([torch.zeros(95, HEADS, WIDTH), drawn(95, 1), torch.ones(95, HEADS, WIDTH)], 1)
    out, saved = attend_qkv(heads, packing, 0.3, masks())
    for rows in (out[:40], out[40:49], out[49:87], out[87:]):
        assert rows.std() > 0.01
        assert rows.mean() == pytest.approx(1.0, abs=0.15)
    (found,) = attend_qkv_backward(torch.ones(95, HEADS, WIDTH), saved)
    grad_value = found.view(95, 3, HEADS, WIDTH)[:, 2]
    assert grad_value.sum() == pytest.approx(float(out.sum()), rel=1e-4)


def test_a_batch_of_single_tokens_attends_to_itself() -> None:
    packing = packing_of(token_rows((1, 1, 1)))
    value = drawn(3, 2)
    found, _ = attend(drawn(3, 0), drawn(3, 1), value, packing, 0.0, masks())
    torch.testing.assert_close(found, value)


def test_an_empty_sequence_at_the_end_gives_finite_numbers() -> None:
    packing = packing_of(token_rows((3, 5)), multiple=8)
    assert packing.bounds.tolist()[-2:] == [8, 8]
    found, saved = attend(drawn(8, 0), drawn(8, 1), drawn(8, 2), packing, 0.0, masks())
    assert torch.isfinite(found).all()
    assert all(torch.isfinite(part).all() for part in attend_backward(drawn(8, 3), saved))


def test_to_grid_and_from_grid_are_inverse() -> None:
    packing = packing_of(token_rows(), multiple=8)
    tokens = drawn(packing.tokens, 4)
    grid = to_grid(tokens, packing)
    assert grid.shape == (5, HEADS, packing.longest, WIDTH)
    assert torch.equal(from_grid(grid, packing), tokens)
    assert grid.square().sum() == pytest.approx(float(tokens.square().sum()), rel=1e-5), "zeros where there is no token"


def test_dropout_drops_shares_of_attention_and_its_gradient_the_same() -> None:
    """With values of one the output is the kept share, and the gradient of the values must sum to the same."""
    packing = packing_of(token_rows((40, 50)))
    query, key = drawn(90, 0), drawn(90, 1)
    found, saved = attend(query, key, torch.ones(90, HEADS, WIDTH), packing, 0.3, masks())
    assert found.std() > 0.01
    assert found.mean() == pytest.approx(1.0, abs=0.05)
    _, _, grad_value = attend_backward(torch.ones(90, HEADS, WIDTH), saved)
    assert grad_value.sum() == pytest.approx(float(found.sum()), rel=1e-4)


def test_the_gradient_with_dropout_is_that_of_the_same_masks() -> None:
    packing = packing_of(token_rows((4, 3)))
    query, key, value = (drawn(7, seed).double() for seed in range(3))
    grad = drawn(7, 5).double()

    def run(query: torch.Tensor) -> tuple[torch.Tensor, tuple]:
        torch.manual_seed(4)
        return attend(query, key, value, packing, 0.4, masks())

    grad_query = attend_backward(grad, run(query)[1])[0]
    for place in ((0, 0, 0), (3, 1, 2), (6, 0, 7)):
        more, less = query.clone(), query.clone()
        more[place] += 1e-6
        less[place] -= 1e-6
        slope = ((run(more)[0] - run(less)[0]) * grad).sum() / 2e-6
        assert grad_query[place] == pytest.approx(float(slope), abs=1e-6)


def test_flash_attention_needs_a_gpu() -> None:
    assert not can_flash(drawn(3, 0))
    assert not can_flash(drawn(3, 0).bfloat16())


@pytest.mark.parametrize("before", [False, True])
def test_gradients_are_summed_in_order_only_where_needed(before: bool) -> None:
    torch.use_deterministic_algorithms(before)
    try:
        for needed in (False, True):
            with summing_in_order(needed):
                assert torch.are_deterministic_algorithms_enabled() is (needed or before)
            assert torch.are_deterministic_algorithms_enabled() is before
        with pytest.raises(ValueError, match="as it was"), summing_in_order(True):
            raise ValueError("the flag is as it was")
        assert torch.are_deterministic_algorithms_enabled() is before
    finally:
        torch.use_deterministic_algorithms(False)
