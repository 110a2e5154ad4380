"""Layers in int8: ranges are those of the tokens, linear layers are quantized, the rest stays in fp32."""

from __future__ import annotations

import pytest
import torch
from packs import lively, padded_inputs, token_rows
from quantized import needs_kernels, packed_logits, quantized

from glassloop.backends.fast.encoder_parts import layers_of
from glassloop.backends.fast.inference_model import InferenceLayer
from glassloop.backends.fast.int8_layers import Int8Layer, MeasuredLayer
from glassloop.backends.packed import Int8Backend

ROWS = token_rows((7, 2, 11, 5, 9, 9, 3))


def test_measuring_does_not_change_the_numbers() -> None:
    model, backend = lively().eval(), Int8Backend()
    with torch.inference_mode():
        wanted = model(**padded_inputs(ROWS)).logits
    torch.testing.assert_close(packed_logits(backend, model, ROWS), wanted, atol=1e-5, rtol=1e-5)
    first, last = (parts.module for parts in layers_of(model))
    assert [*backend.ranges] == [first], "the last layer runs for first tokens only, in fp32"
    assert last not in backend.ranges


def test_rows_that_only_round_the_number_of_tokens_are_not_measured() -> None:
    model, backend = lively().eval(), Int8Backend()
    seen: list[torch.Tensor] = []
    first = layers_of(model)[0].module
    first.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    plain = torch.inference_mode()(model)
    plain(input_ids=torch.from_numpy(ROWS[0])[None])
    first._forward_pre_hooks.clear()
    packed_logits(backend, model, ROWS[:1])
    torch.testing.assert_close(backend.ranges[first].joined.low, seen[0][0].amin(0), atol=1e-6, rtol=0)
    torch.testing.assert_close(backend.ranges[first].joined.high, seen[0][0].amax(0), atol=1e-6, rtol=0)


@needs_kernels
def test_which_layers_are_quantized() -> None:
    model = lively().eval()
    backend = quantized(model, ROWS)
    form = backend.fast_form(model)
    assert [type(layer) for layer in (*form.layers, form.last_layer)] == [Int8Layer, InferenceLayer]
    model = lively("albert").eval()
    backend = quantized(model, ROWS)
    form = backend.fast_form(model)
    assert isinstance(form.last_layer, Int8Layer), "its only layer runs several times"
    assert form.layers == [form.last_layer]
    assert "plain" not in vars(form.last_layer), "weights in fp32 are prepared when they are needed"


@needs_kernels
def test_a_row_is_answered_alike_in_any_batch() -> None:
    """The ranges are fixed: those of a batch would make an answer depend on the texts beside it."""
    model = lively().eval()
    backend = quantized(model, ROWS)
    together = packed_logits(backend, model, ROWS)
    for place, row in enumerate(ROWS):
        alone = packed_logits(backend, model, [row])
        torch.testing.assert_close(alone[0], together[place], atol=0.02 * float(together.abs().max()), rtol=0)


@needs_kernels
def test_measured_layers_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lively().eval()
    backend = quantized(model, ROWS)
    monkeypatch.setattr(MeasuredLayer, "__call__", lambda *given: pytest.fail("still measuring"))
    packed_logits(backend, model, ROWS)
