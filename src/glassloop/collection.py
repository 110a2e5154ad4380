"""Pause Python's garbage collection while very many objects are made: it would walk over all of them many times."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Run the block without garbage collection of cycles, unless it was off before. Other memory is freed as usual."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
