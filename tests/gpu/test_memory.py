"""Trainings in one process leave nothing on the GPU but the workspace of cuBLAS. Skipped elsewhere."""

from __future__ import annotations

import pytest
import torch
from memory_of_trainings import memory_after_each

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")


@pytest.mark.parametrize("family", ["bert", "modernbert", "deberta-v2"])
def test_ten_trainings_leave_the_memory_of_one(family: str) -> None:
    found = memory_after_each(10, "auto", family, "cuda")
    grown = max(each["on_device"] for each in found) - found[0]["on_device"]
    assert grown < 1_000_000, "one of these models has 16 MB of weights"
    assert found[-1]["tensors"] < 1_000_000
