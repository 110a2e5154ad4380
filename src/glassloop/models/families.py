"""The table of model families: where the parts of their layers are, how they are packed, and what they are called."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

# How packed batches run through a model: with its layers rewritten, through its own modules, or not at all (padded batches).
Packing = Literal["layers", "modules", "none"]


WEIGHTS_NAME = "model.safetensors"  # of every family


@dataclass(frozen=True)
class EncoderLayout:
    """Where the parts of an encoder with post-norm layers are, as attribute paths; by default, those of BERT."""

    # A layer is attention, a sum and its norm, then feed-forward with GELU, a sum and its norm.
    layers: tuple[str, ...] = ("encoder.layer",)  # from the encoder: each names a list, and the next starts at its entries
    query: str = "attention.self.query"  # from a layer, as all up to `dropouts`
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    attention_output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    feed_forward_norm: str = "output.LayerNorm"
    num_heads: str = "attention.self.num_attention_heads"
    # Of the attention probabilities, after the attention, after the feed-forward; None if the family has none.
    dropouts: tuple[str | None, ...] = ("attention.self.dropout", "attention.output.dropout", "output.dropout")
    embeddings: str = "embeddings"  # where the following ones start
    words: str = "word_embeddings"
    positions: str = "position_embeddings"
    token_types: str = "token_type_embeddings"  # some families have none
    embeddings_norm: str = "LayerNorm"
    embeddings_dropout: str = "dropout"


BERT_LAYOUT = EncoderLayout()
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
DISTILBERT_HEAD = Head("pre_classifier", "relu", "classifier")

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
    def encoder(self) -> str:
        """The class of the encoder inside the classifier."""
        return self.classifier.replace("ForSequenceClassification", "Model")

    @property
    def packing(self) -> Packing:
        return "layers" if self.layout else "modules" if self.packs_modules else "none"


BERT = Family("BERT", "BertForSequenceClassification", BERT_LAYOUT, POOLER_HEAD, unpacked=("pooler",), token_types=True)
ROBERTA = Family("RoBERTa", "RobertaForSequenceClassification", BERT_LAYOUT, ROBERTA_HEAD, positions_after_padding=True)
# By the `model_type` of a config.
FAMILIES: dict[str, Family] = {
    "bert": BERT,
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
    "ernie": replace(BERT, title="ERNIE", classifier="ErnieForSequenceClassification", like="bert"),
    "albert": Family(
        "ALBERT",
        "AlbertForSequenceClassification",
        ALBERT_LAYOUT,
        Head("pooler", "tanh", "classifier"),
        projection="encoder.embedding_hidden_mapping_in",
        unpacked=("pooler", "encoder.embedding_hidden_mapping_in"),
        token_types=True,
    ),
    "distilbert": Family("DistilBERT", "DistilBertForSequenceClassification", DISTILBERT_LAYOUT, DISTILBERT_HEAD),
    "modernbert": Family("ModernBERT", "ModernBertForSequenceClassification", packs_modules=True),
    "deberta-v2": Family("DeBERTa-v2/v3", "DebertaV2ForSequenceClassification", token_types=True),
    "mpnet": Family("MPNet", "MPNetForSequenceClassification", positions_after_padding=True),
}
