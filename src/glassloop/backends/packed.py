"""The backends that train on packed batches without padding, with one pass over all weights, and that predict in int8."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from math import lcm
from weakref import WeakKeyDictionary

import numpy as np
import torch

from glassloop.backends.fast.encoder_parts import LayerParts, has_replaceable_layers, layers_of, why_not_flat, why_not_packed
from glassloop.backends.fast.inference_model import (
    InferenceLayer,
    InferenceLayers,
    Int8Layer,
    MeasuredLayer,
    PackedLayer,
    Ranges,
    make_fast_model,
    why_no_kernels,
)
from glassloop.backends.fast.optimizer import FlatAdamW
from glassloop.backends.fast.packing import (
    EVALUATION_TOKENS,
    LENGTH_MULTIPLE,
    PackedBatches,
    Packing,
    packed_rows,
    why_not_columns,
    why_not_masks,
)
from glassloop.backends.fast.storage import FlatStorage, ReducedVocabulary, choose_vocabulary, used_ids
from glassloop.backends.fast.training_model import OwnLayers, ReplacedLayers
from glassloop.backends.plain import PlainBackend
from glassloop.base.errors import ModelError
from glassloop.data.batches import Batch, Batches
from glassloop.data.collator import PaddingCollator
from glassloop.data.interfaces import Model, Row
from glassloop.data.rows import Repeats, repeats_of
from glassloop.runs.record import Difference
from glassloop.training.interfaces import Optimizer, OptimizerFactory, RowBatches, StepFunction, TrainingUse
from glassloop.training.optimizer import decay_groups

NO_TRAINING = TrainingUse((), 0.0)


class PackedBackend(PlainBackend):
    """One process, one device: packed batches, and an optimizer over flat storage."""

    name = "packed"

    def __init__(self, device: str | torch.device = "cpu", precision: str = "fp32") -> None:
        super().__init__(device, precision)
        self.savings: ReplacedLayers | InferenceLayers | OwnLayers | None = None
        self.optimizer: FlatAdamW | None = None
        self.use = NO_TRAINING
        # How far each model's results on this backend are from those of the plain backend.
        self.differences: WeakKeyDictionary[torch.nn.Module, Difference] = WeakKeyDictionary()

    def why_not(self, model: Model) -> str | None:
        """Return why this backend cannot run a model; None if it can."""
        if self.precision == "fp16":
            return "fp16 needs a scaler"
        return why_not_packed(model) or why_not_flat(model)

    def why_not_rows(self, model: Model, batches: Batches, *, training: bool) -> str | None:
        """Return why this backend cannot run the rows of a data set; None if it can. An evaluation runs odd rows padded."""
        reason = why_not_columns(batches)
        return why_not_masks(batches) if reason is None and training and why_not_packed(model) is None else reason

    @property
    def compute_dtype(self) -> torch.dtype:
        """Return the type that matrix multiplications are computed in."""
        return self.autocast_dtype or torch.float32

    @property
    def storage(self) -> FlatStorage:
        """Return the flat storage of the weights in training; raise `ModelError` if no training was started."""
        if self.savings is None or isinstance(self.savings, InferenceLayers):
            raise ModelError(f"backend {self.name}: no training was started", "call start_training first")
        return self.savings.storage

    def start_training(self, model: torch.nn.Module, use: TrainingUse) -> OptimizerFactory:
        """Put the savings of a training in place. Gradients that `on_gradients` reads are complete and in full precision."""
        # Layers are replaced on the instance, not wrapped: names, state_dict, save_pretrained and what a callback
        # sees stay the same.
        groups = decay_groups(model, use.weight_decay)
        no_decay = {id(weight) for group in groups if not group["weight_decay"] for weight in group["params"]}
        low_gradients = self.compute_dtype is not torch.float32 and self.device.type == "cuda"
        self.use = use
        self.savings = make_fast_model(
            model,
            self.compute_dtype,
            no_decay=no_decay,
            vocabulary=None if use.reads_gradients else self.vocabulary_of(model, use),
            low_precision_gradients=low_gradients and not (use.reads_gradients or use.adds_gradients),
        )
        if not isinstance(self.savings, InferenceLayers):
            self.savings.open_for_training()
        return self.make_optimizer

    def make_optimizer(
        self,
        model: torch.nn.Module,
        learning_rate: float,
        *,
        weight_decay: float,
        betas: tuple[float, float],
        epsilon: float,
        fused: bool,
    ) -> FlatAdamW:
        """Return AdamW over the flat storage of a started training."""
        groups, fused = decay_groups(model, weight_decay), fused or self.device.type == "cuda"
        self.optimizer = FlatAdamW(groups, self.storage, lr=learning_rate, betas=betas, eps=epsilon, fused=fused or None)
        return self.optimizer

    def end_training(self) -> None:
        """Remove the savings from the model, which keeps its trained weights."""
        if self.savings is not None:
            self.savings.remove()
        self.savings, self.optimizer, self.use = None, None, NO_TRAINING

    @contextmanager
    def evaluation_context(self, model: torch.nn.Module) -> Iterator[None]:
        """Put the savings in place for one pass, unless a training has put them there."""
        if self.savings is not None or self.why_not(model) is not None:
            yield
            return
        self.savings = self.fast_form(model)
        try:
            yield
        finally:
            self.end_training()

    def fast_form(self, model: Model) -> ReplacedLayers | InferenceLayers | OwnLayers:
        return make_fast_model(model, self.compute_dtype, trains=False)

    def trial_step(self, step: StepFunction, group: list[Batch], other: list[Batch]) -> torch.Tensor:
        """Return what a step without an update computes for `group`, run in the same way as the steps of a training.

        `other` has the same shapes: a backend that captures steps captures that one.
        """
        return step(group)

    def adapt_batches(self, batches: Batches, rows: object) -> RowBatches:
        """Return the batches packed, or as they are if they cannot be, or if `rows` may hold words that are not trained."""
        savings = self.savings
        if savings is None or why_not_columns(batches) is not None:
            return batches
        if not savings.packs:
            return with_few_shapes(batches)
        if savings.vocabulary is not None and not any(rows is known for known in self.use.data_sets):
            savings.sync_to_model()
            return batches
        numbers = savings.vocabulary.new_ids if savings.vocabulary is not None else None
        flash = self.compute_dtype is not torch.float32
        return PackedBatches(batches, self.device, savings.uncounted, numbers, savings.limits, flash=flash)

    def logits_of(self, rows: Sequence[Row]) -> np.ndarray | None:
        """Return the logits of some tokenized rows in their order, by one forward pass on a CPU; None if that is not possible.

        It computes the same as a pass over a split, without the preparations of a pass, which matter for a single row.
        """
        savings, lengths = self.savings, [len(row["input_ids"]) for row in rows]
        if not isinstance(savings, InferenceLayers) or sum(lengths) > EVALUATION_TOKENS["cpu"]:
            return None
        order = np.argsort([-length for length in lengths], kind="stable")
        inputs = packed_rows([rows[place] for place in order], savings.uncounted, savings.limits)
        with torch.inference_mode():
            logits = savings.run(Packing.from_inputs(torch.from_numpy(inputs["packed"]), inputs)).numpy()
        found = np.empty_like(logits)
        found[order] = logits
        return found

    def sync_to_model(self) -> None:
        """Copy trained word vectors into the model: only those that occur in the data are trained."""
        if self.savings is not None:
            self.savings.sync_to_model()

    def sync_from_model(self) -> None:
        if self.savings is not None:
            self.savings.sync_from_model()

    def backward(self, loss: torch.Tensor) -> None:
        super().backward(loss)
        if self.savings is not None and not isinstance(self.savings, InferenceLayers):
            self.savings.after_backward()

    def clip(self, model: torch.nn.Module, max_norm: float) -> torch.Tensor:
        """Return the norm of all gradients; the optimizer scales them while it reads them."""
        if self.savings is None or self.optimizer is None:
            return super().clip(model, max_norm)
        if self.use.reads_gradients:
            self.storage.adopt_gradients()
        return self.optimizer.clip(max_norm)

    def step(self, optimizer: Optimizer) -> None:
        """Update the weights, and the model's word vectors too if a callback reads them."""
        super().step(optimizer)
        if self.use.reads_weights:
            self.sync_to_model()

    def describe_savings(self, model: Model, use: TrainingUse) -> list[str]:
        """Return a short description of each saving that a training uses."""
        names = ["one-pass AdamW"] if why_not_packed(model) else ["packed batches", "one-pass AdamW"]
        if layers_of(model):
            names.insert(1, "last layer for first tokens only")
            if (words := self.vocabulary_of(model, use)) is not None:
                names.append(f"{len(words.used):,} of {len(words.new_ids):,} word vectors")
            if self.compute_dtype is not torch.float32:
                names.append(f"{self.precision} copies of weights")
        return names

    def vocabulary_of(self, model: Model, use: TrainingUse) -> ReducedVocabulary | None:
        """Return the word vectors that occur in the data; None to train all of them, as rows that change need."""
        if any(repeats_of(rows) is not Repeats.SAME for rows in use.data_sets):
            return None
        embedding = model.get_input_embeddings()
        used = used_ids(use.data_sets, embedding.num_embeddings, embedding.padding_idx or 0)
        return choose_vocabulary(model, used, use.weight_decay)


def with_few_shapes(batches: Batches) -> Batches:
    """Return the same batches, padded to fewer different widths: each shape needs a CUDA graph of its own."""
    found = copy(batches)
    if isinstance(batches.collate, PaddingCollator):
        collate = found.collate = copy(batches.collate)
        collate.multiple = lcm(collate.multiple, LENGTH_MULTIPLE)
    return found


class Int8Backend(PackedBackend):
    """Packed batches on a CPU. The first passes are in fp32, and measure; after `quantize`, linear layers run in int8."""

    name = "int8"

    def __init__(self) -> None:
        super().__init__("cpu", "fp32")
        self.ranges: Ranges = {}
        self.quantized = False

    def why_not(self, model: Model) -> str | None:
        """Return why this backend cannot run a model; None if it can."""
        reason = super().why_not(model)
        return reason or (None if has_replaceable_layers(model) else f"{type(model).__name__} has layers without an int8 form")

    def quantize(self) -> None:
        """Run the layers whose ranges were measured in int8 from now on."""
        self.quantized = True

    def fast_form(self, model: Model) -> InferenceLayers:
        """Return the model with layers that measure, or with quantized ones."""
        return InferenceLayers(model, self.make_layer)

    def make_layer(self, parts: LayerParts) -> PackedLayer:
        """Return the form of one layer. The last one, whose ranges nobody measures, stays in fp32."""
        if not self.quantized:
            return MeasuredLayer(parts, self.ranges)
        seen = self.ranges.get(parts.module)
        return InferenceLayer(parts) if seen is None else Int8Layer(parts, seen)


def why_not_int8(model: Model) -> str | None:
    """Return why a model cannot predict in int8 on this CPU; None if it can."""
    if (reason := Int8Backend().why_not(model)) is not None:
        return reason
    reason = why_no_kernels()
    return None if reason is None else f"this CPU: {reason}"
