"""The graphs backend, as far as it can be tested without a GPU; tests/gpu trains with it."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from families import tiny_model

from glassloop.backends import graphs
from glassloop.backends.fast.graph_step import GraphStep
from glassloop.backends.graphs import GraphsBackend
from glassloop.backends.packed import PackedBackend
from glassloop.training.interfaces import TrainingUse


@pytest.mark.parametrize("read", [False, True])
def test_steps_are_captured_unless_gradients_are_read(read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that a step calls is not called when the step is replayed."""
    monkeypatch.setattr(graphs, "capture_stream", lambda: None)
    backend = GraphsBackend("cpu", "fp32")
    backend.use = TrainingUse((), 0.0, reads_gradients=read)
    wrapped = backend.wrap_step(lambda group, scheduler: torch.zeros(2), None, None, print)
    assert isinstance(wrapped, GraphStep) != read


def test_a_model_that_cannot_be_packed_can_still_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "capture_stream", lambda: None)
    backend = GraphsBackend("cpu", "fp32")
    assert backend.why_not(tiny_model("deberta-v2")) is None
    assert PackedBackend().why_not(tiny_model("deberta-v2")) is not None
    frozen = tiny_model()
    frozen.base_model.requires_grad_(False)
    assert backend.why_not(frozen) == "39 weights are frozen"


@pytest.mark.parametrize("change", ["hook", "forward", "class"])
def test_a_model_that_is_not_as_transformers_builds_it_is_not_captured(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replayed graph calls no Python: what a hook or a patched method does would happen once."""
    monkeypatch.setattr(graphs, "capture_stream", lambda: None)
    model = tiny_model("deberta-v2")
    if change == "hook":
        model.deberta.encoder.register_forward_hook(lambda module, args, output: None)
    elif change == "forward":
        model.forward = model.forward
    else:
        model = type("Mine", (type(model),), {})(model.config)
    assert GraphsBackend("cpu", "fp32").why_not(model) is not None


@pytest.mark.parametrize("fails", [False, True])
def test_what_comes_after_a_training_waits_for_its_stream(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that, an evaluation on a busy GPU read weights before they were copied."""
    happened: list[tuple[str, str]] = []

    class Stream:
        def __init__(self, name: str = "own") -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            happened.append((self.name, other.name))

    monkeypatch.setattr(graphs, "capture_stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream("outer"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    backend = GraphsBackend("cpu", "fp32")

    def train() -> None:
        with backend.training_context():
            happened.append(("work", "done"))
            if fails:
                raise ValueError("oh")

    with pytest.raises(ValueError, match="oh") if fails else nullcontext():
        train()
    assert happened == [("own", "outer"), ("work", "done"), ("outer", "own")]


def test_all_trainings_on_a_gpu_share_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLAS keeps a workspace for each stream: one per training would fill the GPU."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: object())
    graphs.stream_of.cache_clear()
    devices = iter([0, 0, 1])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: next(devices))
    first, second, elsewhere = (GraphsBackend("cpu", "fp32").stream for _ in range(3))
    graphs.stream_of.cache_clear()
    assert first is second
    assert first is not elsewhere
