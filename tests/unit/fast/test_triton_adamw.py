"""AdamW's Triton kernels, run by Triton's interpreter on a CPU: the weights of torch's AdamW."""

from __future__ import annotations

import pytest
import torch
from kernel_checks import DTYPES, AdamWPair

pytest.importorskip("triton", reason="Triton is not installed (pip install triton; Linux only)")
pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs these checks compiled"),
    pytest.mark.slow,
]


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter runs one program after the other: a few suffice for the norm."""
    from glassloop.backends.fast import triton_adamw

    monkeypatch.setattr(triton_adamw, "NUM_SUMS", 3)


@DTYPES
@pytest.mark.parametrize(("decay", "max_norm"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.1), (0.1, 0.1), (0.1, 100.0)])
def test_steps_change_weights_as_torchs_adamw_does(dtype: torch.dtype, decay: float, max_norm: float) -> None:
    """To rounding: the interpreter has no fused multiply-add. Compiled, the weights are bit-identical (tests/gpu)."""
    pair = AdamWPair("cpu", dtype, decay, max_norm)
    start = [weight.detach().clone() for weight in pair.twin.parameters()]
    for number in range(3):
        norm, expected = pair.step(3e-3 * (1 - number / 10))
        torch.testing.assert_close(norm, expected, atol=1e-5, rtol=1e-5)
    for weight, twin, before in zip(pair.model.parameters(), pair.twin.parameters(), start, strict=True):
        torch.testing.assert_close(weight, twin, atol=1e-6, rtol=1e-5)
        assert not torch.equal(weight, before)
    for block, name in zip(pair.storage.moments, ("exp_avg", "exp_avg_sq"), strict=True):
        for weight, twin in zip(pair.model.parameters(), pair.twin.parameters(), strict=True):
            torch.testing.assert_close(pair.storage.view(block, id(weight)), pair.plain.state[twin][name], atol=1e-7, rtol=1e-5)


def test_copies_for_matrix_multiplications_hold_the_new_weights() -> None:
    from glassloop.backends.fast.encoder_parts import layers_of

    pair = AdamWPair("cpu", torch.bfloat16, 0.1, 0.0)
    pair.step(3e-3)
    matrix, bias = layers_of(pair.model)[0].up.weight, layers_of(pair.model)[1].query.bias
    # The interpreter truncates to bf16, where a GPU rounds.
    torch.testing.assert_close(pair.storage.matmul_weight(matrix).float(), matrix.detach(), atol=0, rtol=2**-7)
    assert torch.equal(pair.storage.matmul_bias(bias), bias.detach().bfloat16())


def test_the_norm_of_blocks_longer_than_a_program_takes_at_once() -> None:
    pair = AdamWPair("cpu", torch.float32, 0.0, 0.0)
    blocks = [torch.randn(30_001, generator=torch.Generator().manual_seed(1)), torch.full((7,), 2.0)]
    torch.testing.assert_close(pair.flat.kernel.norm(blocks), torch.linalg.vector_norm(torch.cat(blocks)), atol=0, rtol=1e-5)
