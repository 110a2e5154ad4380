"""One process alone, and several that Accelerate connects."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator

from glassloop.backends.plain import AccelerateProcesses, SingleProcess, process_group
from glassloop.training.interfaces import ProcessGroup


@pytest.fixture(params=["plain", "accelerate"])
def single(request: pytest.FixtureRequest) -> ProcessGroup:
    return SingleProcess() if request.param == "plain" else process_group(Accelerator(cpu=True))


def test_one_process_never_waits(single: ProcessGroup) -> None:
    assert (single.rank, single.num_processes, single.is_main) == (0, 1, True)
    figures = torch.tensor([[1.0, 2.0]])
    assert single.gather_figures(figures) is figures
    objects = [("a", 1)]
    assert single.gather_objects(objects) == objects
    assert [single.agree(signal) for signal in (0, 15)] == [0, 15]
    single.wait()
    with single.main_first():
        pass


class Several:
    """An accelerator of two processes, of which the other one received signal 15."""

    device, num_processes = torch.device("cpu"), 2

    def __init__(self, rank: int) -> None:
        self.process_index = rank

    def reduce(self, figures: torch.Tensor, reduction: str) -> torch.Tensor:
        assert reduction == "sum"
        return figures * 10

    def gather(self, signal: torch.Tensor) -> torch.Tensor:
        return torch.cat([signal, torch.tensor([15])])


@pytest.mark.parametrize("rank", [0, 1])
def test_several_processes_add_up_losses_and_agree_on_a_signal(rank: int) -> None:
    found = process_group(Several(rank))
    assert isinstance(found, AccelerateProcesses)
    assert (found.rank, found.num_processes, found.is_main) == (rank, 2, rank == 0)
    figures = torch.tensor([[0.25, 7.0], [0.5, 8.0]])
    assert found.gather_figures(figures).tolist() == [[2.5, 7.0], [5.0, 8.0]]  # each process has the norm of all gradients
    assert found.agree(0) == 15


@pytest.mark.parametrize(("rank", "order"), [(0, ["block", "wait"]), (1, ["wait", "block"])])
def test_the_main_process_runs_a_block_first(rank: int, order: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    monkeypatch.setattr(torch.distributed, "barrier", lambda: happened.append("wait"))
    with process_group(Several(rank)).main_first():
        happened.append("block")
    assert happened == order
