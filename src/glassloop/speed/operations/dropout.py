"""Dropout masks for packed tokens, drawn so that a resumed run draws the same ones."""

from __future__ import annotations

import numpy as np
import torch

RATE_STEPS = 65536  # dropout rates are multiples of 1/65,536 here; kept values are scaled by the rate that was really used


class DropoutMasks:
    """Draw dropout masks. On a CPU a generator several times faster than torch's draws them, seeded by torch in each pass."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.generator: np.random.SFC64 | None = None

    def start(self) -> None:
        """Start a pass: on a CPU, draw the seed of its masks from torch's random state."""
        if self.device.type == "cpu":
            self.generator = seeded_by_torch()

    def draw(self, like: torch.Tensor, rate: float) -> torch.Tensor | None:
        """Return the factors of a tensor: 0 for dropped values, 1 / (1 - rate) for the others; None if nothing is dropped."""
        if rate <= 0.0:
            return None
        part = round(rate * RATE_STEPS)
        gain = RATE_STEPS / (RATE_STEPS - part) if part < RATE_STEPS else 0.0
        if self.device.type == "cpu":
            size = like.numel()
            self.generator = self.generator or seeded_by_torch()
            raw = self.generator.random_raw(-(-size // 4)).view(np.int16)[:size]
            kept = torch.empty(like.shape)
            torch.ge(torch.from_numpy(raw).view(like.shape), part - RATE_STEPS // 2, out=kept)
        else:
            kept = torch.rand(like.shape, device=self.device).ge_(part / RATE_STEPS)
        return kept.mul_(gain).to(like.dtype)


def seeded_by_torch() -> np.random.SFC64:
    """Return a generator with a seed from torch's random state, so that a resumed run draws the same numbers."""
    return np.random.SFC64(int(torch.randint(2**62, ())))
