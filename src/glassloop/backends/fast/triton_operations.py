"""The operations of a layer around its matrix multiplications, and AdamW, as Triton kernels: for GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
from torch import nn

from glassloop.backends.fast import triton_kernels as kernels
from glassloop.backends.fast.operations import KernelLauncher, Saved, Shrunk, TensorPair, TorchOperations
from glassloop.backends.fast.packing import Packing
from glassloop.backends.fast.storage import FlatStorage
from glassloop.models.adapters import LinearPart

MIN_ROWS_PER_PROGRAM = 2
MAX_PARTIAL_SUMS = 264  # column sums are first taken over at most this many groups of rows
DROPOUT_SALT = 0x9E3779B1  # times the number of the dropout in a pass: each draws a mask of its own


class TritonOperations(TorchOperations):
    """The operations of `TorchOperations` as Triton kernels. Sums over rows always have the same order, so they repeat."""

    def __init__(self, device: torch.device, matmul_dtype: torch.dtype = torch.float32) -> None:
        super().__init__(device, matmul_dtype)
        self.device, self.has_low_copy = device, matmul_dtype is not torch.float32
        self.seed = torch.zeros(1, dtype=torch.int64, device=device)
        self.num_dropouts = 0
        # Each program sums the gradients of biases and norms over its rows in one row of `partial_sums`.
        self.partial_sums: torch.Tensor | None = None
        self.num_partial_sums = 0
        self.summed: set[int] = set()  # the columns that hold sums of this pass
        self.deferred: tuple[int, torch.Tensor] | None = None

    def before_forward(self, storage: FlatStorage, packing: Packing, training: bool) -> None:
        """Draw the seed of all dropout masks of this pass, and allocate the partial sums."""
        self.last_low = self.deferred = None
        self.num_dropouts = 0
        if training:
            self.seed = torch.randint(2**31, (1,), dtype=torch.int64, device=self.device)
        self.num_partial_sums = min(triton.cdiv(packing.tokens, MIN_ROWS_PER_PROGRAM), MAX_PARTIAL_SUMS)
        self.summed.clear()
        if self.partial_sums is None and hasattr(storage, "other_gradients"):
            shape = (MAX_PARTIAL_SUMS, storage.num_vector_values + storage.num_frozen_values)
            self.partial_sums = storage.memory.zeros("partial sums", *shape, like=storage.weights)

    def after_backward(self, storage: FlatStorage) -> None:
        """Add the partial sums to the gradients of biases and norms."""
        if self.partial_sums is None or not self.summed:
            return
        slot = storage.vector_gradients
        sums = self.partial_sums[: self.num_partial_sums, : storage.num_vector_values]
        if id(storage.vectors[0]) in storage.written:
            slot.add_(sums.sum(0))
        else:
            torch.sum(sums, 0, out=slot)
        storage.mark_written(*storage.vectors)

    @property
    def num_columns(self) -> int:
        return 0 if self.partial_sums is None else self.partial_sums.shape[1]

    def columns_of(self, storage: FlatStorage, *weights: torch.Tensor) -> tuple[list[int], bool]:
        """Return where the columns of these vectors start in the partial sums, and whether they hold sums of this pass."""
        if not storage.trains_weight(weights[0]):  # the kernels write sums in any case; nobody reads the last columns
            return [storage.num_vector_values] * len(weights), False
        starts = [storage.locations[id(weight)][0] - storage.first_vector for weight in weights]
        accumulate = starts[0] in self.summed
        self.summed.add(starts[0])
        return starts, accumulate

    def add_matmul(self, total: torch.Tensor, left: torch.Tensor, right: torch.Tensor, defer: bool = False) -> torch.Tensor:
        """Add left @ right to `total`; in low precision the norm of the layer before may add it while it reads `total`."""
        if not self.has_low_copy:
            return total.addmm_(left, right)
        if not defer:
            return total.add_(left @ right)
        self.deferred = (total.data_ptr(), left @ right)
        return total

    def take_deferred(self, grad: torch.Tensor) -> torch.Tensor | None:
        """Return the product that `add_matmul` left to be added to this gradient."""
        deferred, self.deferred = self.deferred, None
        return deferred[1] if deferred is not None and deferred[0] == grad.data_ptr() else None

    def add_and_norm(
        self, x: torch.Tensor, linear: LinearPart, residual: torch.Tensor, norm: nn.LayerNorm, rate: float,
        storage: FlatStorage, shrunk: Shrunk | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, Saved]:  # fmt: skip
        product = self.expand(x @ storage.matmul_weight(linear.weight).t(), shrunk, storage)
        rows, width = product.shape
        y, normed = torch.empty_like(residual), torch.empty_like(residual)
        low_y = torch.empty_like(product) if self.has_low_copy else y
        inverse_std = torch.empty(rows, device=x.device)
        self.num_dropouts += 1
        salt = self.num_dropouts * DROPOUT_SALT & 0x7FFFFFFF  # always a 32-bit number, so that one compiled kernel fits all
        self.launch(
            kernels.add_and_norm_kernel, (rows,),
            product, linear.bias, residual, norm.weight, norm.bias, y, low_y, normed, inverse_std, self.seed, salt, rate,
            norm.eps, width,
            HAS_DROPOUT=rate > 0, HAS_LOW_COPY=self.has_low_copy, BLOCK=triton.next_power_of_2(width), num_warps=4,
        )  # fmt: skip
        return y, low_y, (normed, inverse_std, self.seed, salt, rate)

    def add_and_norm_backward(
        self, grad: torch.Tensor, extra_grad: torch.Tensor | None, saved: Saved, linear: LinearPart, norm: nn.LayerNorm,
        storage: FlatStorage,
    ) -> TensorPair:  # fmt: skip
        grad_residual = torch.empty_like(saved[0])
        grad_product = torch.empty(saved[0].shape, dtype=self.matmul_dtype, device=grad.device)
        self.launch_norm_backward(grad, extra_grad, saved, linear, norm, storage, grad_residual, grad_product)
        return grad_residual, grad_product

    def launch_norm_backward(
        self, grad: torch.Tensor, extra_grad: torch.Tensor | None, saved: Saved, linear: LinearPart | None, norm: nn.LayerNorm,
        storage: FlatStorage, grad_total: torch.Tensor, grad_product: torch.Tensor,
    ) -> None:  # fmt: skip
        """Fill `grad_total`, and `grad_product` with that of a linear layer before the norm; embeddings have none."""
        normed, inverse_std, seed, salt, rate = saved
        extra_grad = self.take_deferred(grad) if extra_grad is None else extra_grad
        rows, width = normed.shape
        biases = [] if linear is None else [linear.bias]
        starts, accumulate = self.columns_of(storage, *biases, norm.weight, norm.bias)
        self.launch(
            kernels.norm_backward_kernel, (self.num_partial_sums,),
            grad.contiguous(), grad if extra_grad is None else extra_grad, normed, inverse_std, norm.weight,
            grad_total, grad_product, self.partial_sums, self.num_columns, *([0] if linear is None else []), *starts,
            seed, salt, rate, rows, width,
            HAS_EXTRA_GRAD=extra_grad is not None, HAS_DROPOUT=rate > 0, DROPOUT_AFTER_NORM=linear is None,
            ACCUMULATE=accumulate, BLOCK=triton.next_power_of_2(width), num_warps=8 if width > 512 else 4,
        )  # fmt: skip

    def embed(
        self, words: torch.Tensor, positions: torch.Tensor, types: torch.Tensor | None, packing: Packing, norm: nn.LayerNorm,
        rate: float,
    ) -> tuple[torch.Tensor, torch.Tensor, Saved]:  # fmt: skip
        tokens, width = packing.tokens, words.shape[1]
        y, normed = (torch.empty(tokens, width, device=words.device) for _ in range(2))
        low_y = torch.empty_like(y, dtype=self.matmul_dtype) if self.has_low_copy else y
        inverse_std = torch.empty(tokens, device=words.device)
        self.launch(
            kernels.embed_kernel, (tokens,),
            words, positions, words if types is None else types, packing.ids, packing.positions, packing.types,
            norm.weight, norm.bias, y, low_y, normed, inverse_std, self.seed, 0, rate, norm.eps, width,
            HAS_TYPES=types is not None, HAS_DROPOUT=rate > 0, HAS_LOW_COPY=self.has_low_copy,
            BLOCK=triton.next_power_of_2(width), num_warps=4,
        )  # fmt: skip
        return y, low_y, (normed, inverse_std, self.seed, 0, rate)

    def embed_backward(self, grad: torch.Tensor, saved: Saved, norm: nn.LayerNorm, storage: FlatStorage) -> torch.Tensor:
        grad_total = torch.empty_like(saved[0])
        self.launch_norm_backward(grad, None, saved, None, norm, storage, grad_total, grad_total)
        return grad_total

    def add_table_gradient(
        self, weight: torch.Tensor, rows: torch.Tensor, order: torch.Tensor, grad: torch.Tensor, padding: int,
        storage: FlatStorage,
    ) -> None:  # fmt: skip
        """Add `grad` to these rows of a table's gradient; `order` sorts the rows, so that equal ones are adjacent."""
        slot, accumulate = storage.gradient(weight), id(weight) in storage.written
        if not accumulate:
            slot.zero_()
        count, width = grad.shape
        self.launch(
            kernels.table_gradient_kernel, (count, triton.cdiv(width, 256)),
            grad, rows, order, slot, count, width, padding,
            ACCUMULATE=accumulate, BLOCK=256, num_warps=2,
        )  # fmt: skip
        storage.mark_written(weight)

    def linear_gelu(
        self, x: torch.Tensor, linear: LinearPart, approximate: str, storage: FlatStorage, shrunk: Shrunk | None = None
    ) -> TensorPair:
        """Return x @ weight^T without the bias, and the GELU of both together."""
        pre_activation = self.expand(x @ storage.matmul_weight(linear.weight).t(), shrunk, storage)
        activation = torch.empty_like(pre_activation)
        size = pre_activation.numel()
        self.launch(
            kernels.gelu_kernel, (triton.cdiv(size, 1024),),
            pre_activation, linear.bias, activation, pre_activation.shape[1], size,
            TANH=approximate == "tanh", BLOCK=1024, num_warps=4,
        )  # fmt: skip
        return pre_activation, activation

    def linear_gelu_backward(
        self, grad: torch.Tensor, pre_activation: torch.Tensor, linear: LinearPart, approximate: str, storage: FlatStorage
    ) -> torch.Tensor:
        rows, width = pre_activation.shape
        found = torch.empty_like(pre_activation)
        (bias_start,), accumulate = self.columns_of(storage, linear.bias)
        self.launch(
            kernels.gelu_backward_kernel, (triton.cdiv(width, 256), self.num_partial_sums),
            grad, pre_activation, linear.bias, found, self.partial_sums, self.num_columns, bias_start, rows, width,
            TANH=approximate == "tanh", ACCUMULATE=accumulate, BLOCK=256, num_warps=4,
        )  # fmt: skip
        return found

    def join_gradients(self, parts: list[torch.Tensor], linears: Sequence[LinearPart], storage: FlatStorage) -> torch.Tensor:
        if len(parts) < len(linears):
            parts = list(parts[0].chunk(len(linears), 1))
        rows, width = parts[0].shape
        joined = torch.empty(rows, width * len(parts), dtype=parts[0].dtype, device=parts[0].device)
        (bias_start,), accumulate = self.columns_of(storage, linears[0].bias)
        sources = [part.contiguous() for part in parts]
        self.launch(
            kernels.join_gradients_kernel, (triton.cdiv(width, 256), len(parts), self.num_partial_sums),
            sources[0], sources[min(1, len(parts) - 1)], sources[-1], joined, self.partial_sums, self.num_columns,
            bias_start, rows, width, len(parts),
            ACCUMULATE=accumulate, BLOCK=256, num_warps=2,
        )  # fmt: skip
        return joined


NUM_SUMS = 1056  # eight programs per multiprocessor of an H200


# Repeats the rounding of torch, including its fp32 bias corrections, although fp64 would be more accurate: bit-identical
# weights can be tested.
class TritonAdamW:
    """The norm of all gradients, and one pass of AdamW over a storage."""

    def __init__(self, storage: FlatStorage, betas: tuple[float, float]) -> None:
        self.launch = KernelLauncher()
        self.storage = storage
        self.betas = storage.memory.zeros("betas", 2, like=storage.weights).copy_(torch.tensor(betas, dtype=torch.float32))
        self.scalars = storage.memory.zeros("scalars", 3, like=storage.weights)

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
        self.launch(kernels.scalars_kernel, (1,), powers, learning_rate, norm, max_norm, self.scalars, CLIPS=clips, num_warps=1)
        for region in store.regions:
            low_copy = store.low_matrices if region.in_layers else None
            size = region.stop - region.start
            self.launch(
                kernels.update_kernel, (triton.cdiv(size, 1024),),
                store.weights[region.span], store.moments[0][region.span], store.moments[1][region.span],
                store.region_gradients(region),
                self.scalars if low_copy is None else low_copy, learning_rate, self.scalars, size,
                beta1, beta2, eps, decay if region.decays else 0.0,
                HAS_LOW_COPY=low_copy is not None, BLOCK=1024, num_warps=4,
            )  # fmt: skip
        store.refresh_low_copies(matrices=False)

    def norm(self, blocks: list[torch.Tensor]) -> torch.Tensor:
        """Return the norm of several blocks together; sums are always taken in the same order."""
        sums = torch.zeros(len(blocks), NUM_SUMS, device=blocks[0].device)
        for block, row in zip(blocks, sums, strict=True):
            self.launch(kernels.squares_kernel, (NUM_SUMS,), block, block.numel(), row, BLOCK=4096, num_warps=8)
        return sums.sum().sqrt_()
