"""Rows that the tests of a training share."""

from __future__ import annotations

import pytest
from datasets import Dataset
from small_training import small_rows


@pytest.fixture(scope="module")
def rows() -> Dataset:
    return small_rows(21)
