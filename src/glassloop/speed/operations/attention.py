"""Attention within each packed sequence, forward and backward: flash attention on a GPU in bf16, else in padded grids."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch

from glassloop.speed.operations.dropout import DropoutMasks
from glassloop.speed.packing.layout import Grids, Packing

aten = torch.ops.aten
ONE_BLOCK = 128  # keys of a sequence that one block of flash attention's backward pass handles, at the least
# What a forward function keeps for its backward function. Only these two know what it contains.
Saved: TypeAlias = tuple[Any, ...]


def can_flash(query: torch.Tensor) -> bool:
    """Return whether flash attention accepts these heads."""
    width = query.shape[-1]
    return query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and width % 8 == 0 and width <= 256


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing, rate: float, masks: DropoutMasks,
    window: int = -1,
) -> tuple[torch.Tensor, Saved]:  # fmt: skip
    """Return the attended values [queries, heads, width] and what `attend_backward` needs.

    Args:
        query: The queries of all tokens, or only those of the first token of each row.
        key: The keys of all tokens.
        value: The values of all tokens.
        packing: The packed batch.
        rate: The dropout rate.
        masks: Draws the dropout masks.
        window: How many tokens to each side a token attends to; -1 for its whole sequence.
    """
    first_tokens_only = query.shape[0] == packing.rows and query.shape[0] != key.shape[0]
    if can_flash(query):
        bounds = packing.bounds
        query_bounds = packing.first_token_bounds if first_tokens_only else bounds
        longest = (1 if first_tokens_only else packing.longest, packing.longest)
        found = aten._flash_attention_forward(
            query, key, value, query_bounds, bounds, *longest, rate, False, False,
            window_size_left=window, window_size_right=window,
        )  # fmt: skip
        return found[0], (query, key, value, *found[:4], query_bounds, bounds, longest, rate, window)
    return attend_in_grid(query, key, value, packing, rate, masks, window, first_tokens_only)


def attend_backward(grad: torch.Tensor, saved: Saved) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of query, key and value."""
    if isinstance(saved[-1], Packing):
        return attend_in_grid_backward(grad, saved)
    query, key, value, out, logsumexp, random, unused, query_bounds, bounds, longest, rate, window = saved
    with summing_in_order(longest[1] > ONE_BLOCK):
        found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = aten._flash_attention_backward(
            grad, query, key, value, out, logsumexp, query_bounds, bounds, *longest, rate, False, random, unused,
            window_size_left=window, window_size_right=window,
        )  # fmt: skip
    return found


@contextmanager
def summing_in_order(needed: bool) -> Iterator[None]:
    """Let flash attention add up gradients of queries in a fixed order; else blocks of keys add theirs as they finish."""
    before = torch.are_deterministic_algorithms_enabled()
    if not needed or before:
        yield
        return
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def attend_qkv(heads: torch.Tensor, packing: Packing, rate: float, masks: DropoutMasks) -> tuple[torch.Tensor, Saved]:
    """Attend with query, key and value in one tensor [tokens, 3, heads, width]; on a CPU one copy lays them out in grids."""
    if heads.is_cuda:
        return attend(*heads.unbind(1), packing, rate, masks)  # type: ignore[call-arg, arg-type]
    tokens, _, number, width = heads.shape
    grids, saved = packing.grids, []
    # Slots without a token may hold any number: their keys get no weight, and the results of their queries are not read.
    laid = heads.view(tokens, -1).index_select(0, grids.token_of_slot)
    outs = laid.new_empty(len(laid), number * width)
    for grid in grids.parts:
        part = laid[grid.slots].view(grid.sequences, grid.longest, 3, number, width).permute(2, 0, 3, 1, 4).contiguous()
        flat = part.view(3, grid.sequences * number, grid.longest, width)
        scores = grid.additive_mask[:, None, None].to(laid.dtype).expand(-1, number, grid.longest, -1).contiguous()
        scores.view(-1, grid.longest, grid.longest).baddbmm_(flat[0], flat[1].mT, alpha=width**-0.5)
        probabilities = torch.softmax(scores, -1)
        mask = masks.draw(probabilities, rate)
        out = torch.bmm(apply_mask(probabilities, mask).view(-1, grid.longest, grid.longest), flat[2]).view(part.shape[1:])
        outs[grid.slots].view(grid.sequences, grid.longest, number, width).copy_(out.transpose(1, 2))
        saved.append((flat, probabilities, mask))
    return outs.index_select(0, grids.slot_of_token).view(tokens, number, width), (saved, grids)


def apply_mask(probabilities: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return probabilities after dropout; computing them again in the backward pass is cheaper than keeping them."""
    return probabilities if mask is None else probabilities * mask


def attend_qkv_backward(grad: torch.Tensor, saved: Saved) -> list[torch.Tensor]:
    """Return the gradients of query, key and value [tokens, heads * width] each, or one tensor with all three."""
    if not isinstance(saved[-1], Grids):
        return [part.reshape(part.shape[0], -1) for part in attend_backward(grad, saved)]
    kept_of_grids, grids = saved
    number, width = grad.shape[1:]
    laid = grad.reshape(len(grad), -1).index_select(0, grids.token_of_slot).mul_(grids.has_token)
    found = laid.new_empty(len(laid), 3 * number * width)
    for grid, (flat, probabilities, mask) in zip(grids.parts, kept_of_grids, strict=True):
        part = laid[grid.slots].view(grid.sequences, grid.longest, number, width).transpose(1, 2).reshape(flat.shape[1:])
        grad_flat, scale = torch.empty_like(flat), width**-0.5
        torch.bmm(apply_mask(probabilities, mask).view(-1, grid.longest, grid.longest).mT, part, out=grad_flat[2])
        grad_probabilities = torch.bmm(part, flat[2].mT).view(probabilities.shape)
        grad_probabilities = grad_probabilities if mask is None else grad_probabilities.mul_(mask)
        grad_score = aten._softmax_backward_data(grad_probabilities, probabilities, -1, probabilities.dtype)
        grad_score = grad_score.view(-1, grid.longest, grid.longest)
        torch.baddbmm(grad_flat[0], grad_score, flat[1], beta=0, alpha=scale, out=grad_flat[0])
        torch.baddbmm(grad_flat[1], grad_score.mT, flat[0], beta=0, alpha=scale, out=grad_flat[1])
        grad_part = grad_flat.view(3, grid.sequences, number, grid.longest, width).permute(1, 3, 0, 2, 4)
        found[grid.slots].view(grad_part.shape).copy_(grad_part)
    return [found.index_select(0, grids.slot_of_token)]


def with_filler(rows: torch.Tensor, packing: Packing) -> torch.Tensor:
    """Return one entry for each sequence: those of the rows, and zeros for the filler sequence if there is one."""
    return torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])]) if packing.has_filler else rows


def to_grid(tokens: torch.Tensor, packing: Packing) -> torch.Tensor:
    """Return [tokens, heads, width] as a grid [sequences, heads, longest, width], with zeros in slots without a token."""
    heads, width = tokens.shape[1:]
    grid = tokens.reshape(-1, heads * width).index_select(0, packing.token_of_slot).mul_(packing.has_token)
    return grid.view(packing.sequences, packing.longest, heads, width).transpose(1, 2).contiguous()


def from_grid(grid: torch.Tensor, packing: Packing) -> torch.Tensor:
    """Return the tokens of a grid [sequences, heads, longest, width] one after the other."""
    sequences, heads, longest, width = grid.shape
    rows = grid.transpose(1, 2).reshape(sequences * longest, heads * width)
    return rows.index_select(0, packing.slot_of_token).view(-1, heads, width)


def attend_in_grid(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing, rate: float, masks: DropoutMasks,
    window: int, first_tokens_only: bool,
) -> tuple[torch.Tensor, Saved]:  # fmt: skip
    """Attend in one padded grid."""
    keys, values = to_grid(key, packing), to_grid(value, packing)
    queries = with_filler(query, packing)[:, :, None] if first_tokens_only else to_grid(query, packing)
    scale = query.shape[-1] ** -0.5
    scores = torch.matmul(queries, keys.transpose(2, 3)).mul_(scale).add_(packing.additive_mask[:, None, None, :])
    if window >= 0:
        position = torch.arange(packing.longest, device=query.device)
        too_far = (position[: scores.shape[2], None] - position).abs() > window
        scores = scores.masked_fill_(too_far, torch.finfo(scores.dtype).min)
    probabilities = torch.softmax(scores, -1)
    mask = masks.draw(probabilities, rate)
    out = torch.matmul(apply_mask(probabilities, mask), values)
    found = out[: packing.rows, :, 0] if first_tokens_only else from_grid(out, packing)
    return found, (queries, keys, values, probabilities, mask, scale, first_tokens_only, packing)


def attend_in_grid_backward(grad: torch.Tensor, saved: Saved) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of query, key and value."""
    queries, keys, values, probabilities, mask, scale, first_tokens_only, packing = saved
    grid = with_filler(grad, packing)[:, :, None].contiguous() if first_tokens_only else to_grid(grad, packing)
    grad_value = torch.matmul(apply_mask(probabilities, mask).transpose(2, 3), grid)
    grad_probabilities = torch.matmul(grid, values.transpose(2, 3))
    grad_probabilities = grad_probabilities if mask is None else grad_probabilities.mul_(mask)
    grad_score = aten._softmax_backward_data(grad_probabilities, probabilities, -1, probabilities.dtype).mul_(scale)
    grad_query = torch.matmul(grad_score, keys)
    grad_key = torch.matmul(grad_score.transpose(2, 3), queries)
    query_grad = grad_query[: packing.rows, :, 0] if first_tokens_only else from_grid(grad_query, packing)
    return query_grad, from_grid(grad_key, packing), from_grid(grad_value, packing)
