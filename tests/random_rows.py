"""A data set as people write it for augmentation: each reading draws other words and another length."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from families import VOCABULARY


def any_word(kind: str) -> int:
    """A random word id from one of the global generators."""
    first, last = 5, len(VOCABULARY) - 1
    if kind == "python":
        return random.randint(first, last)
    if kind == "numpy":
        return int(np.random.randint(first, last + 1))
    return int(torch.randint(first, last + 1, ()))


class Augmented(torch.utils.data.Dataset):
    """Rows of few words; each reading puts random ones in their place and cuts a random number of them."""

    def __init__(self, kind: str = "torch", seed: int | None = None) -> None:
        self.kind, self.generator = kind, None if seed is None else random.Random(seed)
        self.reads = 0

    def __len__(self) -> int:
        return 21

    def __getitem__(self, number: int) -> dict[str, Any]:
        self.reads += 1
        draw = (lambda: self.generator.randint(5, len(VOCABULARY) - 1)) if self.generator else (lambda: any_word(self.kind))
        words = [draw() if place % 2 else 7 for place in range(3 + number % 4 + draw() % 3)]
        return {"input_ids": [2, *words, 3], "labels": number % 2}
