"""All savings of a model put in place and taken away again."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import torch

from glassloop.speed.encoders.parts import (
    EmbeddingParts,
    LayerParts,
    embeddings_of,
    first_position_of,
    layers_of,
    num_layer_calls,
)
from glassloop.speed.operations.embedding import EmbeddingSum
from glassloop.speed.operations.encoder_layer import PostNormLayer
from glassloop.speed.operations.torch_operations import TorchOperations
from glassloop.speed.optimizer.storage import FlatStorage
from glassloop.speed.optimizer.vocabulary import ReducedVocabulary
from glassloop.speed.packing.layout import Packing

PACKED_INPUTS = ("packed", "tokens", "rows", "longest", "filled")


class ReplacedLayers:
    """A model that takes packed batches beside padded ones. The module and its names stay what they were."""

    packs = True

    def __init__(
        self,
        model: Any,
        low: torch.dtype = torch.float32,
        *,
        trains: bool = True,
        no_decay: set[int] | None = None,
        vocabulary: ReducedVocabulary | None = None,
        low_precision_gradients: bool = False,
        firsts_only: bool = True,
    ) -> None:
        self.model, self.layers, self.calls = model, layers_of(model), num_layer_calls(model)
        self.tables: EmbeddingParts = embeddings_of(model)  # type: ignore[assignment]
        self.vocabulary = vocabulary
        self.firsts_only = firsts_only
        device = next(model.parameters()).device
        self.storage = FlatStorage(
            model,
            self.layers,
            no_decay or set(),
            embedding_vectors=self.tables.vectors,
            tables={id(self.tables.words.weight): vocabulary} if vocabulary is not None else {},
            low=low,
            low_precision_gradients=low_precision_gradients,
            trains=trains,
        )
        self.ops = operations_for(device, low)
        self.takes_types = "token_type_ids" in inspect.signature(model.forward).parameters
        self.first_position = first_position_of(model)
        self.limits = (self.tables.positions.num_embeddings - self.first_position, self.tables.words.num_embeddings)
        self.packing: Packing | None = None
        self.passed = 0
        self.carried: tuple[Any, Any] = (None, None)  # a layer's result, flat and as the next one is handed it
        self.hooks: list[Any] = []
        self.plain_forward = model.forward
        self.install()

    def install(self) -> None:
        """Let the model and its layers take packed batches; padded ones go the old way."""
        self.model.forward = self.forward
        for layer in self.layers:
            layer.module.forward = partial(self.layer_forward, layer, layer.module.forward)
        self.tables.module.forward = partial(self.embed, self.tables.module.forward)

    def open_for_training(self) -> None:
        self.storage.open_for_training()
        written = {id(weight) for layer in self.layers for group in (*layer.matrices, layer.vectors) for weight in group}
        tables = (self.tables.words, self.tables.positions, self.tables.types)
        written |= {id(table.weight) for table in tables if table is not None}
        written |= {id(weight) for weight in self.tables.vectors}
        self.hooks = [
            weight.register_post_accumulate_grad_hook(self.storage.adopt_gradient)  # type: ignore[no-untyped-call]
            for weight in self.storage.parameters
            if id(weight) not in written
        ]

    def remove(self) -> None:
        """Leave the model as it was, with its trained weights."""
        self.sync_to_model()
        for module in (self.model, *(layer.module for layer in self.layers), self.tables.module):
            vars(module).pop("forward", None)
        for hook in self.hooks:
            hook.remove()
        self.storage.release()

    def sync_to_model(self) -> None:
        """Write into the module what is trained outside of it."""
        if self.vocabulary is not None:
            weight = self.tables.words.weight
            self.vocabulary.write_back(self.storage.view(self.storage.weights, id(weight)), weight.data)

    def sync_from_model(self) -> None:
        """Take the module's weights, which were just loaded."""
        if self.vocabulary is not None:
            weight = self.tables.words.weight
            self.storage.view(self.storage.weights, id(weight)).copy_(self.vocabulary.small(weight.detach()))
        self.storage.refresh_low_copies()

    def forward(self, *args: Any, packed: torch.Tensor | None = None, **given: Any) -> Any:
        """The model over a packed batch, or over whatever it took before."""
        if packed is None:
            self.sync_to_model()
            return self.plain_forward(*args, **given)
        self.packing = Packing(packed, given["tokens"], given["rows"], given["longest"], given["filled"])
        self.passed = 0
        self.ops.before_forward(self.storage, self.packing, self.model.training)
        inputs = {"input_ids": self.packing.ids[None], "position_ids": self.packing.positions[None]}
        if self.takes_types:
            inputs["token_type_ids"] = self.packing.types[None]
        try:
            # The layers choose their precision themselves; what is left has a few rows, and is as well done in fp32.
            with torch.autocast(packed.device.type, enabled=False):
                return self.plain_forward(**inputs)
        finally:
            self.packing, self.carried = None, (None, None)

    def layer_forward(
        self, layer: LayerParts, plain: Any, hidden_states: torch.Tensor, *args: Any, **given: Any
    ) -> torch.Tensor:
        if self.packing is None:
            return plain(hidden_states, *args, **given)  # type: ignore[no-any-return]
        self.passed += 1
        last = self.passed == self.calls
        after_layer = hidden_states is self.carried[1]
        x = self.carried[0] if after_layer else hidden_states.reshape(-1, hidden_states.shape[-1]).float()
        y: torch.Tensor = PostNormLayer.apply(  # type: ignore[no-untyped-call]
            x, layer.query.weight, layer, self.packing, self.storage, self.ops, self.model.training,
            last and self.firsts_only, after_layer,
        )  # fmt: skip
        if not last:
            self.carried = (y, shaped := y[None])
            return shaped
        firsts = y if self.firsts_only else y.index_select(0, self.packing.firsts)
        return firsts[:, None]  # heads read the first token of each row

    def embed(self, plain: Any, *args: Any, **given: Any) -> torch.Tensor:
        if self.packing is None:
            return plain(*args, **given)  # type: ignore[no-any-return]
        y: torch.Tensor = EmbeddingSum.apply(  # type: ignore[no-untyped-call]
            self.tables.norm.weight, self.tables, self.packing, self.storage, self.ops, self.model.training, self.padding_row
        )
        self.carried = (y, shaped := y[None])
        return shaped

    @property
    def padding_row(self) -> int:
        """The row of the padding token, which never gets a gradient; -1 where there is none."""
        padding = self.tables.words.padding_idx
        if padding is None:
            return -1
        return padding if self.vocabulary is None else int(self.vocabulary.numbers[padding])

    def after_backward(self) -> None:
        """After a backward pass."""
        self.ops.after_backward(self.storage)


def operations_for(device: torch.device, low: torch.dtype) -> Any:
    """The fused kernels where there are any, else plain torch."""
    if device.type == "cuda":
        from glassloop.speed.operations.triton_operations import TritonOperations

        return TritonOperations(device, low)
    return TorchOperations(device, low)
