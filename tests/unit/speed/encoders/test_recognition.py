"""Which models are recognized: known classes as transformers builds them, with nothing replaced, patched or hooked."""

from __future__ import annotations

from functools import wraps
from typing import Any

import pytest
import torch
import transformers
from families import ALIKE, BY_MODULES, FAST, tiny_model
from strange_models import STRANGE
from transformers.models.bert.modeling_bert import BertLayer

from glassloop.backends.fast.encoder_parts import (
    has_replaceable_layers,
    packs_own_layers,
    why_not_flat,
    why_not_packed,
    why_not_unmodified,
)
from glassloop.models.families import FAMILIES


@pytest.mark.parametrize("family", [*FAST, *ALIKE, *BY_MODULES])
def test_a_model_of_a_known_family_can_be_packed(family: str) -> None:
    model = tiny_model(family)
    assert why_not_flat(model) is why_not_packed(model) is None
    assert has_replaceable_layers(model) == (family not in BY_MODULES)
    assert packs_own_layers(model) == (family in BY_MODULES)


def test_every_known_class_exists_and_is_tested() -> None:
    tested = {type(tiny_model(family)).__name__ for family in (*FAST, *ALIKE, *BY_MODULES)}
    assert tested == {family.classifier for family in FAMILIES.values() if family.packing != "none"}
    assert all(hasattr(transformers, name) for name in tested)


def frozen(model: Any) -> None:
    model.base_model.embeddings.requires_grad_(False)


def half(model: Any) -> None:
    model.classifier.to(torch.bfloat16)


def hooked(model: Any) -> None:
    model.classifier.weight.register_hook(lambda grad: grad)


def hooked_after_the_sum(model: Any) -> None:
    model.classifier.weight.register_post_accumulate_grad_hook(lambda weight: None)


def shared_memory(model: Any) -> None:
    model.classifier.weight = torch.nn.Parameter(model.bert.pooler.dense.weight.detach()[:2])


def checkpointed(model: Any) -> None:
    model.gradient_checkpointing_enable()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (frozen, "5 weights are frozen"),
        (half, "the weights are not fp32"),
        (hooked, "weights have hooks or a type of their own"),
        (hooked_after_the_sum, "weights have hooks or a type of their own"),
        (shared_memory, "weights share memory"),
        (checkpointed, "gradient checkpointing is on"),
    ],
)
def test_a_model_whose_weights_cannot_be_stored_flat(change: Any, reason: str) -> None:
    model = tiny_model()
    assert why_not_flat(model) is None
    change(model)
    assert why_not_flat(model) == reason


@pytest.mark.parametrize("name", STRANGE)
def test_a_model_that_is_not_recognized_is_not_packed(name: str) -> None:
    assert why_not_packed(STRANGE[name]()) is not None


def other_activation(model: Any) -> None:
    model.config.hidden_act = "relu"


def other_activation_of_the_same_form(model: Any) -> None:
    model.config.hidden_act = "gelu_new"


def other_tables(model: Any) -> None:
    model.base_model.embeddings.word_embeddings.max_norm = 1.0


def other_forward(model: Any) -> None:
    model.forward = lambda input_ids, attention_mask=None: None


def hook_inside(model: Any) -> None:
    model.base_model.encoder.layer[0].attention.self.query.register_forward_hook(lambda module, args, output: output * 2)


def pre_hook_inside(model: Any) -> None:
    model.base_model.encoder.layer[1].output.register_forward_pre_hook(lambda module, args: None)


def hook_on_the_model(model: Any) -> None:
    model.register_full_backward_hook(lambda module, before, after: None)


def other_part(model: Any) -> None:
    inner = model.base_model.encoder.layer[0].attention.self
    inner.query = torch.nn.Sequential(inner.query, torch.nn.Tanh())


def part_without_bias(model: Any) -> None:
    model.base_model.encoder.layer[0].attention.self.query = torch.nn.Linear(32, 32, bias=False)


def part_of_another_kind(model: Any) -> None:
    class Doubled(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 2

    model.base_model.encoder.layer[0].output.dense = Doubled(64, 32)


def other_classifier(model: Any) -> None:
    model.classifier = torch.nn.Sequential(torch.nn.Linear(32, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def one_more_part(model: Any) -> None:
    model.base_model.encoder.extra = torch.nn.Linear(2, 2)


def other_epsilon(model: Any) -> None:
    model.base_model.encoder.layer[0].output.LayerNorm.eps = 0.1


def other_number_of_heads(model: Any) -> None:
    model.base_model.encoder.layer[0].attention.self.num_attention_heads = 4


def weight_by_parts(model: Any) -> None:
    torch.nn.utils.parametrizations.weight_norm(model.base_model.encoder.layer[0].output.dense)


def other_method(model: Any) -> None:
    """It changes nothing in an evaluation, so a comparison of logits would not reveal it."""
    layer = model.base_model.encoder.layer[0]
    usual = layer.feed_forward_chunk
    layer.feed_forward_chunk = lambda states: usual(states) * (1.2 if layer.training else 1)


def shared_weight(model: Any) -> None:
    first, second = model.base_model.encoder.layer
    second.output.dense.weight = first.output.dense.weight


CHANGES = [
    *(other_activation, other_activation_of_the_same_form, other_tables, other_forward, hook_inside, pre_hook_inside),
    *(hook_on_the_model, other_part, part_without_bias, part_of_another_kind, other_classifier, one_more_part),
    *(other_epsilon, other_number_of_heads, weight_by_parts, other_method, shared_weight),
]


@pytest.mark.parametrize("change", CHANGES)
def test_changed_parts_are_not_packed(change: Any) -> None:
    """A fast layer reads the weights of modules and never calls them, so changes to the modules would be ignored."""
    model = tiny_model()
    assert why_not_packed(model) is None
    change(model)
    assert why_not_packed(model) is not None


def test_a_forward_patched_on_the_class_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.bert.modeling_bert import BertSelfOutput

    model = tiny_model()
    monkeypatch.setattr(BertSelfOutput, "forward", lambda self, hidden_states, input_tensor: input_tensor)
    assert why_not_unmodified(model) == "the forward method of bert.encoder.layer.0.attention.output was replaced"


@pytest.mark.parametrize(
    ("owner", "name", "part"),
    [
        (BertLayer, "forward", "bert.encoder.layer.0"),
        (BertLayer, "feed_forward_chunk", "bert.encoder.layer.0"),
        (torch.nn.LayerNorm, "forward", "bert.embeddings.LayerNorm"),
        (torch.nn.Module, "__call__", "BertForSequenceClassification"),
    ],
)
def test_a_wrapped_method_of_a_class_is_seen(owner: type, name: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decorator with functools.wraps has the name of what it wraps."""
    usual = getattr(owner, name)

    @wraps(usual)
    def wrapped(self: Any, *args: Any, **given: Any) -> Any:
        return usual(self, *args, **given)

    model = tiny_model()
    monkeypatch.setattr(owner, name, wrapped)
    assert why_not_unmodified(model) == f"the {name} method of {part} was replaced"


def test_hooks_for_all_modules_are_seen() -> None:
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, args, output: None)
    assert why_not_unmodified(tiny_model()) == "hooks are registered for all modules"
    handle.remove()


def test_harmless_changes_are_accepted(tmp_path) -> None:
    model = tiny_model()
    model.resize_token_embeddings(120)
    model.bert.encoder.layer[0].output.dropout.p = 0.3
    model.note = "mine"
    assert why_not_packed(model) is None
    model.save_pretrained(tmp_path)
    assert why_not_packed(type(model).from_pretrained(tmp_path, num_labels=2)) is None


def test_recognition_draws_no_random_number() -> None:
    model, before = tiny_model(), torch.get_rng_state()
    assert why_not_packed(model) is None
    assert torch.equal(torch.get_rng_state(), before)
