"""The packed backend on a GPU, with each step run as a captured CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import cast

import numpy as np
import torch

from glassloop.backends.fast.encoder_parts import layers_of, why_not_flat, why_not_unmodified
from glassloop.backends.fast.graph_step import GraphStep, IdleOptimizer, IdleScheduler
from glassloop.backends.fast.kernel_launcher import compile_instead_of_running
from glassloop.backends.fast.optimizer import FlatAdamW
from glassloop.backends.fast.packing import FLASH_MULTIPLE, LENGTH_MULTIPLE, join_rows, pack
from glassloop.backends.fast.training_model import ReplacedLayers
from glassloop.backends.packed import PackedBackend
from glassloop.data.batches import Batch
from glassloop.data.interfaces import Model
from glassloop.training.interfaces import LRScheduler, Optimizer, Say, StepFunction, TrainingUse


def capture_stream() -> torch.cuda.Stream:
    """Return the stream of all captured steps on the current GPU."""
    return stream_of(torch.cuda.current_device())


@cache  # cuBLAS keeps 68 MB for each stream until the process ends
def stream_of(device: int) -> torch.cuda.Stream:
    """Return one stream per GPU."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class GraphsBackend(PackedBackend):
    """The packed backend with captured steps, for one GPU."""

    name = "graphs"

    def __init__(self, device: str | torch.device = "cuda", precision: str = "bf16") -> None:
        super().__init__(device, precision)
        self.stream = capture_stream()

    def describe_savings(self, model: Model, use: TrainingUse) -> list[str]:
        """Return a short description of each saving that a training uses."""
        fused = ["fused kernels"] if layers_of(model) else []
        return ["steps as CUDA graphs", *fused, *super().describe_savings(model, use)]

    def why_not(self, model: Model) -> str | None:
        """Return why this backend cannot run a model; None if it can.

        A model that cannot be packed is run padded and its steps are captured, if it is exactly what transformers builds.
        """
        return "fp16 needs a scaler" if self.precision == "fp16" else why_not_flat(model) or why_not_unmodified(model)

    @contextmanager
    def training_context(self) -> Iterator[None]:
        """Run all work of a training in one stream, so that any of it can be captured; the streams wait for each other."""
        outer = torch.cuda.current_stream()
        self.stream.wait_stream(outer)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            outer.wait_stream(self.stream)  # else an evaluation could read weights before they are copied

    def wrap_step(
        self, step: Callable[..., torch.Tensor], optimizer: Optimizer, scheduler: LRScheduler, say: Say
    ) -> StepFunction:
        """Return the function that captures a step for each new shape and replays it afterwards."""
        if self.use.reads_gradients:  # on_gradients must be called in every step, not only while a step is captured
            return super().wrap_step(step, optimizer, scheduler, say)
        flat = cast(FlatAdamW, optimizer)  # `make_optimizer` makes no other
        captured = partial(GraphStep, partial(step, scheduler=IdleScheduler()), flat, scheduler, say)
        if not isinstance(self.savings, ReplacedLayers):
            return captured(own_modules=True)
        self.compile_kernels(self.savings, self.optimizer)
        return captured()

    def trial_step(self, step: StepFunction, group: list[Batch], other: list[Batch]) -> torch.Tensor:
        """Return what a step without an update computes for `group`.

        A model's own modules are captured with `other` and replayed with `group`, which reveals values that a captured
        graph would wrongly reuse.
        """
        if isinstance(self.savings, ReplacedLayers):
            self.compile_kernels(self.savings, None)
        if self.use.reads_gradients or isinstance(self.savings, ReplacedLayers):
            return step(group)
        run = GraphStep(step, IdleOptimizer(), IdleScheduler(), lambda line: None, own_modules=True)
        run(other)
        run(other)
        return run(group)

    def compile_kernels(self, savings: ReplacedLayers, optimizer: FlatAdamW | None) -> None:
        """Compile all kernels before the first step, by recording those of a dummy step and a dummy evaluation."""
        model, was_training = savings.model, savings.model.training
        steps = optimizer.steps.clone() if optimizer is not None else torch.zeros(())
        nothing = join_rows([np.zeros(2, dtype=np.int32)] * 2)
        inputs = pack(nothing, nothing[0], savings.uncounted, (LENGTH_MULTIPLE, FLASH_MULTIPLE))
        dummy = {**inputs, "packed": torch.from_numpy(inputs["packed"]).to(self.device)}
        launchers = [*savings.ops.launchers, *(optimizer.launchers if optimizer is not None else ())]
        with torch.random.fork_rng([torch.cuda.current_device()]), compile_instead_of_running(*launchers):
            self.backward(model(**dummy).logits.float().sum())
            if optimizer is not None:
                optimizer.clip(1.0)
                optimizer.step()
            model.eval()
            with torch.inference_mode():
                model(**dummy)
        model.train(was_training)
        savings.storage.clear_gradients()
        if optimizer is not None:
            optimizer.steps.copy_(steps)
