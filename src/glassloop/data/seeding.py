"""Seed all random number generators, and preserve their states."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed the random number generators of Python, NumPy and torch (all devices).

    Args:
        seed: The random seed.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextmanager
def random_states_kept(device: torch.device | None = None, seed: int | None = None) -> Iterator[None]:
    """Restore the global random number generators, and that of `device`, at the end of the block.

    Args:
        device: A device whose generator is restored too.
        seed: Random seed for the generators on the CPU inside the block. Default: leave them as they are.
    """
    python, numpy = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if device is not None and device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices):
            if seed is not None:
                random.seed(seed)
                np.random.seed(seed % 2**32)
                torch.default_generator.manual_seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
