"""One transformer layer over packed tokens, forward and backward written out: the maths of every family in layers.py."""

from __future__ import annotations

from typing import Any

import torch

from glassloop.speed.encoders.parts import LayerParts
from glassloop.speed.operations.attention import attend, attend_backward, kept_of, with_dummy
from glassloop.speed.optimizer.storage import FlatStorage
from glassloop.speed.packing.layout import Packing

aten = torch.ops.aten


class PostNormLayer(torch.autograd.Function):
    """y = norm(h + drop(down(gelu(up(h))))) with h = norm(x + drop(out(attention(x)))).

    With `firsts_only` (the last layer, where the head reads first tokens only) all but keys and values, and on a CPU these too,
    are computed for the first token of each row alone: the same numbers, a tenth of the work. Weight gradients go straight to
    the storage.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, anchor: torch.Tensor, layer: LayerParts, packing: Packing, storage: FlatStorage, ops: Any,
        training: bool, firsts_only: bool, after_layer: bool,
    ) -> torch.Tensor:  # fmt: skip
        attention_rate, out_rate, down_rate = layer.rates if training else (0.0, 0.0, 0.0)
        low_x = ops.low(x)
        query, key, value = (part.weight for part in (layer.query, layer.key, layer.value))
        width = query.shape[0]
        bias = storage.matmul_bias(layer.query.bias, layer.key.bias, layer.value.bias)
        source, low_source = x, low_x
        if firsts_only:
            source, low_source = x.index_select(0, packing.firsts), low_x.index_select(0, packing.firsts)
            asked = ops.linear(low_source, storage.matmul_weight(query), bias[:width]).view(len(source), layer.heads, -1)
        if firsts_only and x.is_cuda:  # there, few launches count for more than few products
            known = ops.linear(low_x, storage.matmul_weight(key, value), bias[width:]).view(len(x), 2, layer.heads, -1)
            attended, saved_attention = attend(asked, known[:, 0], known[:, 1], packing, attention_rate, ops.masks)
        elif firsts_only:
            attended, saved_attention = attend_firsts(asked, low_x, layer, packing, storage, attention_rate, ops.masks)
        else:
            heads = ops.linear(low_x, storage.matmul_weight(query, key, value), bias).view(len(x), 3, layer.heads, -1)
            attended, saved_attention = ops.attend(heads, packing, attention_rate)
        low_attended = attended.reshape(len(source), width)
        out_norm, down_norm = layer.out_norm, layer.down_norm
        h, low_h, saved_out = ops.norm(
            low_attended, storage.matmul_weight(layer.out.weight), layer.out.bias, source, out_norm.weight, out_norm.bias,
            out_norm.eps, out_rate,
        )  # fmt: skip
        raised, low_active = ops.gelu(low_h, storage.matmul_weight(layer.up.weight), layer.up.bias, layer.form)
        y, low_y, saved_down = ops.norm(
            low_active, storage.matmul_weight(layer.down.weight), layer.down.bias, h, down_norm.weight, down_norm.bias,
            down_norm.eps, down_rate,
        )  # fmt: skip
        ops.remember_low(y, low_y)
        ctx.parts = (layer, packing, storage, ops, firsts_only, after_layer)
        ctx.kept = (low_x, low_source, saved_attention, low_attended, saved_out, low_h, raised, low_active, saved_down)
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        layer, packing, storage, ops, firsts_only, after_layer = ctx.parts
        low_x, low_source, saved_attention, low_attended, saved_out, low_h, raised, low_active, saved_down = ctx.kept
        ctx.kept = None
        by_h, by_down = ops.norm_backward(grad, None, saved_down, layer.down, layer.down_norm, storage)
        storage.add_product([layer.down.weight], by_down, low_active)
        by_raised = ops.gelu_backward(by_down @ storage.matmul_weight(layer.down.weight), raised, layer.up, layer.form, storage)
        storage.add_product([layer.up.weight], by_raised, low_h)
        more = by_raised @ storage.matmul_weight(layer.up.weight)
        by_source, by_out = ops.norm_backward(by_h, more, saved_out, layer.out, layer.out_norm, storage)
        storage.add_product([layer.out.weight], by_out, low_attended)
        by_attended = by_out @ storage.matmul_weight(layer.out.weight)
        by_attended = by_attended.view(len(by_attended), layer.heads, -1)
        linears = [layer.query, layer.key, layer.value]
        weights = [part.weight for part in linears]
        if not firsts_only:
            joined = ops.attend_backward(by_attended, saved_attention, linears, storage)
            storage.add_product(weights, joined, low_x)
            return (ops.add_product(by_source, joined, storage.matmul_weight(*weights), after_layer), *[None] * 8)
        if grad.is_cuda:
            flat = [part.reshape(part.shape[0], -1) for part in attend_backward(by_attended, saved_attention)]
            query = ops.join(flat[:1], linears[:1], storage)
            joined = ops.join(flat[1:], linears[1:], storage)
            storage.add_product(weights[1:], joined, low_x)
            by_x = (joined @ storage.matmul_weight(*weights[1:])).float()
        else:
            by_query, by_x = attend_firsts_backward(by_attended, saved_attention, layer, storage)
            query = ops.join([by_query.reshape(len(by_query), -1)], linears[:1], storage)
        storage.add_product(weights[:1], query, low_source)
        by_source = ops.add_product(by_source, query, storage.matmul_weight(weights[0]))
        by_x.index_add_(0, packing.firsts, by_source)
        return (by_x, *[None] * 8)


def attend_firsts(
    query: torch.Tensor, x: torch.Tensor, layer: LayerParts, packing: Packing, storage: FlatStorage, rate: float, masks: Any
) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """The attended values [rows, heads, width] of one query a row, and what `attend_firsts_backward` needs.

    The matrices of keys and values are put to the few queries and to what these have seen, not to all tokens:
    query · (K x) is (Kᵀ query) · x, and the sum of chances · (V x + b) is V (sum of chances · x) + b (sum of chances). The bias
    of the keys adds the same to all scores of a query, and softmax takes it away.
    """
    heads, width = query.shape[1:]
    key, value = storage.matmul_weight(layer.key.weight, layer.value.weight).view(2, heads, width, -1)
    bias = storage.matmul_bias(layer.value.bias).view(heads, width)
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
    grad: torch.Tensor, saved: tuple[Any, ...], layer: LayerParts, storage: FlatStorage
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of the queries and of all tokens; those of keys' and values' matrices and biases are stored."""
    asked, folded, grid, chances, mask, seen, share, packing = saved
    heads, _, width = asked.shape
    weights = [layer.key.weight, layer.value.weight]
    key, value = storage.matmul_weight(*weights).view(2, heads, width, -1)
    bias = storage.matmul_bias(layer.value.bias).view(heads, width)
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
