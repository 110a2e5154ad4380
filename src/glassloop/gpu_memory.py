"""How much GPU memory a run needs, and how many runs fit on a GPU at the same time."""

from __future__ import annotations

import math
import os
import subprocess
import sys

MOST_RUNS_AT_ONCE = 8
FREE_MEMORY = "import torch; print(*(torch.cuda.mem_get_info(gpu)[0] for gpu in range(torch.cuda.device_count())))"


def memory_need(num_parameters: int, num_tokens: float) -> float:
    """Return a generous estimate of the bytes of GPU memory that a run needs.

    It counts the CUDA context and its libraries, 24 bytes per weight (the weight, its gradient, two moments of AdamW,
    copies), and the activations of fp32 layers: for hidden sizes of 384 to 1,024, up to 2.3 % of the weights per token.
    """
    return 2 * 2**30 + 24 * num_parameters + num_tokens * max(0.025 * num_parameters, 2**16)


def runs_at_once(device: str, need: float) -> int:
    """Return how many runs of `need` bytes to train at the same time: as many as fit on the first GPU, elsewhere one."""
    return runs_on_gpus(1, need)[0] if device == "cuda" else 1


def runs_on_gpus(num_gpus: int, need: float) -> list[int]:
    """Return how many runs of `need` bytes to train at the same time on each GPU.

    A GPU without enough free memory gets none. If none has enough, one run is tried on the one with the most.
    """
    free = [*free_memory(), *[0] * num_gpus][:num_gpus]
    most = max(1, min(MOST_RUNS_AT_ONCE, (os.cpu_count() or 1) // num_gpus))
    found = [min(most, math.floor(0.9 * one / need)) for one in free]
    return found if any(found) else [int(place == free.index(max(free))) for place in range(num_gpus)]


def free_memory() -> list[int]:
    """Return the free bytes of each GPU; empty if they are not known.

    Another process asks for them, so that this one takes none of the memory.
    """
    asked = subprocess.run([sys.executable, "-c", FREE_MEMORY], capture_output=True, encoding="utf-8", check=False)
    words = asked.stdout.split() if asked.returncode == 0 else []
    return [int(word) for word in words] if all(word.isdigit() for word in words) else []
