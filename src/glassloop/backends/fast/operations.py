"""The operations of a layer over packed tokens in plain torch, forward and backward: attention, dropout, norms, products.

Names: `grad_x` is the gradient of the loss with respect to x. `low_x` is x in the dtype of matrix multiplications, bf16 or
fp32. `saved` is what a forward function keeps for its backward function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from glassloop.backends.fast.packing import Grids, Packing
from glassloop.backends.fast.storage import FlatStorage
from glassloop.models.adapters import AdaptedLinear, LinearPart

aten = torch.ops.aten
RATE_STEPS = 65536  # dropout rates are multiples of 1/65,536 here; kept values are scaled by the rate that was really used
ONE_BLOCK = 128  # keys of a sequence that one block of flash attention's backward pass handles, at the least
Saved: TypeAlias = tuple[Any, ...]  # what a forward function keeps for its backward function; only these two know what it is
TensorPair: TypeAlias = tuple[torch.Tensor, torch.Tensor]
Launch: TypeAlias = tuple[tuple[int, ...], tuple[object, ...], dict[str, object]]  # grid, arguments, options


class Kernel(Protocol):
    """A function decorated with `triton.jit`."""

    def __getitem__(self, grid: tuple[int, ...], /) -> Callable[..., object]: ...

    def warmup(self, *args: object, grid: tuple[int, ...], **options: object) -> Any: ...


class KernelLauncher:
    """Launch Triton kernels; while `recorded` is set, record launches instead of running them."""

    def __init__(self) -> None:
        self.recorded: dict[Kernel, list[Launch]] | None = None

    def __call__(self, kernel: Kernel, grid: tuple[int, ...], *args: object, **options: object) -> None:
        if self.recorded is None:
            kernel[grid](*args, **options)
        else:
            self.recorded.setdefault(kernel, []).append((grid, args, options))


@contextmanager
def compile_instead_of_running(*launchers: KernelLauncher) -> Iterator[None]:
    """Record every launch inside the block, then compile and load those kernels, each in its own thread."""
    recorded: dict[Kernel, list[Launch]] = {}
    for launcher in launchers:
        launcher.recorded = recorded
    try:
        yield
    finally:
        for launcher in launchers:
            launcher.recorded = None
    device = torch.cuda.current_device()

    def compile_kernel(kernel: Kernel) -> None:
        with suppress(Exception), torch.cuda.device(device):  # an error is raised later, when the kernel is launched
            for grid, args, options in recorded[kernel]:
                _ = kernel.warmup(*args, grid=grid, **options).run  # reading it loads the kernel onto the device

    with ThreadPoolExecutor(max(len(recorded), 1)) as pool:
        list(pool.map(compile_kernel, recorded))


# NumPy's SFC64, seeded from torch in every pass: torch draws one number at a time in one thread.
class DropoutMasks:
    """Draw dropout masks. On a CPU a generator several times faster than torch's draws them, seeded by torch in each pass."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.generator: np.random.SFC64 | None = None

    def start(self) -> None:
        """Start a pass: on a CPU, draw the seed of its masks from torch's random state, so a resumed run draws the same."""
        if self.device.type == "cpu":
            self.generator = np.random.SFC64(int(torch.randint(2**62, ())))

    def draw(self, like: torch.Tensor, rate: float) -> torch.Tensor | None:
        """Return the factors of a tensor: 0 for dropped values, 1 / (1 - rate) for the others; None if nothing is dropped."""
        if rate <= 0.0:
            return None
        part = round(rate * RATE_STEPS)
        gain = RATE_STEPS / (RATE_STEPS - part) if part < RATE_STEPS else 0.0
        if self.device.type == "cpu":
            if self.generator is None:
                self.start()
            size = like.numel()
            raw = self.generator.random_raw(-(-size // 4)).view(np.int16)[:size]  # type: ignore[union-attr]
            kept = torch.empty(like.shape)
            torch.ge(torch.from_numpy(raw).view(like.shape), part - RATE_STEPS // 2, out=kept)
        else:
            kept = torch.rand(like.shape, device=self.device).ge_(part / RATE_STEPS)
        return kept.mul_(gain).to(like.dtype)

    def drop(self, x: torch.Tensor, rate: float) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return x after dropout, and its mask for `drop_backward`; on a GPU by one kernel."""
        if rate <= 0.0:
            return x, None
        if self.device.type == "cpu":
            mask = self.draw(x, rate)
            return apply_mask(x, mask), mask
        dropped, mask = aten.native_dropout(x, rate, True)
        return dropped, mask


def drop_backward(grad: torch.Tensor, mask: torch.Tensor | None, rate: float) -> torch.Tensor:
    if mask is None or mask.dtype is not torch.bool:
        return apply_mask(grad, mask)
    found: torch.Tensor = aten.native_dropout_backward(grad, mask, 1.0 / (1.0 - rate) if rate < 1.0 else 0.0)
    return found


class Shrunk(NamedTuple):
    """The input of a linear layer in the low rank of its adapter, times the scale, and the dropout that the adapter used."""

    low_rank: torch.Tensor
    mask: torch.Tensor | None
    rate: float
    linear: AdaptedLinear


def can_flash(query: torch.Tensor) -> bool:
    width = query.shape[-1]
    return query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and width % 8 == 0 and width <= 256


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing, rate: float, masks: DropoutMasks,
    window: int = -1,
) -> tuple[torch.Tensor, Saved]:  # fmt: skip
    """Return the attended values [queries, heads, width] and what `attend_backward` needs."""
    # `query` holds those of all tokens, or only those of the first token of each row. `window` is how many tokens to each
    # side a token attends to; -1 for its whole sequence.
    first_tokens_only = query.shape[0] == packing.rows and query.shape[0] != key.shape[0]
    if can_flash(query):
        bounds = packing.bounds
        query_bounds = packing.first_token_bounds if first_tokens_only else bounds
        longest = (1 if first_tokens_only else packing.longest, packing.longest)
        found = aten._flash_attention_forward(
            query, key, value, query_bounds, bounds, *longest, rate, False, False,
            window_size_left=window, window_size_right=window,
        )  # fmt: skip
        return found[0], (query, key, value, *found[:4], query_bounds, bounds, longest, rate, window)
    keys, values = to_grid(key, packing), to_grid(value, packing)
    queries = with_filler(query, packing)[:, :, None] if first_tokens_only else to_grid(query, packing)
    scale = query.shape[-1] ** -0.5
    scores = torch.matmul(queries, keys.transpose(2, 3)).mul_(scale).add_(packing.additive_mask[:, None, None, :])
    if window >= 0:
        position = torch.arange(packing.longest, device=query.device)
        too_far = (position[: scores.shape[2], None] - position).abs() > window
        scores = scores.masked_fill_(too_far, torch.finfo(scores.dtype).min)
    probabilities = torch.softmax(scores, -1)
    mask = masks.draw(probabilities, rate)
    out = torch.matmul(apply_mask(probabilities, mask), values)
    found = out[: packing.rows, :, 0] if first_tokens_only else from_grid(out, packing)
    return found, (queries, keys, values, probabilities, mask, scale, first_tokens_only, packing)


def attend_backward(grad: torch.Tensor, saved: Saved) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if not isinstance(saved[-1], Packing):
        query, key, value, out, logsumexp, random, unused, query_bounds, bounds, longest, rate, window = saved
        with summing_in_order(longest[1] > ONE_BLOCK):
            found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = aten._flash_attention_backward(
                grad, query, key, value, out, logsumexp, query_bounds, bounds, *longest, rate, False, random, unused,
                window_size_left=window, window_size_right=window,
            )  # fmt: skip
        return found
    queries, keys, values, probabilities, mask, scale, first_tokens_only, packing = saved
    grid = with_filler(grad, packing)[:, :, None].contiguous() if first_tokens_only else to_grid(grad, packing)
    grad_value = torch.matmul(apply_mask(probabilities, mask).transpose(2, 3), grid)
    grad_probabilities = torch.matmul(grid, values.transpose(2, 3))
    grad_probabilities = grad_probabilities if mask is None else grad_probabilities.mul_(mask)
    grad_score = aten._softmax_backward_data(grad_probabilities, probabilities, -1, probabilities.dtype).mul_(scale)
    grad_query = torch.matmul(grad_score, keys)
    grad_key = torch.matmul(grad_score.transpose(2, 3), queries)
    query_grad = grad_query[: packing.rows, :, 0] if first_tokens_only else from_grid(grad_query, packing)
    return query_grad, from_grid(grad_key, packing), from_grid(grad_value, packing)


@contextmanager
def summing_in_order(needed: bool) -> Iterator[None]:
    """Let flash attention add up gradients of queries in a fixed order; else blocks of keys add theirs as they finish."""
    before = torch.are_deterministic_algorithms_enabled()
    if not needed or before:
        yield
        return
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def attend_qkv(heads: torch.Tensor, packing: Packing, rate: float, masks: DropoutMasks) -> tuple[torch.Tensor, Saved]:
    """Attend with query, key and value in one tensor [tokens, 3, heads, width]; on a CPU one copy lays them out in grids."""
    if heads.is_cuda:
        return attend(*heads.unbind(1), packing, rate, masks)  # type: ignore[call-arg, arg-type]
    tokens, _, number, width = heads.shape
    grids, saved = packing.grids, []
    # Slots without a token may hold any number: their keys get no weight, and the results of their queries are not read.
    laid = heads.view(tokens, -1).index_select(0, grids.token_of_slot)
    outs = laid.new_empty(len(laid), number * width)
    for grid in grids.parts:
        part = laid[grid.slots].view(grid.sequences, grid.longest, 3, number, width).permute(2, 0, 3, 1, 4).contiguous()
        flat = part.view(3, grid.sequences * number, grid.longest, width)
        scores = grid.additive_mask[:, None, None].to(laid.dtype).expand(-1, number, grid.longest, -1).contiguous()
        scores.view(-1, grid.longest, grid.longest).baddbmm_(flat[0], flat[1].mT, alpha=width**-0.5)
        probabilities = torch.softmax(scores, -1)
        mask = masks.draw(probabilities, rate)
        out = torch.bmm(apply_mask(probabilities, mask).view(-1, grid.longest, grid.longest), flat[2]).view(part.shape[1:])
        outs[grid.slots].view(grid.sequences, grid.longest, number, width).copy_(out.transpose(1, 2))
        saved.append((flat, probabilities, mask))
    return outs.index_select(0, grids.slot_of_token).view(tokens, number, width), (saved, grids)


def apply_mask(values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return values after dropout; for probabilities, doing this again in the backward pass is cheaper than keeping them."""
    return values if mask is None else values * mask


def attend_qkv_backward(grad: torch.Tensor, saved: Saved) -> list[torch.Tensor]:
    """Return the gradients of query, key and value [tokens, heads * width] each, or one tensor with all three."""
    if not isinstance(saved[-1], Grids):
        return [part.reshape(part.shape[0], -1) for part in attend_backward(grad, saved)]
    kept_of_grids, grids = saved
    number, width = grad.shape[1:]
    laid = grad.reshape(len(grad), -1).index_select(0, grids.token_of_slot).mul_(grids.has_token)
    found = laid.new_empty(len(laid), 3 * number * width)
    for grid, (flat, probabilities, mask) in zip(grids.parts, kept_of_grids, strict=True):
        part = laid[grid.slots].view(grid.sequences, grid.longest, number, width).transpose(1, 2).reshape(flat.shape[1:])
        grad_flat, scale = torch.empty_like(flat), width**-0.5
        torch.bmm(apply_mask(probabilities, mask).view(-1, grid.longest, grid.longest).mT, part, out=grad_flat[2])
        grad_probabilities = torch.bmm(part, flat[2].mT).view(probabilities.shape)
        grad_probabilities = grad_probabilities if mask is None else grad_probabilities.mul_(mask)
        grad_score = aten._softmax_backward_data(grad_probabilities, probabilities, -1, probabilities.dtype)
        grad_score = grad_score.view(-1, grid.longest, grid.longest)
        torch.baddbmm(grad_flat[0], grad_score, flat[1], beta=0, alpha=scale, out=grad_flat[0])
        torch.baddbmm(grad_flat[1], grad_score.mT, flat[0], beta=0, alpha=scale, out=grad_flat[1])
        grad_part = grad_flat.view(3, grid.sequences, number, grid.longest, width).permute(1, 3, 0, 2, 4)
        found[grid.slots].view(grad_part.shape).copy_(grad_part)
    return [found.index_select(0, grids.slot_of_token)]


def with_filler(rows: torch.Tensor, packing: Packing) -> torch.Tensor:
    """Return one entry for each sequence: those of the rows, and zeros for the filler sequence if there is one."""
    return torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])]) if packing.has_filler else rows


def to_grid(tokens: torch.Tensor, packing: Packing) -> torch.Tensor:
    """Return [tokens, heads, width] as a grid [sequences, heads, longest, width], with zeros in slots without a token."""
    heads, width = tokens.shape[1:]
    grid = tokens.reshape(-1, heads * width).index_select(0, packing.token_of_slot).mul_(packing.has_token)
    return grid.view(packing.sequences, packing.longest, heads, width).transpose(1, 2).contiguous()


def from_grid(grid: torch.Tensor, packing: Packing) -> torch.Tensor:
    """Return the tokens of a grid [sequences, heads, longest, width] one after the other."""
    sequences, heads, longest, width = grid.shape
    rows = grid.transpose(1, 2).reshape(sequences * longest, heads * width)
    return rows.index_select(0, packing.slot_of_token).view(-1, heads, width)


class TorchOperations:
    """Linear layers with GELU, dropout, residual sums and layer norms, and embeddings: forward and backward."""

    # Backward methods return the gradients of their inputs and add those of parameters to the storage.
    def __init__(self, device: torch.device, matmul_dtype: torch.dtype = torch.float32) -> None:
        self.masks, self.matmul_dtype = DropoutMasks(device), matmul_dtype
        self.launch = KernelLauncher()
        self.needs_gradients = True
        self.last_low: TensorPair | None = None
        self.touched_rows: dict[int, list[torch.Tensor]] = {}

    def before_forward(self, storage: FlatStorage, packing: Packing, training: bool) -> None:
        """Prepare for the forward pass of a batch; without `training` no random number is drawn."""
        if training:
            self.masks.start()
        self.last_low = None
        self.needs_gradients = torch.is_grad_enabled()

    def after_backward(self, storage: FlatStorage) -> None:
        """Finish the gradients of a batch."""

    def to_matmul_dtype(self, x: torch.Tensor) -> torch.Tensor:
        """Return x in the dtype of matrix multiplications; the copy that the last layer made is used again."""
        return self.last_low[1] if self.last_low is not None and self.last_low[0] is x else x.to(self.matmul_dtype)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.addmm(bias, x, weight.t())

    def shrink(self, x: torch.Tensor, linear: LinearPart, storage: FlatStorage, training: bool) -> Shrunk | None:
        """Return the input of an adapter in its low rank; None for a linear layer without one."""
        if not isinstance(linear, AdaptedLinear):
            return None
        rate = linear.rate if training and linear.dropout.training else 0.0
        dropped, mask = self.masks.drop(x, rate)
        low_rank = torch.mm(dropped, storage.matmul_weight(linear.shrink).t()).mul_(linear.scale)
        return Shrunk(low_rank, mask, rate, linear)

    def expand(self, product: torch.Tensor, shrunk: Shrunk | None, storage: FlatStorage) -> torch.Tensor:
        """Add what an adapter contributes to the product of its linear layer, in place."""
        return product if shrunk is None else product.addmm_(shrunk.low_rank, storage.matmul_weight(shrunk.linear.expand).t())

    def adapter_backward(
        self, grad: torch.Tensor, x: torch.Tensor, shrunk: Shrunk | None, storage: FlatStorage, total: torch.Tensor | None
    ) -> None:
        """Add the gradients of an adapter to the storage, and that of `x` to `total`; `grad` is that of the product."""
        if shrunk is None:
            return
        linear = shrunk.linear
        storage.add_matmul_gradient([linear.expand], grad, shrunk.low_rank)
        grad_low = torch.mm(grad, storage.matmul_weight(linear.expand)).mul_(linear.scale)
        storage.add_matmul_gradient([linear.shrink], grad_low, drop_backward(x, shrunk.mask, shrunk.rate))
        if total is not None:
            total.add_(drop_backward(torch.mm(grad_low, storage.matmul_weight(linear.shrink)), shrunk.mask, shrunk.rate))

    def add_matmul(self, total: torch.Tensor, left: torch.Tensor, right: torch.Tensor, defer: bool = False) -> torch.Tensor:
        """Add left @ right to `total` in place; with `defer` a subclass may leave the sum to the next backward method."""
        return total.addmm_(left, right) if total.dtype == left.dtype else total.add_(left @ right)

    def add_and_norm(
        self, x: torch.Tensor, linear: LinearPart, residual: torch.Tensor, norm: nn.LayerNorm, rate: float,
        storage: FlatStorage, shrunk: Shrunk | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, Saved]:  # fmt: skip
        """Return norm(residual + dropout(linear(x))), its copy for matrix multiplications, and `saved`."""
        product = self.linear(x, storage.matmul_weight(linear.weight), linear.bias.to(self.matmul_dtype))
        product = self.expand(product, shrunk, storage)
        mask = self.masks.draw(product, rate)
        product = product if mask is None else product.mul_(mask)
        total = product.add_(residual) if product.dtype == residual.dtype else residual + product
        y, mean, inverse_std = torch.native_layer_norm(total, total.shape[1:], norm.weight, norm.bias, norm.eps)
        return y, y.to(self.matmul_dtype), (total, mean, inverse_std, mask)

    def add_and_norm_backward(
        self, grad: torch.Tensor, extra_grad: torch.Tensor | None, saved: Saved, linear: LinearPart, norm: nn.LayerNorm,
        storage: FlatStorage,
    ) -> TensorPair:  # fmt: skip
        """Return the gradients of the residual and of the product; the gradient of y is `grad` plus `extra_grad`."""
        grad_total = self.norm_backward(grad if extra_grad is None else grad + extra_grad, saved, norm, storage)
        grad_product = apply_mask(grad_total.to(self.matmul_dtype), saved[3])
        if storage.trains_weight(linear.bias):
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
        return self.norm_backward(apply_mask(grad, saved[3]), saved, norm, storage)

    def norm_backward(self, grad: torch.Tensor, saved: Saved, norm: nn.LayerNorm, storage: FlatStorage) -> torch.Tensor:
        total, mean, inverse_std, _ = saved
        grad_total: torch.Tensor
        trained = storage.trains_weight(norm.weight)
        grad_total, grad_gain, grad_shift = aten.native_layer_norm_backward(
            grad.contiguous(), total, total.shape[1:], mean, inverse_std, norm.weight, norm.bias, [True, trained, trained]
        )
        if trained:
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
        self.touched_rows.setdefault(id(weight), []).append(where)
        if padding >= 0:
            slot[padding].zero_()
        storage.mark_written(weight)

    def add_type_gradient(self, weight: torch.Tensor, rows: torch.Tensor, grad: torch.Tensor, storage: FlatStorage) -> None:
        """Add `grad` to these rows of the gradient of a table with few rows."""
        is_type = rows[None] == torch.arange(len(weight), device=rows.device)[:, None]
        storage.add(weight, is_type.to(grad.dtype) @ grad)

    def linear_gelu(
        self, x: torch.Tensor, linear: LinearPart, approximate: str, storage: FlatStorage, shrunk: Shrunk | None = None
    ) -> TensorPair:
        pre_activation = self.linear(x, storage.matmul_weight(linear.weight), linear.bias.to(self.matmul_dtype))
        pre_activation = self.expand(pre_activation, shrunk, storage)
        activate = functional.gelu if self.needs_gradients else aten.gelu_  # in place if no backward pass reads its input
        return pre_activation, activate(pre_activation, approximate=approximate)

    def linear_gelu_backward(
        self, grad: torch.Tensor, pre_activation: torch.Tensor, linear: LinearPart, approximate: str, storage: FlatStorage
    ) -> torch.Tensor:
        found: torch.Tensor = aten.gelu_backward(grad, pre_activation, approximate=approximate)
        if storage.trains_weight(linear.bias):
            storage.add(linear.bias, found.sum(0, dtype=torch.float32))
        return found

    def join_gradients(self, parts: list[torch.Tensor], linears: Sequence[LinearPart], storage: FlatStorage) -> torch.Tensor:
        """Return the gradients of adjacent linear layers side by side; one part may hold them all."""
        joined = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        if not storage.trains_weight(linears[0].bias):
            return joined
        sums = joined.sum(0, dtype=torch.float32).view(len(linears), -1)
        for part, linear in zip(sums, linears, strict=True):
            storage.add(linear.bias, part)
        return joined
