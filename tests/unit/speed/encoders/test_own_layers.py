"""Models that keep their own layers: ModernBERT over packed tokens has the logits and gradients of padded batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import tiny_model
from packs import inputs_of, padded_inputs, plain_gradients, token_rows, weighed

from glassloop.backends.fast.training_model import OwnLayers, no_mask
from glassloop.base.errors import ModelError

CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def modern(**options: Any) -> Any:
    model = tiny_model("modernbert", dropout=0.0, **options)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0.0, 0.2) if weight.dim() > 1 else weight.add_(0.1)
    return model


def twins(**options: Any) -> tuple[Any, Any]:
    first, second = modern(**options), modern(**options)
    second.load_state_dict(first.state_dict())
    return first.eval(), second.eval()


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_numbers_and_gradients_of_modernbert(pooling: str, multiple: int) -> None:
    model, twin = twins(classifier_pooling=pooling, local_attention=4)
    rows = token_rows()
    savings = OwnLayers(model, packs=True)
    savings.open_for_training()
    answer = model(**inputs_of(model, rows, multiple)).logits
    torch.testing.assert_close(answer, twin(**padded_inputs(rows)).logits, **CLOSE)
    weighed(answer).backward()
    expected = plain_gradients(twin, padded_inputs(rows))
    for name, weight in model.named_parameters():
        if name in expected:
            scale = max(1.0, float(expected[name].abs().max()))
            assert (weight.grad - expected[name]).abs().max() <= 1e-5 * scale, name
    savings.remove()


def test_padded_inputs_use_the_original_forward_and_removal_leaves_no_trace() -> None:
    model, twin = twins()
    rows = token_rows()
    attributes = {name: {*vars(module)} for name, module in model.named_modules()}
    savings = OwnLayers(model, packs=True)
    savings.open_for_training()
    usual = model.config._attn_implementation
    assert torch.equal(model(**padded_inputs(rows)).logits, twin(**padded_inputs(rows)).logits)
    model(**inputs_of(model, rows))
    assert model.config._attn_implementation == usual
    savings.remove()
    assert {name: {*vars(module)} for name, module in model.named_modules()} == attributes
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not any(weight._post_accumulate_grad_hooks for weight in model.parameters())


def test_a_model_that_is_not_packed_has_flat_weights_and_its_own_forward() -> None:
    model = tiny_model("deberta-v2")
    expected = model.eval()(**padded_inputs(token_rows())).logits
    savings = OwnLayers(model)
    assert not savings.packs
    assert "forward" not in vars(model)
    assert torch.equal(model(**padded_inputs(token_rows())).logits, expected)
    assert len({weight.untyped_storage().data_ptr() for weight in model.parameters()}) == 1
    savings.remove()


def test_an_evaluation_draws_nothing() -> None:
    model = tiny_model("modernbert", dropout=0.1).eval()
    savings = OwnLayers(model, packs=True)
    before = torch.get_rng_state()
    model(**inputs_of(model, token_rows()))
    assert torch.equal(before, torch.get_rng_state())
    savings.remove()


def test_an_attention_mask_is_refused() -> None:
    assert no_mask() is None
    with pytest.raises(ModelError, match="came with an attention mask"):
        no_mask(attention_mask=torch.ones(1))
