"""The best number of tokens per batch: measured on the machine that serves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from glassloop.data.encoded_texts import EncodedText, EncodedTexts
from glassloop.data.interfaces import Texts
from glassloop.errors import no_memory

SIZES = (256, 512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536)
ENOUGH = 0.95  # of the largest number of tokens per second
MEASURED_SECONDS = 3.0
ROW_TOKENS = 64


class Measured(Protocol):
    """What is measured: the model of a predictor."""

    def encoded(self, columns: Texts) -> EncodedTexts:
        """Return texts as token ids."""

    def forward(self, rows: Sequence[EncodedText]) -> np.ndarray:
        """Return the logits of encoded texts."""


def measured_budget(
    model: Measured, max_length: int, seconds: float = MEASURED_SECONDS, clock: Callable[[], float] = time.perf_counter
) -> int:
    """Return the smallest number of tokens of a batch that reaches almost the highest speed. Small batches answer sooner.

    Args:
        model: The model.
        max_length: The most tokens of a text.
        seconds: When to stop trying larger batches.
        clock: Returns the time in seconds.
    """
    row = sample_row(model, min(ROW_TOKENS, max_length))
    speeds: dict[int, float] = {}
    began = clock()
    for size in SIZES:
        rows = [row] * max(1, size // max(1, row.num_tokens))
        try:
            times = []
            for _ in range(3):
                start = clock()
                model.forward(rows)
                times.append(clock() - start)
        except Exception as error:
            if not speeds or not no_memory(error):
                raise
            break
        speeds[size] = len(rows) * row.num_tokens / max(min(times), 1e-9)
        if clock() - began > seconds or speeds[size] < 0.8 * max(speeds.values()):
            break
    return next(size for size, speed in speeds.items() if speed >= ENOUGH * max(speeds.values()))


def sample_row(model: Measured, length: int) -> EncodedText:
    """Return a text of at most `length` tokens."""
    row = model.encoded([["a " * length]]).rows[0]
    return EncodedText({name: list(cells[:length]) for name, cells in row.inputs.items()})


def warm_up(model: Measured, budget: int, max_length: int) -> None:
    """Run batches of many sizes up to the budget, so that kernels are compiled before the first request."""
    row = sample_row(model, min(ROW_TOKENS, max_length))
    for tokens in (*range(16, 129, 16), *range(192, min(budget, 1_024) + 1, 64)):
        whole, rest = divmod(tokens, row.num_tokens)
        short = EncodedText({name: cells[:rest] for name, cells in row.inputs.items()})
        model.forward([row] * whole + [short] * (rest > 0))
