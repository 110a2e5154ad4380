"""Steps as CUDA graphs, for the packed backend on a GPU: captured once per shape and then replayed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, cast
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from glassloop.backends.fast.operations import compile_instead_of_running
from glassloop.backends.fast.optimizer import FlatAdamW
from glassloop.backends.fast.packing import FLASH_MULTIPLE, LENGTH_MULTIPLE, join_rows, pack
from glassloop.backends.fast.storage import Memory
from glassloop.backends.fast.training_model import ReplacedLayers
from glassloop.data.batches import Batch
from glassloop.training.interfaces import Say, Scheduler, StepFunction

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

MOST_GRAPHS = 64  # steps of further shapes run without a graph


class Idle:
    """Does nothing, in place of the schedule inside a captured step, or of the optimizer of a step that changes no weight."""

    def step(self) -> None: ...

    def upload_learning_rate(self) -> None: ...

    def zero_grad(self, set_to_none: bool = True) -> None: ...


class CapturedStep(NamedTuple):
    """A graph, the batches that it reads, the figures that it writes, and what it reads that no training changes."""

    graph: torch.cuda.CUDAGraph
    batches: list[Batch]
    figures: torch.Tensor
    constants: object


class Captures:
    """The graphs of the steps of a training, and the memory that they read and write."""

    # Capturing a shape takes 50 to 70 ms, as long as 40 steps of a small model. So the next training of a model of the same
    # structure gets the memory, puts its own weights into it, and replays the graphs: the same kernels, at the same addresses,
    # as it would capture. Whatever else a captured step computes with is part of `structure` and `step`.
    def __init__(self, structure: Hashable = None) -> None:
        self.structure, self.step = structure, cast(Hashable, None)
        self.memory = Memory()
        self.graphs: dict[Hashable, CapturedStep] = {}
        self.pool: _POOL_HANDLE | None = None
        self.in_use = True

    def begin(self, step: Hashable) -> None:
        """Keep the graphs if they were captured of this step. None: of one that no other training can use."""
        if step is None or step != self.step:
            self.graphs.clear()
            self.pool, self.step = None, step

    def end(self) -> None:
        """Leave everything to the next training, or nothing."""
        self.in_use = False
        failed = not isinstance(sys.exception(), SystemExit | None)  # which a signal or a pause between two steps raises
        device = torch.cuda.current_device()
        if self.step is None or failed or not self.graphs or LATEST.get(device) is not self or is_short_of_memory(device):
            self.clear()

    def clear(self) -> None:
        self.begin(None)
        self.structure, self.memory = None, Memory()


# The latest captures on each GPU, as long as the backend of a Trainer, or of the runs of a worker, refers to them.
LATEST: WeakValueDictionary[int, Captures] = WeakValueDictionary()


def captures_of(structure: Hashable) -> Captures:
    """Return the captures of an earlier training of this structure, or new ones; None is shared by none. Others are freed."""
    device = torch.cuda.current_device()
    found = LATEST.get(device)
    if found is not None and not found.in_use:
        if structure is not None and structure == found.structure:
            found.in_use = True
            return found
        found.clear()
    made = LATEST[device] = Captures(structure)
    return made


def is_short_of_memory(device: int) -> bool:
    """Return whether what a training leaves might be missed by other work on the GPU."""
    free, total = torch.cuda.mem_get_info(device)
    return free < total / 2


class GraphStep:
    """Run steps by replaying captured CUDA graphs. Nothing waits for the device."""

    # Each shape is captured when it first occurs. If that fails, the step runs without a graph, and the shape is captured when
    # it occurs again. `own_modules`: the model keeps its own modules, whose tensors must then be created on the device.
    # `constants`: what steps read besides the memory of the captures; graphs keep it alive.
    def __init__(
        self, step: StepFunction, optimizer: FlatAdamW | Idle, scheduler: Scheduler, say: Say, *, own_modules: bool = False,
        captures: Captures | None = None, constants: object = None,
    ) -> None:  # fmt: skip
        self.capture_context = created_on_device if own_modules else nullcontext
        self.step, self.optimizer, self.scheduler, self.say = step, optimizer, scheduler, say
        self.captures, self.constants = captures or Captures(), constants
        self.graphs = self.captures.graphs
        self.run_shapes: set[Hashable] = set()  # the shapes that ran without a graph
        self.gave_up = False

    def __call__(self, group: list[Batch]) -> torch.Tensor:
        # The first step does what a capture must not do, such as allocating, so it runs without a graph.
        self.optimizer.upload_learning_rate()
        key = tuple(shape_of(batch) for batch in group)
        found = self.graphs.get(key)
        if found is None and self.run_shapes and not self.gave_up and len(self.graphs) < MOST_GRAPHS:
            found = self.capture(key, group)
        if found is None:
            self.run_shapes.add(key)
            figures = self.step(group)
        else:
            for static, batch in zip(found.batches, group, strict=True):
                copy_into(static, batch)
            found.graph.replay()
            figures = found.figures.clone()
        self.scheduler.step()  # outside of the graph
        return figures

    def capture(self, key: Hashable, group: list[Batch]) -> CapturedStep | None:
        """Return the graph of this shape; None if the capture fails, which is final if the shape has run before."""
        batches = [static_copy(batch) for batch in group]
        graph = torch.cuda.CUDAGraph()
        self.captures.pool = self.captures.pool or torch.cuda.graph_pool_handle()
        # A failed capture leaves the device's random state in capture mode.
        source = torch.cuda.default_generators[torch.cuda.current_device()] if torch.cuda.is_available() else None
        state = source.clone_state() if source is not None else None
        try:
            with (
                self.capture_context(),
                torch.cuda.graph(
                    graph, pool=self.captures.pool, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"
                ),
            ):
                figures = self.step(batches)
        except Exception as error:
            self.optimizer.zero_grad(set_to_none=True)
            if source is not None and state is not None:
                source.graphsafe_set_state(state)
            self.captures.pool = None  # the old pool counts as still being recorded to
            self.captures.step = None  # earlier graphs draw from a random state that nobody seeds any more
            torch.cuda.synchronize()
            self.gave_up = key in self.run_shapes
            if self.gave_up:
                self.say(f"steps cannot be captured as CUDA graphs, so they run without them ({type(error).__name__}: {error})")
            return None
        self.graphs[key] = CapturedStep(graph, batches, figures, self.constants)
        return self.graphs[key]


class FillOnDevice(TorchFunctionMode):
    """Create tensors of single numbers by filling them on the device; `torch.tensor` would copy them from the CPU."""

    def __torch_function__(
        self, func: Callable[..., object], types: Iterable[type], args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:  # fmt: skip
        named = kwargs or {}
        is_number = len(args) == 1 and type(args[0]) in (bool, int, float)
        if func is torch.tensor and is_number and named.keys() <= {"dtype", "device"}:
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
    """Return a copy that a graph can read, on the GPU if there is one: its tensors never move."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = {name: value.to(device, copy=True) if hasattr(value, "shape") else value for name, value in batch.inputs.items()}
    labels = batch.labels.to(device, copy=True) if batch.labels is not None else None
    return Batch(inputs, labels, batch.numbers, batch.size)


def copy_into(static: Batch, batch: Batch) -> None:
    for name, value in batch.inputs.items():
        if hasattr(value, "shape"):
            static.inputs[name].copy_(value, non_blocking=True)
    if static.labels is not None and batch.labels is not None:
        static.labels.copy_(batch.labels, non_blocking=True)


@cache  # cuBLAS keeps 68 MB for each stream until the process ends
def capture_stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def in_stream(stream: torch.cuda.Stream) -> Iterator[None]:
    """Run all work of a training in one stream, so that any of it can be captured; the streams wait for each other."""
    outer = torch.cuda.current_stream()
    stream.wait_stream(outer)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        outer.wait_stream(stream)  # else an evaluation could read weights before they are copied


def compile_kernels(savings: ReplacedLayers, optimizer: FlatAdamW | None, backward: Callable[[torch.Tensor], None]) -> None:
    """Compile all kernels before the first step, by recording those of a dummy step and a dummy evaluation."""
    # An empty step records the launches, so no list of kernels has to be maintained; compiled in parallel, the
    # first step is done after 4.4 instead of 9.1 s on a new machine.
    model, was_training = savings.model, savings.model.training
    steps = optimizer.steps.clone() if optimizer is not None else None
    nothing = join_rows([np.zeros(2, dtype=np.int32)] * 2)
    inputs = pack(nothing, nothing[0], savings.uncounted, (LENGTH_MULTIPLE, FLASH_MULTIPLE))
    dummy = {**inputs, "packed": torch.from_numpy(inputs["packed"]).cuda()}
    launchers = [savings.ops.launch]
    if optimizer is not None and optimizer.kernel is not None:
        launchers.append(optimizer.kernel.launch)
    with torch.random.fork_rng([torch.cuda.current_device()]), compile_instead_of_running(*launchers):
        backward(model(**dummy).logits.float().sum())
        if optimizer is not None:
            optimizer.clip(1.0)
            optimizer.step()
        model.eval()
        with torch.inference_mode():
            model(**dummy)
    model.train(was_training)
    savings.storage.clear_gradients()
    if optimizer is not None and steps is not None:
        optimizer.steps.copy_(steps)
