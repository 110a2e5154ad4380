"""Run a whole step as a captured CUDA graph: the loop's own step function, captured once per shape and then replayed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch.overrides import TorchFunctionMode

from glassloop.data.batches import Batch
from glassloop.training.interfaces import Say, Scheduler, StepFunction

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE


MOST_GRAPHS = 64  # steps of further shapes run without a graph


class CapturableOptimizer(Protocol):
    """An optimizer whose step reads the learning rate on the device."""

    def upload_learning_rate(self) -> None: ...

    def zero_grad(self, set_to_none: bool = True) -> None: ...


class IdleScheduler:
    """Does nothing, in place of the schedule inside a captured step: the schedule advances outside, once per step."""

    def step(self) -> None: ...


class IdleOptimizer:
    """Does nothing, in place of the optimizer of a step that changes no weight."""

    def upload_learning_rate(self) -> None: ...

    def zero_grad(self, set_to_none: bool = True) -> None: ...


class CapturedStep(NamedTuple):
    """A graph, the batches that it reads, and the figures that it writes."""

    graph: torch.cuda.CUDAGraph
    batches: list[Batch]
    figures: torch.Tensor


class GraphStep:
    """Run steps by replaying captured CUDA graphs.

    The very first step runs without a graph, which also warms up what must not happen during a capture. Each shape is
    captured when it first occurs. If that fails, the step runs without a graph, and the shape is captured when it occurs
    again. Nothing waits for the device.

    Args:
        step: Runs a group of batches and returns its figures.
        optimizer: The optimizer that `step` uses.
        scheduler: The schedule, which advances after each step.
        say: Shows a line to the user.
        own_modules: Whether the model keeps its own modules, whose tensors must then be created on the device.
    """

    def __init__(
        self, step: StepFunction, optimizer: CapturableOptimizer, scheduler: Scheduler, say: Say, *, own_modules: bool = False
    ) -> None:
        self.capture_context = created_on_device if own_modules else nullcontext
        self.step, self.optimizer, self.scheduler, self.say = step, optimizer, scheduler, say
        self.graphs: dict[Hashable, CapturedStep] = {}
        self.run_shapes: set[Hashable] = set()  # the shapes that ran without a graph
        self.pool: _POOL_HANDLE | None = None
        self.gave_up = False

    @property
    def captured(self) -> int:
        """Return the number of captured graphs."""
        return len(self.graphs)

    def __call__(self, group: list[Batch]) -> torch.Tensor:
        """Run one step and return its figures."""
        self.optimizer.upload_learning_rate()
        key = tuple(shape_of(batch) for batch in group)
        found = self.graphs.get(key)
        if found is None and self.run_shapes and not self.gave_up and self.captured < MOST_GRAPHS:
            found = self.capture(key, group)
        if found is None:
            self.run_shapes.add(key)
            figures = self.step(group)
        else:
            for static, batch in zip(found.batches, group, strict=True):
                copy_into(static, batch)
            found.graph.replay()
            figures = found.figures.clone()
        self.scheduler.step()
        return figures

    def capture(self, key: Hashable, group: list[Batch]) -> CapturedStep | None:
        """Return the graph of this shape; None if the capture fails, which is final if the shape has run before."""
        batches = [static_copy(batch) for batch in group]
        graph = torch.cuda.CUDAGraph()
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        restore = random_state_restorer()
        try:
            with (
                self.capture_context(),
                torch.cuda.graph(graph, pool=self.pool, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"),
            ):
                figures = self.step(batches)
        except Exception as error:
            self.optimizer.zero_grad(set_to_none=True)
            restore()
            self.pool = None  # the old pool counts as still being recorded to
            torch.cuda.synchronize()
            self.gave_up = key in self.run_shapes
            if self.gave_up:
                self.say(f"steps cannot be captured as CUDA graphs, so they run without them ({type(error).__name__}: {error})")
            return None
        self.graphs[key] = CapturedStep(graph, batches, figures)
        return self.graphs[key]


class FillOnDevice(TorchFunctionMode):
    """Create tensors of single numbers by filling them on the device; `torch.tensor` would copy them from the CPU."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        named = kwargs or {}
        if (
            func is torch.tensor
            and len(args) == 1
            and type(args[0]) in (bool, int, float)
            and named.keys() <= {"dtype", "device"}
        ):
            return torch.full((), args[0], **named)  # type: ignore[call-overload]
        return func(*args, **named)


@contextmanager
def created_on_device() -> Iterator[None]:
    """Create new tensors on the GPU, because a copy from the CPU cannot be captured."""
    with torch.device("cuda"), FillOnDevice():
        yield


def shape_of(batch: Batch) -> Hashable:
    """Return everything that a graph is bound to: shapes and plain numbers."""
    inputs = tuple((name, tuple(value.shape) if hasattr(value, "shape") else value) for name, value in batch.inputs.items())
    return (*inputs, tuple(batch.labels.shape) if batch.labels is not None else None, batch.size)


def static_copy(batch: Batch) -> Batch:
    """Return a copy on the device that a graph can read: its tensors never move."""
    inputs = {name: on_device(value) if hasattr(value, "shape") else value for name, value in batch.inputs.items()}
    return Batch(inputs, on_device(batch.labels) if batch.labels is not None else None, batch.numbers, batch.size)


def random_state_restorer() -> Callable[[], object]:
    """Return a function that restores the device's random state, which a failed capture leaves in capture mode."""
    if not torch.cuda.is_available():
        return lambda: None
    source = torch.cuda.default_generators[torch.cuda.current_device()]
    state = source.clone_state()
    return lambda: source.graphsafe_set_state(state)


def on_device(value: torch.Tensor) -> torch.Tensor:
    """Return a copy on the GPU if there is one."""
    return value.to("cuda" if torch.cuda.is_available() else "cpu", copy=True)


def copy_into(static: Batch, batch: Batch) -> None:
    """Copy a batch into the one that a graph reads."""
    for name, value in batch.inputs.items():
        if hasattr(value, "shape"):
            static.inputs[name].copy_(value, non_blocking=True)
    if static.labels is not None and batch.labels is not None:
        static.labels.copy_(batch.labels, non_blocking=True)
