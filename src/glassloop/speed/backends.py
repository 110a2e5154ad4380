"""Backends that save work: packed batches on any device, and whole steps as CUDA graphs on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from math import lcm
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from glassloop.data.batches import Batches, PaddingCollator
from glassloop.data.stability import Repeats, rows_repeat
from glassloop.engine.backends import PlainBackend
from glassloop.engine.optimizer import decay_groups
from glassloop.speed.adamw import FlatAdamW
from glassloop.speed.batches import PackedBatches
from glassloop.speed.graphs import GraphStep, NoSchedule, NoUpdate
from glassloop.speed.layers import layers_of
from glassloop.speed.modules import ModuleSavings
from glassloop.speed.packing import STEPS_OF_FLASH, STEPS_OF_LENGTH, joined, pack
from glassloop.speed.proof import Proof
from glassloop.speed.recognition import why_not_as_built, why_not_flat, why_not_packed
from glassloop.speed.rehearsal import rehearsal
from glassloop.speed.savings import Savings, choose_vocabulary, make_savings
from glassloop.speed.vocabulary import Vocabulary, used_ids


class PackedBackend(PlainBackend):
    """One process, one device: packed batches, and an optimizer over flat storage."""

    name = "packed"

    def __init__(self, device: str | torch.device = "cpu", precision: str = "fp32") -> None:
        super().__init__(device, precision)
        self.savings: Savings | ModuleSavings | None = None
        self.known: list[Any] = []  # the data sets whose words the savings know
        self.optimizer: FlatAdamW | None = None
        self.shown = False  # whether somebody looks at gradients, and may change them
        self.proofs: WeakKeyDictionary[Any, Proof] = WeakKeyDictionary()  # of each model, how far it is from plain

    def why_not(self, model: Any) -> str | None:
        """Why this backend cannot run a model; None where it can."""
        if self.precision == "fp16":
            return "fp16 needs a scaler"
        return why_not_packed(model) or why_not_flat(model)

    @property
    def low(self) -> torch.dtype:
        return self.kind or torch.float32

    def open(self, model: Any, data_sets: Sequence[Any], weight_decay: float, *, shown: bool, adds: bool) -> Callable[..., Any]:
        """Put the savings of a training in place. Gradients that somebody looks at are whole and in full precision."""
        groups = decay_groups(model, weight_decay)
        spared = {id(weight) for group in groups if not group["weight_decay"] for weight in group["params"]}
        self.known = list(data_sets)
        self.savings = make_savings(
            model,
            self.low,
            no_decay=spared,
            vocabulary=None if shown else self.vocabulary_of(model, data_sets, weight_decay),
            low_gradients=self.low is not torch.float32 and self.device.type == "cuda" and not (shown or adds),
        )
        self.savings.open_for_training()
        self.shown = shown
        return self.make_optimizer

    def make_optimizer(
        self, model: Any, learning_rate: float, *, weight_decay: float, betas: Any, epsilon: float, fused: bool
    ) -> FlatAdamW:
        """AdamW over the storage of the savings, which are in place."""
        storage = self.savings.storage  # type: ignore[union-attr]
        groups, fused = decay_groups(model, weight_decay), fused or self.device.type == "cuda"
        self.optimizer = FlatAdamW(groups, storage, lr=learning_rate, betas=betas, eps=epsilon, fused=fused or None)
        return self.optimizer

    def close(self) -> None:
        """Take the savings away; the model has its trained weights."""
        if self.savings is not None:
            self.savings.remove()
        self.savings, self.optimizer, self.known = None, None, []

    @contextmanager
    def equipped(self, model: Any) -> Iterator[None]:
        """The savings in place for one pass, where no training has put them there."""
        if self.savings is not None or self.why_not(model) is not None:
            yield
            return
        self.savings = make_savings(model, self.low, trains=False)
        try:
            yield
        finally:
            self.close()

    def tried(self, step: Callable[[list[Any]], torch.Tensor], group: list[Any], other: list[Any]) -> torch.Tensor:
        """What a step without an update gives for `group`, run as the steps of a training are; `other` has the same shape."""
        return step(group)

    def batches(self, batches: Batches, rows: Any) -> Any:
        """The batches packed; as they are where they hold words that the savings do not know."""
        savings = self.savings
        if savings is None:
            return batches
        if not savings.packs:
            return with_few_shapes(batches)
        if savings.vocabulary is not None and not any(rows is known for known in self.known):
            savings.settle()
            return batches
        numbers = savings.vocabulary.numbers if savings.vocabulary is not None else None
        flash = self.low is not torch.float32
        return PackedBatches(batches, self.device, savings.first_position, numbers, savings.limits, flash=flash)

    def settle(self) -> None:
        if self.savings is not None:
            self.savings.settle()

    def reload(self) -> None:
        if self.savings is not None:
            self.savings.reload()

    def move(self, data: Any) -> Any:
        if isinstance(data, dict):
            return {name: self.move(value) for name, value in data.items()}
        return data.to(self.device, non_blocking=True) if isinstance(data, torch.Tensor) else data

    def backward(self, loss: torch.Tensor) -> None:
        super().backward(loss)
        if self.savings is not None:
            self.savings.finish()

    def clip(self, model: Any, max_norm: float) -> torch.Tensor:
        """The norm of all gradients; the optimizer scales them while it reads them."""
        if self.savings is None or self.optimizer is None:
            return super().clip(model, max_norm)
        if self.shown:
            self.savings.storage.take_over()
        return self.optimizer.clip(max_norm)

    def step(self, optimizer: Any) -> None:
        super().step(optimizer)
        if self.watched:
            self.settle()

    def saved_names(self, model: Any, data_sets: Sequence[Any], weight_decay: float) -> list[str]:
        names = ["one-pass AdamW"] if why_not_packed(model) else ["packed batches", "one-pass AdamW"]
        if layers_of(model):
            names.insert(1, "last layer for first tokens only")
            if (words := self.vocabulary_of(model, data_sets, weight_decay)) is not None:
                names.append(f"{len(words.used):,} of {len(words.numbers):,} word vectors")
            if self.low is not torch.float32:
                names.append(f"{self.precision} copies of weights")
        return names

    def vocabulary_of(self, model: Any, data_sets: Sequence[Any], weight_decay: float) -> Vocabulary | None:
        """The word vectors that are trained: those that occur in the data; None for all of them, as random rows need."""
        if any(rows_repeat(rows) is not Repeats.SAME for rows in data_sets):
            return None
        embedding = model.get_input_embeddings()
        return choose_vocabulary(model, used_ids(data_sets, embedding.num_embeddings, embedding.padding_idx or 0), weight_decay)


def with_few_shapes(batches: Batches) -> Batches:
    """The same batches, padded to few widths: each shape is a graph of its own."""
    found = copy(batches)
    if isinstance(batches.collate, PaddingCollator):
        collate = found.collate = copy(batches.collate)
        collate.multiple = lcm(collate.multiple, STEPS_OF_LENGTH)
    return found


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
        return "fp16 needs a scaler" if self.precision == "fp16" else why_not_flat(model) or why_not_as_built(model)

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
        captured = partial(GraphStep, partial(step, scheduler=NoSchedule()), optimizer, scheduler, say)
        if not isinstance(self.savings, Savings):
            return captured(own_modules=True)
        self.rehearse(self.savings, optimizer)
        return captured()

    def tried(self, step: Callable[[list[Any]], torch.Tensor], group: list[Any], other: list[Any]) -> torch.Tensor:
        """Modules of a model's own are captured with `other` and replayed with `group`: what the graph holds fast shows."""
        if isinstance(self.savings, Savings):
            self.rehearse(self.savings, None)
        if self.shown or isinstance(self.savings, Savings):
            return step(group)
        run = GraphStep(step, NoUpdate(), NoSchedule(), lambda line: None, own_modules=True)
        run(other)
        run(other)
        return run(group)

    def rehearse(self, savings: Savings, optimizer: FlatAdamW | None) -> None:
        """Go through a step of nothing, and an evaluation, so that all kernels are compiled at once; no number changes."""
        model, was_training = savings.model, savings.model.training
        steps = optimizer.steps.clone() if optimizer is not None else torch.zeros(())
        nothing = joined([np.zeros(2, dtype=np.int32)] * 2)
        inputs = pack(nothing, nothing[0], savings.first_position, (STEPS_OF_LENGTH, STEPS_OF_FLASH))
        inputs["packed"] = torch.from_numpy(inputs["packed"]).to(self.device)
        with torch.random.fork_rng([torch.cuda.current_device()]), rehearsal():
            self.backward(model(**inputs).logits.float().sum())
            if optimizer is not None:
                optimizer.clip(1.0)
                optimizer.step()
            model.eval()
            with torch.inference_mode():
                model(**inputs)
        model.train(was_training)
        savings.storage.clear()
        if optimizer is not None:
            optimizer.steps.copy_(steps)
