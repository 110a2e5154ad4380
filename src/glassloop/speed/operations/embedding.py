"""The embeddings of packed tokens: word, position and type vectors summed and normed, forward and backward."""

from __future__ import annotations

import torch
from torch.autograd.function import FunctionCtx

from glassloop.speed.encoder_parts import EmbeddingParts
from glassloop.speed.operations.attention import Saved
from glassloop.speed.operations.torch_operations import TorchOperations
from glassloop.speed.optimizer.storage import FlatStorage
from glassloop.speed.packing.layout import Packing


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
