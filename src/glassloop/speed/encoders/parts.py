"""Where the parts of a transformer layer are, in the model families whose layers compute the same: norms after the sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

# Which form of GELU an activation is, by its name in a config; others have no fast layer.
ACTIVATIONS = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu_fast": "tanh"}
BERT_LIKE = ("bert", "roberta", "xlm-roberta", "camembert", "electra", "ernie", "data2vec-text")


@dataclass(frozen=True, eq=False)
class LayerParts:
    """attention (query, key, value, out), a sum and its norm; feed-forward (up, GELU, down), a sum and its norm."""

    module: nn.Module
    query: Any
    key: Any
    value: Any
    out: Any
    out_norm: Any
    up: Any
    down: Any
    down_norm: Any
    heads: int
    form: str
    dropouts: tuple[Any, Any, Any]  # of the attention, after `out`, after `down`; None where the family has none

    @property
    def rates(self) -> tuple[float, float, float]:
        """The three dropout rates of training."""
        rates = [float(part.p) if part is not None else 0.0 for part in self.dropouts]
        return rates[0], rates[1], rates[2]

    @property
    def matrices(self) -> list[list[nn.Parameter]]:
        """Groups of neighbours: query, key and value are one product."""
        together = [[self.query, self.key, self.value], [self.out], [self.up], [self.down]]
        return [[part.weight for part in group] for group in together]

    @property
    def vectors(self) -> list[nn.Parameter]:
        """Biases and norms, in the order in which the kernels write their gradients."""
        return [
            self.query.bias, self.key.bias, self.value.bias, self.out.bias, self.out_norm.weight, self.out_norm.bias,
            self.up.bias, self.down.bias, self.down_norm.weight, self.down_norm.bias,
        ]  # fmt: skip


def layers_of(model: Any) -> list[LayerParts]:
    """The layers of an encoder in a known form, each once (ALBERT runs one several times); empty where it has another."""
    config = model.config
    form = ACTIVATIONS.get(str(getattr(config, "hidden_act", getattr(config, "activation", ""))))
    finders = {"albert": albert_layers, "distilbert": distilbert_layers} | dict.fromkeys(BERT_LIKE, bert_layers)
    if form is None or config.model_type not in finders or getattr(config, "is_decoder", False):
        return []
    if getattr(config, "position_embedding_type", None) not in (None, "absolute"):
        return []
    try:
        return list(finders[config.model_type](model.base_model, form))
    except AttributeError:  # a version of transformers that builds this family another way
        return []


def num_layer_calls(model: Any) -> int:
    """How many layers a forward pass goes through."""
    return int(model.config.num_hidden_layers) * int(getattr(model.config, "inner_group_num", 1))


def bert_layers(encoder: Any, form: str) -> Iterator[LayerParts]:
    for layer in encoder.encoder.layer:
        inner, after = layer.attention.self, layer.attention.output
        yield LayerParts(
            layer, inner.query, inner.key, inner.value, after.dense, after.LayerNorm,
            layer.intermediate.dense, layer.output.dense, layer.output.LayerNorm,
            inner.num_attention_heads, form, (inner.dropout, after.dropout, layer.output.dropout),
        )  # fmt: skip


def albert_layers(encoder: Any, form: str) -> Iterator[LayerParts]:
    for group in encoder.encoder.albert_layer_groups:
        for layer in group.albert_layers:
            inner = layer.attention
            yield LayerParts(
                layer, inner.query, inner.key, inner.value, inner.dense, inner.LayerNorm,
                layer.ffn, layer.ffn_output, layer.full_layer_layer_norm,
                inner.num_attention_heads, form, (inner.attention_dropout, inner.output_dropout, None),
            )  # fmt: skip


def distilbert_layers(encoder: Any, form: str) -> Iterator[LayerParts]:
    for layer in encoder.transformer.layer:
        inner = layer.attention
        yield LayerParts(
            layer, inner.q_lin, inner.k_lin, inner.v_lin, inner.out_lin, layer.sa_layer_norm,
            layer.ffn.lin1, layer.ffn.lin2, layer.output_layer_norm,
            inner.n_heads, form, (inner.dropout, None, layer.ffn.dropout),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class EmbeddingParts:
    """The vectors of words, positions and token types, whose sum is normed: how these families start."""

    module: nn.Module
    words: nn.Embedding
    positions: nn.Embedding
    types: nn.Embedding | None
    norm: nn.LayerNorm
    dropout: nn.Dropout

    @property
    def vectors(self) -> list[nn.Parameter]:
        return [self.norm.weight, self.norm.bias]


def embeddings_of(model: Any) -> EmbeddingParts | None:
    """The tables of a model in a known form."""
    found = getattr(model.base_model, "embeddings", None)
    names = ("word_embeddings", "position_embeddings", "LayerNorm", "dropout")
    if found is None or not all(hasattr(found, name) for name in names):
        return None
    return EmbeddingParts(
        found, found.word_embeddings, found.position_embeddings, getattr(found, "token_type_embeddings", None),
        found.LayerNorm, found.dropout,
    )  # fmt: skip


def first_position_of(model: Any) -> int:
    """The position of a row's first token: RoBERTa and its kin count from behind the padding token."""
    embeddings = getattr(model.base_model, "embeddings", None)
    padding = getattr(embeddings, "padding_idx", None)
    counted = model.config.model_type in ("roberta", "xlm-roberta", "camembert", "data2vec-text")
    return int(padding) + 1 if counted and padding is not None else 0
