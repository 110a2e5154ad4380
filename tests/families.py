"""Tiny models of every family, their tokenizer, and weights as one hash: for tests and for the scripts that tests start."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

FAMILIES = ("bert", "roberta", "xlm-roberta", "electra", "deberta-v2", "albert", "distilbert", "modernbert")
WITH_TOKEN_TYPES = ("bert", "electra", "albert", "deberta-v2")
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
WORDS = "the a is was good bad film story very not and of to in on it this that first second sentence one two".split()
VOCABULARY = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *WORDS,
    *LETTERS,
    *".,!?'\"-0123456789",
    *(f"##{sign}" for sign in LETTERS),
]


def tiny_tokenizer() -> Any:
    """A real BERT tokenizer over a hundred words."""
    from transformers import BertTokenizerFast

    return BertTokenizerFast(vocab={word: number for number, word in enumerate(VOCABULARY)}, model_max_length=64)


def tiny_model(family: str = "bert", dropout: float = 0.1, num_labels: int = 2, **options: Any) -> Any:
    """A tiny classifier of a family, always with the same weights."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    sizes: dict[str, Any] = {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 80,
        "num_labels": num_labels,
        "pad_token_id": 0,
    }
    if family == "distilbert":
        sizes |= {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "seq_classif_dropout": dropout}
    if family == "modernbert":
        sizes |= {"embedding_dropout": dropout, "mlp_dropout": dropout, "cls_token_id": 2, "sep_token_id": 3}
        sizes |= {"bos_token_id": 2, "eos_token_id": 3}
    if family == "albert":
        sizes |= {"embedding_size": 16, "classifier_dropout_prob": dropout}
    if family == "electra":
        sizes |= {"embedding_size": 32}
    if family == "deberta-v2":
        sizes |= {"type_vocab_size": 2, "pooler_hidden_size": 32, "pooler_dropout": dropout}
    config = AutoConfig.for_model(family, **sizes)
    rates = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "dropout", "attention_dropout")
    for rate in rates:
        if hasattr(config, rate):
            setattr(config, rate, dropout)
    for name, value in options.items():
        setattr(config, name, value)
    torch.manual_seed(11)
    return AutoModelForSequenceClassification.from_config(config)


def rows_for(family: str, rows: Any) -> Any:
    """Encoded rows as a family takes them: token types only where the model knows them."""
    return rows if family in WITH_TOKEN_TYPES else rows.remove_columns("token_type_ids")


def weights_hash(model: torch.nn.Module) -> str:
    """SHA-256 over the sorted (name, dtype, shape, bytes) of all weights."""
    hasher = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        hasher.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        hasher.update(value.detach().cpu().contiguous().numpy().tobytes())
    return hasher.hexdigest()
