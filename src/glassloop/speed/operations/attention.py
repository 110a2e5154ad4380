"""Attention within each packed sequence, forward and backward: flash kernels on a GPU in bf16, else padded grids."""

from __future__ import annotations

from typing import Any

import torch

from glassloop.speed.packing.layout import Grids, Packing

aten = torch.ops.aten


def can_flash(query: torch.Tensor) -> bool:
    """Whether the flash kernels take these heads."""
    width = query.shape[-1]
    return query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and width % 8 == 0 and width <= 256


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing, rate: float, masks: Any, window: int = -1
) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """The attended values [queries, heads, width] and what `attend_backward` needs. `query` holds all tokens, or firsts only.

    `masks` draws dropout masks; `window`: how far a token sees to each side, -1: all of its sequence.
    """
    firsts_only = query.shape[0] == packing.rows and query.shape[0] != key.shape[0]
    if can_flash(query):
        bounds = packing.bounds
        asked = packing.first_bounds if firsts_only else bounds
        longest = (1 if firsts_only else packing.longest, packing.longest)
        found = aten._flash_attention_forward(
            query, key, value, asked, bounds, *longest, rate, False, False,
            window_size_left=window, window_size_right=window,
        )  # fmt: skip
        return found[0], (query, key, value, *found[:4], asked, bounds, longest, rate, window)
    return attend_in_grid(query, key, value, packing, rate, masks, window, firsts_only)


def attend_backward(grad: torch.Tensor, saved: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of query, key and value."""
    if isinstance(saved[-1], Packing):
        return grid_backward(grad, saved)
    query, key, value, out, sums, random, unused, asked, bounds, longest, rate, window = saved
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = aten._flash_attention_backward(
        grad, query, key, value, out, sums, asked, bounds, *longest, rate, False, random, unused,
        window_size_left=window, window_size_right=window,
    )  # fmt: skip
    return found


def attend_together(heads: torch.Tensor, packing: Packing, rate: float, masks: Any) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """The same for query, key and value in one tensor [tokens, 3, heads, width]: on a CPU laid out in grids in one go."""
    if heads.is_cuda:
        return attend(*heads.unbind(1), packing, rate, masks)  # type: ignore[call-arg, arg-type]
    tokens, _, number, width = heads.shape
    grids, saved = packing.grids, []
    # Keys where there is no token get no weight, and queries there are asked nothing: any number may stand there.
    laid = heads.view(tokens, -1).index_select(0, grids.sources)
    outs = laid.new_empty(len(laid), number * width)
    for grid in grids.parts:
        part = laid[grid.slots].view(grid.sequences, grid.longest, 3, number, width).permute(2, 0, 3, 1, 4).contiguous()
        flat = part.view(3, grid.sequences * number, grid.longest, width)
        scores = grid.padding[:, None, None].to(laid.dtype).expand(-1, number, grid.longest, -1).contiguous()
        scores.view(-1, grid.longest, grid.longest).baddbmm_(flat[0], flat[1].mT, alpha=width**-0.5)
        chances = torch.softmax(scores, -1)
        mask = masks.drawn(chances, rate)
        out = torch.bmm(kept_of(chances, mask).view(-1, grid.longest, grid.longest), flat[2]).view(part.shape[1:])
        outs[grid.slots].view(grid.sequences, grid.longest, number, width).copy_(out.transpose(1, 2))
        saved.append((flat, chances, mask))
    return outs.index_select(0, grids.places).view(tokens, number, width), (saved, grids)


def kept_of(chances: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Made once each way: it is cheaper to make than to keep."""
    return chances if mask is None else chances * mask


def attend_together_backward(grad: torch.Tensor, saved: tuple[Any, ...]) -> list[torch.Tensor]:
    """The gradients of query, key and value [tokens, heads * width] each, or one of all three side by side."""
    if not isinstance(saved[-1], Grids):
        return [part.reshape(part.shape[0], -1) for part in attend_backward(grad, saved)]
    kept, grids = saved
    number, width = grad.shape[1:]
    laid = grad.reshape(len(grad), -1).index_select(0, grids.sources).mul_(grids.present)
    found = laid.new_empty(len(laid), 3 * number * width)
    for grid, (flat, chances, mask) in zip(grids.parts, kept, strict=True):
        part = laid[grid.slots].view(grid.sequences, grid.longest, number, width).transpose(1, 2).reshape(flat.shape[1:])
        by_flat, scale = torch.empty_like(flat), width**-0.5
        torch.bmm(kept_of(chances, mask).view(-1, grid.longest, grid.longest).mT, part, out=by_flat[2])
        by_chance = torch.bmm(part, flat[2].mT).view(chances.shape)
        by_chance = by_chance if mask is None else by_chance.mul_(mask)
        by_score = aten._softmax_backward_data(by_chance, chances, -1, chances.dtype).view(-1, grid.longest, grid.longest)
        torch.baddbmm(by_flat[0], by_score, flat[1], beta=0, alpha=scale, out=by_flat[0])
        torch.baddbmm(by_flat[1], by_score.mT, flat[0], beta=0, alpha=scale, out=by_flat[1])
        by_part = by_flat.view(3, grid.sequences, number, grid.longest, width).permute(1, 3, 0, 2, 4)
        found[grid.slots].view(by_part.shape).copy_(by_part)
    return [found.index_select(0, grids.places)]


def with_dummy(firsts: torch.Tensor, packing: Packing) -> torch.Tensor:
    """One of each sequence: zeros for the dummy sequence, where there is one, after those of the rows."""
    return torch.cat([firsts, firsts.new_zeros(1, *firsts.shape[1:])]) if packing.filled else firsts


def spread(tokens: torch.Tensor, packing: Packing) -> torch.Tensor:
    """[tokens, heads, width] laid out in a grid [sequences, heads, longest, width], zeros where there is no token."""
    heads, width = tokens.shape[1:]
    grid = tokens.reshape(-1, heads * width).index_select(0, packing.sources).mul_(packing.present)
    return grid.view(packing.sequences, packing.longest, heads, width).transpose(1, 2).contiguous()


def gathered(grid: torch.Tensor, packing: Packing) -> torch.Tensor:
    """The tokens of a grid, one after the other."""
    sequences, heads, longest, width = grid.shape
    rows = grid.transpose(1, 2).reshape(sequences * longest, heads * width)
    return rows.index_select(0, packing.places).view(-1, heads, width)


def attend_in_grid(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing, rate: float, masks: Any, window: int,
    firsts_only: bool,
) -> tuple[torch.Tensor, tuple[Any, ...]]:  # fmt: skip
    keys, values = spread(key, packing), spread(value, packing)
    asked = with_dummy(query, packing)[:, :, None] if firsts_only else spread(query, packing)
    scale = query.shape[-1] ** -0.5
    scores = torch.matmul(asked, keys.transpose(2, 3)).mul_(scale).add_(packing.padding[:, None, None, :])
    if window >= 0:
        place = torch.arange(packing.longest, device=query.device)
        scores = scores.masked_fill_((place[: scores.shape[2], None] - place).abs() > window, torch.finfo(scores.dtype).min)
    chances = torch.softmax(scores, -1)
    mask = masks.drawn(chances, rate)
    out = torch.matmul(kept_of(chances, mask), values)
    found = out[: packing.rows, :, 0] if firsts_only else gathered(out, packing)
    return found, (asked, keys, values, chances, mask, scale, firsts_only, packing)


def grid_backward(grad: torch.Tensor, saved: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    asked, keys, values, chances, mask, scale, firsts_only, packing = saved
    grid = with_dummy(grad, packing)[:, :, None].contiguous() if firsts_only else spread(grad, packing)
    by_value = torch.matmul(kept_of(chances, mask).transpose(2, 3), grid)
    by_chance = torch.matmul(grid, values.transpose(2, 3))
    by_chance = by_chance if mask is None else by_chance.mul_(mask)
    by_score = aten._softmax_backward_data(by_chance, chances, -1, chances.dtype).mul_(scale)
    by_query = torch.matmul(by_score, keys)
    by_key = torch.matmul(by_score.transpose(2, 3), asked)
    query_grad = by_query[: packing.rows, :, 0] if firsts_only else gathered(by_query, packing)
    return query_grad, gathered(by_key, packing), gathered(by_value, packing)
