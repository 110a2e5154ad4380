"""Prepared linear layers compute what torch's do, with and without oneDNN."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from glassloop.backends.fast import inference_model as prepared_linear
from glassloop.backends.fast.inference_model import PreparedLinear


@pytest.mark.parametrize("available", [True, False])
@pytest.mark.parametrize("tokens", [1, 7, 600])
def test_the_same_numbers(available: bool, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not available:
        monkeypatch.setattr(prepared_linear, "has_prepared_form", lambda: False)
    torch.manual_seed(0)
    x, residual = torch.randn(tokens, 32), torch.randn(tokens, 48)
    weights, biases = [torch.randn(24, 32), torch.randn(24, 32)], [torch.randn(24), torch.randn(24)]
    with torch.inference_mode():
        linear = PreparedLinear(weights, biases)
        wanted = functional.linear(x, torch.cat(weights), torch.cat(biases))
        torch.testing.assert_close(linear(x), wanted, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(linear.add(x, residual), wanted + residual, atol=1e-5, rtol=1e-5)
        for approximate in ("none", "tanh"):
            torch.testing.assert_close(
                linear.gelu(x, approximate), functional.gelu(wanted, approximate=approximate), atol=1e-5, rtol=1e-4
            )
