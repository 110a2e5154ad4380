"""The Triton operations, run by Triton's interpreter on a CPU: the numbers of the plain torch operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kernel_checks as checks
import pytest
import torch
from kernel_checks import DTYPES, AdamWPair
from packs import inputs_of, lively, padded_inputs, plain_gradients, token_rows, weighed

from glassloop.backends.fast import training_model
from glassloop.backends.fast.encoder_parts import layers_of
from glassloop.backends.fast.optimizer import FlatAdamW
from glassloop.training.optimizer import decay_groups

pytest.importorskip("triton", reason="Triton is not installed (pip install triton; Linux only)")
pytestmark = [pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs these checks compiled"), pytest.mark.slow]
WIDTH, ROWS = 24, 11  # neither fills a block of a kernel
CASES = checks.cases("cpu", [WIDTH], ROWS, dropouts=(512, 10))


@pytest.mark.parametrize("check", CASES.values(), ids=CASES)
def test_an_operation_and_its_gradient(check: Callable[[], None]) -> None:
    check()


def test_an_evaluation_draws_no_random_number() -> None:
    bench = checks.Bench("triton", "cpu", rows=ROWS, width=WIDTH)
    before = torch.get_rng_state()
    bench.ops.before_forward(bench.storage, checks.packing_with(ROWS), training=False)
    assert torch.equal(before, torch.get_rng_state())


def test_a_deferred_product_is_added_by_the_next_norm() -> None:
    """In bf16 a layer may leave its last sum to the layer before it, which reads the same gradient."""
    found = []
    for defer in (False, True):
        bench = checks.Bench("triton", "cpu", torch.bfloat16, rows=ROWS, width=WIDTH)
        x, residual, grad = (checks.drawn(ROWS, WIDTH, seed=seed, device="cpu") for seed in range(3))
        left, right = (checks.drawn(*shape, seed=7, device="cpu").bfloat16() for shape in ((ROWS, 8), (8, WIDTH)))
        layer, store, ops = bench.layer, bench.storage, bench.ops
        with torch.no_grad():
            _, _, saved = ops.add_and_norm(x.bfloat16(), layer.out, residual, layer.out_norm, 0.0, store)
            total = ops.add_matmul(grad, left, right, defer=defer)
            found.append(ops.add_and_norm_backward(total, None, saved, layer.out, layer.out_norm, store)[0])
        assert ops.deferred is None
    torch.testing.assert_close(*found, atol=1e-2, rtol=1e-2)


@pytest.fixture
def on_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fast models on a CPU use the Triton operations."""
    from glassloop.backends.fast.triton_operations import TritonOperations

    monkeypatch.setattr(training_model, "TorchOperations", TritonOperations)


def adapted(family: str) -> Any:
    """A model with an adapter of all linear layers, which are frozen."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(5)
    options = {"r": 4, "target_modules": "all-linear", "init_lora_weights": False}
    return peft.get_peft_model(lively(family), peft.LoraConfig(task_type="SEQ_CLS", **options))


def with_a_frozen_layer(family: str) -> Any:
    model = lively(family)
    layers_of(model)[1].module.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("make", "family", "dtype"),
    [
        (lively, "bert", torch.bfloat16),
        (lively, "albert", torch.float32),
        (adapted, "bert", torch.float32),
        (adapted, "bert", torch.bfloat16),
        (with_a_frozen_layer, "bert", torch.float32),
    ],
)
def test_the_gradients_of_a_whole_model(make: Any, family: str, dtype: torch.dtype, on_triton: None) -> None:
    """As on a GPU: tokens rounded up, a filler sequence, the sum of a layer deferred to the layer before it (bf16)."""
    model, rows = make(family), token_rows((5, 2, 3))
    plain = make(family)
    expected = plain_gradients(plain, padded_inputs(rows))
    # For first tokens alone, a CPU has code of its own, which no GPU runs.
    fast = training_model.ReplacedLayers(model, dtype, first_tokens_only=False)
    fast.open_for_training()
    logits = model(**inputs_of(model, rows, multiple=4)).logits
    weighed(logits).backward()
    fast.after_backward()
    low = 1e-1 if make is adapted else 5e-2  # of bf16, with more roundings in an adapter
    tolerance = {"atol": 1e-5, "rtol": 1e-4} if dtype is torch.float32 else {"atol": low, "rtol": low}
    torch.testing.assert_close(logits, plain(**padded_inputs(rows)).logits, **tolerance)
    for name, weight in model.named_parameters():
        if name in expected:
            scale = max(1e-3, float(expected[name].abs().max()))
            assert weight.requires_grad, "frozen weights have no gradient"
            found = fast.storage.full_gradient(weight)
            if "key.bias" in name:  # zero but for rounding
                assert found.abs().max() < tolerance["atol"]
            else:
                torch.testing.assert_close(found / scale, expected[name] / scale, **tolerance)
    fast.remove()


def test_a_dummy_step_launches_every_kernel_so_that_all_are_compiled_ahead(on_triton: None) -> None:
    from glassloop.backends.fast import triton_kernels, triton_operations

    model = lively(dropout=0.1)
    fast = training_model.ReplacedLayers(model)
    fast.open_for_training()
    optimizer = FlatAdamW(decay_groups(model, 0.0), fast.storage)
    optimizer.kernel = triton_operations.TritonAdamW(fast.storage, (0.9, 0.999))
    recorded: dict = {}
    for launcher in (fast.ops.launch, optimizer.kernel.launch):
        launcher.recorded = recorded
    model(**inputs_of(model, token_rows(), multiple=16)).logits.sum().backward()
    fast.after_backward()
    optimizer.clip(1.0)
    optimizer.step()
    names = {kernel.fn.__name__ for kernel in recorded}
    wanted = {name for name in vars(triton_kernels) if name.endswith("_kernel")}
    assert names == wanted
    fast.remove()


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter runs one program after the other: a few suffice for the norm."""
    from glassloop.backends.fast import triton_operations

    monkeypatch.setattr(triton_operations, "NUM_SUMS", 3)


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
    matrix, bias = layers_of(pair.model)[0].up.weight, layers_of(pair.model)[1].query.bias
    # The interpreter truncates to bf16, where a GPU rounds.
    torch.testing.assert_close(pair.storage.matmul_weight(matrix).float(), matrix.detach(), atol=0, rtol=2**-7)
    assert torch.equal(pair.storage.matmul_bias(bias), bias.detach().to(dtype)), "products read today's weights"


def test_the_norm_of_blocks_longer_than_a_program_takes_at_once() -> None:
    pair = AdamWPair("cpu", torch.float32, 0.0, 0.0)
    blocks = [torch.randn(30_001, generator=torch.Generator().manual_seed(1)), torch.full((7,), 2.0)]
    torch.testing.assert_close(pair.flat.kernel.norm(blocks), torch.linalg.vector_norm(torch.cat(blocks)), atol=0, rtol=1e-5)
