"""Backends: the same few verbs said in plain torch and said to Accelerate, with the same numbers."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from glassloop.backends.accelerate import AccelerateBackend
from glassloop.backends.plain import PlainBackend

VERBS = [name for name, value in vars(PlainBackend).items() if inspect.isfunction(value) and not name.startswith("_")]


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
    """Clipped where asked for, and the norm told is that before clipping; 0 never clips."""
    weights, norm = one_step(backend, max_norm)
    expected, expected_norm = by_hand(max_norm)
    assert torch.equal(weights, expected)
    assert norm == expected_norm > 0.5


def test_a_parameter_without_a_gradient_is_left_out_of_the_norm(backend: PlainBackend) -> None:
    model = network()
    model[0].requires_grad_(False)
    model(torch.ones(3, 6)).sum().backward()
    norms = [parameter.grad.norm() for parameter in model.parameters() if parameter.grad is not None]
    assert len(norms) == 2
    torch.testing.assert_close(backend.clip(model, 0.0), torch.stack(norms).norm())


def test_what_one_process_is(backend: PlainBackend) -> None:
    assert (backend.rank, backend.num_processes, backend.is_main) == (0, 1, True)
    assert backend.device.type == "cpu"
    assert backend.precision == "fp32"
    figures = torch.tensor([[1.0, 2.0]])
    assert backend.gather_figures(figures) is figures
    rows = [("a", 1)]
    assert backend.gather_objects(rows) == rows
    backend.wait()
    with backend.main_first():
        pass


def test_tensors_are_moved_one_by_one_or_by_name(backend: PlainBackend) -> None:
    moved = backend.move({"a": torch.ones(2), "b": {"c": torch.zeros(1)}})
    assert moved["a"].device == moved["b"]["c"].device == backend.device
    assert torch.equal(backend.move(torch.ones(2)), torch.ones(2))


@pytest.mark.parametrize(("precision", "kind"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_precision_is_that_of_the_forward_pass_alone(precision: str, kind: torch.dtype) -> None:
    backend, layer = PlainBackend("cpu", precision), torch.nn.Linear(2, 2)
    if precision == "bf16":
        layer.forward = lambda rows: torch.empty(1, dtype=torch.get_autocast_dtype("cpu"))  # no kernel: they may kill us
    with backend.forward(layer):
        assert torch.is_autocast_enabled("cpu") is (precision == "bf16")
        assert layer(torch.ones(1, 2)).dtype == kind
    assert not torch.is_autocast_enabled("cpu")
    assert not backend.scaler.is_enabled()


def test_a_step_that_fp16s_scaler_leaves_out_is_no_divergence() -> None:
    """Every 2,000 steps it doubles its scale until something overflows: in a long run that is certain to happen."""
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


def test_in_other_precisions_an_infinite_norm_is_told(backend: PlainBackend) -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.grad = torch.tensor([[float("inf")]])
    assert backend.clip(model, 1.0).item() == float("inf")


def test_an_unknown_precision_is_our_own_fault() -> None:
    with pytest.raises(KeyError):
        PlainBackend("cpu", "fp8")


def test_every_verb_of_one_is_a_verb_of_the_other() -> None:
    for name in VERBS:
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (PlainBackend, AccelerateBackend))
        assert [*ours.parameters] == [*theirs.parameters], name


class Several:
    """An accelerator of two processes, of which this is the second, as far as the backend asks it."""

    device, mixed_precision, process_index, num_processes = torch.device("cpu"), "no", 1, 2

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.unsynced = 0

    def backward(self, loss: torch.Tensor) -> None:
        self.losses.append(loss.item())

    def reduce(self, figures: torch.Tensor, reduction: str) -> torch.Tensor:
        assert reduction == "sum"
        return figures * 10


def test_with_several_processes_gradients_are_sums_and_losses_are_added_up() -> None:
    """Processes average gradients, so each loss, a share of the mean over all examples, is multiplied by their number."""
    backend = AccelerateBackend(Several())
    assert (backend.rank, backend.num_processes, backend.is_main) == (1, 2, False)
    backend.backward(torch.tensor(0.25))
    assert backend.accelerator.losses == [0.5]
    figures = torch.tensor([[0.25, 7.0], [0.5, 8.0]])
    assert backend.gather_figures(figures).tolist() == [[2.5, 7.0], [5.0, 8.0]]  # norms are of all processes already
