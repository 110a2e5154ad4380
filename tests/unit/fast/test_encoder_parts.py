"""Which models are recognized: known classes as transformers builds them, with nothing replaced, patched or hooked."""

from __future__ import annotations

from functools import wraps
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from families import ALIKE, BY_MODULES, FAST, tiny_model
from strange_models import STRANGE
from transformers import AlbertConfig
from transformers.models.bert.modeling_bert import BertLayer

from glassloop.backends.fast.encoder_parts import (
    embeddings_of,
    head_of,
    layer_calls,
    layers_of,
    packing_form,
    projection_of,
    uncounted_token_of,
    why_not_flat,
    why_not_packed,
    why_not_unmodified,
)
from glassloop.models.families import FAMILIES, GELU_APPROXIMATIONS


@pytest.mark.parametrize("family", [*FAST, *ALIKE, *BY_MODULES])
def test_a_model_of_a_known_family_can_be_packed(family: str) -> None:
    model = tiny_model(family)
    assert why_not_flat(model) is why_not_packed(model) is None
    assert packing_form(model) == ("modules" if family in BY_MODULES else "layers")


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


# --- The parts of an encoder: found in every family with a layout, and in no other.


def names_of(model: torch.nn.Module) -> dict[int, str]:
    return {id(weight): name for name, weight in model.named_parameters()}


@pytest.mark.parametrize("family", FAST)
def test_every_weight_of_the_encoder_is_in_a_layer_or_in_a_table(family: str) -> None:
    model = tiny_model(family)
    layers, tables = layers_of(model), embeddings_of(model)
    assert tables is not None
    found = [id(weight) for layer in layers for group in (*layer.matrices, layer.vectors) for weight in group]
    found += [id(table.weight) for table in (tables.words, tables.positions, tables.types) if table is not None]
    found += [id(weight) for weight in tables.vectors]
    assert len(found) == len({*found}), "a weight is in two places"
    left = {name for number, name in names_of(model.base_model).items() if number not in found}
    assert left <= {"pooler.dense.weight", "pooler.dense.bias", "pooler.weight", "pooler.bias"} | {
        f"encoder.embedding_hidden_mapping_in.{kind}" for kind in ("weight", "bias")
    }


@pytest.mark.parametrize("family", FAST)
def test_the_parts_are_what_they_are_called(family: str) -> None:
    model = tiny_model(family)
    for layer in layers_of(model):
        shapes = [[tuple(weight.shape) for weight in group] for group in layer.matrices]
        assert shapes == [[(32, 32)] * 3, [(32, 32)], [(64, 32)], [(32, 64)]]
        assert [len(weight) for weight in layer.vectors] == [32] * 6 + [64, 32, 32, 32]
        assert isinstance(layer.out_norm, torch.nn.LayerNorm)
        assert isinstance(layer.down_norm, torch.nn.LayerNorm)
        assert layer.heads == 2
        assert layer.out is not layer.query
        assert layer.out_norm is not layer.down_norm


@pytest.mark.parametrize("family", FAST)
def test_a_layer_that_is_run_twice_is_found_once(family: str) -> None:
    model = tiny_model(family)
    assert len(layers_of(model)) == (1 if family == "albert" else 2)
    assert layer_calls(model) == ([0, 0] if family == "albert" else [0, 1])


def test_groups_of_layers_run_one_after_the_other() -> None:
    config = AlbertConfig(num_hidden_layers=6, num_hidden_groups=2, inner_group_num=2)
    assert layer_calls(SimpleNamespace(config=config)) == [0, 1] * 3 + [2, 3] * 3


@pytest.mark.parametrize("family", FAST)
def test_the_head_of_every_family_is_found(family: str) -> None:
    model = tiny_model(family)
    head, projection = head_of(model), projection_of(model)
    assert head is not None
    assert head.outputs.out_features == model.config.num_labels
    assert head.dense.weight.shape == (32, 32)
    assert (projection is not None) == (family == "albert")
    assert head_of(tiny_model("modernbert")) is None


def test_dropout_rates_are_those_of_the_modules() -> None:
    model = tiny_model("bert", dropout=0.1)
    layer = layers_of(model)[0]
    layer.module.attention.self.dropout.p = 0.2
    layer.module.output.dropout.p = 0.3
    assert layer.dropout_rates == [0.2, 0.1, 0.3]
    assert layers_of(tiny_model("distilbert", dropout=0.1))[0].dropout_rates == [0.1, 0.0, 0.1]
    assert layers_of(tiny_model("albert", dropout=0.1))[0].dropout_rates == [0.1, 0.1, 0.0]


@pytest.mark.parametrize(("activation", "form"), GELU_APPROXIMATIONS.items())
def test_the_approximation_of_gelu(activation: str, form: str) -> None:
    assert layers_of(tiny_model(hidden_act=activation))[0].gelu_approximate == form


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("bert", {"hidden_act": "relu"}),
        ("distilbert", {"activation": "relu"}),
        ("bert", {"is_decoder": True}),
        ("bert", {"position_embedding_type": "relative_key"}),
    ],
)
def test_another_form_has_no_fast_layer(family: str, options: dict) -> None:
    assert layers_of(tiny_model(family, **options)) == []


def test_layers_with_other_names_are_not_found() -> None:
    model = tiny_model()
    del model.base_model.encoder.layer[1].intermediate
    assert layers_of(model) == []


def test_tables_with_other_names_are_not_found() -> None:
    model = tiny_model()
    del model.base_model.embeddings.LayerNorm
    assert embeddings_of(model) is None


@pytest.mark.parametrize(
    ("family", "padding", "uncounted"),
    [
        *(("bert", 0, None), ("electra", 0, None), ("distilbert", 0, None)),
        *(("roberta", 0, 0), ("xlm-roberta", 1, 1), ("roberta", 1, 1)),
    ],
)
def test_roberta_counts_positions_after_its_padding_token(family: str, padding: int, uncounted: int | None) -> None:
    assert uncounted_token_of(tiny_model(family, pad_token_id=padding)) == uncounted
