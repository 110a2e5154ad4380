"""Tiny models of every family, their tokenizer, and weights as one hash: for tests and for the scripts that tests start."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from glassloop.models import families as table


def families_packed_by(packing: table.Packing) -> dict[str, table.Family]:
    return {name: family for name, family in table.FAMILIES.items() if family.packing == packing}


# One of each kind. Families that copy another's code are in the table too; ALIKE names those of them that are packed.
FAMILIES = tuple(name for name, family in table.FAMILIES.items() if family.like is None)
FAST = tuple(name for name in families_packed_by("layers") if name in FAMILIES)
ALIKE = tuple(name for name in families_packed_by("layers") if name not in FAMILIES)
BY_MODULES = tuple(families_packed_by("modules"))
WITH_TOKEN_TYPES = tuple(name for name, family in table.FAMILIES.items() if family.token_types)
UNPACKED = tuple(families_packed_by("none"))
# What a tiny config of a family says beside the common sizes. DROPOUT stands for the rate that a test asks for.
DROPOUT = object()
TINY: dict[str, dict[str, Any]] = {
    **{family: {} for family in ("bert", "roberta", "xlm-roberta", "camembert", "data2vec-text")},
    "electra": {"embedding_size": 32},
    "ernie": {},
    "albert": {"embedding_size": 16, "classifier_dropout_prob": DROPOUT},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "seq_classif_dropout": DROPOUT},
    "modernbert": {
        **{"embedding_dropout": DROPOUT, "mlp_dropout": DROPOUT},
        **{"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3},
    },
    "deberta-v2": {"type_vocab_size": 2, "pooler_hidden_size": 32, "pooler_dropout": DROPOUT},
    "mpnet": {},
}
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
WORDS = "the a is was good bad film story very not and of to in on it this that first second sentence one two".split()
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCABULARY = [*SPECIAL, *WORDS, *LETTERS, *".,!?'\"-0123456789", *(f"##{sign}" for sign in LETTERS)]


def tiny_tokenizer() -> Any:
    """A real BERT tokenizer over a hundred words."""
    from transformers import BertTokenizerFast

    return BertTokenizerFast(vocab={word: number for number, word in enumerate(VOCABULARY)}, model_max_length=64)


def tiny_model(family: str = "bert", dropout: float = 0.1, num_labels: int = 2, **options: Any) -> Any:
    """A tiny classifier of a family (or of another type that transformers knows), always with the same weights."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    sizes: dict[str, Any] = {
        **{"vocab_size": len(VOCABULARY), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
        **{"intermediate_size": 64, "max_position_embeddings": 80, "num_labels": num_labels, "pad_token_id": 0},
    }
    sizes |= {name: dropout if value is DROPOUT else value for name, value in TINY.get(family, {}).items()}
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
