"""Small functions and values that libraries no longer have, with what they returned."""

from __future__ import annotations

import collections.abc
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from glassloop.metric_values import Array

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR

# Of torch._six.
string_classes = (str, bytes)
int_classes = int
container_abcs = collections.abc
inf, nan = math.inf, math.nan
PY3, PY37 = True, True


def is_never_available() -> bool:
    """Return False: transformers no longer works with this library."""
    return False


def is_offline_mode() -> bool:
    """Return whether the hub may not be asked."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def send_example_telemetry(*arguments: object, **named: object) -> None:
    """Do nothing. The former function sent the name of an example script to the hub.

    Args:
        *arguments: Accepted for compatibility.
        **named: Accepted for compatibility.
    """


def warmup_linear_schedule(optimizer: Optimizer, warmup_steps: int, t_total: int, last_epoch: int = -1) -> LambdaLR:
    """Return a learning rate schedule that rises linearly, then falls linearly to 0.

    Args:
        optimizer: The optimizer.
        warmup_steps: The steps in which the learning rate rises.
        t_total: All steps.
        last_epoch: The last step before a resume.
    """
    from transformers import get_linear_schedule_with_warmup

    found: LambdaLR = get_linear_schedule_with_warmup(optimizer, warmup_steps, t_total, last_epoch)
    return found


def warmup_constant_schedule(optimizer: Optimizer, warmup_steps: int, last_epoch: int = -1) -> LambdaLR:
    """Return a learning rate schedule that rises linearly, then stays.

    Args:
        optimizer: The optimizer.
        warmup_steps: The steps in which the learning rate rises.
        last_epoch: The last step before a resume.
    """
    from transformers import get_constant_schedule_with_warmup

    found: LambdaLR = get_constant_schedule_with_warmup(optimizer, warmup_steps, last_epoch)
    return found


def pad_sequences(
    sequences: Sequence[Sequence[float]],
    maxlen: int | None = None,
    dtype: str = "int32",
    padding: str = "pre",
    truncating: str = "pre",
    value: float = 0.0,
) -> Array:
    """Return rows of different lengths as one array, as keras did.

    Args:
        sequences: The rows.
        maxlen: The length of all rows. Default: that of the longest.
        dtype: The type of the numbers.
        padding: Where to add values: "pre" or "post".
        truncating: Where to cut: "pre" or "post".
        value: What to add.
    """
    length = max(map(len, sequences), default=0) if maxlen is None else maxlen
    found = np.full((len(sequences), length), value, dtype=dtype)
    for row, numbers in zip(found, sequences, strict=True):
        kept = numbers[:length] if truncating == "post" else numbers[max(len(numbers) - length, 0) :]
        if len(kept):
            row[slice(None, len(kept)) if padding == "post" else slice(length - len(kept), None)] = kept
    return found
