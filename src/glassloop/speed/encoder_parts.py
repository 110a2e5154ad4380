"""The parts of a model's encoder that the fast layers read: found by the attribute paths in the table of families."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter

import torch
from torch import nn

from glassloop.models.families import FAMILIES, EncoderLayout
from glassloop.models.light import ACTIVATIONS
from glassloop.transformers_types import Model

# The approximation of GELU that an activation stands for, by its name in a config. Other activations have no fast layer.
GELU_APPROXIMATIONS = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu_fast": "tanh"}


@dataclass(frozen=True, eq=False)
class LayerParts:
    """Attention (query, key, value, out), a sum and its norm; feed-forward (up, GELU, down), a sum and its norm."""

    module: nn.Module
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    out: nn.Linear
    out_norm: nn.LayerNorm
    up: nn.Linear
    down: nn.Linear
    down_norm: nn.LayerNorm
    heads: int
    gelu_approximate: str
    # Of the attention probabilities, after `out`, after `down`; None if the family has none.
    dropouts: tuple[nn.Dropout | None, nn.Dropout | None, nn.Dropout | None]

    @property
    def dropout_rates(self) -> tuple[float, float, float]:
        """Return the three dropout rates of training."""
        rates = [float(part.p) if part is not None else 0.0 for part in self.dropouts]
        return rates[0], rates[1], rates[2]

    @property
    def matrices(self) -> list[list[torch.Tensor]]:
        """Return groups of weights that are multiplied as one matrix: query, key and value are."""
        groups = [[self.query, self.key, self.value], [self.out], [self.up], [self.down]]
        return [[part.weight for part in group] for group in groups]

    @property
    def vectors(self) -> list[torch.Tensor]:
        """Return biases and norms, in the order in which the kernels write their gradients."""
        return [
            self.query.bias, self.key.bias, self.value.bias, self.out.bias, self.out_norm.weight, self.out_norm.bias,
            self.up.bias, self.down.bias, self.down_norm.weight, self.down_norm.bias,
        ]  # fmt: skip


@dataclass(frozen=True, eq=False)
class EmbeddingParts:
    """The tables of word, position and token type vectors, the norm of their sum, and its dropout."""

    module: nn.Module
    words: nn.Embedding
    positions: nn.Embedding
    types: nn.Embedding | None
    norm: nn.LayerNorm
    dropout: nn.Dropout

    @property
    def tables(self) -> list[torch.Tensor]:
        """Return the weights of the tables."""
        return [table.weight for table in (self.words, self.positions, self.types) if table is not None]

    @property
    def vectors(self) -> list[torch.Tensor]:
        """Return the parameters of the norm."""
        return [self.norm.weight, self.norm.bias]


@dataclass(frozen=True, eq=False)
class HeadParts:
    """The classification head: a layer on the first token, its activation, and the outputs."""

    dense: nn.Linear
    activate: Callable[[torch.Tensor], torch.Tensor]
    outputs: nn.Linear

    def __call__(self, first_tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of rows from the vectors of their first tokens."""
        found: torch.Tensor = self.outputs(self.activate(self.dense(first_tokens)))
        return found


def layout_of(model: Model) -> EncoderLayout | None:
    """Return where the parts of a model's encoder are; None if its family has no fast layers."""
    family = FAMILIES.get(model.config.model_type)
    return family.layout if family is not None else None


def layers_of(model: Model) -> list[LayerParts]:
    """Return each layer of an encoder once (ALBERT runs one several times); an empty list if it has no fast form."""
    config, layout = model.config, layout_of(model)
    approximate = GELU_APPROXIMATIONS.get(str(getattr(config, "hidden_act", getattr(config, "activation", ""))))
    if approximate is None or layout is None or getattr(config, "is_decoder", False):
        return []
    if getattr(config, "position_embedding_type", None) not in (None, "absolute"):
        return []
    try:
        layers = [model.base_model]
        for path in layout.layers:
            layers = [layer for start in layers for layer in attrgetter(path)(start)]
        return [layer_parts(layer, layout, approximate) for layer in layers]
    except AttributeError:  # a version of transformers that builds this family in another way
        return []


def layer_parts(layer: nn.Module, layout: EncoderLayout, approximate: str) -> LayerParts:
    """Return the parts of one layer."""
    query, key, value = attrgetter(layout.query, layout.key, layout.value)(layer)
    out, out_norm = attrgetter(layout.attention_output, layout.attention_norm)(layer)
    up, down, down_norm = attrgetter(layout.up, layout.down, layout.feed_forward_norm)(layer)
    heads = attrgetter(layout.num_heads)(layer)
    of_attention, after_out, after_down = (attrgetter(path)(layer) if path else None for path in layout.dropouts)
    return LayerParts(
        layer, query, key, value, out, out_norm, up, down, down_norm, heads, approximate, (of_attention, after_out, after_down)
    )


def layer_calls(model: Model) -> list[int]:
    """Return the layers that a forward pass goes through, by their place in `layers_of`: ALBERT's run several times."""
    config = model.config
    number, inner = int(config.num_hidden_layers), int(getattr(config, "inner_group_num", 1))
    groups = int(getattr(config, "num_hidden_groups", number))
    return [int(place / (number / groups)) * inner + part for place in range(number) for part in range(inner)]


def embeddings_of(model: Model) -> EmbeddingParts | None:
    """Return the embedding tables of a model; None if they have no fast form."""
    layout = layout_of(model)
    if layout is None:
        return None
    try:
        module = attrgetter(layout.embeddings)(model.base_model)
        words, positions, norm, dropout = attrgetter(
            layout.words, layout.positions, layout.embeddings_norm, layout.embeddings_dropout
        )(module)
    except AttributeError:  # a version of transformers that builds this family in another way
        return None
    return EmbeddingParts(module, words, positions, getattr(module, layout.token_types, None), norm, dropout)


def head_of(model: Model) -> HeadParts | None:
    """Return the classification head of a model; None if it is not known."""
    family = FAMILIES.get(model.config.model_type)
    if family is None or family.head is None:
        return None
    dense, outputs = linear_at(model, family.head.dense), linear_at(model, family.head.outputs)
    return HeadParts(dense, ACTIVATIONS[family.head.activation], outputs) if dense and outputs else None


def projection_of(model: Model) -> nn.Linear | None:
    """Return the linear layer between the embeddings and the first layer; None if a model has none."""
    family = FAMILIES.get(model.config.model_type)
    return linear_at(model, family.projection) if family is not None and family.projection is not None else None


def linear_at(model: Model, path: str) -> nn.Linear | None:
    """Return the linear layer at an attribute path that starts at a classifier or at its encoder; None if there is none."""
    for start in (model, model.base_model):
        with suppress(AttributeError):
            found = attrgetter(path)(start)
            return found if isinstance(found, nn.Linear) else None
    return None


def uncounted_token_of(model: Model) -> int | None:
    """Return the id of the padding token if positions start after this number and skip the token; None if they start at 0."""
    family = FAMILIES.get(model.config.model_type)
    padding = getattr(getattr(model.base_model, "embeddings", None), "padding_idx", None)
    return int(padding) if family is not None and family.positions_after_padding and padding is not None else None
