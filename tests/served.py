"""A service for tests of the server: a real predictor of a run, or one whose every step is written down."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from glassloop.data.encoding import EncodedText, EncodedTexts
from glassloop.serve.app import Service
from glassloop.serve.batching import Batcher, Meters
from glassloop.serve.hosted import load_hosted
from glassloop.serve.limits import Limits


class CountingModel:
    """Answers each text with its number of words, and notes the batches."""

    max_length, towers = 128, False

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.failing = False

    def encoded(self, columns: list[list[str]]) -> EncodedTexts:
        return EncodedTexts([EncodedText({"input_ids": [7] * len(text.split())}) for text in columns[0]])

    def forward(self, rows: Sequence[EncodedText]) -> np.ndarray:
        self.batches.append([row.num_tokens for row in rows])
        if self.failing or any(row.num_tokens == 13 for row in rows):
            raise RuntimeError("a text that must not be shown")
        return np.array([[row.num_tokens, 0.0] for row in rows])


def start(stack: ExitStack, batcher: Batcher) -> Thread:
    """Run a queue in a thread; the end of the stack waits until everything is answered."""
    thread = Thread(target=batcher.run)
    thread.start()
    stack.callback(thread.join)
    stack.callback(batcher.end)
    return thread


def make_service(stack: ExitStack, runs: Sequence[Path], limits: Limits | None = None, **given: Any) -> Service:
    """Return a running service for some runs; the end of the stack closes it."""
    hosted = load_hosted([str(run) for run in runs], "cpu")
    service = Service(hosted, Batcher([one.predictor for one in hosted], 256, Meters()), limits or Limits(), **given)
    start(stack, service.batcher)
    return service
