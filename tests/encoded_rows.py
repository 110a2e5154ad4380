"""Encoded rows of random lengths with every kind of label: for the tests of batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

SIZES = [(0, 4), (1, 4), (4, 4), (7, 8), (50, 1), (64, 16), (1003, 8)]  # of a data set and of a batch


def random_rows(seed: int, size: int, keys: str = "input_ids token_type_ids attention_mask", label: Any = None) -> list[dict]:
    """Encoded rows of random lengths. `label` makes the label of a row from a random generator."""
    random = np.random.default_rng(seed)
    rows = []
    for length in random.integers(1, 40, size):
        values = {
            "input_ids": random.integers(5, 100, length).tolist(),
            "token_type_ids": random.integers(0, 2, length).tolist(),
            "attention_mask": random.integers(0, 2, length).tolist(),
        }
        rows.append({key: values[key] for key in keys.split()} | (label(random) if label else {}))
    return rows


def same(found: Any, wanted: Any) -> bool:
    return sorted(found) == sorted(wanted) and all(
        found[key].dtype == wanted[key].dtype and torch.equal(found[key], wanted[key]) for key in wanted
    )


LABELS = {
    "none": None,
    "label": lambda random: {"label": int(random.integers(0, 5))},
    "labels": lambda random: {"labels": int(random.integers(0, 5))},
    "label_ids": lambda random: {"label_ids": int(random.integers(0, 5))},
    "scores": lambda random: {"label": float(random.normal())},
    "multi-hot": lambda random: {"labels": random.integers(0, 2, 3).astype(float).tolist()},
}
