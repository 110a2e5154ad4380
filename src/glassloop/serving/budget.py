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
    length = min(ROW_TOKENS, max_length)
    row = model.encoded([["a " * length]]).rows[0]
    row = EncodedText({name: list(cells[:length]) for name, cells in row.inputs.items()})
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
