"""Make a model fast for forward passes on a CPU: prepared weights, attention without masks, no record for gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch.nn import functional

from glassloop.errors import ModelError
from glassloop.speed.encoder_parts import LayerParts, embeddings_of, layers_of, num_layer_calls, uncounted_token_of
from glassloop.speed.encoders.own_layers import ModelOutput
from glassloop.speed.operations.prepared_linear import PreparedLinear
from glassloop.speed.packing.layout import Packing
from glassloop.transformers_types import Model

PlainForward = Callable[..., torch.Tensor]  # the forward method of a module of transformers


SHORT = 64  # up to this length, plain products are faster than torch's attention kernel
# oneDNN compiles and keeps a kernel for each number of rows: below 128, 1,024 and beyond, numbers are rounded up to these.
ROUNDED = ((128, 16), (1_024, 64), (1 << 40, 256))


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
    query, key, value = (part.reshape(rows * heads, length, width) for part in (query, key, value))
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
    """A model whose layers run over packed batches in evaluation, with weights that were copied once.

    Args:
        model: A classifier of a family whose layers have a fast form, on a CPU and in fp32.
        make_layer: Returns the fast form of a layer.
    """

    packs, vocabulary = True, None

    def __init__(self, model: Model, make_layer: Callable[[LayerParts], PackedLayer] = InferenceLayer) -> None:
        embeddings = embeddings_of(model)
        if embeddings is None:
            raise ModelError(f"{type(model).__name__} has embeddings without a fast form", "use backend plain")
        self.model, self.embeddings, self.num_layer_calls = model, embeddings, num_layer_calls(model)
        self.layers = [(parts.module, make_layer(parts)) for parts in layers_of(model)]
        self.takes_types = "token_type_ids" in inspect.signature(model.forward).parameters
        self.uncounted = uncounted_token_of(model)
        most_tokens = embeddings.positions.num_embeddings - (0 if self.uncounted is None else self.uncounted + 1)
        self.limits = (most_tokens, embeddings.words.num_embeddings)
        self.packing: Packing | None = None
        self.groups: list[Group] = []
        self.num_layers_run = 0
        self.plain_forward = model.forward
        self.install()

    def install(self) -> None:
        """Replace the forward methods of the model and its layers; padded batches still use the old ones."""
        self.model.forward = self.forward
        for module, layer in self.layers:
            module.forward = partial(self.layer_forward, layer, module.forward)

    def remove(self) -> None:
        """Restore the model."""
        for module in (self.model, *(module for module, _ in self.layers)):
            vars(module).pop("forward", None)

    def sync_to_model(self) -> None:
        """Do nothing: the weights of the model do not change."""

    def sync_from_model(self) -> None:
        """Do nothing: the weights of the model do not change."""

    def forward(self, *args: object, packed: torch.Tensor | None = None, **inputs: object) -> ModelOutput:
        """Run the model over a packed batch, or over any inputs that it accepted before."""
        if packed is None:
            return self.plain_forward(*args, **inputs)  # type: ignore[no-any-return]
        self.packing = Packing.from_inputs(packed, inputs)
        self.groups, self.num_layers_run = groups_of(self.packing), 0
        tokens = {"input_ids": self.packing.ids[None], "position_ids": self.packing.positions[None]}
        if self.takes_types:
            tokens["token_type_ids"] = self.packing.types[None]
        try:
            return self.plain_forward(**tokens)  # type: ignore[no-any-return]
        finally:
            self.packing = None

    def layer_forward(
        self, layer: PackedLayer, plain: PlainForward, hidden_states: torch.Tensor, *args: object, **inputs: object
    ) -> torch.Tensor:
        """Run one layer over the packed batch; the last one returns only the first token of each row, for the head."""
        if self.packing is None:
            return plain(hidden_states, *args, **inputs)
        self.num_layers_run += 1
        x = filled(hidden_states.view(-1, hidden_states.shape[-1]))
        if self.num_layers_run < self.num_layer_calls:
            return layer(x, self.groups)[None]
        return layer.first_tokens(x, self.groups, self.packing.first_tokens)[:, None]
