"""Rows that the tests of a training share, and a training of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from small_training import small_rows, trained


@pytest.fixture(scope="module")
def rows() -> Dataset:
    return small_rows(21)


@pytest.fixture
def train(rows: Dataset, tiny_tokenizer: Any, tmp_path: Path) -> Callable[..., Any]:
    """Trains into the folder of the test, or one in it; twelve steps with a checkpoint every three; settings override."""
    return lambda name="", rows=rows, **settings: trained(tmp_path / name, rows, tiny_tokenizer, **settings)
