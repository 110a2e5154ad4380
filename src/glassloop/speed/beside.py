"""A second stream of the GPU, in which gradients of weights are computed beside the way back, which never waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

MOST_BEHIND = 2  # layers whose work may be unfinished: what it reads is kept so long


class Beside:
    """Work that waits for the current stream, not the other way round, until `join`."""

    def __init__(self) -> None:
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.read: list[torch.Tensor] = []
        self.behind: list[tuple[Any, list[torch.Tensor]]] = []

    @contextmanager
    def work(self, *read: torch.Tensor) -> Iterator[None]:
        """Inside, work goes to the second stream; the memory of what it reads is given back only after it is done."""
        self.stream.wait_stream(torch.cuda.current_stream())
        self.read += read
        with torch.cuda.stream(self.stream):
            yield

    def end_of_layer(self) -> None:
        self.behind.append((self.stream.record_event(), self.read))
        self.read = []
        if len(self.behind) > MOST_BEHIND:
            event, _ = self.behind.pop(0)
            torch.cuda.current_stream().wait_event(event)

    def join(self) -> None:
        """The current stream waits for all of it."""
        torch.cuda.current_stream().wait_stream(self.stream)
        self.read.clear()
        self.behind.clear()
