"""How much GPU memory a run needs, and how many runs fit on a GPU at the same time."""

from __future__ import annotations

import math
import os
import subprocess
import sys

MOST_RUNS_AT_ONCE = 8
FREE_MEMORY = "import torch; print(torch.cuda.mem_get_info()[0])"


def memory_need(num_parameters: int, num_tokens: float) -> float:
    """Return a generous estimate of the bytes of GPU memory that a run needs.

    It counts the CUDA context and its libraries, 24 bytes per weight (the weight, its gradient, two moments of AdamW,
    copies), and the activations of fp32 layers: for hidden sizes of 384 to 1,024, up to 2.3 % of the weights per token.
    """
    return 2 * 2**30 + 24 * num_parameters + num_tokens * max(0.025 * num_parameters, 2**16)


def runs_at_once(device: str, need: float) -> int:
    """Return how many runs of `need` bytes to train at the same time: as many as fit on a GPU, elsewhere one.

    Another process asks for the free memory, so that this one takes none of it.
    """
    if device != "cuda":
        return 1
    asked = subprocess.run([sys.executable, "-c", FREE_MEMORY], capture_output=True, encoding="utf-8", check=False)
    free = int(asked.stdout) if asked.returncode == 0 and asked.stdout.strip().isdigit() else 0
    return max(1, min(MOST_RUNS_AT_ONCE, os.cpu_count() or 1, math.floor(0.9 * free / need)))
