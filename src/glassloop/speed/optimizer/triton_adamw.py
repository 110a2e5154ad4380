"""AdamW on a GPU: the norm of all gradients and one pass over the flat storage, as Triton kernels."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from glassloop.speed.capture.precompile import KernelLauncher
from glassloop.speed.optimizer.storage import FlatStorage


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
def scalars_kernel(powers, rate, norm, max_norm, scalars, CLIPS: tl.constexpr):
    """Clipping factor, rate over the first correction, and the second correction of a step, once for all."""
    factor = 1.0
    if CLIPS:
        factor = tl.minimum(tl.div_rn(1.0, tl.load(norm) + 1e-6) * max_norm, 1.0)
    tl.store(scalars, factor)
    tl.store(scalars + 1, tl.div_rn(tl.load(rate), 1.0 - tl.load(powers)))
    tl.store(scalars + 2, tl.sqrt_rn(1.0 - tl.load(powers + 1)))


@triton.jit
def update_kernel(
    weights, first, second, gradients, low_matrices, rate, scalars, size, beta1, beta2, eps, decay,
    SHADOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """torch's AdamW, operation by operation: the same weights to the last bit from the same gradients and norm."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = place < size
    grad = tl.load(gradients + place, mask=there, other=0.0).to(tl.float32) * tl.load(scalars)
    weight = tl.load(weights + place, mask=there, other=0.0)
    m = tl.load(first + place, mask=there, other=0.0)
    v = tl.load(second + place, mask=there, other=0.0)
    weight = tl.fma(-(tl.load(rate) * decay), weight, weight)
    square = grad * grad
    m = tl.fma(beta1, m, tl.fma(-beta1, grad, grad))
    v = tl.fma(beta2, v, tl.fma(-beta2, square, square))
    weight -= tl.div_rn(tl.load(scalars + 1) * m, tl.div_rn(tl.sqrt_rn(v), tl.load(scalars + 2)) + eps)
    tl.store(weights + place, weight, mask=there)
    tl.store(first + place, m, mask=there)
    tl.store(second + place, v, mask=there)
    if SHADOW:
        tl.store(low_matrices + place, weight.to(low_matrices.dtype.element_ty), mask=there)


SUMS = 1056  # eight programs a multiprocessor


class TritonAdamW:
    """One pass of AdamW over a storage."""

    def __init__(self, storage: FlatStorage, betas: tuple[float, float]) -> None:
        self.launch = KernelLauncher()
        self.storage, self.betas = storage, torch.tensor(betas, dtype=torch.float32, device=storage.weights.device)
        self.scalars = torch.zeros(3, device=storage.weights.device)

    def __call__(
        self, steps: torch.Tensor, rate: torch.Tensor, norm: torch.Tensor | None, max_norm: float, beta1: float, beta2: float,
        eps: float, decay: float,
    ) -> None:  # fmt: skip
        store, clips = self.storage, norm is not None and max_norm > 0
        norm = norm if clips else rate
        # In fp32 and by torch's own function, as torch's AdamW has them. fp64 would be truer: `1 - beta2**step` is off by up to
        # 1e-5 in the first steps, and every update with it, which moves losses more than all other roundings of a step.
        powers = torch.pow(self.betas, steps)
        self.launch(scalars_kernel, (1,), powers, rate, norm, max_norm, self.scalars, CLIPS=clips, num_warps=1)
        for region in store.regions:
            inside = region.in_layers
            gradients = store.matrix_gradients if inside else store.other_gradients[region.start - store.num_matrix_values :]
            low_matrices = store.low_matrices if inside and store.low_matrices is not None else None
            size = region.stop - region.start
            self.launch(
                update_kernel, (triton.cdiv(size, 1024),),
                store.weights[region.part], store.moments[0][region.part], store.moments[1][region.part], gradients,
                self.scalars if low_matrices is None else low_matrices, rate, self.scalars, size,
                beta1, beta2, eps, decay if region.decays else 0.0,
                SHADOW=low_matrices is not None, BLOCK=1024, num_warps=4,
            )  # fmt: skip
        store.refresh_low_vectors()

    def norm(self, blocks: list[torch.Tensor]) -> torch.Tensor:
        """The norm of some blocks together, from sums that are always taken in the same order."""
        sums = torch.zeros(len(blocks), SUMS, device=blocks[0].device)
        for block, row in zip(blocks, sums, strict=True):
            self.launch(squares_kernel, (SUMS,), block, block.numel(), row, BLOCK=4096, num_warps=8)
        return sums.sum().sqrt_()
