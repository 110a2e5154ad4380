"""The first vectors of packed tokens: words, positions and types added up and normed, forward and backward."""

from __future__ import annotations

from typing import Any

import torch

from glassloop.speed.encoders.parts import EmbeddingParts
from glassloop.speed.optimizer.storage import FlatStorage
from glassloop.speed.packing.layout import Packing


class EmbeddingSum(torch.autograd.Function):
    """y = drop(norm(word + type + position)). Gradients go straight to the storage, and only where there are any."""

    @staticmethod
    def forward(
        ctx: Any, anchor: torch.Tensor, tables: EmbeddingParts, packing: Packing, storage: FlatStorage, ops: Any,
        training: bool, padding_row: int,
    ) -> torch.Tensor:  # fmt: skip
        views = [
            storage.table_rows(table.weight) if table is not None else None
            for table in (tables.words, tables.positions, tables.types)
        ]
        rate = float(tables.dropout.p) if training else 0.0
        y, low_y, saved = ops.embed(*views, packing, tables.norm, rate)
        ops.remember_low(y, low_y)
        ctx.parts = (tables, packing, storage, ops, padding_row, saved)
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        tables, packing, storage, ops, padding_row, saved = ctx.parts
        by_total = ops.embed_backward(grad, saved, tables.norm, storage)
        ops.add_rows(tables.words.weight, packing.ids, packing.by_id, by_total, padding_row, storage)
        own = tables.positions.padding_idx
        ops.add_rows(
            tables.positions.weight, packing.positions, packing.by_position, by_total, -1 if own is None else own, storage
        )
        if tables.types is not None:
            ops.add_types(tables.types.weight, packing.types, by_total, storage)
        return (None,) * 7
