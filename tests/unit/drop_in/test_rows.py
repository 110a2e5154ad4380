"""Rows that are padded already are stacked; others need a tokenizer."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from glassloop.drop_in.rows import stacked
from glassloop.errors import SettingsError


def test_rows_of_one_length_are_stacked() -> None:
    rows = [{"input_ids": [1, 2], "text": "a", "label": 0}, {"input_ids": np.array([3, 4]), "text": "b", "label": 1}]
    batch = stacked(rows)
    assert {name: value.tolist() for name, value in batch.items()} == {"input_ids": [[1, 2], [3, 4]], "labels": [0, 1]}


def test_objects_with_attributes_are_rows_too() -> None:
    batch = stacked([SimpleNamespace(input_ids=torch.tensor([1, 2]), labels=0.5)])
    assert batch["labels"].dtype == torch.float32


def test_rows_of_several_lengths_need_a_tokenizer() -> None:
    with pytest.raises(SettingsError, match="different lengths of input_ids"):
        stacked([{"input_ids": [1]}, {"input_ids": [1, 2]}])
