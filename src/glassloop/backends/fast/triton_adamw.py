"""AdamW as Triton kernels: the norm of all gradients, and one pass over the flat storage."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from glassloop.backends.fast.kernel_launcher import KernelLauncher
from glassloop.backends.fast.storage import FlatStorage


@triton.jit
def squares_kernel(values, size, sums, BLOCK: tl.constexpr):
    """Sum the squares of a block; each program takes every n-th piece and stores its own sum."""
    program = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(program * BLOCK, size, tl.num_programs(0) * BLOCK):
        index = start + tl.arange(0, BLOCK)
        value = tl.load(values + index, mask=index < size, other=0.0).to(tl.float32)
        total += value * value
    tl.store(sums + program, tl.sum(total, 0))


@triton.jit
def scalars_kernel(powers, learning_rate, norm, max_norm, scalars, CLIPS: tl.constexpr):
    """Store the clipping factor, the learning rate over the first bias correction, and the root of the second."""
    factor = 1.0
    if CLIPS:
        factor = tl.minimum(tl.div_rn(1.0, tl.load(norm) + 1e-6) * max_norm, 1.0)
    tl.store(scalars, factor)
    tl.store(scalars + 1, tl.div_rn(tl.load(learning_rate), 1.0 - tl.load(powers)))
    tl.store(scalars + 2, tl.sqrt_rn(1.0 - tl.load(powers + 1)))


@triton.jit
def update_kernel(
    weights, first, second, gradients, low_copy, learning_rate, scalars, size, beta1, beta2, eps, decay,
    HAS_LOW_COPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update weights as torch's AdamW does, operation by operation: bit-identical for the same gradients and norm."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    grad = tl.load(gradients + index, mask=inside, other=0.0).to(tl.float32) * tl.load(scalars)
    weight = tl.load(weights + index, mask=inside, other=0.0)
    m = tl.load(first + index, mask=inside, other=0.0)
    v = tl.load(second + index, mask=inside, other=0.0)
    weight = tl.fma(-(tl.load(learning_rate) * decay), weight, weight)
    square = grad * grad
    m = tl.fma(beta1, m, tl.fma(-beta1, grad, grad))
    v = tl.fma(beta2, v, tl.fma(-beta2, square, square))
    weight -= tl.div_rn(tl.load(scalars + 1) * m, tl.div_rn(tl.sqrt_rn(v), tl.load(scalars + 2)) + eps)
    tl.store(weights + index, weight, mask=inside)
    tl.store(first + index, m, mask=inside)
    tl.store(second + index, v, mask=inside)
    if HAS_LOW_COPY:
        tl.store(low_copy + index, weight.to(low_copy.dtype.element_ty), mask=inside)


NUM_SUMS = 1056  # eight programs per multiprocessor of an H200


class TritonAdamW:
    """The norm of all gradients, and one pass of AdamW over a storage."""

    def __init__(self, storage: FlatStorage, betas: tuple[float, float]) -> None:
        self.launch = KernelLauncher()
        self.storage, self.betas = storage, torch.tensor(betas, dtype=torch.float32, device=storage.weights.device)
        self.scalars = torch.zeros(3, device=storage.weights.device)

    def __call__(
        self, steps: torch.Tensor, learning_rate: torch.Tensor, norm: torch.Tensor | None, max_norm: float,
        beta1: float, beta2: float, eps: float, decay: float,
    ) -> None:  # fmt: skip
        """Update all weights and their copies in the dtype of matrix multiplications."""
        store, clips = self.storage, norm is not None and max_norm > 0
        norm = norm if clips else learning_rate
        # In fp32 and by torch's own function, as in torch's AdamW. fp64 would be more accurate (`1 - beta2**step` is off by up
        # to 1e-5 in the first steps), but the difference would move losses more than all other roundings of a step.
        powers = torch.pow(self.betas, steps)
        self.launch(scalars_kernel, (1,), powers, learning_rate, norm, max_norm, self.scalars, CLIPS=clips, num_warps=1)
        for region in store.regions:
            gradients = store.matrix_gradients
            if not region.in_layers:
                gradients = store.other_gradients[region.start - store.num_matrix_values :]
            low_copy = store.low_matrices if region.in_layers else None
            size = region.stop - region.start
            self.launch(
                update_kernel, (triton.cdiv(size, 1024),),
                store.weights[region.span], store.moments[0][region.span], store.moments[1][region.span], gradients,
                self.scalars if low_copy is None else low_copy, learning_rate, self.scalars, size,
                beta1, beta2, eps, decay if region.decays else 0.0,
                HAS_LOW_COPY=low_copy is not None, BLOCK=1024, num_warps=4,
            )  # fmt: skip
        store.refresh_low_vectors()

    def norm(self, blocks: list[torch.Tensor]) -> torch.Tensor:
        """Return the norm of several blocks together; sums are always taken in the same order."""
        sums = torch.zeros(len(blocks), NUM_SUMS, device=blocks[0].device)
        for block, row in zip(blocks, sums, strict=True):
            self.launch(squares_kernel, (NUM_SUMS,), block, block.numel(), row, BLOCK=4096, num_warps=8)
        return sums.sum().sqrt_()
