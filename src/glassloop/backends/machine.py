"""Examine this machine: Python, packages, devices, bf16, the packaged model, the hub, data, disk and GPU memory.

Importing this module imports neither torch nor the models.
"""

from __future__ import annotations

import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from glassloop.base.errors import GlassloopError, counted
from glassloop.base.files import cache_dir, path_problem, user_path
from glassloop.base.network import hub_unreachable
from glassloop.base.records import package_version
from glassloop.settings.training import launched_processes

GOOD, FAIR, BAD = "good", "fair", "bad"
LEAST_FREE_BYTES = 5 * 1024**3
BF16_SECONDS = 60
# Times a matrix multiplication in fp32 and in bf16 after a warm-up. It runs in a child process, which bf16 may kill.
BF16_TRIAL = """
import sys, time, torch
device = sys.argv[1]
width = 4096 if device == "cuda" else 512
def seconds(kind):
    left, right = (torch.randn(width, width, device=device).to(kind) for _ in range(2))
    best = float("inf")
    for turn in range(8):
        began = time.perf_counter()
        out = left @ right
        torch.nn.functional.layer_norm(out, (width,))
        out.float().sum().item()
        best = min(best, time.perf_counter() - began) if turn else best
    return best
print("\\ngain", seconds(torch.float32) / seconds(torch.bfloat16))
"""


@dataclass(frozen=True)
class Finding:
    """One fact about this machine, its state (good, fair or bad), and what to do."""

    name: str
    state: str
    found: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Return all findings, the essential ones first. Never raise."""
    packages = [package_found(name) for name in ("torch", "transformers", "datasets", "accelerate")]
    of_machine = [device_found(), bf16_found(), model_found(), hub_found(), data_found(), disk_found()]
    return [python_found(), *packages, *of_machine]


def python_found() -> Finding:
    good = sys.version_info >= (3, 11)
    return Finding("Python", GOOD if good else BAD, platform.python_version(), "" if good else "install Python 3.11 or newer")


def package_found(name: str) -> Finding:
    found = package_version(name)
    return Finding(name, GOOD, found) if found else Finding(name, BAD, "not installed", f"pip install {name}")


def device_found() -> Finding:
    try:
        import torch
    except (ImportError, OSError) as error:
        return Finding("device", BAD, f"torch cannot be imported: {error}", "pip install torch")
    if torch.cuda.is_available():
        names = {torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())}
        return Finding("device", GOOD, f"{torch.cuda.device_count()} × {', '.join(sorted(names))}, CUDA {torch.version.cuda}")
    if torch.backends.mps.is_available():
        return Finding("device", GOOD, "Apple GPU (mps)")
    why, remedy = "no usable GPU or driver", "check nvidia-smi"
    if torch.version.cuda is None:
        why, remedy = "this torch is built without CUDA", "fine for small models; to use a GPU, install torch with CUDA"
    return Finding("device", FAIR, f"CPU only, {counted(torch.get_num_threads(), 'thread', 'threads')} ({why})", remedy)


def bf16_found() -> Finding:
    """Return whether bf16 works and how fast. A child process tests it: some machines end it with an illegal instruction."""
    try:
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        command = [sys.executable, "-c", BF16_TRIAL, device]
        trial = subprocess.run(command, capture_output=True, text=True, timeout=BF16_SECONDS, check=False)
    except (ImportError, OSError, subprocess.TimeoutExpired) as error:
        return Finding("bf16", FAIR, f"could not be tested ({type(error).__name__})", "train in fp32")
    advice = "train in fp32, as precision auto does"
    if trial.returncode < 0:
        number = -trial.returncode
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return Finding("bf16", FAIR, f"kills the process ({name}), although the CPU reports support", advice)
    said = trial.stdout.split()[-2:]
    if trial.returncode or said[:1] != ["gain"]:
        reason = (trial.stderr.strip().splitlines() or ["no reason given"])[-1][:100]
        return Finding("bf16", FAIR, f"fails: {reason}", "train in fp32")
    gain = float(said[1])
    if gain < 1:
        return Finding("bf16", FAIR, f"works on the {device}, {1 / gain:.1f} times slower than fp32", advice)
    return Finding("bf16", GOOD, f"works on the {device}, {gain:.1f} times as fast as fp32")


def model_found() -> Finding:
    from glassloop.models.loading import quickstart_model

    try:
        return Finding("packaged model", GOOD, f"all-MiniLM-L6-v2, checksum correct ({quickstart_model().name}/)")
    except GlassloopError as error:
        return Finding("packaged model", FAIR, error.problem, error.remedy)


def hub_found() -> Finding:
    if reason := hub_unreachable():
        return Finding("model hub", FAIR, f"not reachable ({reason})", "use local models and data, or quickstart")
    return Finding("model hub", GOOD, "reachable")


def data_found() -> Finding:
    name, advice = "GLASSLOOP_DATA", "set it to a folder that contains glue/MRPC/"
    place = os.environ.get(name)
    if not place:
        return Finding(name, GOOD, "not set", f"{advice} to use local GLUE files")
    if (problem := path_problem(place)) is not None:
        return Finding(name, BAD, f"{place}: {problem}", advice)
    if (user_path(place) / "glue").is_dir():
        return Finding(name, GOOD, place)
    return Finding(name, FAIR, f"{place} contains no folder glue", advice)


def disk_found() -> Finding:
    try:
        folder = cache_dir()
    except GlassloopError as error:
        return Finding("disk", BAD, error.problem, error.remedy)
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        problem = f"{existing} cannot be written to"
        return Finding("disk", BAD, problem, "set GLASSLOOP_CACHE to a folder that can be written to")
    free = shutil.disk_usage(existing).free
    used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.exists() else 0
    text = f"{free / 1024**3:.0f} GiB free; the cache {folder} uses {used / 1024**2:,.0f} MiB"
    return Finding("disk", GOOD, text) if free > LEAST_FREE_BYTES else Finding("disk", FAIR, text, "free some disk space")


def may_have_gpu() -> bool:
    """Return whether the driver of NVIDIA is loaded. It takes no time to ask, unlike torch."""
    return Path("/dev/nvidiactl").exists()


def open_gpu_early(device: str) -> None:
    """Open the GPU that a run on this device will use, in a thread, while the run imports modules and reads rows."""
    # Creating the CUDA context takes up to a second, in which the driver does not hold Python's lock. Of several processes,
    # each opens its own GPU later; a process that forks must never do this.
    if device in ("auto", "cuda") and may_have_gpu() and launched_processes() == 1:
        import torch  # here, because two threads that import the same modules would wait for each other

        def open_gpu() -> None:
            with suppress(Exception):  # the run gets the same error when it uses the GPU, and reports it
                if torch.cuda.is_available():
                    torch.zeros(1, device="cuda")

        threading.Thread(target=open_gpu, daemon=True).start()


# Another process asks for the free memory of each GPU, so that this one takes none of it.
MOST_RUNS_AT_ONCE = 8
# One more worker takes longer to start than it saves, unless it has at least so many steps to train: on an H200, it starts in
# about 15 seconds, in which a small model trains some thousand steps. What a run does besides takes as long as 500 of them.
STEPS_PER_WORKER, STEPS_BESIDES = 5_000, 500
FREE_MEMORY = "import torch; print(*(torch.cuda.mem_get_info(gpu)[0] for gpu in range(torch.cuda.device_count())))"


def memory_need(num_parameters: int, num_tokens: float) -> float:
    """Return a generous estimate of the bytes of GPU memory that a run needs."""
    # The CUDA context and its libraries, 24 bytes per weight (the weight, its gradient, two moments of AdamW, copies), and
    # the activations of fp32 layers: for hidden sizes of 384 to 1,024, up to 2.3 % of the weights per token.
    return 2 * 2**30 + 24 * num_parameters + num_tokens * max(0.025 * num_parameters, 2**16)


def runs_on_gpus(num_gpus: int, need: float, num_runs: int, num_steps: int) -> list[int]:
    """Return how many runs of `need` bytes to train at the same time on each GPU; one in all where none has enough memory."""
    share = num_runs * (num_steps + STEPS_BESIDES) // num_gpus
    most = max(1, min(MOST_RUNS_AT_ONCE, (os.cpu_count() or 1) // num_gpus, share // STEPS_PER_WORKER))
    if (num_gpus, most) == (1, 1):
        return [1]
    asked = subprocess.run([sys.executable, "-c", FREE_MEMORY], capture_output=True, encoding="utf-8", check=False)
    words = asked.stdout.split() if asked.returncode == 0 else []
    known = [int(word) for word in words] if all(word.isdigit() for word in words) else []
    free = [*known, *[0] * num_gpus][:num_gpus]
    found = [min(most, math.floor(0.9 * one / need)) for one in free]
    return found if any(found) else [int(place == free.index(max(free))) for place in range(num_gpus)]
