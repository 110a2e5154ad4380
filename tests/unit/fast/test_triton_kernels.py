"""Each Triton kernel on its own, run by Triton's interpreter on a CPU, with every flag, against a few lines of torch."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch.nn import functional

pytest.importorskip("triton", reason="Triton is not installed (pip install triton; Linux only)")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs the kernels compiled")
ROWS, WIDTH, PROGRAMS = 7, 12, 3
COLUMNS, START = 40, 5  # of the partial sums
CLOSE = {"atol": 1e-5, "rtol": 1e-5}
ACCUMULATE = pytest.mark.parametrize("accumulate", [False, True])
SEED = torch.tensor([1234])


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    from glassloop.backends.fast import triton_kernels

    return triton_kernels


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def partial_sums() -> torch.Tensor:
    return torch.full((PROGRAMS, COLUMNS), 3.0)


def sums_of(partial: torch.Tensor, start: int, width: int, accumulate: bool) -> torch.Tensor:
    """What the kernel added, without what was there before."""
    return (partial[:, start : start + width] - (3.0 if accumulate else 0.0)).sum(0)


def add_and_norm(kernels: ModuleType, rate: float, salt: int = 0) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    product, residual = drawn(ROWS, WIDTH, seed=1), drawn(ROWS, WIDTH, seed=2)
    bias, gain, shift = (drawn(WIDTH, seed=seed) for seed in (3, 4, 5))
    y, normed, inverse_std = torch.empty(ROWS, WIDTH), torch.empty(ROWS, WIDTH), torch.empty(ROWS)
    kernels.add_and_norm_kernel[(ROWS,)](
        product, bias, residual, gain, shift, y, y, normed, inverse_std, SEED, salt, rate, 1e-5, WIDTH,
        HAS_DROPOUT=rate > 0, HAS_LOW_COPY=False, BLOCK=16,
    )  # fmt: skip
    return [product, bias, residual, gain, shift], {"y": y, "normed": normed, "inverse_std": inverse_std}


def test_add_and_norm(kernels: ModuleType) -> None:
    (product, bias, residual, gain, shift), found = add_and_norm(kernels, 0.0)
    total = residual + product + bias
    torch.testing.assert_close(found["y"], functional.layer_norm(total, (WIDTH,), gain, shift, 1e-5), **CLOSE)
    torch.testing.assert_close(found["normed"], functional.layer_norm(total, (WIDTH,), eps=1e-5), **CLOSE)
    torch.testing.assert_close(found["inverse_std"], (total.var(1, unbiased=False) + 1e-5).rsqrt(), **CLOSE)


def test_dropping_everything_leaves_the_residual(kernels: ModuleType) -> None:
    """Nearly everything: the interpreter divides by 1 - rate in Python, where a GPU gives infinity."""
    (_, _, residual, gain, shift), found = add_and_norm(kernels, 1.0 - 1e-9)
    torch.testing.assert_close(found["y"], functional.layer_norm(residual, (WIDTH,), gain, shift, 1e-5), **CLOSE)


def test_the_salt_changes_the_mask(kernels: ModuleType) -> None:
    same, again, other = (add_and_norm(kernels, 0.5, salt)[1]["y"] for salt in (3, 3, 4))
    assert torch.equal(same, again)
    assert not torch.equal(same, other)


@ACCUMULATE
@pytest.mark.parametrize("extra", [False, True])
@pytest.mark.parametrize("after_norm", [False, True])
def test_the_gradient_of_a_norm(kernels: ModuleType, accumulate: bool, extra: bool, after_norm: bool) -> None:
    total, gain, shift = drawn(ROWS, WIDTH, seed=1), drawn(WIDTH, seed=2), drawn(WIDTH, seed=3)
    grad, extra_grad = drawn(ROWS, WIDTH, seed=4), drawn(ROWS, WIDTH, seed=5)
    inputs = [part.requires_grad_() for part in (total, gain, shift)]
    y = functional.layer_norm(*[total, (WIDTH,), gain, shift, 1e-5])
    expected = torch.autograd.grad(y, inputs, grad + extra_grad if extra else grad)
    normed, inverse_std = functional.layer_norm(total, (WIDTH,), eps=1e-5), (total.var(1, unbiased=False) + 1e-5).rsqrt()
    grad_residual, grad_product, partial = torch.empty(ROWS, WIDTH), torch.zeros(ROWS, WIDTH), partial_sums()
    kernels.norm_backward_kernel[(PROGRAMS,)](
        grad, extra_grad, normed.detach(), inverse_std.detach(), gain.detach(), grad_residual, grad_product, partial, COLUMNS,
        0, WIDTH, 2 * WIDTH, SEED, 0, 0.0, ROWS, WIDTH,
        HAS_EXTRA_GRAD=extra, HAS_DROPOUT=False, DROPOUT_AFTER_NORM=after_norm, ACCUMULATE=accumulate, BLOCK=16,
    )  # fmt: skip
    torch.testing.assert_close(grad_residual, expected[0], **CLOSE)
    torch.testing.assert_close(sums_of(partial, WIDTH, WIDTH, accumulate), expected[1], **CLOSE)
    torch.testing.assert_close(sums_of(partial, 2 * WIDTH, WIDTH, accumulate), expected[2], **CLOSE)
    if after_norm:
        assert (partial[:, :WIDTH] == 3.0).all(), "embeddings have no bias"
        assert not grad_product.any()
    else:
        torch.testing.assert_close(grad_product, expected[0], **CLOSE)
        torch.testing.assert_close(sums_of(partial, 0, WIDTH, accumulate), expected[0].sum(0), **CLOSE)


@pytest.mark.parametrize("with_types", [False, True])
@pytest.mark.parametrize("low_copy", [False, True])
def test_embeddings(kernels: ModuleType, with_types: bool, low_copy: bool) -> None:
    words, positions, types = (drawn(9, WIDTH, seed=seed) for seed in range(3))
    ids, position_ids, type_ids = (torch.randint(0, 9, (ROWS,)).int() for _ in range(3))
    gain, shift = drawn(WIDTH, seed=4), drawn(WIDTH, seed=5)
    y, normed, inverse_std = torch.empty(ROWS, WIDTH), torch.empty(ROWS, WIDTH), torch.empty(ROWS)
    low_y = torch.zeros(ROWS, WIDTH, dtype=torch.bfloat16)
    kernels.embed_kernel[(ROWS,)](
        words, positions, types, ids, position_ids, type_ids, gain, shift, y, low_y, normed, inverse_std, SEED, 0, 0.0, 1e-5,
        WIDTH, HAS_TYPES=with_types, HAS_DROPOUT=False, HAS_LOW_COPY=low_copy, BLOCK=16,
    )  # fmt: skip
    total = words[ids] + positions[position_ids] + (types[type_ids] if with_types else 0.0)
    torch.testing.assert_close(y, functional.layer_norm(total, (WIDTH,), gain, shift, 1e-5), **CLOSE)
    torch.testing.assert_close(low_y.float(), y if low_copy else torch.zeros_like(y), atol=1e-6, rtol=2**-7)


@ACCUMULATE
def test_the_gradient_of_a_table(kernels: ModuleType, accumulate: bool) -> None:
    keys = torch.tensor([4, 1, 4, 0, 2, 4, 1]).int()
    grad, table = drawn(ROWS, WIDTH, seed=1), torch.full((6, WIDTH), 3.0 if accumulate else 0.0)
    expected = table.clone()
    order = keys.argsort(stable=True).int()
    kernels.table_gradient_kernel[(ROWS, 2)](grad, keys, order, table, ROWS, WIDTH, 1, ACCUMULATE=accumulate, BLOCK=8)
    for key, row in zip(keys.tolist(), grad, strict=True):
        if key != 1:  # the padding row
            expected[key] += row
    torch.testing.assert_close(table, expected, **CLOSE)


@ACCUMULATE
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(kernels: ModuleType, accumulate: bool, approximate: str) -> None:
    x, bias, grad = drawn(ROWS, WIDTH, seed=1).requires_grad_(), drawn(WIDTH, seed=2), drawn(ROWS, WIDTH, seed=3)
    activation, grad_x, partial, tanh = (
        torch.empty(ROWS, WIDTH),
        torch.empty(ROWS, WIDTH),
        partial_sums(),
        approximate == "tanh",
    )
    kernels.gelu_kernel[(2,)](x.detach(), bias, activation, WIDTH, ROWS * WIDTH, TANH=tanh, BLOCK=64)
    kernels.gelu_backward_kernel[(2, PROGRAMS)](
        grad, x.detach(), bias, grad_x, partial, COLUMNS, START, ROWS, WIDTH, TANH=tanh, ACCUMULATE=accumulate, BLOCK=8
    )
    expected = functional.gelu(x + bias, approximate=approximate)
    torch.testing.assert_close(activation, expected, **CLOSE)
    (expected_grad,) = torch.autograd.grad(expected, x, grad)
    torch.testing.assert_close(grad_x, expected_grad, **CLOSE)
    torch.testing.assert_close(sums_of(partial, START, WIDTH, accumulate), expected_grad.sum(0), **CLOSE)
    assert (partial[:, :START] == 3.0).all()
    assert (partial[:, START + WIDTH :] == 3.0).all()


@ACCUMULATE
@pytest.mark.parametrize("number", [1, 2, 3])
def test_gradients_side_by_side(kernels: ModuleType, accumulate: bool, number: int) -> None:
    parts = [drawn(ROWS, WIDTH, seed=seed) for seed in range(number)]
    joined, partial = torch.empty(ROWS, number * WIDTH), partial_sums()
    kernels.join_gradients_kernel[(2, number, PROGRAMS)](
        parts[0], parts[min(1, number - 1)], parts[-1], joined, partial, COLUMNS, 0, ROWS, WIDTH, number,
        ACCUMULATE=accumulate, BLOCK=8,
    )  # fmt: skip
    assert torch.equal(joined, torch.cat(parts, 1))
    torch.testing.assert_close(sums_of(partial, 0, number * WIDTH, accumulate), joined.sum(0), **CLOSE)


def test_every_kernel_is_tested_here(kernels: ModuleType) -> None:
    from pathlib import Path

    text = Path(__file__).read_text(encoding="utf-8")
    missing = {name for name in vars(kernels) if name.endswith("_kernel") and f"kernels.{name}[" not in text}
    assert missing == {"squares_kernel", "scalars_kernel", "update_kernel"}, "those of AdamW are compared with torch's AdamW"
