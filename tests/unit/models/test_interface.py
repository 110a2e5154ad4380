"""What a model takes: the longest input of every family, inputs by name, and tokens that its embedding knows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from families import tiny_model, tiny_tokenizer

from glassloop.base.errors import ModelError
from glassloop.models.interface import (
    accepted_inputs,
    carried_labels,
    label_names,
    longest_input,
    refuse_other_labels,
    refuse_unknown_tokens,
    task_of,
)
from glassloop.settings.training import CLASSES, SCORE, SEVERAL


@pytest.mark.parametrize(
    ("config", "tokens", "longest"),
    [
        (None, 128, 128),
        (None, 10**30, 512),  # what transformers says where nothing is known
        ({"model_type": "bert", "max_position_embeddings": 512}, 10**30, 512),
        ({"model_type": "bert", "max_position_embeddings": 512, "pad_token_id": 0}, 256, 256),
        ({"model_type": "bert", "max_position_embeddings": 128}, 512, 128),
        ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 10**30, 512),
        ({"model_type": "xlm-roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 10**30, 512),
        ({"model_type": "camembert", "max_position_embeddings": 514, "pad_token_id": 1}, 512, 512),
        ({"model_type": "data2vec-text", "max_position_embeddings": 514, "pad_token_id": 1}, 10**30, 512),
        ({"model_type": "mpnet", "max_position_embeddings": 514, "pad_token_id": 1}, 10**30, 512),
        ({"model_type": "modernbert", "max_position_embeddings": 8192, "pad_token_id": 50283}, 10**30, 8192),
        ({"model_type": "t5", "max_position_embeddings": None}, 10**30, 512),
        ({"model_type": "distilbert"}, 512, 512),
    ],
)
def test_the_longest_input(config: dict[str, Any] | None, tokens: int, longest: int) -> None:
    found = longest_input(SimpleNamespace(model_max_length=tokens), config and SimpleNamespace(**config))
    assert found == longest
    assert isinstance(found, int)


def test_the_longest_input_of_a_real_roberta_fits() -> None:
    """One token more than that and the table of positions would end."""
    import torch
    from transformers import RobertaConfig, RobertaModel

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = RobertaConfig(vocab_size=20, max_position_embeddings=18, **sizes)
    longest = longest_input(SimpleNamespace(model_max_length=10**30), config)
    model = RobertaModel(config).eval()
    assert model(torch.full((1, longest), 5)).last_hidden_state.shape == (1, 16, 8)
    with pytest.raises((IndexError, RuntimeError)):
        model(torch.full((1, longest + 1), 5))


def test_a_tokenizer_larger_than_the_embedding_is_refused() -> None:
    tokenizer, model = tiny_tokenizer(), tiny_model()
    refuse_unknown_tokens(tokenizer, model)
    rows = model.get_input_embeddings().num_embeddings
    tokenizer.add_tokens([f"filler{number}" for number in range(rows - len(tokenizer))] + ["alpha", "beta\x1b[31m"])
    with pytest.raises(ModelError) as caught:
        refuse_unknown_tokens(tokenizer, model)
    error = caught.value
    assert error.problem == (
        f"the tokenizer has 2 tokens beyond the {rows} rows of the model's embedding (alpha, beta\\x1b[31m)"
    )
    assert error.remedy == "use the model's own tokenizer, or call model.resize_token_embeddings(len(tokenizer)) and save both"
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


# --- What the outputs of a model mean: its task, and labels with names of their own.


@pytest.mark.parametrize(
    ("given", "carried"),
    [
        ({0: "LABEL_0", 1: "LABEL_1"}, None),
        ({0: "LABEL_0", 1: "yes"}, ("LABEL_0", "yes")),
        ({1: "b", 0: "a"}, ("a", "b")),
        ({10: "k", 9: "j", **{n: str(n) for n in range(9)}}, (*map(str, range(9)), "j", "k")),
        ({0: "LABEL_0\n"}, ("LABEL_0\n",)),
    ],
)
def test_the_labels_a_model_carries(given: dict[int, str], carried: tuple[str, ...] | None) -> None:
    assert carried_labels(SimpleNamespace(id2label=given)) == carried


def test_two_outputs_of_one_name_are_refused(says) -> None:
    with says(
        'the model has two outputs with the label "a"',
        "give each its own name in id2label and label2id of its config.json",
        ModelError,
    ):
        label_names(SimpleNamespace(id2label={0: "a", 1: "b", 2: "a"}))


@pytest.mark.parametrize(
    ("given", "num_labels", "task"), [(None, 1, SCORE), (None, 2, CLASSES), (SEVERAL, 3, SEVERAL), (CLASSES, 1, CLASSES)]
)
def test_the_task_of_a_model(given: str | None, num_labels: int, task: str) -> None:
    assert task_of(SimpleNamespace(problem_type=given, num_labels=num_labels)) == task


def test_labels_of_a_model_and_of_the_data_must_be_the_same_in_the_same_order(says) -> None:
    refuse_other_labels("model", ("no", "yes"), ("no", "yes"))
    with says("model: the order of the model's labels is no, yes; that of the data is yes, no", None, ModelError):
        refuse_other_labels("model", ("no", "yes"), ("yes", "no"))
    with says("model: the model was trained for the labels no, yes; the data has a, b", None, ModelError):
        refuse_other_labels("model", ("no", "yes"), ("a", "b"))
