"""Whether this machine can run int8 layers, and tiny models that were quantized: for the tests of predictions in int8."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from packs import inputs_of

from glassloop.backends.fast.inference_model import why_no_kernels
from glassloop.backends.packed import Int8Backend

needs_kernels = pytest.mark.skipif(why_no_kernels() is not None, reason=f"no int8 on this CPU: {why_no_kernels()}")


def packed_logits(backend: Int8Backend, model: Any, rows: list[np.ndarray]) -> torch.Tensor:
    """The logits of rows on a backend."""
    with torch.inference_mode(), backend.evaluation_context(model):
        found: torch.Tensor = model(**inputs_of(model, rows)).logits
    return found


def quantized(model: Any, rows: list[np.ndarray]) -> Int8Backend:
    """A backend that has measured a model on rows and runs it in int8."""
    backend = Int8Backend()
    packed_logits(backend, model, rows)
    backend.quantize()
    return backend
