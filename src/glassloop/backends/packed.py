"""Backends that save work: packed batches on any device, and whole steps as CUDA graphs on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from math import lcm
from typing import Any
from weakref import WeakKeyDictionary

import torch

from glassloop.backends.plain import PlainBackend
from glassloop.data.batches import Batches, PaddingCollator
from glassloop.data.stability import Repeats, rows_repeat
from glassloop.engine.optimizer import decay_groups
from glassloop.run_folder.record import Difference
from glassloop.speed.encoders.fast_model import make_fast_model
from glassloop.speed.encoders.own_layers import OwnLayers
from glassloop.speed.encoders.parts import layers_of
from glassloop.speed.encoders.recognition import why_not_flat, why_not_packed
from glassloop.speed.encoders.replaced_layers import ReplacedLayers
from glassloop.speed.optimizer.adamw import FlatAdamW
from glassloop.speed.optimizer.vocabulary import ReducedVocabulary, choose_vocabulary, used_ids
from glassloop.speed.packing.layout import LENGTH_MULTIPLE
from glassloop.speed.packing.packed_batches import PackedBatches


class PackedBackend(PlainBackend):
    """One process, one device: packed batches, and an optimizer over flat storage."""

    name = "packed"

    def __init__(self, device: str | torch.device = "cpu", precision: str = "fp32") -> None:
        super().__init__(device, precision)
        self.savings: ReplacedLayers | OwnLayers | None = None
        self.known: list[Any] = []  # the data sets whose words the savings know
        self.optimizer: FlatAdamW | None = None
        self.shown = False  # whether somebody looks at gradients, and may change them
        self.proofs: WeakKeyDictionary[Any, Difference] = WeakKeyDictionary()  # of each model, how far it is from plain

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
        self.savings = make_fast_model(
            model,
            self.low,
            no_decay=spared,
            vocabulary=None if shown else self.vocabulary_of(model, data_sets, weight_decay),
            low_precision_gradients=self.low is not torch.float32 and self.device.type == "cuda" and not (shown or adds),
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
        self.savings = make_fast_model(model, self.low, trains=False)
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
            savings.sync_to_model()
            return batches
        numbers = savings.vocabulary.numbers if savings.vocabulary is not None else None
        flash = self.low is not torch.float32
        return PackedBatches(batches, self.device, savings.first_position, numbers, savings.limits, flash=flash)

    def settle(self) -> None:
        if self.savings is not None:
            self.savings.sync_to_model()

    def reload(self) -> None:
        if self.savings is not None:
            self.savings.sync_from_model()

    def move(self, data: Any) -> Any:
        if isinstance(data, dict):
            return {name: self.move(value) for name, value in data.items()}
        return data.to(self.device, non_blocking=True) if isinstance(data, torch.Tensor) else data

    def backward(self, loss: torch.Tensor) -> None:
        super().backward(loss)
        if self.savings is not None:
            self.savings.after_backward()

    def clip(self, model: Any, max_norm: float) -> torch.Tensor:
        """The norm of all gradients; the optimizer scales them while it reads them."""
        if self.savings is None or self.optimizer is None:
            return super().clip(model, max_norm)
        if self.shown:
            self.savings.storage.adopt_gradients()
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

    def vocabulary_of(self, model: Any, data_sets: Sequence[Any], weight_decay: float) -> ReducedVocabulary | None:
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
        collate.multiple = lcm(collate.multiple, LENGTH_MULTIPLE)
    return found
