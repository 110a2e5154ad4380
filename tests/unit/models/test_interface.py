"""What a model takes: the longest input of every family, inputs by name, and tokens that its embedding knows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from families import tiny_model, tiny_tokenizer
from transformers import RobertaConfig, RobertaModel

from glassloop.base.errors import ModelError
from glassloop.models import interface
from glassloop.models.interface import accepted_inputs, carried_labels, longest_input, refuse_unknown_tokens
from glassloop.settings.training import CLASSES, SCORE, SEVERAL

UNKNOWN = 10**30  # what transformers says where nothing is known


def test_the_longest_input() -> None:
    for family, positions, padding, tokens, longest in (
        (None, None, None, 128, 128),
        (None, None, None, UNKNOWN, 512),
        ("bert", 512, None, UNKNOWN, 512),
        ("bert", 512, 0, 256, 256),
        ("bert", 128, None, 512, 128),
        *((family, 514, 1, UNKNOWN, 512) for family in ("roberta", "xlm-roberta", "data2vec-text", "mpnet")),
        ("camembert", 514, 1, 512, 512),
        ("modernbert", 8192, 50283, UNKNOWN, 8192),
        ("t5", None, None, UNKNOWN, 512),
    ):
        config = SimpleNamespace(model_type=family, max_position_embeddings=positions, pad_token_id=padding) if family else None
        found = longest_input(SimpleNamespace(model_max_length=tokens), config)
        assert (found, type(found)) == (longest, int)
    # A real RoBERTa: one token more and the table of positions would end.
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = RobertaConfig(vocab_size=20, max_position_embeddings=18, **sizes)
    longest = longest_input(SimpleNamespace(model_max_length=UNKNOWN), config)
    model = RobertaModel(config).eval()
    assert model(torch.full((1, longest), 5)).last_hidden_state.shape == (1, 16, 8)
    with pytest.raises((IndexError, RuntimeError)):
        model(torch.full((1, longest + 1), 5))


def test_a_tokenizer_larger_than_the_embedding_is_refused(says) -> None:
    tokenizer, model = tiny_tokenizer(), tiny_model()
    refuse_unknown_tokens(tokenizer, model)
    rows = model.get_input_embeddings().num_embeddings
    tokenizer.add_tokens([f"filler{number}" for number in range(rows - len(tokenizer))] + ["alpha", "beta\x1b[31m"])
    with says(
        f"the tokenizer has 2 tokens beyond the {rows} rows of the model's embedding (alpha, beta\\x1b[31m)",
        "use the model's own tokenizer, or call model.resize_token_embeddings(len(tokenizer)) and save both",
        ModelError,
    ):
        refuse_unknown_tokens(tokenizer, model)
    model.resize_token_embeddings(len(tokenizer))
    refuse_unknown_tokens(tokenizer, model)


def test_the_inputs_of_a_forward_that_passes_names_on_are_those_of_its_parent() -> None:
    """They were taken for none, and every column was dropped."""
    parent = type(tiny_model())

    class Passing(parent):
        def forward(self, *args, extra=None, **given):
            return super().forward(*args, **given)

    usual = accepted_inputs(parent)
    assert {"input_ids", "attention_mask", "token_type_ids", "labels"} <= usual
    assert not usual & {"self", "input", "kwargs"}
    assert accepted_inputs(Passing) == {*usual, "extra"}


def test_the_labels_and_the_task_of_a_model(says) -> None:
    for labels, carried in (
        ({0: "LABEL_0", 1: "LABEL_1"}, None),
        ({0: "LABEL_0", 1: "yes"}, ("LABEL_0", "yes")),
        ({1: "b", 0: "a"}, ("a", "b")),
        ({10: "k", 9: "j", **{n: str(n) for n in range(9)}}, (*map(str, range(9)), "j", "k")),
        ({0: "LABEL_0\n"}, ("LABEL_0\n",)),
    ):
        assert carried_labels(SimpleNamespace(id2label=labels)) == carried
    remedy = "give each its own name in id2label and label2id of its config.json"
    with says('the model has two outputs with the label "a"', remedy, ModelError):
        interface.label_names(SimpleNamespace(id2label={0: "a", 1: "b", 2: "a"}))
    for task, num_labels, meant in ((None, 1, SCORE), (None, 2, CLASSES), (SEVERAL, 3, SEVERAL), (CLASSES, 1, CLASSES)):
        assert interface.task_of(SimpleNamespace(problem_type=task, num_labels=num_labels)) == meant
