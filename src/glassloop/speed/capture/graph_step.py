"""A whole step as one CUDA graph a shape: the loop's own step function, captured when a shape first comes, then replayed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from glassloop.data.batches import Batch

MOST_GRAPHS = 64  # beyond so many shapes, the rest is run as it is written


class IdleScheduler:
    """Stands in for the schedule while a step is captured: the rate is stepped outside, once a step."""

    def step(self) -> None: ...


class IdleOptimizer:
    """Stands in for the optimizer of a step that changes no weight."""

    def upload_learning_rate(self) -> None: ...

    def zero_grad(self, set_to_none: bool = True) -> None: ...


class GraphStep:
    """Runs a step by replaying its graph. `step` takes a group of batches and returns its figures.

    The very first step is simply run, which also warms up what a capture must not do. Each shape is captured when it first
    comes; where that fails it is run, and captured when it comes again. Nothing waits for the device.
    """

    def __init__(
        self, step: Callable[[list[Batch]], torch.Tensor], optimizer: Any, scheduler: Any, say: Callable[[str], None], *,
        own_modules: bool = False,
    ) -> None:  # fmt: skip
        self.made = created_on_device if own_modules else nullcontext
        self.step, self.optimizer, self.scheduler, self.say = step, optimizer, scheduler, say
        self.entries: dict[Hashable, tuple[Any, list[Batch], torch.Tensor]] = {}
        self.ran: set[Hashable] = set()  # the shapes that were run as they are written
        self.pool: Any = None
        self.gave_up = False

    @property
    def captured(self) -> int:
        return len(self.entries)

    def __call__(self, group: list[Batch]) -> torch.Tensor:
        self.optimizer.upload_learning_rate()
        key = tuple(shape_of(batch) for batch in group)
        found = self.entries.get(key)
        if found is None and self.ran and not self.gave_up and self.captured < MOST_GRAPHS:
            found = self.capture(key, group)
        if found is None:
            self.ran.add(key)
            figures = self.step(group)
        else:
            graph, static, result = found
            for still, batch in zip(static, group, strict=True):
                copy_into(still, batch)
            graph.replay()
            figures = result.clone()
        self.scheduler.step()
        return figures

    def capture(self, key: Hashable, group: list[Batch]) -> tuple[Any, list[Batch], torch.Tensor] | None:
        """The graph of this shape; None where the step cannot be captured: if it was run before, that is the last try."""
        static = [static_copy(batch) for batch in group]
        graph = torch.cuda.CUDAGraph()
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        put_back = random_state()
        try:
            with (
                self.made(),
                torch.cuda.graph(graph, pool=self.pool, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"),
            ):
                result = self.step(static)
        except Exception as error:
            self.optimizer.zero_grad(set_to_none=True)
            put_back()
            self.pool = None  # it would count as still being recorded to
            torch.cuda.synchronize()
            self.gave_up = key in self.ran
            if self.gave_up:
                self.say(f"steps are run one kernel at a time: they cannot be captured ({type(error).__name__}: {error})")
            return None
        self.entries[key] = (graph, static, result)
        return self.entries[key]


class FillOnDevice(TorchFunctionMode):
    """A number becomes a tensor by being filled in where it is wanted; `torch.tensor` would copy it there from the CPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if (
            func is torch.tensor
            and len(args) == 1
            and type(args[0]) in (bool, int, float)
            and named.keys() <= {"dtype", "device"}
        ):
            return torch.full((), args[0], **named)
        return func(*args, **named)


@contextmanager
def created_on_device() -> Iterator[None]:
    """What a model's own modules make of nothing is made on the GPU: a copy from the CPU cannot be captured."""
    with torch.device("cuda"), FillOnDevice():
        yield


def shape_of(batch: Batch) -> Hashable:
    """All that a graph holds fast: shapes and plain numbers."""
    inputs = tuple((name, tuple(value.shape) if hasattr(value, "shape") else value) for name, value in batch.inputs.items())
    return (*inputs, tuple(batch.labels.shape) if batch.labels is not None else None, batch.size)


def static_copy(batch: Batch) -> Batch:
    """A copy on the device whose tensors stay where they are."""
    inputs = {name: on_device(value) if hasattr(value, "shape") else value for name, value in batch.inputs.items()}
    return Batch(inputs, on_device(batch.labels) if batch.labels is not None else None, batch.numbers, batch.size)


def random_state() -> Callable[[], Any]:
    """What puts the device's random state back: a capture that fails leaves it as if it were still going on."""
    if not torch.cuda.is_available():
        return lambda: None
    source = torch.cuda.default_generators[torch.cuda.current_device()]
    state = source.clone_state()
    return lambda: source.graphsafe_set_state(state)


def on_device(value: torch.Tensor) -> torch.Tensor:
    return value.to("cuda" if torch.cuda.is_available() else "cpu", copy=True)


def copy_into(still: Batch, batch: Batch) -> None:
    for name, value in batch.inputs.items():
        if hasattr(value, "shape"):
            still.inputs[name].copy_(value, non_blocking=True)
    if still.labels is not None and batch.labels is not None:
        still.labels.copy_(batch.labels, non_blocking=True)
