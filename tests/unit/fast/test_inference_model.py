"""Which fast form a model gets."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import transformers
from commands import environment
from families import FAST, tiny_model, weights_hash
from packs import inputs_of, lively, needs_kernels, packed_logits, packing_of, padded_inputs, quantized, token_rows
from torch.nn import functional

from glassloop.backends.fast import inference_model
from glassloop.backends.fast.encoder_parts import layers_of
from glassloop.backends.fast.inference_model import InferenceLayers, Scales, crash_of_kernels, filled, weight_limit, widened
from glassloop.backends.fast.training_model import OwnLayers, ReplacedLayers
from glassloop.backends.packed import PackedBackend, make_fast_model


def test_each_model_gets_the_fast_form_of_its_family() -> None:
    for family, kind in (("bert", ReplacedLayers), ("modernbert", OwnLayers), ("deberta-v2", OwnLayers)):
        fast = make_fast_model(tiny_model(family), torch.float32)
        assert type(fast) is kind
        assert fast.packs == (family != "deberta-v2")
        fast.remove()


# --- Layers for forward passes on a CPU: the numbers of the plain model, weights prepared once, a model left as it was.
@pytest.mark.parametrize("lengths", [(7, 2, 11, 5), (4, 4, 4), (9,), (3, 5, 5, 5, 8, 3)])
@pytest.mark.parametrize("family", FAST)
def test_the_numbers_of_the_plain_model(family: str, lengths: tuple[int, ...]) -> None:
    model, rows = lively(family).eval(), token_rows(lengths)
    attributes = {name: {*vars(module)} for name, module in model.named_modules()}
    places, before = [weight.data_ptr() for weight in model.parameters()], weights_hash(model)
    with torch.inference_mode():
        wanted = model(**padded_inputs(rows)).logits
        savings = make_fast_model(model, torch.float32, trains=False)
        assert isinstance(savings, InferenceLayers)
        torch.testing.assert_close(model(**inputs_of(model, rows)).logits, wanted, atol=1e-5, rtol=1e-5)
        assert torch.equal(model(**padded_inputs(rows)).logits, wanted), "padded rows use the plain layers"
    savings.remove()
    assert {name: {*vars(module)} for name, module in model.named_modules()} == attributes
    assert ([weight.data_ptr() for weight in model.parameters()], weights_hash(model)) == (places, before)


SMALL = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 40, "initializer_range": 0.3}
OTHER_SHAPES = [  # groups of several layers, projected embeddings, one layer
    ("Albert", {"embedding_size": 16, "num_hidden_layers": 6, "num_hidden_groups": 2, "inner_group_num": 2}),
    ("Electra", {"embedding_size": 12, "num_hidden_layers": 2}),
    ("Bert", {"num_hidden_layers": 1}),
]


@pytest.mark.parametrize(("family", "shape"), OTHER_SHAPES)
def test_models_of_other_shapes(family: str, shape: dict[str, int]) -> None:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SMALL, **shape)
    model, rows = getattr(transformers, f"{family}ForSequenceClassification")(config).eval(), token_rows((7, 2, 70, 5, 5, 1))
    with torch.inference_mode():
        wanted = model(**padded_inputs(rows)).logits
        assert isinstance(make_fast_model(model, torch.float32, trains=False), InferenceLayers)
        torch.testing.assert_close(model(**inputs_of(model, rows)).logits, wanted, atol=2e-5, rtol=1e-5)


def test_rows_of_one_length_are_one_group() -> None:
    """And few different numbers of rows reach the kernels: oneDNN keeps a kernel for each, and a server would grow by them."""
    found = inference_model.groups_of(packing_of(token_rows((5, 5, 3, 5))))
    assert found == [inference_model.Group(*group) for group in ((0, 2, 5), (10, 1, 3), (13, 1, 5))]
    numbers = {len(filled(torch.ones(number, 2))) for number in range(1, 2_049)}
    assert len(numbers) <= 30
    assert all(len(filled(torch.ones(number, 2))) < number + 256 for number in (1, 127, 129, 1_023, 1_025, 2_000))
    assert filled(torch.ones(17, 2)).sum() == 34


# --- Prepared linear layers compute what torch's do, with and without oneDNN.
@pytest.mark.parametrize("available", [True, False])
@pytest.mark.parametrize("tokens", [1, 7, 600])
def test_the_same_numbers(available: bool, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not available:
        monkeypatch.setattr(inference_model, "has_prepared_form", lambda: False)
    torch.manual_seed(0)
    x, residual = torch.randn(tokens, 32), torch.randn(tokens, 48)
    weight, bias = torch.randn(48, 32), torch.randn(48)
    with torch.inference_mode():
        linear, wanted = inference_model.PreparedLinear(weight, bias), functional.linear(x, weight, bias)
        torch.testing.assert_close(linear(x), wanted, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(linear.add(x, residual), wanted + residual, atol=1e-5, rtol=1e-5)
        for approximate in ("none", "tanh"):
            active = functional.gelu(wanted, approximate=approximate)
            torch.testing.assert_close(linear.gelu(x, approximate), active, atol=1e-5, rtol=1e-4)


ROWS = token_rows((7, 2, 11, 5, 9, 9, 3))


def test_measuring_does_not_change_the_numbers() -> None:
    model, backend = lively().eval(), PackedBackend(int8=True)
    with torch.inference_mode():
        wanted = model(**padded_inputs(ROWS)).logits
    torch.testing.assert_close(packed_logits(backend, model, ROWS), wanted, atol=1e-5, rtol=1e-5)
    first, last = (parts.module for parts in layers_of(model))
    assert [*backend.ranges] == [first], "the last layer runs for first tokens only, in fp32"
    assert last not in backend.ranges
    # Rows that only round the number of tokens are not measured.
    low, high = widened(None, torch.cat([model.base_model.embeddings(torch.from_numpy(row)[None])[0] for row in ROWS]))
    torch.testing.assert_close(backend.ranges[first]["joined"], torch.stack([low, high]), atol=1e-6, rtol=0)


@needs_kernels
def test_which_layers_are_quantized_and_that_a_row_is_answered_alike_in_any_batch() -> None:
    model = lively().eval()
    backend = quantized(model, ROWS)
    form = backend.fast_form(model)
    assert [type(layer).__name__ for layer in (*form.layers, form.last_layer)] == ["Int8Layer", "InferenceLayer"]
    model = lively("albert").eval()
    backend = quantized(model, ROWS)
    form = backend.fast_form(model)
    assert isinstance(form.last_layer, inference_model.Int8Layer), "its only layer runs several times"
    assert form.layers == [form.last_layer]
    assert "in_fp32" not in vars(form.last_layer), "weights in fp32 are prepared when they are needed"
    # The ranges are fixed: those of a batch would make an answer depend on the texts beside it.
    model = lively().eval()
    backend = quantized(model, ROWS)
    together = packed_logits(backend, model, ROWS)
    for place, row in enumerate(ROWS):
        alone = packed_logits(backend, model, [row])
        torch.testing.assert_close(alone[0], together[place], atol=0.02 * float(together.abs().max()), rtol=0)


# --- Linear layers in int8: close to fp32, exact sums, ranges that are never left.
def seen(x: torch.Tensor) -> torch.Tensor:
    return widened(widened(None, x[: len(x) // 2]), x[len(x) // 2 :])


def values(tokens: int = 200, channels: int = 64) -> torch.Tensor:
    """Channels of very different sizes and middles, as behind a norm."""
    torch.manual_seed(0)
    return torch.randn(tokens, channels) * torch.linspace(0.05, 4.0, channels) + torch.linspace(-3.0, 1.0, channels)


def test_a_range_covers_all_tokens_seen_quantized_values_are_near_and_outliers_are_cut() -> None:
    x = values()
    assert torch.equal(seen(x), torch.stack([x.amin(0), x.amax(0)]))
    scales = Scales.of_channels(seen(x), torch.randn(32, 64))
    q = scales.quantized(x)
    assert q.dtype is torch.uint8
    back = scales.middle + scales.scale * (q.float() - 127.5)
    assert ((back - x).abs() <= 0.501 * scales.scale).all()
    far = scales.quantized(torch.tensor([[1e6], [-1e6]]).expand(2, 64))
    assert far[0].eq(255).all(), "nothing wraps around"
    assert far[1].eq(0).all()


def test_a_constant_channel_has_a_scale_and_results_contain_zero() -> None:
    x = values()
    x[:, 3], x[:, 4] = 0.0, 7.0
    scales = Scales.of_channels(seen(x), torch.zeros(32, 64))
    assert torch.isfinite(scales.factor).all()
    assert torch.isfinite(scales.offset).all()
    assert torch.isfinite(Scales.of_results(seen(torch.zeros(4, 3))).factor).all()
    scales = Scales.of_results(seen(torch.tensor([[0.5, 0.7], [0.6, 4.0]])))
    assert scales.zero == 0
    assert float(scales.scale) == pytest.approx(4.0 / 255)
    below = Scales.of_results(seen(torch.tensor([[-0.17], [1.0]])))
    assert below.zero == round(0.17 / 1.17 * 255)


@needs_kernels
@pytest.mark.parametrize("tokens", [1, 7, 200])
def test_near_fp32(tokens: int) -> None:
    x = values()
    weight, bias = torch.randn(48, 64), torch.randn(48)
    scales = Scales.of_channels(seen(x), weight)
    linear = inference_model.Int8Linear(weight, bias, scales)
    x, residual = x[:tokens], torch.randn(tokens, 48)
    wanted, q = functional.linear(x, weight, bias), scales.quantized(x)
    allowed = 0.02 * float(wanted.abs().max())
    torch.testing.assert_close(linear(q), wanted, atol=allowed, rtol=0)
    torch.testing.assert_close(linear.add_to(residual.clone(), q), wanted + residual, atol=allowed, rtol=0)
    for approximate in ("none", "tanh"):
        active = functional.gelu(wanted, approximate=approximate)
        results = Scales.of_results(seen(torch.cat([active, active])))
        found = results.scale * (linear.gelu(q, approximate, results).float() - results.zero)
        torch.testing.assert_close(found, active, atol=allowed + float(results.scale), rtol=0)


@needs_kernels
@pytest.mark.slow
def test_the_kernels_are_compared_with_fp64_and_a_cpu_without_vnni_gets_smaller_weights() -> None:
    """There, kernels add pairs of products in 16 bits: weights up to 127 would overflow."""
    assert inference_model.kernel_difference(weight_limit()) < 1e-5
    code = "from glassloop.backends.fast.inference_model import weight_limit; print(weight_limit())"
    given = {**environment(), "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True, env=given)
    assert done.stdout.split() == ["63"], done.stderr


@pytest.mark.parametrize("reason", ["its int8 kernels compute wrong results", "could not create a primitive"])
def test_wrong_or_failing_kernels_are_not_used(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def difference(limit: int) -> float:
        if "wrong" in reason:
            return 0.1
        raise RuntimeError(f"{reason}\nmore")

    weight_limit.cache_clear()
    monkeypatch.setattr(inference_model, "kernel_difference", difference)
    try:
        assert inference_model.why_no_kernels() in (reason, "this build of torch has no int8 kernels for it")
    finally:
        weight_limit.cache_clear()


ILLEGAL = "its int8 kernels end the process (signal 4)"


@pytest.mark.parametrize(
    ("amx", "code", "reason"),
    [(True, "", None), (True, "import os; os.kill(os.getpid(), 4)", ILLEGAL), (False, None, None)],
)
def test_only_amx_kernels_are_tried_out_in_another_process(
    amx: bool, code: str | None, reason: str | None, monkeypatch
) -> None:
    """On some virtual machines their instructions are illegal, which no exception reports."""
    real = subprocess.run

    def run(command: list[str], **options: object) -> object:
        assert code is not None, "a process was started"
        return real([command[0], "-c", code], **options)

    crash_of_kernels.cache_clear()
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)
    monkeypatch.setattr(subprocess, "run", run)
    try:
        assert crash_of_kernels() == reason
        assert reason is None or inference_model.why_no_kernels() == reason
    finally:
        crash_of_kernels.cache_clear()
