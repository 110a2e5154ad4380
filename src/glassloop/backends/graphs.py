"""The packed backend on a GPU, with each step captured as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from glassloop.backends.packed import PackedBackend
from glassloop.speed.capture.graph_step import GraphStep, IdleOptimizer, IdleScheduler
from glassloop.speed.capture.precompile import compile_instead_of_running
from glassloop.speed.encoders.parts import layers_of
from glassloop.speed.encoders.recognition import why_not_flat, why_not_unmodified
from glassloop.speed.encoders.replaced_layers import ReplacedLayers
from glassloop.speed.optimizer.adamw import FlatAdamW
from glassloop.speed.packing.layout import FLASH_MULTIPLE, LENGTH_MULTIPLE, joined, pack


class GraphsBackend(PackedBackend):
    """The same on a GPU, each step a CUDA graph."""

    name = "graphs"

    def __init__(self, device: str | torch.device = "cuda", precision: str = "bf16") -> None:
        super().__init__(device, precision)
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def saved_names(self, model: Any, data_sets: Sequence[Any], weight_decay: float) -> list[str]:
        fused = ["fused kernels"] if layers_of(model) else []
        return ["steps as CUDA graphs", *fused, *super().saved_names(model, data_sets, weight_decay)]

    def why_not(self, model: Any) -> str | None:
        """A model that cannot be packed is run padded and its steps captured, if it is exactly what transformers builds."""
        return "fp16 needs a scaler" if self.precision == "fp16" else why_not_flat(model) or why_not_unmodified(model)

    @contextmanager
    def stage(self) -> Iterator[None]:
        """All work of a training in one stream, so that any of it can be captured; each side waits for what the other did."""
        outer = torch.cuda.current_stream()
        self.stream.wait_stream(outer)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            outer.wait_stream(self.stream)  # else an evaluation may read weights before they are in their place

    def runner(
        self, step: Callable[..., torch.Tensor], optimizer: Any, scheduler: Any, say: Callable[[str], None]
    ) -> Callable[[list[Any]], torch.Tensor]:
        if self.shown:  # on_gradients is to be called in every step, not only in those that are captured
            return super().runner(step, optimizer, scheduler, say)
        captured = partial(GraphStep, partial(step, scheduler=IdleScheduler()), optimizer, scheduler, say)
        if not isinstance(self.savings, ReplacedLayers):
            return captured(own_modules=True)
        self.compile_kernels(self.savings, optimizer)
        return captured()

    def tried(self, step: Callable[[list[Any]], torch.Tensor], group: list[Any], other: list[Any]) -> torch.Tensor:
        """Modules of a model's own are captured with `other` and replayed with `group`: what the graph holds fast shows."""
        if isinstance(self.savings, ReplacedLayers):
            self.compile_kernels(self.savings, None)
        if self.shown or isinstance(self.savings, ReplacedLayers):
            return step(group)
        run = GraphStep(step, IdleOptimizer(), IdleScheduler(), lambda line: None, own_modules=True)
        run(other)
        run(other)
        return run(group)

    def compile_kernels(self, savings: ReplacedLayers, optimizer: FlatAdamW | None) -> None:
        """Compile all kernels before the first step, by recording those of a dummy step and a dummy evaluation."""
        model, was_training = savings.model, savings.model.training
        steps = optimizer.steps.clone() if optimizer is not None else torch.zeros(())
        nothing = joined([np.zeros(2, dtype=np.int32)] * 2)
        inputs = pack(nothing, nothing[0], savings.first_position, (LENGTH_MULTIPLE, FLASH_MULTIPLE))
        launchers = [*savings.ops.launchers, *(optimizer.launchers if optimizer is not None else ())]
        inputs["packed"] = torch.from_numpy(inputs["packed"]).to(self.device)
        with torch.random.fork_rng([torch.cuda.current_device()]), compile_instead_of_running(*launchers):
            self.backward(model(**inputs).logits.float().sum())
            if optimizer is not None:
                optimizer.clip(1.0)
                optimizer.step()
            model.eval()
            with torch.inference_mode():
                model(**inputs)
        model.train(was_training)
        savings.storage.clear_gradients()
        if optimizer is not None:
            optimizer.steps.copy_(steps)
