"""The table of model families: where the parts of their layers are, how they are packed, and what they are called.

The fast backends, the limit on the length of inputs, the tests and the list in the documentation all read this table. To add a
family, add an entry here and a tiny config in tests/families.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

# How packed batches run through a model: with its layers rewritten, through its own modules, or not at all (padded batches).
Packing = Literal["layers", "modules", "none"]


@dataclass(frozen=True)
class EncoderLayout:
    """Where the parts of an encoder with post-norm layers are, as attribute paths.

    A layer is attention, a sum and its norm, then feed-forward with GELU, a sum and its norm.
    """

    layers: tuple[str, ...]  # from the encoder: each path names a list, and the next path starts at the entries of that list
    query: str  # from a layer, as all up to `dropouts`
    key: str
    value: str
    attention_output: str
    attention_norm: str
    up: str
    down: str
    feed_forward_norm: str
    num_heads: str
    # Of the attention probabilities, after the attention, after the feed-forward; None if the family has none.
    dropouts: tuple[str | None, str | None, str | None]
    embeddings: str = "embeddings"  # where the following ones start
    words: str = "word_embeddings"
    positions: str = "position_embeddings"
    token_types: str = "token_type_embeddings"  # some families have none
    embeddings_norm: str = "LayerNorm"
    embeddings_dropout: str = "dropout"


BERT_LAYOUT = EncoderLayout(
    layers=("encoder.layer",),
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    attention_output="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    up="intermediate.dense",
    down="output.dense",
    feed_forward_norm="output.LayerNorm",
    num_heads="attention.self.num_attention_heads",
    dropouts=("attention.self.dropout", "attention.output.dropout", "output.dropout"),
)
ALBERT_LAYOUT = EncoderLayout(
    layers=("encoder.albert_layer_groups", "albert_layers"),
    query="attention.query",
    key="attention.key",
    value="attention.value",
    attention_output="attention.dense",
    attention_norm="attention.LayerNorm",
    up="ffn",
    down="ffn_output",
    feed_forward_norm="full_layer_layer_norm",
    num_heads="attention.num_attention_heads",
    dropouts=("attention.attention_dropout", "attention.output_dropout", None),
)
DISTILBERT_LAYOUT = EncoderLayout(
    layers=("transformer.layer",),
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    attention_output="attention.out_lin",
    attention_norm="sa_layer_norm",
    up="ffn.lin1",
    down="ffn.lin2",
    feed_forward_norm="output_layer_norm",
    num_heads="attention.n_heads",
    dropouts=("attention.dropout", None, "ffn.dropout"),
)


@dataclass(frozen=True)
class Head:
    """The classification head of an encoder: a layer on the first token, its activation, and the outputs."""

    dense: str  # paths start at the encoder or at the classifier around it
    activation: Literal["tanh", "gelu", "relu"]
    outputs: str


POOLER_HEAD = Head("pooler.dense", "tanh", "classifier")
ROBERTA_HEAD = Head("classifier.dense", "tanh", "classifier.out_proj")

# The approximation of GELU that the activation of a layer stands for, by its name in a config. A model with another activation
# has no fast layers, and transformers loads it for predictions.
GELU_APPROXIMATIONS = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu_fast": "tanh"}


@dataclass(frozen=True)
class Family:
    """What Glassloop knows about the models of one `model_type`."""

    title: str  # the name in documents
    classifier: str  # the class of transformers that is recognized; with a `layout`, its head reads the first token of a row
    layout: EncoderLayout | None = None  # None: its layers are not rewritten for packed batches
    head: Head | None = None  # of an encoder with a `layout`
    projection: str | None = None  # from the width of the embeddings to that of the layers
    packs_modules: bool = False  # its own modules take packed batches
    unpacked: tuple[str, ...] = ()  # parts of an encoder with a `layout` that run as transformers wrote them
    positions_after_padding: bool = False  # positions start after the padding token's id, so fewer are left for tokens
    token_types: bool = False  # takes token_type_ids
    like: str | None = None  # the family whose code transformers copies for this one; exhaustive tests run that one

    @property
    def packing(self) -> Packing:
        return "layers" if self.layout else "modules" if self.packs_modules else "none"


ROBERTA = Family("RoBERTa", "RobertaForSequenceClassification", BERT_LAYOUT, ROBERTA_HEAD, positions_after_padding=True)
# By the `model_type` of a config.
FAMILIES: dict[str, Family] = {
    "bert": Family("BERT", "BertForSequenceClassification", BERT_LAYOUT, POOLER_HEAD, unpacked=("pooler",), token_types=True),
    "roberta": ROBERTA,
    "xlm-roberta": replace(ROBERTA, title="XLM-RoBERTa", classifier="XLMRobertaForSequenceClassification"),
    "camembert": replace(ROBERTA, title="CamemBERT", classifier="CamembertForSequenceClassification", like="roberta"),
    "data2vec-text": replace(ROBERTA, title="Data2VecText", classifier="Data2VecTextForSequenceClassification", like="roberta"),
    "electra": Family(
        "ELECTRA",
        "ElectraForSequenceClassification",
        BERT_LAYOUT,
        Head("classifier.dense", "gelu", "classifier.out_proj"),
        projection="embeddings_project",
        unpacked=("embeddings_project",),
        token_types=True,
    ),
    "ernie": Family(
        "ERNIE", "ErnieForSequenceClassification", BERT_LAYOUT, POOLER_HEAD, unpacked=("pooler",), token_types=True, like="bert"
    ),
    "albert": Family(
        "ALBERT",
        "AlbertForSequenceClassification",
        ALBERT_LAYOUT,
        Head("pooler", "tanh", "classifier"),
        projection="encoder.embedding_hidden_mapping_in",
        unpacked=("pooler", "encoder.embedding_hidden_mapping_in"),
        token_types=True,
    ),
    "distilbert": Family(
        "DistilBERT", "DistilBertForSequenceClassification", DISTILBERT_LAYOUT, Head("pre_classifier", "relu", "classifier")
    ),
    "modernbert": Family("ModernBERT", "ModernBertForSequenceClassification", packs_modules=True),
    "deberta-v2": Family("DeBERTa-v2/v3", "DebertaV2ForSequenceClassification", token_types=True),
    "mpnet": Family("MPNet", "MPNetForSequenceClassification", positions_after_padding=True),
}


def families_packed_by(packing: Packing) -> dict[str, Family]:
    return {name: family for name, family in FAMILIES.items() if family.packing == packing}


def head_activation(name: str) -> Callable[[Tensor], Tensor]:
    """Return the function between the two layers of a classification head."""
    import torch  # the table of families is read by commands that need no torch

    function: Callable[[Tensor], Tensor] = getattr(torch.nn.functional, name)
    return function
