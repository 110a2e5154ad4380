"""The operations of a layer around its matrix multiplications, in plain torch: for CPUs."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from glassloop.speed.capture.precompile import KernelLauncher
from glassloop.speed.operations.attention import Saved, attend_qkv, attend_qkv_backward
from glassloop.speed.operations.dropout import DropoutMasks
from glassloop.speed.optimizer.storage import FlatStorage
from glassloop.speed.packing.layout import Packing

aten = torch.ops.aten


class TorchOperations:
    """Linear layers with GELU, dropout, residual sums and layer norms, and embeddings: forward and backward.

    A forward method returns what its backward method needs as `saved`. Backward methods return the gradients of their inputs
    and add those of parameters to the storage.
    """

    def __init__(self, device: torch.device, matmul_dtype: torch.dtype = torch.float32) -> None:
        self.masks, self.matmul_dtype = DropoutMasks(device), matmul_dtype
        self.launchers: list[KernelLauncher] = []  # of Triton kernels
        self.needs_gradients = True
        self.last_low: tuple[torch.Tensor, torch.Tensor] | None = None
        self.touched_rows: dict[int, list[torch.Tensor]] = {}

    def before_forward(self, storage: FlatStorage, packing: Packing, training: bool) -> None:
        """Prepare for the forward pass of a batch; without `training` no random number is drawn."""
        if training:
            self.masks.start()
        self.last_low = None
        self.needs_gradients = torch.is_grad_enabled()

    def after_forward(self) -> None:
        """Drop the last layer's output: through autograd it refers to these operations, a circle that Python never frees."""
        self.last_low = None

    def after_backward(self, storage: FlatStorage) -> None:
        """Finish the gradients of a batch."""

    def to_matmul_dtype(self, x: torch.Tensor) -> torch.Tensor:
        """Return x in the dtype of matrix multiplications; the copy that the last layer made is used again."""
        if self.last_low is not None and self.last_low[0] is x:
            return self.last_low[1]
        return x.to(self.matmul_dtype)

    def remember_low(self, x: torch.Tensor, low_x: torch.Tensor) -> None:
        """Keep x in the dtype of matrix multiplications for the next layer."""
        self.last_low = (x, low_x)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Return x @ weight^T + bias."""
        return torch.addmm(bias, x, weight.t())

    def add_matmul(self, total: torch.Tensor, left: torch.Tensor, right: torch.Tensor, defer: bool = False) -> torch.Tensor:
        """Add left @ right to `total` in place; with `defer` a subclass may leave the sum to the next backward method."""
        return total.addmm_(left, right) if total.dtype == left.dtype else total.add_(left @ right)

    def add_and_norm(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor, gain: torch.Tensor,
        shift: torch.Tensor, eps: float, rate: float,
    ) -> tuple[torch.Tensor, torch.Tensor, Saved]:  # fmt: skip
        """Return norm(residual + dropout(x @ weight^T + bias)), its copy for matrix multiplications, and `saved`."""
        product = self.linear(x, weight, bias.to(self.matmul_dtype))
        mask = self.masks.draw(product, rate)
        product = product if mask is None else product.mul_(mask)
        total = product.add_(residual) if product.dtype == residual.dtype else residual + product
        y, mean, inverse_std = torch.native_layer_norm(total, total.shape[1:], gain, shift, eps)
        return y, y.to(self.matmul_dtype), (total, mean, inverse_std, mask)

    def add_and_norm_backward(
        self, grad: torch.Tensor, extra_grad: torch.Tensor | None, saved: Saved, linear: nn.Linear, norm: nn.LayerNorm,
        storage: FlatStorage,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """Return the gradients of the residual and of the product; the gradient of y is `grad` plus `extra_grad`."""
        total, mean, inverse_std, mask = saved
        if extra_grad is not None:
            grad = grad + extra_grad
        grad_total, grad_gain, grad_shift = aten.native_layer_norm_backward(
            grad.contiguous(), total, total.shape[1:], mean, inverse_std, norm.weight, norm.bias, [True, True, True]
        )
        storage.add(norm.weight, grad_gain)
        storage.add(norm.bias, grad_shift)
        grad_product = grad_total.to(self.matmul_dtype)
        grad_product = grad_product if mask is None else grad_product * mask
        storage.add(linear.bias, grad_product.sum(0, dtype=torch.float32))
        return grad_total, grad_product

    def embed(
        self, words: torch.Tensor, positions: torch.Tensor, types: torch.Tensor | None, packing: Packing, norm: nn.LayerNorm,
        rate: float,
    ) -> tuple[torch.Tensor, torch.Tensor, Saved]:  # fmt: skip
        """Return dropout(norm(word + type + position)), its copy for matrix multiplications, and `saved`."""
        total = words.index_select(0, packing.ids)
        if types is not None:
            total += types.index_select(0, packing.types)
        total += positions.index_select(0, packing.positions)
        y, mean, inverse_std = torch.native_layer_norm(total, total.shape[1:], norm.weight, norm.bias, norm.eps)
        mask = self.masks.draw(y, rate)
        y = y if mask is None else y.mul_(mask)
        return y, y.to(self.matmul_dtype), (total, mean, inverse_std, mask)

    def embed_backward(self, grad: torch.Tensor, saved: Saved, norm: nn.LayerNorm, storage: FlatStorage) -> torch.Tensor:
        """Return the gradient of word + type + position."""
        total, mean, inverse_std, mask = saved
        grad = grad if mask is None else grad * mask
        grad_total: torch.Tensor
        grad_total, grad_gain, grad_shift = aten.native_layer_norm_backward(
            grad.contiguous(), total, total.shape[1:], mean, inverse_std, norm.weight, norm.bias, [True, True, True]
        )
        storage.add(norm.weight, grad_gain)
        storage.add(norm.bias, grad_shift)
        return grad_total

    def add_table_gradient(
        self, weight: torch.Tensor, rows: torch.Tensor, order: torch.Tensor, grad: torch.Tensor, padding: int,
        storage: FlatStorage,
    ) -> None:  # fmt: skip
        """Add `grad` to these rows of a table's gradient; first zero the rows that the last step wrote."""
        slot = storage.gradient(weight)
        if id(weight) not in storage.written:
            if storage.gradients_exposed:  # any row may have been written to
                slot.zero_()
            for touched in self.touched_rows.get(id(weight), []):
                slot.index_fill_(0, touched, 0.0)
            self.touched_rows[id(weight)] = []
        where = rows.long()
        slot.index_add_(0, where, grad)
        self.touched_rows[id(weight)].append(where)
        if padding >= 0:
            slot[padding].zero_()
        storage.mark_written(weight)

    def add_type_gradient(self, weight: torch.Tensor, rows: torch.Tensor, grad: torch.Tensor, storage: FlatStorage) -> None:
        """Add `grad` to these rows of the gradient of a table with few rows."""
        is_type = rows[None] == torch.arange(len(weight), device=rows.device)[:, None]
        storage.add(weight, is_type.to(grad.dtype) @ grad)

    def linear_gelu(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, approximate: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return x @ weight^T + bias, and its GELU."""
        pre_activation = self.linear(x, weight, bias.to(self.matmul_dtype))
        if self.needs_gradients:
            return pre_activation, functional.gelu(pre_activation, approximate=approximate)
        return pre_activation, aten.gelu_(pre_activation, approximate=approximate)

    def linear_gelu_backward(
        self, grad: torch.Tensor, pre_activation: torch.Tensor, linear: nn.Linear, approximate: str, storage: FlatStorage
    ) -> torch.Tensor:
        """Return the gradient of x @ weight^T + bias."""
        found: torch.Tensor = aten.gelu_backward(grad, pre_activation, approximate=approximate)
        storage.add(linear.bias, found.sum(0, dtype=torch.float32))
        return found

    def attend(self, heads: torch.Tensor, packing: Packing, rate: float) -> tuple[torch.Tensor, Saved]:
        """Return the attention of query, key and value given in one tensor [tokens, 3, heads, width], and `saved`."""
        return attend_qkv(heads, packing, rate, self.masks)

    def attend_backward(self, grad: torch.Tensor, saved: Saved, linears: list[nn.Linear], storage: FlatStorage) -> torch.Tensor:
        """Return the gradients of query, key and value side by side."""
        return self.join_gradients(attend_qkv_backward(grad, saved), linears, storage)

    def join_gradients(self, parts: list[torch.Tensor], linears: list[nn.Linear], storage: FlatStorage) -> torch.Tensor:
        """Return the gradients of adjacent linear layers side by side; one part may hold them all."""
        joined = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        sums = joined.sum(0, dtype=torch.float32).view(len(linears), -1)
        for part, linear in zip(sums, linears, strict=True):
            storage.add(linear.bias, part)
        return joined
