"""What lies between a layer's matrix products, and AdamW, as Triton kernels: few launches, each value read once."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from glassloop.speed.elementwise import Elementwise
from glassloop.speed.packing import Packing
from glassloop.speed.storage import Storage

ROWS = 4  # rows that a program norms at a time
MOST_PARTS = 128  # column sums are first taken over so many parts of the rows
SITE_SALT = 0x9E3779B1


@triton.jit
def kept_of(seed, salt, places, rate):
    """1 / (1 - rate) where a value is kept, 0 where it is dropped."""
    return tl.where(tl.rand(seed + salt, places) >= rate, 1.0 / (1.0 - rate), 0.0)


@triton.jit
def norm_kernel(
    product, bias, residual, gain, shift, y, low_y, normed, spread, seed_at, salt, rate, eps, width,
    DROPS: tl.constexpr, LOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    there = column < width
    place = row * width + column
    value = tl.load(product + place, mask=there, other=0.0).to(tl.float32) + tl.load(bias + column, mask=there, other=0.0)
    if DROPS:
        value = value * kept_of(tl.load(seed_at), salt, place, rate)
    total = tl.load(residual + place, mask=there, other=0.0) + value
    mean = tl.sum(total, 0) / width
    centred = tl.where(there, total - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / width + eps)
    xhat = centred * scale
    found = xhat * tl.load(gain + column, mask=there, other=0.0) + tl.load(shift + column, mask=there, other=0.0)
    tl.store(y + place, found, mask=there)
    if LOW:
        tl.store(low_y + place, found.to(low_y.dtype.element_ty), mask=there)
    tl.store(normed + place, xhat, mask=there)
    tl.store(spread + row, scale)


@triton.jit
def embed_kernel(
    words, positions, types, ids, places, kinds, gain, shift, y, low_y, normed, spread, seed_at, salt, rate, eps, width,
    TYPES: tl.constexpr, DROPS: tl.constexpr, LOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    there = column < width
    total = tl.load(words + tl.load(ids + row).to(tl.int64) * width + column, mask=there, other=0.0)
    if TYPES:
        total += tl.load(types + tl.load(kinds + row) * width + column, mask=there, other=0.0)
    total += tl.load(positions + tl.load(places + row) * width + column, mask=there, other=0.0)
    mean = tl.sum(total, 0) / width
    centred = tl.where(there, total - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / width + eps)
    xhat = centred * scale
    found = xhat * tl.load(gain + column, mask=there, other=0.0) + tl.load(shift + column, mask=there, other=0.0)
    place = row * width + column
    if DROPS:
        found = found * kept_of(tl.load(seed_at), salt, place, rate)
    tl.store(y + place, found, mask=there)
    if LOW:
        tl.store(low_y + place, found.to(low_y.dtype.element_ty), mask=there)
    tl.store(normed + place, xhat, mask=there)
    tl.store(spread + row, scale)


@triton.jit
def norm_backward_kernel(
    grad, more, normed, spread, gain, by_residual, by_product, parts, columns, bias_at, gain_at, shift_at,
    seed_at, salt, rate, rows, width,
    MORE: tl.constexpr, DROPS: tl.constexpr, FIRST: tl.constexpr, ADDS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """With FIRST (the embedding) dropout comes after the norm; else it comes before it, on the product alone."""
    part = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    fits = column < width
    weight = tl.load(gain + column, mask=fits, other=0.0)[None, :]
    by_gain = tl.zeros([BLOCK], tl.float32)
    by_shift = tl.zeros([BLOCK], tl.float32)
    by_bias = tl.zeros([BLOCK], tl.float32)
    for start in range(part * ROWS, rows, tl.num_programs(0) * ROWS):
        row = start + tl.arange(0, ROWS)
        there = (row < rows)[:, None] & fits[None, :]
        place = row[:, None] * width + column[None, :]
        dy = tl.load(grad + place, mask=there, other=0.0)
        if MORE:
            dy += tl.load(more + place, mask=there, other=0.0).to(tl.float32)
        if FIRST and DROPS:
            dy *= kept_of(tl.load(seed_at), salt, place, rate)
        xhat = tl.load(normed + place, mask=there, other=0.0)
        scaled = dy * weight
        slope = tl.sum(scaled * xhat, 1) / width
        mean = tl.sum(scaled, 1) / width
        scale = tl.load(spread + row, mask=row < rows, other=0.0)
        dz = (scaled - mean[:, None] - xhat * slope[:, None]) * scale[:, None]
        tl.store(by_residual + place, dz, mask=there)
        by_gain += tl.sum(dy * xhat, 0)
        by_shift += tl.sum(dy, 0)
        if not FIRST:
            dx = dz
            if DROPS:
                dx = dz * kept_of(tl.load(seed_at), salt, place, rate)
            tl.store(by_product + place, dx.to(by_product.dtype.element_ty), mask=there)
            by_bias += tl.sum(tl.where(there, dx, 0.0), 0)
    at = parts + part * columns + column
    if ADDS:
        by_gain += tl.load(at + gain_at, mask=fits, other=0.0)
        by_shift += tl.load(at + shift_at, mask=fits, other=0.0)
    tl.store(at + gain_at, by_gain, mask=fits)
    tl.store(at + shift_at, by_shift, mask=fits)
    if not FIRST:
        if ADDS:
            by_bias += tl.load(at + bias_at, mask=fits, other=0.0)
        tl.store(at + bias_at, by_bias, mask=fits)


@triton.jit
def rows_kernel(grad, keys, order, slot, count, width, padding, ADDS: tl.constexpr, BLOCK: tl.constexpr):
    """Add up the gradients of equal keys, which lie together in `order`: always in the same order, so never by chance."""
    place = tl.program_id(0)
    key = tl.load(keys + tl.load(order + place))
    before = tl.load(keys + tl.load(order + tl.maximum(place - 1, 0)))
    if ((place == 0) | (key != before)) & (key != padding):
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        there = column < width
        total = tl.zeros([BLOCK], tl.float32)
        if ADDS:
            total += tl.load(slot + key.to(tl.int64) * width + column, mask=there, other=0.0)
        now = key
        while now == key:
            total += tl.load(grad + tl.load(order + place) * width + column, mask=there, other=0.0)
            place += 1
            now = tl.load(keys + tl.load(order + place, mask=place < count, other=0), mask=place < count, other=-1)
        tl.store(slot + key.to(tl.int64) * width + column, total, mask=there)


@triton.jit
def squares_kernel(values, size, sums, BLOCK: tl.constexpr):
    part = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(part * BLOCK, size, tl.num_programs(0) * BLOCK):
        place = start + tl.arange(0, BLOCK)
        value = tl.load(values + place, mask=place < size, other=0.0).to(tl.float32)
        total += value * value
    tl.store(sums + part, tl.sum(total, 0))


@triton.jit
def gelu_kernel(raised, bias, active, width, size, TANH: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = place < size
    x = tl.load(raised + place, mask=there, other=0.0).to(tl.float32)
    x += tl.load(bias + place % width, mask=there, other=0.0)
    if TANH:
        half = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    else:
        half = 0.5 * (1.0 + tl.math.erf(x * 0.7071067811865476))
    tl.store(active + place, (x * half).to(active.dtype.element_ty), mask=there)


@triton.jit
def gelu_backward_kernel(
    grad, raised, bias, found, parts, columns, bias_at, rows, width,
    TANH: tl.constexpr, ADDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = column < width
    offset = tl.load(bias + column, mask=there, other=0.0)
    by_bias = tl.zeros([BLOCK], tl.float32)
    for row in range(part, rows, tl.num_programs(1)):
        place = row * width + column
        x = tl.load(raised + place, mask=there, other=0.0).to(tl.float32) + offset
        if TANH:
            half = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
            slope = half + x * half * (1.0 - half) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)
        else:
            slope = 0.5 * (1.0 + tl.math.erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
        dx = tl.load(grad + place, mask=there, other=0.0).to(tl.float32) * slope
        tl.store(found + place, dx.to(found.dtype.element_ty), mask=there)
        by_bias += tl.where(there, dx, 0.0)
    start = parts + part * columns + bias_at + column
    if ADDS:
        by_bias += tl.load(start, mask=there, other=0.0)
    tl.store(start, by_bias, mask=there)


@triton.jit
def join_kernel(
    first, second, third, joined, parts, columns, bias_at, rows, width, num_joined,
    ADDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    which = tl.program_id(1)
    part = tl.program_id(2)
    source = first
    if which == 1:
        source = second
    if which == 2:
        source = third
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = column < width
    by_bias = tl.zeros([BLOCK], tl.float32)
    for row in range(part, rows, tl.num_programs(2)):
        value = tl.load(source + row * width + column, mask=there, other=0.0)
        tl.store(joined + row * num_joined * width + which * width + column, value, mask=there)
        by_bias += value.to(tl.float32)
    start = parts + part * columns + bias_at + which * width + column
    if ADDS:
        by_bias += tl.load(start, mask=there, other=0.0)
    tl.store(start, by_bias, mask=there)


@triton.jit
def scalars_kernel(steps, rate, norm, max_norm, log_beta1, log_beta2, scalars, CLIPS: tl.constexpr):
    """Rate, clipping factor and the two corrections of a step, once for all."""
    step = tl.load(steps).to(tl.float64)
    tl.store(scalars, tl.load(rate))
    factor = 1.0
    if CLIPS:
        factor = tl.minimum(max_norm / (tl.load(norm) + 1e-6), 1.0)
    tl.store(scalars + 1, factor)
    tl.store(scalars + 2, (1.0 - tl.exp(step * log_beta1)).to(tl.float32))
    tl.store(scalars + 3, tl.sqrt(1.0 - tl.exp(step * log_beta2)).to(tl.float32))


@triton.jit
def update_kernel(
    weights, first, second, gradients, shadow, scalars, size, rest1, beta2, rest2, eps, decay,
    SHADOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = place < size
    rate = tl.load(scalars)
    grad = tl.load(gradients + place, mask=there, other=0.0).to(tl.float32) * tl.load(scalars + 1)
    weight = tl.load(weights + place, mask=there, other=0.0)
    m = tl.load(first + place, mask=there, other=0.0)
    v = tl.load(second + place, mask=there, other=0.0)
    weight -= weight * (rate * decay)
    m += (grad - m) * rest1
    v = v * beta2 + grad * grad * rest2
    weight -= rate / tl.load(scalars + 2) * m / (tl.sqrt(v) / tl.load(scalars + 3) + eps)
    tl.store(weights + place, weight, mask=there)
    tl.store(first + place, m, mask=there)
    tl.store(second + place, v, mask=there)
    if SHADOW:
        tl.store(shadow + place, weight.to(shadow.dtype.element_ty), mask=there)


SUMS = 1056  # eight programs a multiprocessor


def norm_of(blocks: list[torch.Tensor]) -> torch.Tensor:
    """The norm of some blocks together, from sums that are always taken in the same order."""
    sums = torch.zeros(len(blocks), SUMS, device=blocks[0].device)
    for block, row in zip(blocks, sums, strict=True):
        squares_kernel[(SUMS,)](block, block.numel(), row, BLOCK=4096, num_warps=8)
    return sums.sum().sqrt_()


class Update:
    """One pass of AdamW over a storage."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.scalars = torch.zeros(4, device=storage.weights.device)

    def __call__(
        self, steps: torch.Tensor, rate: torch.Tensor, norm: torch.Tensor | None, max_norm: float, beta1: float, beta2: float,
        eps: float, decay: float,
    ) -> None:  # fmt: skip
        store, clips = self.storage, norm is not None and max_norm > 0
        logs = (math.log(beta1) if beta1 else -1e30, math.log(beta2) if beta2 else -1e30)
        scalars_kernel[(1,)](steps, rate, norm if clips else rate, max_norm, *logs, self.scalars, CLIPS=clips, num_warps=1)
        for region in store.regions:
            inside = region.in_layers
            gradients = store.matrix_gradients if inside else store.other_gradients[region.start - store.num_matrix_values :]
            shadow = store.shadow if inside and store.shadow is not None else None
            size = region.stop - region.start
            update_kernel[(triton.cdiv(size, 2048),)](
                store.weights[region.part], store.moments[0][region.part], store.moments[1][region.part], gradients,
                self.scalars if shadow is None else shadow, self.scalars, size,
                1.0 - beta1, beta2, 1.0 - beta2, eps, decay if region.decays else 0.0,
                SHADOW=shadow is not None, BLOCK=2048, num_warps=8,
            )  # fmt: skip
        store.refresh_low_vectors()


class Kernels(Elementwise):
    """The same verbs as `Elementwise`. Sums over rows are taken in two stages, so that they never depend on chance."""

    def __init__(self, device: torch.device, low: torch.dtype) -> None:
        super().__init__(device, low)
        self.device, self.is_low = device, low is not torch.float32
        self.seed = torch.zeros(1, dtype=torch.int64, device=device)
        self.sites = self.num_parts = 0
        self.filled: set[int] = set()
        self.parts: torch.Tensor | None = None
        self.pending: tuple[int, torch.Tensor] | None = None

    def start(self, storage: Storage, num_rows: int, training: bool) -> None:
        self.last = self.pending = None
        self.sites = 0
        if training:
            self.seed = torch.randint(2**31, (1,), dtype=torch.int64, device=self.device)
        self.num_parts = min(triton.cdiv(num_rows, ROWS), MOST_PARTS)
        self.filled.clear()
        if self.parts is None and hasattr(storage, "other_gradients"):
            self.parts = torch.zeros(MOST_PARTS, storage.num_vector_values, device=self.device)

    def finish(self, storage: Storage) -> None:
        if self.parts is None or not self.filled:
            return
        slot = storage.vector_gradients
        if id(storage.vectors[0]) in storage.written:
            slot.add_(self.parts[: self.num_parts].sum(0))
        else:
            torch.sum(self.parts[: self.num_parts], 0, out=slot)
        storage.mark(*storage.vectors)

    def site(self, storage: Storage, *weights: Any) -> tuple[Any, ...]:
        """Where the column sums of these vectors go, and whether something is there already."""
        assert self.parts is not None
        starts = [storage.places[id(weight)][0] - storage.first_vector for weight in weights]
        adds = starts[0] in self.filled
        self.filled.add(starts[0])
        return self.parts, self.parts.shape[1], *starts, adds

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
        salt = self.sites * SITE_SALT
        norm_kernel[(rows,)](
            product, bias, residual, gain, shift, y, low_y, normed, spread, self.seed, salt, rate, eps, width,
            DROPS=rate > 0, LOW=self.is_low, BLOCK=triton.next_power_of_2(width), num_warps=4,
        )  # fmt: skip
        return y, low_y, (normed, spread, self.seed, salt, rate)

    def norm_backward(
        self, grad: torch.Tensor, more: torch.Tensor | None, saved: tuple[Any, ...], linear: Any, norm: Any, storage: Storage
    ) -> tuple[torch.Tensor, torch.Tensor]:
        normed, spread, seed, salt, rate = saved
        more = self.taken(grad) if more is None else more
        rows, width = normed.shape
        by_residual = torch.empty_like(normed)
        by_product = torch.empty(rows, width, dtype=self.kind, device=grad.device)
        parts, columns, bias_at, gain_at, shift_at, adds = self.site(storage, linear.bias, norm.weight, norm.bias)
        norm_backward_kernel[(self.num_parts,)](
            grad.contiguous(), grad if more is None else more, normed, spread, norm.weight, by_residual, by_product,
            parts, columns, bias_at, gain_at, shift_at, seed, salt, rate, rows, width,
            MORE=more is not None, DROPS=rate > 0, FIRST=False, ADDS=adds, ROWS=ROWS,
            BLOCK=triton.next_power_of_2(width), num_warps=8,
        )  # fmt: skip
        return by_residual, by_product

    def embed(
        self, words: torch.Tensor, positions: torch.Tensor, types: torch.Tensor | None, packing: Packing, norm: Any, rate: float
    ) -> tuple[torch.Tensor, torch.Tensor, tuple[Any, ...]]:
        tokens, width = packing.tokens, words.shape[1]
        y, normed = (torch.empty(tokens, width, device=words.device) for _ in range(2))
        low_y = torch.empty_like(y, dtype=self.kind) if self.is_low else y
        spread = torch.empty(tokens, device=words.device)
        embed_kernel[(tokens,)](
            words, positions, words if types is None else types, packing.ids, packing.positions, packing.types,
            norm.weight, norm.bias, y, low_y, normed, spread, self.seed, 0, rate, norm.eps, width,
            TYPES=types is not None, DROPS=rate > 0, LOW=self.is_low, BLOCK=triton.next_power_of_2(width), num_warps=4,
        )  # fmt: skip
        return y, low_y, (normed, spread, self.seed, rate)

    def embed_backward(self, grad: torch.Tensor, saved: tuple[Any, ...], norm: Any, storage: Storage) -> torch.Tensor:
        normed, spread, seed, rate = saved
        more = self.taken(grad)
        rows, width = normed.shape
        by_total = torch.empty_like(normed)
        parts, columns, gain_at, shift_at, adds = self.site(storage, norm.weight, norm.bias)
        norm_backward_kernel[(self.num_parts,)](
            grad.contiguous(), grad if more is None else more, normed, spread, norm.weight, by_total, by_total,
            parts, columns, 0, gain_at, shift_at, seed, 0, rate, rows, width,
            MORE=more is not None, DROPS=rate > 0, FIRST=True, ADDS=adds, ROWS=ROWS,
            BLOCK=triton.next_power_of_2(width), num_warps=8,
        )  # fmt: skip
        return by_total

    def add_rows(
        self, weight: Any, rows: torch.Tensor, order: torch.Tensor, grad: torch.Tensor, padding: int, storage: Storage
    ) -> None:
        slot, adds = storage.gradient(weight), id(weight) in storage.written
        if not adds:
            slot.zero_()
        count, width = grad.shape
        rows_kernel[(count, triton.cdiv(width, 256))](
            grad, rows, order, slot, count, width, padding, ADDS=adds, BLOCK=256, num_warps=2
        )
        storage.mark(weight)

    def gelu(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, form: str) -> tuple[torch.Tensor, torch.Tensor]:
        raised = x @ weight.t()
        active = torch.empty_like(raised)
        size = raised.numel()
        gelu_kernel[(triton.cdiv(size, 1024),)](
            raised, bias, active, raised.shape[1], size, TANH=form == "tanh", BLOCK=1024, num_warps=4
        )
        return raised, active

    def gelu_backward(self, grad: torch.Tensor, raised: torch.Tensor, linear: Any, form: str, storage: Storage) -> torch.Tensor:
        rows, width = raised.shape
        found = torch.empty_like(raised)
        parts, columns, bias_at, adds = self.site(storage, linear.bias)
        gelu_backward_kernel[(triton.cdiv(width, 512), self.num_parts)](
            grad, raised, linear.bias, found, parts, columns, bias_at, rows, width,
            TANH=form == "tanh", ADDS=adds, BLOCK=512, num_warps=4,
        )  # fmt: skip
        return found

    def join(self, parts: list[torch.Tensor], linears: list[Any], storage: Storage) -> torch.Tensor:
        rows, width = parts[0].shape
        joined = torch.empty(rows, width * len(parts), dtype=parts[0].dtype, device=parts[0].device)
        sums, columns, bias_at, adds = self.site(storage, linears[0].bias)
        whole = [part.contiguous() for part in parts]
        join_kernel[(triton.cdiv(width, 256), len(parts), self.num_parts)](
            whole[0], whole[min(1, len(parts) - 1)], whole[-1], joined, sums, columns, bias_at, rows, width, len(parts),
            ADDS=adds, BLOCK=256, num_warps=2,
        )  # fmt: skip
        return joined
