"""What lies between a layer's matrix products, in plain torch: for a CPU, and wherever Triton is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from glassloop.speed.capture.precompile import KernelLauncher
from glassloop.speed.operations.attention import attend_together, attend_together_backward
from glassloop.speed.optimizer.storage import FlatStorage
from glassloop.speed.packing.layout import Packing

aten = torch.ops.aten
PARTS_OF_RATE = 65536  # a dropout rate is a multiple of 1/65,536 here; what is kept is scaled by the very rate that was used


class DropoutMasks:
    """Dropout masks. On a CPU they come from a generator several times as fast as torch's, seeded from torch's each pass."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.generator: Any = None

    def start(self) -> None:
        """A new pass: draw its seed from torch's random state, so that a resumed run draws the same."""
        if self.device.type == "cpu":
            self.generator = np.random.SFC64(int(torch.randint(2**62, ())))

    def drawn(self, like: torch.Tensor, rate: float) -> torch.Tensor | None:
        """What to multiply by: zeros, and for the rest what makes up for them. None where nothing is dropped."""
        if rate <= 0.0:
            return None
        part = round(rate * PARTS_OF_RATE)
        gain = PARTS_OF_RATE / (PARTS_OF_RATE - part) if part < PARTS_OF_RATE else 0.0
        if self.device.type == "cpu":
            size = like.numel()
            raw = self.generator.random_raw(-(-size // 4)).view(np.int16)[:size]
            kept = torch.empty(like.shape)
            torch.ge(torch.from_numpy(raw).view(like.shape), part - PARTS_OF_RATE // 2, out=kept)
        else:
            kept = torch.rand(like.shape, device=self.device).ge_(part / PARTS_OF_RATE)
        return kept.mul_(gain).to(like.dtype)


class TorchOperations:
    """Bias, GELU, dropout, sum and norm, each way."""

    def __init__(self, device: torch.device, low: torch.dtype = torch.float32) -> None:
        self.masks, self.kind = DropoutMasks(device), low
        self.last: tuple[torch.Tensor, torch.Tensor] | None = None
        self.touched: dict[int, list[torch.Tensor]] = {}
        self.launchers: list[KernelLauncher] = []  # none: torch compiles nothing
        self.keeps = True  # whether what goes into a function is needed again, for its gradient

    def before_forward(self, storage: FlatStorage, packing: Packing, training: bool) -> None:
        """Before the forward pass of a batch; one that does not train draws nothing."""
        if training:
            self.masks.start()
        self.last = None
        self.keeps = torch.is_grad_enabled()

    def after_backward(self, storage: FlatStorage) -> None:
        """After its backward pass."""

    def low(self, x: torch.Tensor) -> torch.Tensor:
        """x in the precision of products."""
        if self.last is not None and self.last[0] is x:
            return self.last[1]
        return x.to(self.kind)

    def remember_low(self, x: torch.Tensor, low: torch.Tensor) -> None:
        self.last = (x, low)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.addmm(bias, x, weight.t())

    def add_product(self, total: torch.Tensor, left: torch.Tensor, right: torch.Tensor, defer: bool = False) -> torch.Tensor:
        """total + left @ right, in the memory of `total`."""
        return total.addmm_(left, right) if total.dtype == left.dtype else total.add_(left @ right)

    def norm(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, gain: torch.Tensor,
        shift: torch.Tensor, eps: float, rate: float,
    ) -> tuple[torch.Tensor, torch.Tensor, tuple[Any, ...]]:  # fmt: skip
        """norm(residual + drop(x @ weight^T + bias)), the same in low precision, and what its gradient needs."""
        product = self.linear(x, weight, bias.to(self.kind))
        kept = self.masks.drawn(product, rate)
        product = product if kept is None else product.mul_(kept)
        total = product.add_(residual) if product.dtype == residual.dtype else residual + product
        y, mean, spread = torch.native_layer_norm(total, total.shape[1:], gain, shift, eps)
        return y, y.to(self.kind), (total, mean, spread, kept)

    def norm_backward(
        self,
        grad: torch.Tensor,
        more: torch.Tensor | None,
        saved: tuple[Any, ...],
        linear: Any,
        norm: Any,
        storage: FlatStorage,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradients of the residual and of the product, from `grad` (+ `more`); those of the vectors are stored."""
        total, mean, spread, kept = saved
        if more is not None:
            grad = grad + more
        by_total, by_gain, by_shift = aten.native_layer_norm_backward(
            grad.contiguous(), total, total.shape[1:], mean, spread, norm.weight, norm.bias, [True, True, True]
        )
        storage.add(norm.weight, by_gain)
        storage.add(norm.bias, by_shift)
        by_product = by_total.to(self.kind)
        by_product = by_product if kept is None else by_product * kept
        storage.add(linear.bias, by_product.sum(0, dtype=torch.float32))
        return by_total, by_product

    def embed(
        self, words: torch.Tensor, positions: torch.Tensor, types: torch.Tensor | None, packing: Packing, norm: Any, rate: float
    ) -> tuple[torch.Tensor, torch.Tensor, tuple[Any, ...]]:
        """drop(norm(word + type + position)), the same in low precision, and what its gradient needs."""
        total = words.index_select(0, packing.ids)
        if types is not None:
            total += types.index_select(0, packing.types)
        total += positions.index_select(0, packing.positions)
        y, mean, spread = torch.native_layer_norm(total, total.shape[1:], norm.weight, norm.bias, norm.eps)
        kept = self.masks.drawn(y, rate)
        y = y if kept is None else y.mul_(kept)
        return y, y.to(self.kind), (total, mean, spread, kept)

    def embed_backward(self, grad: torch.Tensor, saved: tuple[Any, ...], norm: Any, storage: FlatStorage) -> torch.Tensor:
        """The gradient of the sum."""
        total, mean, spread, kept = saved
        grad = grad if kept is None else grad * kept
        by_total, by_gain, by_shift = aten.native_layer_norm_backward(
            grad.contiguous(), total, total.shape[1:], mean, spread, norm.weight, norm.bias, [True, True, True]
        )
        storage.add(norm.weight, by_gain)
        storage.add(norm.bias, by_shift)
        return by_total  # type: ignore[no-any-return]

    def add_rows(
        self, weight: Any, rows: torch.Tensor, order: torch.Tensor, grad: torch.Tensor, padding: int, storage: FlatStorage
    ) -> None:
        """Add gradients to the rows of a table; only rows that were touched in the step before are set to zero first."""
        slot = storage.gradient(weight)
        if id(weight) not in storage.written:
            if storage.gradients_exposed:  # any row may have been written to
                slot.zero_()
            for touched in self.touched.get(id(weight), []):
                slot.index_fill_(0, touched, 0.0)
            self.touched[id(weight)] = []
        where = rows.long()
        slot.index_add_(0, where, grad)
        self.touched[id(weight)].append(where)
        if padding >= 0:
            slot[padding].zero_()
        storage.mark_written(weight)

    def add_types(self, weight: Any, rows: torch.Tensor, grad: torch.Tensor, storage: FlatStorage) -> None:
        """Add gradients to the few rows of a small table."""
        here = rows[None] == torch.arange(len(weight), device=rows.device)[:, None]
        storage.add(weight, here.to(grad.dtype) @ grad)

    def gelu(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, form: str) -> tuple[torch.Tensor, torch.Tensor]:
        """gelu(x @ weight^T + bias), after what went into it."""
        raised = self.linear(x, weight, bias.to(self.kind))
        return raised, functional.gelu(raised, approximate=form) if self.keeps else aten.gelu_(raised, approximate=form)

    def gelu_backward(
        self, grad: torch.Tensor, raised: torch.Tensor, linear: Any, form: str, storage: FlatStorage
    ) -> torch.Tensor:
        found: torch.Tensor = aten.gelu_backward(grad, raised, approximate=form)
        storage.add(linear.bias, found.sum(0, dtype=torch.float32))
        return found

    def attend(self, heads: torch.Tensor, packing: Packing, rate: float) -> tuple[torch.Tensor, tuple[Any, ...]]:
        """Attention of query, key and value in one tensor [tokens, 3, heads, width]."""
        return attend_together(heads, packing, rate, self.masks)

    def attend_backward(
        self, grad: torch.Tensor, saved: tuple[Any, ...], linears: list[Any], storage: FlatStorage
    ) -> torch.Tensor:
        """The gradients of all three side by side; those of the biases are stored."""
        return self.join(attend_together_backward(grad, saved), linears, storage)

    def join(self, parts: list[torch.Tensor], linears: list[Any], storage: FlatStorage) -> torch.Tensor:
        """Gradients of neighbouring products as one (they may come as one); those of the biases are stored."""
        joined = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        sums = joined.sum(0, dtype=torch.float32).view(len(linears), -1)
        for part, linear in zip(sums, linears, strict=True):
            storage.add(linear.bias, part)
        return joined
