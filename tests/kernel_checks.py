"""Checks of the Triton kernels against plain torch: compiled on a GPU (tests/gpu), interpreted on a CPU (tests/unit/speed)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from families import tiny_model
from packs import packing_of, storage_of, token_rows

from glassloop.backends.fast.encoder_parts import embeddings_of, layers_of
from glassloop.backends.fast.operations import TorchOperations
from glassloop.backends.fast.optimizer import FlatAdamW
from glassloop.backends.fast.packing import Packing
from glassloop.training.optimizer import decay_groups

TOLERANCES = {torch.float32: {"atol": 1e-5, "rtol": 1e-4}, torch.bfloat16: {"atol": 5e-2, "rtol": 5e-2}}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCES, ids=["fp32", "bf16"])


def drawn(*shape: int, seed: int, device: str) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def moved(packing: Packing, device: str) -> Packing:
    return Packing(packing.numbers.to(device), packing.tokens, packing.rows, packing.longest, packing.has_filler)


def packing_with(tokens: int) -> Packing:
    """A packing of which only the number of tokens is read."""
    return Packing(torch.zeros(6 * tokens + 28, dtype=torch.int32), tokens, 8, 32, True)


class Bench:
    """A layer of a model on a device, its storage, and operations of one kind."""

    def __init__(self, kind: str, device: str, dtype: torch.dtype = torch.float32, *, rows: int, width: int) -> None:
        self.model = tiny_model(hidden_size=width, intermediate_size=4 * width, initializer_range=0.1).to(device)
        with torch.no_grad():
            for number, weight in enumerate(self.model.parameters()):
                if weight.dim() == 1:
                    weight.add_(drawn(*weight.shape, seed=number, device=device) * 0.1)
        self.layer, self.tables, self.dtype, self.width = layers_of(self.model)[0], embeddings_of(self.model), dtype, width
        self.storage, self.device = storage_of(self.model, matmul_dtype=dtype), device
        if kind == "triton":
            from glassloop.backends.fast.triton_operations import TritonOperations

            self.ops: Any = TritonOperations(torch.device(device), dtype)
        else:
            self.ops = TorchOperations(torch.device(device), dtype)
        self.ops.before_forward(self.storage, packing_with(rows), training=True)

    def gradient(self, weight: Any) -> torch.Tensor:
        return self.storage.gradient(weight).float()


def both(device: str, dtype: torch.dtype, rows: int, width: int) -> tuple[Bench, Bench]:
    return tuple(Bench(kind, device, dtype, rows=rows, width=width) for kind in ("triton", "torch"))


def agree(found: list[list[torch.Tensor]], **tolerance: float) -> None:
    """Compare relative to the largest number of each tensor."""
    for triton, plain in zip(*found, strict=True):
        scale = max(1.0, float(plain.abs().max()))
        torch.testing.assert_close(triton / scale, plain / scale, **tolerance)


# --- operations
def check_add_and_norm(device: str, dtype: torch.dtype, width: int, rows: int, *, extra: bool) -> None:
    found = []
    x, residual, grad, other = (drawn(rows, width, seed=seed, device=device) for seed in range(4))
    for bench in both(device, dtype, rows, width):
        layer, store, ops = bench.layer, bench.storage, bench.ops
        with torch.no_grad():
            y, low_y, saved = ops.add_and_norm(x.to(dtype), layer.out, residual, layer.out_norm, 0.0, store)
            extra_grad = other.to(dtype) if extra else None
            grad_residual, grad_product = ops.add_and_norm_backward(grad, extra_grad, saved, layer.out, layer.out_norm, store)
            ops.after_backward(store)
        assert low_y.dtype == grad_product.dtype == dtype
        vectors = [bench.gradient(weight) for weight in (layer.out.bias, layer.out_norm.weight, layer.out_norm.bias)]
        found.append([y, low_y.float(), grad_residual, grad_product.float(), *vectors])
    agree(found, **TOLERANCES[dtype])


def check_linear_gelu(device: str, dtype: torch.dtype, width: int, rows: int, *, approximate: str) -> None:
    found = []
    x, grad = drawn(rows, width, seed=1, device=device), drawn(rows, 4 * width, seed=2, device=device)
    for bench in both(device, dtype, rows, width):
        layer, store, ops = bench.layer, bench.storage, bench.ops
        with torch.no_grad():
            pre_activation, active = ops.linear_gelu(x.to(dtype), layer.up, approximate, store)
            grad_up = ops.linear_gelu_backward(grad.to(dtype), pre_activation, layer.up, approximate, store)
            ops.after_backward(store)
        found.append([active.float(), grad_up.float(), bench.gradient(layer.up.bias)])
    agree(found, **TOLERANCES[dtype])


def check_join_gradients(device: str, dtype: torch.dtype, width: int, rows: int) -> None:
    found = []
    grads = [drawn(rows, width, seed=seed, device=device).to(dtype) for seed in range(3)]
    for bench in both(device, dtype, rows, width):
        linears = [bench.layer.query, bench.layer.key, bench.layer.value]
        joined = bench.ops.join_gradients(grads, linears, bench.storage)
        as_one = bench.ops.join_gradients([torch.cat(grads, 1)], linears, bench.storage)
        bench.ops.after_backward(bench.storage)
        assert torch.equal(joined, torch.cat(grads, 1))
        assert torch.equal(as_one, joined)
        found.append([bench.gradient(part.bias) for part in linears])
    for triton, plain in zip(*found, strict=True):
        torch.testing.assert_close(triton, plain, atol=1e-3, rtol=1e-3)


def check_embed(device: str, dtype: torch.dtype, width: int) -> None:
    rows = token_rows((7, 2, 11, 5))
    packing = moved(packing_of(rows, multiple=32, types=[np.arange(len(row)) % 2 for row in rows]), device)
    grad, found = drawn(packing.tokens, width, seed=1, device=device), []
    for bench in both(device, dtype, packing.tokens, width):
        tables, store, ops = bench.tables, bench.storage, bench.ops
        with torch.no_grad():
            weights = [table.weight for table in (tables.words, tables.positions, tables.types)]
            y, low_y, saved = ops.embed(*weights, packing, tables.norm, 0.0)
            grad_total = ops.embed_backward(grad, saved, tables.norm, store)
            ops.add_table_gradient(weights[0], packing.ids, packing.sorted_by_id, grad_total, 0, store)
            ops.add_table_gradient(weights[1], packing.positions, packing.sorted_by_position, grad_total, -1, store)
            ops.add_type_gradient(weights[2], packing.types, grad_total, store)
            ops.after_backward(store)
        vectors = [bench.gradient(weight) for weight in (*weights, tables.norm.weight, tables.norm.bias)]
        found.append([y, grad_total, *vectors])
        assert low_y.dtype == dtype
    for triton, plain in zip(*found, strict=True):
        torch.testing.assert_close(triton, plain, atol=1e-4, rtol=1e-4)
    assert found[0][2][0].abs().sum() == 0, "the padding row gets no gradient"


def check_repeated_rows(device: str, width: int) -> None:
    bench = Bench("triton", device, rows=97, width=width)
    weight = bench.tables.words.weight
    expected = torch.zeros_like(weight)
    for seed in (1, 2):
        ids = torch.randint(0, 9, (97,), generator=torch.Generator().manual_seed(seed)).to(device)
        grad = drawn(97, width, seed=seed, device=device)
        bench.ops.add_table_gradient(weight, ids.int(), ids.argsort(stable=True).int(), grad, 0, bench.storage)
        expected.index_add_(0, ids, grad)
    expected[0] = 0.0
    torch.testing.assert_close(bench.gradient(weight), expected, atol=1e-4, rtol=1e-4)
    bench.storage.clear_gradients()
    ids, order = torch.tensor([5, 5]).int().to(device), torch.tensor([0, 1]).int().to(device)
    bench.ops.add_table_gradient(weight, ids, order, torch.ones(2, width).to(device), 0, bench.storage)
    assert bench.gradient(weight).any(1).nonzero().flatten().tolist() == [5], "rows of the step before are zero again"


# --- dropout
def masked_norm(bench: Bench, rate: float, rows: int) -> tuple[torch.Tensor, Any]:
    """Where the product was dropped: it is one everywhere before, so dropped values lie below the mean of their row."""
    x, residual = (torch.zeros(rows, bench.width).to(bench.device) for _ in range(2))
    linear, norm = bench.layer.out, bench.layer.out_norm
    norm.eps = 1e-12
    with torch.no_grad():
        for vector, value in ((linear.bias, 1.0), (norm.weight, 1.0), (norm.bias, 0.0)):
            vector.fill_(value)
        y, _, saved = bench.ops.add_and_norm(x.to(bench.dtype), linear, residual, norm, rate, bench.storage)
    return y < 0, saved


def check_dropout_share(device: str, dtype: torch.dtype, width: int, rows: int, *, rate: float) -> None:
    bench = Bench("triton", device, dtype, rows=rows, width=width)
    dropped, saved = masked_norm(bench, rate, rows)
    error = (rate * (1 - rate) / (rows * width)) ** 0.5
    assert float(dropped.float().mean()) == pytest.approx(rate, abs=5 * error)
    with torch.no_grad():
        grad = drawn(rows, width, seed=1, device=device)
        grad_total, grad_product = bench.ops.add_and_norm_backward(
            grad, None, saved, bench.layer.out, bench.layer.out_norm, bench.storage
        )
    assert torch.equal(grad_product == 0, dropped), "the backward pass draws the same mask"
    expected = (grad_total / (1 - rate))[~dropped]
    torch.testing.assert_close(grad_product.float()[~dropped], expected, **TOLERANCES[dtype])


def check_dropout_independence(device: str, width: int, rows: int) -> None:
    bench = Bench("triton", device, rows=rows, width=width)
    masks = []
    for seed in (0, 1, 2**31 - 1):
        bench.ops.seed.fill_(seed)
        masks += [masked_norm(bench, 0.25, rows)[0].float().flatten() for _ in range(3)]
    bound = 5 / len(masks[0]) ** 0.5
    together = torch.corrcoef(torch.stack(masks)) - torch.eye(9, device=device)
    assert together.abs().max() < bound
    for mask in masks:
        for lag in (1, 2, 4, 32, width):
            assert torch.corrcoef(torch.stack([mask[lag:], mask[:-lag]]))[0, 1].abs() < bound


def check_embedding_dropout(device: str, width: int, lengths: tuple[int, ...]) -> None:
    packing = moved(packing_of(token_rows(lengths), multiple=32), device)
    bench = Bench("triton", device, rows=packing.tokens, width=width)
    tables = bench.tables
    with torch.no_grad():
        weights = (tables.words.weight, tables.positions.weight, tables.types.weight)
        y, _, saved = bench.ops.embed(*weights, packing, tables.norm, 0.25)
        kept = y != 0
        assert float(kept.float().mean()) == pytest.approx(0.75, abs=5 * (0.75 * 0.25 / kept.numel()) ** 0.5)
        bench.ops.embed_backward(torch.ones_like(y), saved, tables.norm, bench.storage)
        bench.ops.after_backward(bench.storage)
    torch.testing.assert_close(bench.gradient(tables.norm.bias), kept.sum(0) / 0.75, atol=1e-3, rtol=1e-4)


def check_dropout_seeds(device: str, width: int, rows: int) -> None:
    def masks(seed: int) -> list[torch.Tensor]:
        bench = Bench("triton", device, rows=rows, width=width)
        torch.manual_seed(seed)
        bench.ops.before_forward(bench.storage, packing_with(rows), training=True)
        found = [masked_norm(bench, 0.5, rows)[0] for _ in range(2)]
        bench.ops.before_forward(bench.storage, packing_with(rows), training=True)
        return [*found, masked_norm(bench, 0.5, rows)[0]]

    first, second, later = masks(1)
    assert not torch.equal(first, second)
    assert not torch.equal(first, later)
    assert all(torch.equal(one, other) for one, other in zip(masks(1), (first, second, later), strict=True))
    assert not torch.equal(masks(2)[0], first)
    together = float((first == second).float().mean())
    assert together == pytest.approx(0.5, abs=5 * 0.5 / first.numel() ** 0.5), "two dropouts of a pass are independent"


# --- AdamW
def cases(device: str, widths: list[int], rows: int, dropouts: tuple[int, int]) -> dict[str, Callable[[], None]]:
    """Return every check of the operations by its name; `dropouts` is the width and the number of rows that show a share."""
    found: dict[str, Callable[[], None]] = {
        "repeated ids": partial(check_repeated_rows, device, widths[0]),
        "independent masks": partial(check_dropout_independence, device, *dropouts),
        "dropout of embeddings": partial(check_embedding_dropout, device, 64, (40, 50, 30)),
        "masks of a seed": partial(check_dropout_seeds, device, *dropouts),
    }
    for dtype in TOLERANCES:
        for rate in (0.1, 0.5):
            found[f"{dtype} drops {rate}"] = partial(check_dropout_share, device, dtype, *dropouts, rate=rate)
        for width in widths:
            name = f"{dtype} {width}"
            for extra in (False, True):
                found[f"{name} norm {extra}"] = partial(check_add_and_norm, device, dtype, width, rows, extra=extra)
            for form in ("none", "tanh"):
                found[f"{name} gelu {form}"] = partial(check_linear_gelu, device, dtype, width, rows, approximate=form)
            found[f"{name} join"] = partial(check_join_gradients, device, dtype, width, rows)
            found[f"{name} embed"] = partial(check_embed, device, dtype, width)
    return found


class AdamWPair:
    """A model whose weights AdamW's kernels update, and its twin under torch's AdamW, with the same gradients."""

    def __init__(self, device: str, dtype: torch.dtype, decay: float, max_norm: float) -> None:
        from glassloop.backends.fast.triton_operations import TritonAdamW

        options: dict[str, Any] = {"lr": 3e-3, "betas": (0.85, 0.97), "eps": 1e-7, "fused": True}
        self.model, self.twin = tiny_model().to(device), tiny_model().to(device)
        self.device, self.max_norm, self.number = device, max_norm, 0
        groups = decay_groups(self.model, decay)
        no_decay = {id(weight) for group in groups if not group["weight_decay"] for weight in group["params"]}
        self.storage = storage_of(self.model, no_decay, matmul_dtype=dtype)
        self.flat = FlatAdamW(groups, self.storage, **options)
        self.plain = torch.optim.AdamW(decay_groups(self.twin, decay), **options)
        assert (self.flat.kernel is not None) == (device == "cuda")
        self.flat.kernel = self.flat.kernel or TritonAdamW(self.storage, options["betas"])

    def step(self, learning_rate: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both norms of the gradients."""
        self.number += 1
        for group in (*self.flat.param_groups, *self.plain.param_groups):
            group["lr"] = learning_rate
        for index, (weight, twin) in enumerate(zip(self.model.parameters(), self.twin.parameters(), strict=True)):
            grad = drawn(*weight.shape, seed=1000 * self.number + index, device=self.device) * 0.01
            self.storage.add(weight, grad)
            twin.grad = grad.clone()
        norm = self.flat.clip(self.max_norm)
        expected = torch.nn.utils.clip_grad_norm_(self.twin.parameters(), self.max_norm or float("inf"))
        self.flat.norm = expected  # summed in another order than ours; everything else is the same
        self.flat.step()
        self.flat.zero_grad()
        self.plain.step()
        return norm, expected
