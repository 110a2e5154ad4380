"""The Accelerate backend: the verbs of the plain one, with several processes; test_plain.py compares their numbers."""

from __future__ import annotations

import inspect

import torch

from glassloop.backends.accelerate import AccelerateBackend, AccelerateProcesses
from glassloop.backends.plain import PlainBackend

VERBS = [name for name, value in vars(PlainBackend).items() if inspect.isfunction(value) and not name.startswith("_")]


def test_every_verb_takes_the_same_arguments_in_both_backends() -> None:
    for name in VERBS:
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (PlainBackend, AccelerateBackend))
        assert [*ours.parameters] == [*theirs.parameters], name


class Several:
    """An accelerator of two processes, of which this is the second, as far as the backend uses it."""

    device, mixed_precision, process_index, num_processes = torch.device("cpu"), "no", 1, 2

    def __init__(self) -> None:
        self.losses: list[float] = []

    def backward(self, loss: torch.Tensor) -> None:
        self.losses.append(loss.item())


def test_with_several_processes_gradients_are_sums() -> None:
    """Processes average gradients, so each loss, a share of the mean over all examples, is multiplied by their number."""
    backend = AccelerateBackend(Several())
    assert isinstance(backend.processes, AccelerateProcesses)
    assert (backend.processes.rank, backend.processes.num_processes) == (1, 2)
    backend.backward(torch.tensor(0.25))
    assert backend.accelerator.losses == [0.5]
