"""A transformer layer and the embeddings over packed tokens, forward and backward, for every family with a layout."""

from __future__ import annotations

import torch
from torch.autograd.function import FunctionCtx

from glassloop.backends.fast.encoder_parts import EmbeddingParts, LayerParts
from glassloop.backends.fast.operations import (
    DropoutMasks,
    Saved,
    TorchOperations,
    apply_mask,
    attend,
    attend_backward,
    with_filler,
)
from glassloop.backends.fast.packing import Packing
from glassloop.backends.fast.storage import FlatStorage


class EmbeddingContext(FunctionCtx):
    """What the forward pass keeps for the backward pass."""

    parts: tuple[EmbeddingParts, Packing, FlatStorage, TorchOperations, int, Saved]


class EmbeddingSum(torch.autograd.Function):
    """y = dropout(norm(word + type + position)). Gradients are added to the storage, only to the rows that were read."""

    @staticmethod
    def forward(
        ctx: EmbeddingContext, anchor: torch.Tensor, tables: EmbeddingParts, packing: Packing, storage: FlatStorage,
        ops: TorchOperations, training: bool, padding_row: int,
    ) -> torch.Tensor:  # fmt: skip
        """Return the embeddings; `anchor` is any parameter, so that autograd calls `backward`."""
        words, positions = storage.table_rows(tables.words.weight), storage.table_rows(tables.positions.weight)
        types = storage.table_rows(tables.types.weight) if tables.types is not None else None
        rate = float(tables.dropout.p) if training else 0.0
        y, low_y, saved = ops.embed(words, positions, types, packing, tables.norm, rate)
        ops.remember_low(y, low_y)
        ctx.parts = (tables, packing, storage, ops, padding_row, saved)
        return y

    @staticmethod
    def backward(ctx: EmbeddingContext, grad: torch.Tensor) -> tuple[None, ...]:
        """Add the gradients of the tables to the storage."""
        tables, packing, storage, ops, padding_row, saved = ctx.parts
        grad_total = ops.embed_backward(grad, saved, tables.norm, storage)
        ops.add_table_gradient(tables.words.weight, packing.ids, packing.sorted_by_id, grad_total, padding_row, storage)
        padding = tables.positions.padding_idx
        ops.add_table_gradient(
            tables.positions.weight, packing.positions, packing.sorted_by_position, grad_total,
            -1 if padding is None else padding, storage,
        )  # fmt: skip
        if tables.types is not None:
            ops.add_type_gradient(tables.types.weight, packing.types, grad_total, storage)
        return (None,) * 7


aten = torch.ops.aten


class LayerContext(FunctionCtx):
    """What the forward pass keeps for the backward pass."""

    parts: tuple[LayerParts, Packing, FlatStorage, TorchOperations, bool, bool]
    kept: Saved


class PostNormLayer(torch.autograd.Function):
    """y = norm(h + dropout(down(gelu(up(h))))) with h = norm(x + dropout(out(attention(x)))).

    With `first_tokens_only` (the last layer, if the head reads only first tokens) everything but keys and values, and on a CPU
    these too, is computed only for the first token of each row: the same numbers with a tenth of the work. The gradients of
    weights are added to the storage.
    """

    @staticmethod
    def forward(
        ctx: LayerContext, x: torch.Tensor, anchor: torch.Tensor, layer: LayerParts, packing: Packing, storage: FlatStorage,
        ops: TorchOperations, training: bool, first_tokens_only: bool, follows_fast_layer: bool,
    ) -> torch.Tensor:  # fmt: skip
        """Return y; `anchor` is any parameter, so that autograd calls `backward`."""
        attention_rate, out_rate, down_rate = layer.dropout_rates if training else (0.0, 0.0, 0.0)
        low_x = ops.to_matmul_dtype(x)
        query, key, value = (part.weight for part in (layer.query, layer.key, layer.value))
        width = query.shape[0]
        bias = storage.matmul_bias(layer.query.bias, layer.key.bias, layer.value.bias)
        source, low_source = x, low_x
        if first_tokens_only:
            source, low_source = x.index_select(0, packing.first_tokens), low_x.index_select(0, packing.first_tokens)
            queries = ops.linear(low_source, storage.matmul_weight(query), bias[:width]).view(len(source), layer.heads, -1)
        if first_tokens_only and x.is_cuda:  # on a GPU few launches count for more than few multiplications
            keys_values = ops.linear(low_x, storage.matmul_weight(key, value), bias[width:]).view(len(x), 2, layer.heads, -1)
            attended, saved_attention = attend(
                queries, keys_values[:, 0], keys_values[:, 1], packing, attention_rate, ops.masks
            )
        elif first_tokens_only:
            attended, saved_attention = attend_first_tokens(queries, low_x, layer, packing, storage, attention_rate, ops.masks)
        else:
            heads = ops.linear(low_x, storage.matmul_weight(query, key, value), bias).view(len(x), 3, layer.heads, -1)
            attended, saved_attention = ops.attend(heads, packing, attention_rate)
        low_attended = attended.reshape(len(source), width)
        out_norm, down_norm = layer.out_norm, layer.down_norm
        h, low_h, saved_out = ops.add_and_norm(
            low_attended, storage.matmul_weight(layer.out.weight), layer.out.bias, source, out_norm.weight, out_norm.bias,
            out_norm.eps, out_rate,
        )  # fmt: skip
        pre_activation, low_active = ops.linear_gelu(
            low_h, storage.matmul_weight(layer.up.weight), layer.up.bias, layer.gelu_approximate
        )
        y, low_y, saved_down = ops.add_and_norm(
            low_active, storage.matmul_weight(layer.down.weight), layer.down.bias, h, down_norm.weight, down_norm.bias,
            down_norm.eps, down_rate,
        )  # fmt: skip
        ops.remember_low(y, low_y)
        ctx.parts = (layer, packing, storage, ops, first_tokens_only, follows_fast_layer)
        ctx.kept = (low_x, low_source, saved_attention, low_attended, saved_out, low_h, pre_activation, low_active, saved_down)
        return y

    @staticmethod
    def backward(ctx: LayerContext, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradient of x."""
        layer, packing, storage, ops, first_tokens_only, follows_fast_layer = ctx.parts
        low_x, low_source, saved_attention, low_attended, saved_out, low_h, pre_activation, low_active, saved_down = ctx.kept
        ctx.kept = ()
        grad_h, grad_down = ops.add_and_norm_backward(grad, None, saved_down, layer.down, layer.down_norm, storage)
        storage.add_matmul_gradient([layer.down.weight], grad_down, low_active)
        grad_up = ops.linear_gelu_backward(
            grad_down @ storage.matmul_weight(layer.down.weight), pre_activation, layer.up, layer.gelu_approximate, storage
        )
        storage.add_matmul_gradient([layer.up.weight], grad_up, low_h)
        extra_grad = grad_up @ storage.matmul_weight(layer.up.weight)
        grad_source, grad_out = ops.add_and_norm_backward(grad_h, extra_grad, saved_out, layer.out, layer.out_norm, storage)
        storage.add_matmul_gradient([layer.out.weight], grad_out, low_attended)
        grad_attended = grad_out @ storage.matmul_weight(layer.out.weight)
        grad_attended = grad_attended.view(len(grad_attended), layer.heads, -1)
        linears = [layer.query, layer.key, layer.value]
        weights = [part.weight for part in linears]
        if not first_tokens_only:
            joined = ops.attend_backward(grad_attended, saved_attention, linears, storage)
            storage.add_matmul_gradient(weights, joined, low_x)
            return (ops.add_matmul(grad_source, joined, storage.matmul_weight(*weights), follows_fast_layer), *[None] * 8)
        if grad.is_cuda:
            flat = [part.reshape(part.shape[0], -1) for part in attend_backward(grad_attended, saved_attention)]
            grad_query = ops.join_gradients(flat[:1], linears[:1], storage)
            joined = ops.join_gradients(flat[1:], linears[1:], storage)
            storage.add_matmul_gradient(weights[1:], joined, low_x)
            grad_x = (joined @ storage.matmul_weight(*weights[1:])).float()
        else:
            grad_queries, grad_x = attend_first_tokens_backward(grad_attended, saved_attention, layer, storage)
            grad_query = ops.join_gradients([grad_queries.reshape(len(grad_queries), -1)], linears[:1], storage)
        storage.add_matmul_gradient(weights[:1], grad_query, low_source)
        grad_source = ops.add_matmul(grad_source, grad_query, storage.matmul_weight(weights[0]))
        grad_x.index_add_(0, packing.first_tokens, grad_source)
        return (grad_x, *[None] * 8)


def attend_first_tokens(
    query: torch.Tensor, x: torch.Tensor, layer: LayerParts, packing: Packing, storage: FlatStorage, rate: float,
    masks: DropoutMasks,
) -> tuple[torch.Tensor, Saved]:  # fmt: skip
    """Return the attended values [rows, heads, width] of one query per row, and what the backward function needs.

    The key and value matrices are multiplied with the few queries and with what these attend to, not with all tokens:
    query · (K x) is (Kᵀ query) · x, and Σ p (V x + b) is V (Σ p x) + b (Σ p) for attention probabilities p. The bias of the
    keys adds the same number to all scores of a query, so softmax cancels it.
    """
    heads, width = query.shape[1:]
    key, value = storage.matmul_weight(layer.key.weight, layer.value.weight).view(2, heads, width, -1)
    bias = storage.matmul_bias(layer.value.bias).view(heads, width)
    queries = with_filler(query, packing).transpose(0, 1)
    folded = torch.bmm(queries, key).transpose(0, 1)
    grid = x.index_select(0, packing.token_of_slot).view(packing.sequences, packing.longest, -1)
    scores = torch.bmm(folded, grid.mT).mul_(width**-0.5).add_(packing.additive_mask[:, None])
    probabilities = torch.softmax(scores, -1)
    mask = masks.draw(probabilities, rate)
    kept = apply_mask(probabilities, mask)
    mixed, share = torch.bmm(kept, grid), kept.sum(-1, keepdim=True)  # after dropout the share is not exactly 1
    out = torch.bmm(mixed.transpose(0, 1), value.mT).transpose(0, 1).addcmul(share, bias)
    return out[: packing.rows], (queries, folded, grid, probabilities, mask, mixed, share, packing)


def attend_first_tokens_backward(
    grad: torch.Tensor, saved: Saved, layer: LayerParts, storage: FlatStorage
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of the queries and of all tokens; those of keys and values are added to the storage."""
    queries, folded, grid, probabilities, mask, mixed, share, packing = saved
    heads, _, width = queries.shape
    weights = [layer.key.weight, layer.value.weight]
    key, value = storage.matmul_weight(*weights).view(2, heads, width, -1)
    bias = storage.matmul_bias(layer.value.bias).view(heads, width)
    grad = with_filler(grad, packing)
    grad_heads, kept = grad.transpose(0, 1), apply_mask(probabilities, mask)
    grad_mixed = torch.bmm(grad_heads, value).transpose(0, 1)
    grad_kept = torch.baddbmm((grad * bias).sum(-1, keepdim=True), grad_mixed, grid.mT)
    grad_probabilities = grad_kept if mask is None else grad_kept.mul_(mask)
    grad_score = aten._softmax_backward_data(grad_probabilities, probabilities, -1, probabilities.dtype).mul_(width**-0.5)
    grad_folded = torch.bmm(grad_score, grid).transpose(0, 1)
    storage.add_matmul_gradient(
        weights, torch.cat([queries, grad_heads]), torch.cat([grad_folded, mixed.transpose(0, 1)])
    )  # fmt: skip
    storage.add(layer.key.bias, torch.zeros_like(layer.key.bias))
    storage.add(layer.value.bias, (grad * share).sum(0, dtype=torch.float32).view(-1))
    grad_grid = torch.bmm(torch.cat([grad_score, kept], 1).mT, torch.cat([folded, grad_mixed], 1))
    grad_query = torch.bmm(grad_folded, key.mT).transpose(0, 1)[: packing.rows]
    return grad_query, grad_grid.view(-1, grid.shape[-1]).index_select(0, packing.slot_of_token).float()
