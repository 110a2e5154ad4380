"""How a model is split, and what is refused; tests/e2e/test_split_models.py trains with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from families import FAMILIES, tiny_model
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

from glassloop.backends.fsdp import choose_layers, precision_policy, refuse_options, tensors_of

LAYERS = {
    "bert": ["BertLayer"],
    "roberta": ["RobertaLayer"],
    "xlm-roberta": ["XLMRobertaLayer"],
    "electra": ["ElectraLayer"],  # of these three transformers says nothing
    "albert": ["AlbertLayer", "AlbertLayerGroup"],
    "distilbert": ["TransformerBlock"],
    "modernbert": ["ModernBertEncoderLayer"],
}
MODULES = "with fsdp_ignored_modules each process would train these modules separately"
MASKS = "fsdp_activation_checkpointing uses different dropout masks in the forward and the backward pass"


def plugin(*named: str, **options: Any) -> SimpleNamespace:
    settings = {"auto_wrap_policy": transformer_auto_wrap_policy, "transformer_cls_names_to_wrap": [*named] or None,
                "activation_checkpointing": False, "ignored_modules": None}  # fmt: skip
    return SimpleNamespace(**{**settings, **options})


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_are_the_models_own(family: str) -> None:
    """Never a part that holds the word vectors: Accelerate splits these on their own, and dies of doing it twice."""
    model, found = tiny_model(family), plugin()
    choose_layers(found, model)
    names = found.transformer_cls_names_to_wrap
    assert names == LAYERS.get(family, names)
    assert found.auto_wrap_policy is (transformer_auto_wrap_policy if names else None)
    for module in model.modules():
        assert type(module).__name__ not in names or model.get_input_embeddings() not in module.modules()


def test_layers_of_a_config_or_by_size_are_layers_and_a_strange_model_is_one_part() -> None:
    found = plugin("BertSelfOutput", "NoSuchLayer", "BertEmbeddings")
    choose_layers(found, tiny_model())
    assert found.transformer_cls_names_to_wrap == ["BertSelfOutput"]
    found = plugin("NoSuchLayer")
    choose_layers(found, tiny_model())
    assert found.transformer_cls_names_to_wrap == ["BertLayer"]
    found = plugin(auto_wrap_policy=size_based_auto_wrap_policy)
    choose_layers(found, tiny_model())
    assert found.auto_wrap_policy is transformer_auto_wrap_policy
    assert found.transformer_cls_names_to_wrap == ["BertLayer"]
    found = plugin(auto_wrap_policy=None)
    choose_layers(found, tiny_model())
    assert (found.auto_wrap_policy, found.transformer_cls_names_to_wrap) == (None, None)
    found = plugin()
    choose_layers(found, torch.nn.Linear(2, 2))
    assert found.auto_wrap_policy is None


def test_weights_travel_in_bf16_on_a_gpu_alone_and_all_that_a_model_holds_is_copied() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [precision_policy("fp32", gpu), precision_policy("fp32", cpu), precision_policy("bf16", cpu)] == [None] * 3
    policy = precision_policy("bf16", gpu)
    assert (policy.param_dtype, policy.reduce_dtype, policy.cast_forward_inputs) == (torch.bfloat16, torch.float32, False)
    model = tiny_model()
    model.register_buffer("seen", torch.zeros(3))
    found = [*tensors_of(model)]
    assert len(found) == len([*model.parameters()]) + len([*model.buffers()])
    assert not any(tensor.requires_grad for tensor in found)


@pytest.mark.parametrize(
    ("options", "precision", "beside", "problem"),
    [
        ({}, "fp16", None, "FSDP is not supported in fp16"),
        ({"activation_checkpointing": True}, "fp32", None, MASKS),
        ({"ignored_modules": "pooler"}, "fp32", None, MODULES),
        ({}, "fp32", SimpleNamespace(tp_size=2), "FSDP together with a parallelism_config is not supported"),
    ],
)
def test_what_would_change_numbers_in_silence_is_refused(says, options, precision: str, beside: Any, problem: str) -> None:
    with says(problem):
        refuse_options(plugin(**options), SimpleNamespace(parallelism_config=beside), precision)
    refuse_options(plugin(), SimpleNamespace(parallelism_config=None), "bf16")
