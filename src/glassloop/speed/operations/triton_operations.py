"""What lies between a layer's matrix products, on a GPU: the verbs of elementwise.py by way of fused kernels."""

from __future__ import annotations

from typing import Any

import torch
import triton

from glassloop.speed.capture.precompile import KernelLauncher
from glassloop.speed.operations.torch_operations import TorchOperations
from glassloop.speed.operations.triton_kernels import (
    embed_kernel,
    gelu_backward_kernel,
    gelu_kernel,
    join_kernel,
    norm_backward_kernel,
    norm_kernel,
    rows_kernel,
)
from glassloop.speed.optimizer.storage import FlatStorage
from glassloop.speed.packing.layout import Packing

ROWS = 2  # rows a program takes at least, one after the other
MOST_PARTS = 264  # column sums are first taken over so many parts of the rows
SITE_SALT = 0x9E3779B1


class TritonOperations(TorchOperations):
    """The same verbs as `Elementwise`. Sums over rows are taken in two stages, so that they never depend on chance."""

    def __init__(self, device: torch.device, low: torch.dtype) -> None:
        super().__init__(device, low)
        self.launch = KernelLauncher()
        self.launchers = [self.launch]
        self.device, self.is_low = device, low is not torch.float32
        self.seed = torch.zeros(1, dtype=torch.int64, device=device)
        self.sites = self.num_parts = 0
        self.filled: set[int] = set()
        self.parts: torch.Tensor | None = None
        self.pending: tuple[int, torch.Tensor] | None = None

    def before_forward(self, storage: FlatStorage, packing: Packing, training: bool) -> None:
        self.last = self.pending = None
        self.sites = 0
        if training:
            self.seed = torch.randint(2**31, (1,), dtype=torch.int64, device=self.device)
        self.num_parts = min(triton.cdiv(packing.tokens, ROWS), MOST_PARTS)
        self.filled.clear()
        if self.parts is None and hasattr(storage, "other_gradients"):
            self.parts = torch.zeros(MOST_PARTS, storage.num_vector_values, device=self.device)

    def after_backward(self, storage: FlatStorage) -> None:
        if self.parts is None or not self.filled:
            return
        slot = storage.vector_gradients
        if id(storage.vectors[0]) in storage.written:
            slot.add_(self.parts[: self.num_parts].sum(0))
        else:
            torch.sum(self.parts[: self.num_parts], 0, out=slot)
        storage.mark_written(*storage.vectors)

    def site(self, storage: FlatStorage, *weights: Any) -> tuple[Any, ...]:
        """Where the column sums of these vectors go, and whether something is there already."""
        starts = [storage.locations[id(weight)][0] - storage.first_vector for weight in weights]
        adds = starts[0] in self.filled
        self.filled.add(starts[0])
        return self.parts, storage.num_vector_values, *starts, adds

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.addmm(bias, x, weight.t())

    def add_product(self, total: torch.Tensor, left: torch.Tensor, right: torch.Tensor, defer: bool = False) -> torch.Tensor:
        if not self.is_low:
            return total.addmm_(left, right)
        if not defer:
            return total.add_(left @ right)
        self.pending = (total.data_ptr(), left @ right)  # the layer before adds it while it reads `total`
        return total

    def taken(self, grad: torch.Tensor) -> torch.Tensor | None:
        """What the layer behind left to be added to its gradient."""
        pending, self.pending = self.pending, None
        return pending[1] if pending is not None and pending[0] == grad.data_ptr() else None

    def norm(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, gain: torch.Tensor,
        shift: torch.Tensor, eps: float, rate: float,
    ) -> tuple[torch.Tensor, torch.Tensor, tuple[Any, ...]]:  # fmt: skip
        product = x @ weight.t()
        rows, width = product.shape
        y, normed = torch.empty_like(residual), torch.empty_like(residual)
        low_y = torch.empty_like(product) if self.is_low else y
        spread = torch.empty(rows, device=x.device)
        self.sites += 1
        salt = self.sites * SITE_SALT & 0x7FFFFFFF  # one kind of number for all sites: one kernel
        self.launch(
            norm_kernel, (rows,),
            product, bias, residual, gain, shift, y, low_y, normed, spread, self.seed, salt, rate, eps, width,
            DROPS=rate > 0, LOW=self.is_low, BLOCK=triton.next_power_of_2(width), num_warps=4,
        )  # fmt: skip
        return y, low_y, (normed, spread, self.seed, salt, rate)

    def norm_backward(
        self,
        grad: torch.Tensor,
        more: torch.Tensor | None,
        saved: tuple[Any, ...],
        linear: Any,
        norm: Any,
        storage: FlatStorage,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        normed, spread, seed, salt, rate = saved
        more = self.taken(grad) if more is None else more
        rows, width = normed.shape
        by_residual = torch.empty_like(normed)
        by_product = torch.empty(rows, width, dtype=self.kind, device=grad.device)
        parts, columns, bias_at, gain_at, shift_at, adds = self.site(storage, linear.bias, norm.weight, norm.bias)
        self.launch(
            norm_backward_kernel, (self.num_parts,),
            grad.contiguous(), grad if more is None else more, normed, spread, norm.weight, by_residual, by_product,
            parts, columns, bias_at, gain_at, shift_at, seed, salt, rate, rows, width,
            MORE=more is not None, DROPS=rate > 0, FIRST=False, ADDS=adds,
            BLOCK=triton.next_power_of_2(width), num_warps=8 if width > 512 else 4,
        )  # fmt: skip
        return by_residual, by_product

    def embed(
        self, words: torch.Tensor, positions: torch.Tensor, types: torch.Tensor | None, packing: Packing, norm: Any, rate: float
    ) -> tuple[torch.Tensor, torch.Tensor, tuple[Any, ...]]:
        tokens, width = packing.tokens, words.shape[1]
        y, normed = (torch.empty(tokens, width, device=words.device) for _ in range(2))
        low_y = torch.empty_like(y, dtype=self.kind) if self.is_low else y
        spread = torch.empty(tokens, device=words.device)
        self.launch(
            embed_kernel, (tokens,),
            words, positions, words if types is None else types, packing.ids, packing.positions, packing.types,
            norm.weight, norm.bias, y, low_y, normed, spread, self.seed, 0, rate, norm.eps, width,
            TYPES=types is not None, DROPS=rate > 0, LOW=self.is_low, BLOCK=triton.next_power_of_2(width), num_warps=4,
        )  # fmt: skip
        return y, low_y, (normed, spread, self.seed, rate)

    def embed_backward(self, grad: torch.Tensor, saved: tuple[Any, ...], norm: Any, storage: FlatStorage) -> torch.Tensor:
        normed, spread, seed, rate = saved
        more = self.taken(grad)
        rows, width = normed.shape
        by_total = torch.empty_like(normed)
        parts, columns, gain_at, shift_at, adds = self.site(storage, norm.weight, norm.bias)
        self.launch(
            norm_backward_kernel, (self.num_parts,),
            grad.contiguous(), grad if more is None else more, normed, spread, norm.weight, by_total, by_total,
            parts, columns, 0, gain_at, shift_at, seed, 0, rate, rows, width,
            MORE=more is not None, DROPS=rate > 0, FIRST=True, ADDS=adds,
            BLOCK=triton.next_power_of_2(width), num_warps=8 if width > 512 else 4,
        )  # fmt: skip
        return by_total

    def add_rows(
        self, weight: Any, rows: torch.Tensor, order: torch.Tensor, grad: torch.Tensor, padding: int, storage: FlatStorage
    ) -> None:
        slot, adds = storage.gradient(weight), id(weight) in storage.written
        if not adds:
            slot.zero_()
        count, width = grad.shape
        self.launch(
            rows_kernel,
            (count, triton.cdiv(width, 256)),
            grad,
            rows,
            order,
            slot,
            count,
            width,
            padding,
            ADDS=adds,
            BLOCK=256,
            num_warps=2,
        )
        storage.mark_written(weight)

    def gelu(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, form: str) -> tuple[torch.Tensor, torch.Tensor]:
        raised = x @ weight.t()
        active = torch.empty_like(raised)
        size = raised.numel()
        self.launch(
            gelu_kernel,
            (triton.cdiv(size, 1024),),
            raised,
            bias,
            active,
            raised.shape[1],
            size,
            TANH=form == "tanh",
            BLOCK=1024,
            num_warps=4,
        )
        return raised, active

    def gelu_backward(
        self, grad: torch.Tensor, raised: torch.Tensor, linear: Any, form: str, storage: FlatStorage
    ) -> torch.Tensor:
        rows, width = raised.shape
        found = torch.empty_like(raised)
        parts, columns, bias_at, adds = self.site(storage, linear.bias)
        self.launch(
            gelu_backward_kernel, (triton.cdiv(width, 256), self.num_parts),
            grad, raised, linear.bias, found, parts, columns, bias_at, rows, width,
            TANH=form == "tanh", ADDS=adds, BLOCK=256, num_warps=4,
        )  # fmt: skip
        return found

    def join(self, parts: list[torch.Tensor], linears: list[Any], storage: FlatStorage) -> torch.Tensor:
        if len(parts) < len(linears):  # they came as one
            parts = list(parts[0].chunk(len(linears), 1))
        rows, width = parts[0].shape
        joined = torch.empty(rows, width * len(parts), dtype=parts[0].dtype, device=parts[0].device)
        sums, columns, bias_at, adds = self.site(storage, linears[0].bias)
        whole = [part.contiguous() for part in parts]
        self.launch(
            join_kernel, (triton.cdiv(width, 256), len(parts), self.num_parts),
            whole[0], whole[min(1, len(parts) - 1)], whole[-1], joined, sums, columns, bias_at, rows, width, len(parts),
            ADDS=adds, BLOCK=256, num_warps=2,
        )  # fmt: skip
        return joined
