"""What is random: which rows form which batch, as a pure function of seed, epoch and data, and the global generators."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from glassloop.base.errors import SettingsError

if TYPE_CHECKING:
    import torch


POOL_BATCHES = 50  # length grouping sorts this many batches' worth of shuffled rows at a time


def epoch_order(
    num_examples: int,
    batch_size: int,
    *,
    seed: int | None,
    epoch: int = 0,
    lengths: np.ndarray | None = None,
    drop_last: bool = False,
) -> list[np.ndarray]:
    """Return which rows form which batch of an epoch. The same arguments always give the same order.

    Args:
        num_examples: Number of rows of the data set.
        batch_size: Number of rows of a batch, over all processes.
        seed: Random seed of the order. None keeps the order of the data.
        epoch: Number of the epoch, from 0. Each epoch has its own order.
        lengths: Number of tokens of each row. With it, rows of similar length share a batch: shuffled rows are sorted by length
            within pools of 50 batches, then whole batches are shuffled. A short batch stays the last one.
        drop_last: Whether to drop a last batch that is not full.

    Returns:
        One array of row numbers for each batch.

    Raises:
        SettingsError: If `batch_size` is less than 1.
    """
    # default_rng((seed, epoch)): no two pairs share an order, as they would with seed + epoch, and the line can be
    # copied into any script.
    if batch_size < 1:
        raise SettingsError(f"the batch size is {batch_size}", "use a whole number of 1 or more")
    order = np.arange(num_examples)
    random = None if seed is None else np.random.default_rng((seed, epoch))
    if random is not None:
        order = random.permutation(num_examples)
    if lengths is not None:
        pool = batch_size * POOL_BATCHES if random is not None else max(num_examples, 1)
        pools = [order[start : start + pool] for start in range(0, num_examples, pool)]
        order = np.concatenate([rows[np.argsort(-lengths[rows], kind="stable")] for rows in pools] or [order])
    batches = [order[start : start + batch_size] for start in range(0, num_examples, batch_size)]
    short = [batches.pop()] if num_examples % batch_size else []
    if lengths is not None and random is not None:
        batches = [batches[place] for place in random.permutation(len(batches))]
    return batches if drop_last else batches + short


def padding_waste(lengths: np.ndarray, order: Sequence[np.ndarray], multiple: int = 1) -> float:
    """Return the share of tokens that are padding, between 0 and 1.

    Args:
        lengths: Number of tokens of each row.
        order: The rows of each batch, as `epoch_order` returns them.
        multiple: Batches are padded to a multiple of this number.

    Returns:
        Padding tokens divided by all tokens of the padded batches; 0 for no batches.
    """
    padded = sum(len(rows) * padded_width(int(lengths[rows].max()), multiple) for rows in order)
    real = sum(int(lengths[rows].sum()) for rows in order)
    return 1 - real / padded if padded else 0.0


def padded_width(longest: int, multiple: int) -> int:
    """Return the width of a batch whose longest row has `longest` tokens."""
    return -(-longest // multiple) * multiple


def seed_all(seed: int) -> None:
    """Seed the random number generators of Python, NumPy and torch (all devices).

    Args:
        seed: The random seed.
    """
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextmanager
def random_states_kept(device: torch.device | None = None, seed: int | None = None) -> Iterator[None]:
    """Restore the global random number generators, and that of `device`, at the end of the block.

    Inside the block, the generators on the CPU have the `seed`, by default the state that they had.
    """
    import torch  # here, because `glassloop data` does not load it

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
