"""How a metric is computed: rows of any form become arrays, wrong ones are named, and undefined values are 0 with a note."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from glassloop.base.errors import DataError, SettingsError
from glassloop.scores.metrics import VALUES, averaged, checked_rows, numbers_of, one_of

RIGHT = (np.array([1, 0, 1, 1]), np.array([1, 0, 1, 1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_tensors_lists_and_arrays_are_numbers(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[1, 0], [0, 1]], dtype=dtype)
    for values in (tensor, [*tensor], tensor.tolist(), tensor.float().numpy()):
        assert numbers_of(values, "predictions").tolist() == [[1, 0], [0, 1]]


def test_a_wrong_row_is_counted_from_the_first_batch() -> None:
    with pytest.raises(DataError, match=r"references row 5 \(from 0\) is nan, but mse takes one finite number per row"):
        checked_rows([0.5, float("nan")], "references", "scores", "mse", [RIGHT])


@pytest.mark.parametrize("key", VALUES)
def test_predictions_that_are_all_right_have_the_best_value(key: str) -> None:
    rows = tuple(np.stack([side, 1 - side], axis=1) for side in RIGHT) if key in ("f1_samples", "exact_match") else RIGHT
    assert VALUES[key](key, rows, []) == pytest.approx(0.0 if key == "mse" else 1.0)


def test_a_class_that_never_occurs_is_0_with_a_note() -> None:
    notes: list[str] = []
    assert averaged("f1", RIGHT, notes, average="macro", labels=[0, 1, 2]) == pytest.approx(2 / 3)
    assert notes == ["f1 is undefined for a class with no prediction and no reference; counted as 0"]


def test_a_name_that_is_not_known_offers_the_nearest() -> None:
    with pytest.raises(SettingsError, match='"makro" is not a known average; did you mean "macro"'):
        one_of("makro", ("macro", "micro"), "average")
