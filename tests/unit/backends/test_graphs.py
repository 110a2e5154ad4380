"""The graphs backend, as far as it can be tested without a GPU; tests/gpu trains with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from families import tiny_model
from torch.utils._python_dispatch import TorchDispatchMode

from glassloop.backends import graphs
from glassloop.backends.graphs import FillOnDevice, GraphStep, copy_into, shape_of, static_copy
from glassloop.backends.packed import PackedBackend
from glassloop.data.batches import Batch
from glassloop.training.interfaces import TrainingUse


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its streams are made without a GPU."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: object())
    graphs.capture_stream.cache_clear()


def test_steps_are_captured_unless_gradients_are_read_and_of_models_as_transformers_builds_them() -> None:
    """A replayed graph calls no Python: what a function, a hook or a patched method does would happen once."""
    for read in [False, True]:
        backend = PackedBackend(captures=True)
        backend.use = TrainingUse((), 0.0, reads_gradients=read)
        wrapped = backend.wrap_step(lambda group, scheduler: torch.zeros(2), None, None, print)
        assert isinstance(wrapped, GraphStep) != read
    backend = PackedBackend(captures=True)
    assert backend.why_not(tiny_model("deberta-v2")) is None
    assert PackedBackend().why_not(tiny_model("deberta-v2")) is not None
    frozen = tiny_model()
    frozen.base_model.requires_grad_(False)
    assert backend.why_not(frozen) is None
    hooked, patched = tiny_model("deberta-v2"), tiny_model("deberta-v2")
    hooked.deberta.encoder.register_forward_hook(lambda module, args, output: None)
    patched.forward = patched.forward
    for model in (hooked, patched, type("Mine", (type(patched),), {})(patched.config)):
        assert backend.why_not(model) is not None


@pytest.mark.parametrize("fails", [False, True])
def test_what_comes_after_a_training_waits_for_its_stream(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that, an evaluation on a busy GPU read weights before they were copied."""
    happened: list[tuple[str, str]] = []

    class Stream:
        def __init__(self, name: str = "own") -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            happened.append((self.name, other.name))

    monkeypatch.setattr(graphs, "capture_stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream("outer"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    backend = PackedBackend(captures=True)

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
    devices = iter([0, 0, 1])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: next(devices))
    first, second, elsewhere = (PackedBackend(captures=True).stream for _ in range(3))
    assert first is second
    assert first is not elsewhere


class Graph:
    """A graph that remembers what ran while it was captured, and runs it again."""

    again: Any = None

    def replay(self) -> None:
        self.again()


class Stage:
    """A step that records every run, and the parts around it."""

    def __init__(self, fails: bool = False) -> None:
        self.runs, self.said = [], []
        self.mode, self.fails, self.capturing = "run", fails, None
        self.uploads = self.scheduled = self.cleared = 0
        self.weight = torch.zeros(())
        self.result = torch.zeros(2)
        scheduler = SimpleNamespace(step=lambda: setattr(self, "scheduled", self.scheduled + 1))
        self.graph_step = GraphStep(self.step, self, scheduler, self.said.append)

    def step(self, group: list[Batch]) -> torch.Tensor:
        if self.mode == "capture":
            if self.fails:
                raise RuntimeError("operation not permitted when stream is capturing")
            self.capturing.again = lambda: self.result.copy_(self.work(group, "replay"))
            return self.result
        return self.work(group, "run")

    def work(self, group: list[Batch], how: str) -> torch.Tensor:
        value = sum(float(batch.inputs["packed"].sum()) + float(batch.labels.sum()) for batch in group)
        self.weight += value
        self.runs.append((how, value))
        return torch.tensor([value, 1.0])

    def upload_learning_rate(self) -> None:
        self.uploads += 1

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.cleared += 1


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a stage, with the graphs of this file in place of torch's."""

    def make(fails: bool = False) -> Stage:
        stage = Stage(fails)

        @contextmanager
        def capture(graph: Graph, **options: Any) -> Iterator[None]:
            stage.mode, stage.capturing = "capture", graph
            try:
                yield
            finally:
                stage.mode = "run"

        nothing = dict.fromkeys(("graph_pool_handle", "current_stream", "synchronize"), lambda: None)
        for name, fake in {"CUDAGraph": Graph, "graph": capture, **nothing}.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        return stage

    return make


def batch(value: int, width: int = 3, rows: int = 2) -> Batch:
    inputs = {"packed": torch.full((width,), value), "rows": rows}
    return Batch(inputs, torch.full((rows,), value), np.arange(rows), rows)


def test_every_shape_is_run_captured_and_replayed_but_not_beyond_the_limit_of_graphs(
    staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = staged()
    figures = [stage.graph_step([batch(value)]) for value in (1, 2, 3, 4)]
    assert stage.runs == [("run", 5.0), ("replay", 10.0), ("replay", 15.0), ("replay", 20.0)]
    assert [float(found[0]) for found in figures] == [5.0, 10.0, 15.0, 20.0], "figures of earlier steps stay what they were"
    assert stage.weight == 50, "a capture changes no weight: every step counts once"
    assert (len(stage.graph_step.graphs), stage.said) == (1, [])
    assert stage.uploads == stage.scheduled == 4, "learning rate and schedule advance once per step"
    stage = staged()
    for value in (1, 2, 3):
        stage.graph_step([batch(value, width=3)])
        stage.graph_step([batch(value, width=4)])
        stage.graph_step([batch(value), batch(value)])
    assert len(stage.graph_step.graphs) == 3
    assert [how for how, _ in stage.runs] == ["run"] + ["replay"] * 8, "other shapes are captured when they first come"
    assert [value for _, value in stage.runs[-3:]] == [15.0, 18.0, 30.0]
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 1)
    stage = staged()
    for value in (1, 2, 3):
        stage.graph_step([batch(value, width=3)])
        stage.graph_step([batch(value, width=4)])
    assert len(stage.graph_step.graphs) == 1
    assert [how for how, _ in stage.runs] == ["run", "replay", "run", "replay", "run", "replay"]
    assert stage.said == []


def test_a_step_that_cannot_be_captured_runs_without_a_graph_and_a_shape_is_tried_again(staged) -> None:
    stage = staged(fails=True)
    for value in (1, 2, 3):
        assert float(stage.graph_step([batch(value)])[0]) == 5 * value
        stage.graph_step([batch(value, width=4)])
    assert {how for how, _ in stage.runs} == {"run"}
    assert len(stage.runs) == stage.scheduled == 6, "no step is lost and none is done twice"
    reason = "RuntimeError: operation not permitted when stream is capturing"
    assert stage.said == [f"steps cannot be captured as CUDA graphs, so they run without them ({reason})"]
    assert stage.cleared == 2, "half a step's gradients are not kept"
    stage = staged()
    stage.graph_step([batch(1)])
    stage.fails = True
    stage.graph_step([batch(1, width=4)])
    stage.fails = False
    for _ in range(2):
        stage.graph_step([batch(1, width=4)])
    assert [how for how, _ in stage.runs] == ["run", "run", "replay", "replay"]
    assert stage.said == []
    assert stage.cleared == 1


def test_the_shape_holds_all_that_a_graph_is_bound_to_and_batches_are_copied_into_tensors_that_stay() -> None:
    for other in [batch(1, width=4), batch(1, rows=3), Batch(batch(1).inputs | {"rows": 9}, batch(1).labels, np.arange(2), 2)]:
        assert shape_of(batch(1)) == shape_of(batch(7))
        assert shape_of(batch(1)) != shape_of(other)
        assert shape_of(Batch(batch(1).inputs, None, np.arange(2), 2)) != shape_of(batch(1))
    first, second = batch(1), batch(8)
    still = static_copy(first)
    places = still.inputs["packed"].data_ptr(), still.labels.data_ptr()
    copy_into(still, second)
    assert torch.equal(still.inputs["packed"], second.inputs["packed"])
    assert torch.equal(still.labels, second.labels)
    assert places == (still.inputs["packed"].data_ptr(), still.labels.data_ptr())
    assert first.inputs["packed"].tolist() == [1, 1, 1], "the batch itself is left alone"


class Operations(TorchDispatchMode):
    """Record the operations that torch executes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_number_is_filled_on_the_device_not_copied_and_other_tensors_are_created_as_usual() -> None:
    for named in [{}, {"device": "cpu"}, {"dtype": torch.bfloat16, "device": torch.device("cpu")}]:
        for number in [0.0, float("-inf"), 3, True]:
            expected = torch.tensor(number, **named)
            with FillOnDevice(), Operations() as seen:
                found = torch.tensor(number, **named)
            assert seen.names == ["aten.full.default"]
            assert (found.dtype, found.shape, found.item()) == (expected.dtype, expected.shape, expected.item())
    for make in [lambda: torch.tensor([1, 2]), lambda: torch.tensor(1.0, requires_grad=True), lambda: torch.zeros(2)]:
        expected = make()
        with FillOnDevice():
            found = make()
        assert torch.equal(found, expected)
        assert (found.dtype, found.requires_grad) == (expected.dtype, expected.requires_grad)
