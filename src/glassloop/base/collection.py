"""Spare Python's garbage collection walks over very many objects: while they are made, and when they are there to stay."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Run the block without garbage collection of cycles, unless it was off before. Other memory is freed as usual."""
    # The collector walks over all objects of all modules several times, which takes half a second of three. Importing
    # in a thread gains nothing: imports hold the interpreter lock.
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def freeze_objects() -> None:
    """Free what is not used any more, and let later collections ignore everything that exists now."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # Python frees no frozen object when it exits, and Triton's bindings report each one as a leak
