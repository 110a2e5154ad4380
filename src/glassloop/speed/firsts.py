"""Attention of first tokens alone, on a CPU: the matrices of keys and values are put to the few queries, not to all tokens."""

from __future__ import annotations

from typing import Any

import torch

from glassloop.speed.attention import kept_of, with_dummy
from glassloop.speed.layers import Layer
from glassloop.speed.packing import Packing
from glassloop.speed.storage import Storage

aten = torch.ops.aten


def attend_firsts(
    query: torch.Tensor, x: torch.Tensor, layer: Layer, packing: Packing, storage: Storage, rate: float, masks: Any
) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """The attended values [rows, heads, width] of one query a row, and what `attend_firsts_backward` needs.

    query · (K x) is (Kᵀ query) · x, and the sum of chances · (V x + b) is V (sum of chances · x) + b (sum of chances). The bias
    of the keys adds the same to all scores of a query, and softmax takes it away.
    """
    heads, width = query.shape[1:]
    key, value = storage.in_low(layer.key.weight, layer.value.weight).view(2, heads, width, -1)
    bias = storage.low_bias(layer.value.bias).view(heads, width)
    asked = with_dummy(query, packing).transpose(0, 1)
    folded = torch.bmm(asked, key).transpose(0, 1)
    grid = x.index_select(0, packing.sources).view(packing.sequences, packing.longest, -1)
    scores = torch.bmm(folded, grid.mT).mul_(width**-0.5).add_(packing.padding[:, None])
    chances = torch.softmax(scores, -1)
    mask = masks.drawn(chances, rate)
    kept = kept_of(chances, mask)
    seen, share = torch.bmm(kept, grid), kept.sum(-1, keepdim=True)  # less or more than 1 where some were dropped
    out = torch.bmm(seen.transpose(0, 1), value.mT).transpose(0, 1).addcmul(share, bias)
    return out[: packing.rows], (asked, folded, grid, chances, mask, seen, share, packing)


def attend_firsts_backward(
    grad: torch.Tensor, saved: tuple[Any, ...], layer: Layer, storage: Storage
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of the queries and of all tokens; those of keys' and values' matrices and biases are stored."""
    asked, folded, grid, chances, mask, seen, share, packing = saved
    heads, _, width = asked.shape
    weights = [layer.key.weight, layer.value.weight]
    key, value = storage.in_low(*weights).view(2, heads, width, -1)
    bias = storage.low_bias(layer.value.bias).view(heads, width)
    grad = with_dummy(grad, packing)
    by_head, kept = grad.transpose(0, 1), kept_of(chances, mask)
    by_seen = torch.bmm(by_head, value).transpose(0, 1)
    by_kept = torch.baddbmm((grad * bias).sum(-1, keepdim=True), by_seen, grid.mT)
    by_chance = by_kept if mask is None else by_kept.mul_(mask)
    by_score = aten._softmax_backward_data(by_chance, chances, -1, chances.dtype).mul_(width**-0.5)
    by_folded = torch.bmm(by_score, grid).transpose(0, 1)
    storage.add_product(weights, torch.cat([asked, by_head]), torch.cat([by_folded, seen.transpose(0, 1)]))
    storage.add(layer.key.bias, torch.zeros_like(layer.key.bias))
    storage.add(layer.value.bias, (grad * share).sum(0, dtype=torch.float32).view(-1))
    by_grid = torch.bmm(torch.cat([by_score, kept], 1).mT, torch.cat([folded, by_seen], 1))
    by_query = torch.bmm(by_folded, key.mT).transpose(0, 1)[: packing.rows]
    return by_query, by_grid.view(-1, grid.shape[-1]).index_select(0, packing.places).float()
