"""Every family with int8 layers: logits near those of the plain model, on tokens that were not measured too."""

from __future__ import annotations

import pytest
import torch
from families import FAST
from packs import lively, needs_kernels, packed_logits, padded_inputs, quantized, token_rows


@needs_kernels
@pytest.mark.parametrize("family", FAST)
def test_int8_agrees_with_fp32(family: str) -> None:
    model = lively(family).eval()
    measured, others = token_rows((7, 2, 11, 5, 9, 9, 3, 12) * 4), token_rows((6, 10, 4, 8, 8), seed=4)
    backend = quantized(model, measured)
    for rows in (measured, others):
        with torch.inference_mode():
            wanted = model(**padded_inputs(rows)).logits
        found = packed_logits(backend, model, rows)
        torch.testing.assert_close(found, wanted, atol=0.05 * float(wanted.abs().max()), rtol=0)
