"""Make a model fast for forward passes on a CPU, and choose which form of a model is used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch.nn import functional

from glassloop.backends.fast.encoder_parts import (
    LayerParts,
    embeddings_of,
    has_replaceable_layers,
    head_of,
    layer_calls,
    layers_of,
    packs_own_layers,
    projection_of,
    uncounted_token_of,
    why_not_packed,
)
from glassloop.backends.fast.packing import Packing
from glassloop.backends.fast.storage import ReducedVocabulary
from glassloop.backends.fast.training_model import ModelOutput, OwnLayers, ReplacedLayers
from glassloop.base.errors import ModelError
from glassloop.data.interfaces import Model
from glassloop.models.light import LightOutput

TYPICAL_TOKENS = 512  # a layout is chosen for about this many tokens, and works for any number


def has_prepared_form() -> bool:
    """Return whether this build of torch can store the weights of a linear layer in oneDNN's layout."""
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    found = available and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return bool(found and hasattr(torch.ops.mkldnn, "_reorder_linear_weight"))


def joined(parts: torch.Tensor | list[torch.Tensor]) -> torch.Tensor:
    """Return one weight, or several as one matrix."""
    return torch.cat([part.detach() for part in parts]) if isinstance(parts, list) else parts.detach()


class PreparedLinear:
    """x @ weight^T + bias, with weights that are copied once.

    Args:
        weight: The weight, or several that are multiplied as one matrix.
        bias: The bias, or as many as there are weights.
    """

    def __init__(self, weight: torch.Tensor | list[torch.Tensor], bias: torch.Tensor | list[torch.Tensor]) -> None:
        weights, self.bias = joined(weight), joined(bias)
        self.prepared = has_prepared_form()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weights, TYPICAL_TOKENS) if self.prepared else weights

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x @ weight^T + bias."""
        if not self.prepared:
            return functional.linear(x, self.weight, self.bias)
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return found

    def gelu(self, x: torch.Tensor, approximate: str) -> torch.Tensor:
        """Return GELU(x @ weight^T + bias)."""
        if not self.prepared:
            return functional.gelu(self(x), approximate=approximate)
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "gelu", [], approximate)
        return found

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Return x @ weight^T + bias + residual."""
        if not self.prepared:
            return self(x).add_(residual)
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")
        return found


SHORT = 64  # up to this length, plain products are faster than torch's attention kernel


# oneDNN compiles and keeps a kernel for each number of rows. Up to so many rows, the number is rounded up to such a multiple.
ROUNDED = ((1, 1), (2, 2), (4, 4), (8, 8), (128, 16), (1_024, 64), (1 << 40, 256))


def filled(x: torch.Tensor) -> torch.Tensor:
    """Return x with rows of zeros at its end, so that few different numbers of rows occur. Nothing reads their results."""
    multiple = next(multiple for most, multiple in ROUNDED if len(x) <= most)
    missing = -len(x) % multiple
    return torch.cat([x, x.new_zeros(missing, x.shape[1])]) if missing else x


@dataclass(frozen=True)
class Group:
    """Adjacent sequences of one length: their tokens from `start` on form a grid without padding."""

    start: int
    rows: int
    length: int

    def grid(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the tokens of these sequences as [rows, length, …], without a copy."""
        return tokens[self.start : self.start + self.rows * self.length].view(self.rows, self.length, *tokens.shape[1:])


def groups_of(packing: Packing) -> list[Group]:
    """Return the sequences of a packed batch in groups of one length. Sorted rows form the fewest groups."""
    bounds = packing.bounds.numpy()
    lengths = np.diff(bounds)
    starts = np.flatnonzero(np.diff(lengths, prepend=-1))
    stops = [*starts[1:], len(lengths)]
    return [
        Group(int(bounds[start]), int(stop - start), int(lengths[start])) for start, stop in zip(starts, stops, strict=True)
    ]


def num_tokens(groups: Sequence[Group]) -> int:
    """Return the number of tokens of all sequences; rows behind them are those of `filled`."""
    return groups[-1].start + groups[-1].rows * groups[-1].length


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return the attention of sequences of one length: [rows, heads, length, width]."""
    rows, heads, length, width = query.shape
    if length > SHORT:
        return functional.scaled_dot_product_attention(query, key, value)
    query, key, value = (part.reshape(rows * heads, length, width) for part in (query, key, value))  # copies only several rows
    scores = torch.baddbmm(query.new_empty(1), query, key.mT, beta=0, alpha=width**-0.5)
    return torch.bmm(torch.softmax(scores, -1), value).view(rows, heads, length, width)


def attended(joined: torch.Tensor, heads: int, groups: Sequence[Group]) -> torch.Tensor:
    """Return the attention within each sequence, from the queries, keys and values of all tokens in one matrix."""
    parts = joined.view(len(joined), 3, heads, -1)
    found = joined.new_empty(len(joined), heads, parts.shape[-1])
    for group in groups:
        query, key, value = group.grid(parts).permute(2, 0, 3, 1, 4)
        group.grid(found).copy_(attention(query, key, value).transpose(1, 2))
    found[num_tokens(groups) :] = 0.0
    return found.view(len(joined), -1)


class InferenceLayer:
    """One post-norm layer with prepared weights.

    Args:
        parts: The modules of the layer.
    """

    def __init__(self, parts: LayerParts) -> None:
        self.heads, self.approximate = parts.heads, parts.gelu_approximate
        self.width = parts.query.weight.shape[0]
        linears = (parts.query, parts.key, parts.value)
        self.queries_keys_values = PreparedLinear([part.weight for part in linears], [part.bias for part in linears])
        self.query = PreparedLinear(parts.query.weight, parts.query.bias)
        self.key, self.value = (part.weight.detach().view(self.heads, -1, self.width) for part in linears[1:])
        self.value_bias = parts.value.bias.detach().view(self.heads, -1)
        self.out, self.up, self.down = (PreparedLinear(part.weight, part.bias) for part in (parts.out, parts.up, parts.down))
        self.out_norm, self.down_norm = parts.out_norm, parts.down_norm

    def __call__(self, x: torch.Tensor, groups: Sequence[Group]) -> torch.Tensor:
        """Return the output of the layer for all tokens."""
        return self.feed_forward(self.attend(x, groups), x)

    def feed_forward(self, attended: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """Return what follows attention: a sum and its norm, GELU between two linear layers, a sum and its norm."""
        hidden = self.out_norm(self.out.add(attended, source))
        found: torch.Tensor = self.down_norm(self.down.add(self.up.gelu(hidden, self.approximate), hidden))
        return found

    def attend(self, x: torch.Tensor, groups: Sequence[Group]) -> torch.Tensor:
        """Return the attention within each sequence."""
        return attended(self.queries_keys_values(x), self.heads, groups)

    def first_tokens(self, x: torch.Tensor, groups: Sequence[Group], first: torch.Tensor) -> torch.Tensor:
        """Return the output of the layer only for the first token of each row, which the head reads.

        The key and value matrices are multiplied with the few queries and with what these attend to, not with all tokens:
        see `attend_first_tokens` in operations/encoder_layer.py.
        """
        number, source = len(first), filled(x.index_select(0, first))
        queries = self.query(source)[:number].view(number, self.heads, -1)
        folded = torch.bmm(queries.transpose(0, 1), self.key).transpose(0, 1)
        mixed, place = [], 0
        for group in groups:
            grid = group.grid(x)
            scores = torch.bmm(folded[place : place + group.rows], grid.mT).mul_(queries.shape[-1] ** -0.5)
            mixed.append(torch.bmm(torch.softmax(scores, -1), grid))
            place += group.rows
        values = torch.bmm(torch.cat(mixed).transpose(0, 1), self.value.mT).transpose(0, 1) + self.value_bias
        return self.feed_forward(filled(values.reshape(number, self.width)), source)[:number]


class PackedLayer(Protocol):
    """One layer over the tokens of a packed batch."""

    def __call__(self, x: torch.Tensor, groups: Sequence[Group]) -> torch.Tensor:
        """Return the output of the layer for all tokens."""

    def first_tokens(self, x: torch.Tensor, groups: Sequence[Group], first: torch.Tensor) -> torch.Tensor:
        """Return the output of the layer only for the first token of each row."""


class InferenceLayers:
    """A classifier that runs over packed batches in evaluation, from embeddings to logits, with weights that were copied once.

    Args:
        model: A classifier of a family whose layers have a fast form, on a CPU and in fp32.
        make_layer: Returns the fast form of a layer.
    """

    packs, vocabulary = True, None

    def __init__(self, model: Model, make_layer: Callable[[LayerParts], PackedLayer] = InferenceLayer) -> None:
        embeddings, head = embeddings_of(model), head_of(model)
        if embeddings is None or head is None:
            raise ModelError(f"{type(model).__name__} has embeddings or a head without a fast form", "use backend plain")
        self.model, self.embeddings, self.projection, self.head = model, embeddings, projection_of(model), head
        layers = [make_layer(parts) for parts in layers_of(model)]
        *self.layers, self.last_layer = [layers[number] for number in layer_calls(model)]
        self.uncounted = uncounted_token_of(model)
        most_tokens = embeddings.positions.num_embeddings - (0 if self.uncounted is None else self.uncounted + 1)
        self.limits = (most_tokens, embeddings.words.num_embeddings)
        self.plain_forward = model.forward
        model.forward = self.forward

    def remove(self) -> None:
        """Restore the model."""
        vars(self.model).pop("forward", None)

    def sync_to_model(self) -> None:
        """Do nothing: the weights of the model do not change."""

    def sync_from_model(self) -> None:
        """Do nothing: the weights of the model do not change."""

    def forward(self, *args: object, packed: torch.Tensor | None = None, **inputs: object) -> ModelOutput | LightOutput:
        """Run the model over a packed batch, or over any inputs that it accepted before."""
        if packed is None:
            return self.plain_forward(*args, **inputs)  # type: ignore[no-any-return]
        return LightOutput(self.run(Packing.from_inputs(packed, inputs)))

    def run(self, packing: Packing) -> torch.Tensor:
        """Return the logits of a packed batch."""
        groups, x = groups_of(packing), filled(self.embed(packing))
        for layer in self.layers:
            x = layer(x, groups)
        return self.head(self.last_layer.first_tokens(x, groups, packing.first_tokens))

    def embed(self, packing: Packing) -> torch.Tensor:
        """Return the vectors of all tokens before the first layer."""
        parts = self.embeddings
        found = functional.embedding(packing.ids, parts.words.weight)
        if parts.types is not None:
            found += functional.embedding(packing.types, parts.types.weight)
        found += functional.embedding(packing.positions, parts.positions.weight)
        hidden: torch.Tensor = parts.norm(found)
        return hidden if self.projection is None else self.projection(hidden)


def make_fast_model(
    model: Model,
    matmul_dtype: torch.dtype,
    *,
    trains: bool = True,
    no_decay: set[int] | None = None,
    vocabulary: ReducedVocabulary | None = None,
    low_precision_gradients: bool = False,
) -> ReplacedLayers | InferenceLayers | OwnLayers:
    """Return the fast form of a model: replaced layers where its family is known, else its own layers."""
    packs = why_not_packed(model) is None
    if packs and has_replaceable_layers(model):
        if not trains and matmul_dtype is torch.float32 and next(model.parameters()).device.type == "cpu":
            return InferenceLayers(model)
        return ReplacedLayers(
            model,
            matmul_dtype,
            trains=trains,
            no_decay=no_decay,
            vocabulary=vocabulary,
            low_precision_gradients=low_precision_gradients,
        )
    return OwnLayers(model, packs=packs and packs_own_layers(model), trains=trains, no_decay=no_decay)
