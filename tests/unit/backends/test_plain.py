"""The verbs of a step and the lifecycle of a training in plain torch; with one process Accelerate computes the same."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from glassloop.backends.accelerate import AccelerateBackend, AccelerateProcesses
from glassloop.backends.plain import PlainBackend


@pytest.fixture(params=["plain", "accelerate"])
def backend(request: pytest.FixtureRequest) -> PlainBackend:
    return PlainBackend() if request.param == "plain" else AccelerateBackend(Accelerator(cpu=True))


def network() -> Any:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))


def one_step(backend: PlainBackend, max_norm: float = 0.0) -> tuple[torch.Tensor, float]:
    """The weights after a step of two batches, and the norm of its gradients."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    model, optimizer, scheduler = backend.prepare(model, optimizer, scheduler)
    for is_last in (False, True):
        with backend.forward(model, is_last=is_last):
            loss = model(backend.move(torch.ones(3, 6))).square().sum()
        backend.backward(loss)
    backend.unscale(optimizer)
    norm = backend.clip(model, max_norm)
    backend.step(optimizer)
    return torch.nn.utils.parameters_to_vector(backend.unwrap(model).parameters()).detach(), norm.item()


def by_hand(max_norm: float) -> tuple[torch.Tensor, float]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        model(torch.ones(3, 6)).square().sum().backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm or float("inf"))
    optimizer.step()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach(), norm.item()


@pytest.mark.parametrize("max_norm", [0.0, 0.5, 1e6])
def test_a_step_is_that_of_torch(backend: PlainBackend, max_norm: float) -> None:
    """Gradients are clipped unless max_norm is 0, and the returned norm is that before clipping."""
    weights, norm = one_step(backend, max_norm)
    expected, expected_norm = by_hand(max_norm)
    assert torch.equal(weights, expected)
    assert norm == expected_norm > 0.5


def test_tensors_are_moved_and_a_norm_is_that_of_all_gradients_infinite_or_not(backend: PlainBackend) -> None:
    moved = backend.move({"packed": torch.ones(2), "rows": 3, "inner": {"c": torch.zeros(1)}})
    assert moved["rows"] == 3
    assert moved["packed"].device == moved["inner"]["c"].device == backend.move(torch.ones(2)).device == backend.device
    assert torch.equal(moved["packed"], torch.ones(2))
    model = network()
    model[0].requires_grad_(False)
    model(torch.ones(3, 6)).sum().backward()
    norms = [parameter.grad.norm() for parameter in model.parameters() if parameter.grad is not None]
    assert len(norms) == 2
    torch.testing.assert_close(backend.clip(model, 0.0), torch.stack(norms).norm())
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.grad = torch.tensor([[float("inf")]])
    assert backend.clip(model, 1.0).item() == float("inf")


def test_the_precision_is_that_of_the_forward_pass_alone_and_a_skipped_step_is_no_divergence() -> None:
    for precision, kind in [("fp32", torch.float32), ("bf16", torch.bfloat16)]:
        backend, layer = PlainBackend("cpu", precision), torch.nn.Linear(2, 2)
        if precision == "bf16":
            layer.forward = lambda rows: torch.empty(1, dtype=torch.get_autocast_dtype("cpu"))  # no kernel: they may kill us
        with backend.forward(layer):
            assert torch.is_autocast_enabled("cpu") is (precision == "bf16")
            assert layer(torch.ones(1, 2)).dtype == kind
        assert not torch.is_autocast_enabled("cpu")
        assert not backend.scaler.is_enabled()
    # Every 2,000 steps it doubles its scale until something overflows: in a long run that is certain to happen.
    backend, model = PlainBackend("cpu", "fp16"), torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    before, scale = model.weight.item(), backend.scaler.get_scale()
    norms = []
    for size in (1e38, 2.0):  # times the scale of 65,536: beyond the largest float, and well within
        backend.backward(model.weight.sum() * size)
        backend.unscale(optimizer)
        norms.append(backend.clip(model, 1.0).item())
        backend.step(optimizer)
        optimizer.zero_grad()
        if size == 1e38:
            assert model.weight.item() == before
            assert backend.scaler.get_scale() == scale / 2
    assert norms == [0.0, 2.0]
    assert model.weight.item() == pytest.approx(before - 0.5, abs=1e-5)


def test_one_process_never_waits(backend: PlainBackend) -> None:
    single = backend.processes
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

    device, mixed_precision, num_processes = torch.device("cpu"), "no", 2

    def __init__(self, rank: int) -> None:
        self.process_index = rank
        self.losses: list[float] = []

    def backward(self, loss: torch.Tensor) -> None:
        self.losses.append(loss.item())

    def reduce(self, figures: torch.Tensor, reduction: str) -> torch.Tensor:
        assert reduction == "sum"
        return figures * 10

    def gather(self, signal: torch.Tensor) -> torch.Tensor:
        return torch.cat([signal, torch.tensor([15])])


def test_several_processes_add_up_losses_and_gradients_agree_on_signals_and_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in [0, 1]:
        found = AccelerateProcesses(Several(rank))
        assert (found.rank, found.num_processes, found.is_main) == (rank, 2, rank == 0)
        figures = torch.tensor([[0.25, 7.0], [0.5, 8.0]])
        assert found.gather_figures(figures).tolist() == [[2.5, 7.0], [5.0, 8.0]]  # each process has the norm of all gradients
        assert found.agree(0) == 15
    # Processes average gradients, so each loss, a share of the mean over all examples, is multiplied by their number.
    backend = AccelerateBackend(Several(1))
    assert isinstance(backend.processes, AccelerateProcesses)
    backend.backward(torch.tensor(0.25))
    assert backend.accelerator.losses == [0.5]
    happened: list[str] = []
    monkeypatch.setattr(torch.distributed, "barrier", lambda: happened.append("wait"))
    for rank, order in [(0, ["block", "wait"]), (1, ["wait", "block"])]:
        happened.clear()
        with AccelerateProcesses(Several(rank)).main_first():
            happened.append("block")
        assert happened == order


def test_every_verb_takes_the_same_arguments_in_both_backends() -> None:
    for name, verb in vars(PlainBackend).items():
        if inspect.isfunction(verb) and not name.startswith("_"):
            theirs = inspect.signature(getattr(AccelerateBackend, name))
            assert [*inspect.signature(verb).parameters] == [*theirs.parameters], name
