"""Keep the threads of parallel operations on cores of their own while a server runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Set

BINDING = "OMP_PROC_BIND"
# Whoever sets one of these has decided how many threads there are, and where they run.
CHOICES = (BINDING, "OMP_NUM_THREADS", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def bind_threads() -> Set[int]:
    """Let OpenMP bind each of its threads to a core. Return the cores that this process may use; none if nothing changes.

    Call it before torch is imported. On a machine with few cores, the threads of a small operation otherwise often share a core
    for some milliseconds, because clients and the server itself run on the other one.
    """
    if not hasattr(os, "sched_getaffinity") or "torch" in sys.modules or any(os.environ.get(name) for name in CHOICES):
        return set()
    os.environ[BINDING] = "true"
    return os.sched_getaffinity(0)


def free_thread(cores: Set[int]) -> None:
    """Let the calling thread, which OpenMP has bound with its own, run on all of these cores again."""
    if cores:
        os.sched_setaffinity(0, cores)
