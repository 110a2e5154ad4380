"""The int8 backend: it measures, then quantizes; what it cannot run it says."""

from __future__ import annotations

import pytest
import torch
from families import BY_MODULES, tiny_model
from packs import lively, padded_inputs, token_rows
from quantized import needs_kernels, packed_logits, quantized

from glassloop.backends import packed as int8
from glassloop.backends.packed import Int8Backend, why_not_int8

ROWS = token_rows((7, 2, 11, 5, 9, 9, 3))


@needs_kernels
def test_quantized_logits_are_near_those_of_the_model() -> None:
    model = lively().eval()
    with torch.inference_mode():
        wanted = model(**padded_inputs(ROWS)).logits
    found = packed_logits(quantized(model, ROWS), model, ROWS)
    assert not torch.allclose(found, wanted, atol=1e-6), "it is not fp32"
    torch.testing.assert_close(found, wanted, atol=0.05 * float(wanted.abs().max()), rtol=0)


@needs_kernels
def test_the_model_is_left_as_it_was() -> None:
    model = lively().eval()
    attributes = {name: {*vars(module)} for name, module in model.named_modules()}
    packed_logits(quantized(model, ROWS), model, ROWS)
    assert {name: {*vars(module)} for name, module in model.named_modules()} == attributes


@pytest.mark.parametrize("family", BY_MODULES[:1])
def test_a_family_without_int8_layers(family: str) -> None:
    model = tiny_model(family)
    assert why_not_int8(model) == f"{type(model).__name__} has layers without an int8 form"


def test_a_model_that_was_changed() -> None:
    model = tiny_model()
    model.base_model.encoder.layer[0].output.dense.register_forward_hook(lambda *given: None)
    assert "has hooks" in str(why_not_int8(model))


def test_a_cpu_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8, "why_no_kernels", lambda: "its int8 kernels compute wrong results")
    assert why_not_int8(tiny_model()) == "this CPU: its int8 kernels compute wrong results"
    assert Int8Backend().why_not(tiny_model()) is None
