"""Which models are recognized: known classes as transformers builds them, with nothing replaced, patched or hooked."""

from __future__ import annotations

from functools import wraps
from typing import Any

import pytest
import torch
import transformers
from families import ALIKE, BY_MODULES, FAST, tiny_model
from strange_models import STRANGE
from transformers.models.bert.modeling_bert import BertLayer, BertSelfOutput

from glassloop.backends.fast import encoder_parts
from glassloop.backends.fast.encoder_parts import embeddings_of, layers_of, why_not_flat, why_not_packed, why_not_unmodified
from glassloop.models.families import FAMILIES, GELU_APPROXIMATIONS


@pytest.mark.parametrize("family", [*FAST, *ALIKE, *BY_MODULES])
def test_a_model_of_a_known_family_can_be_packed(family: str) -> None:
    model = tiny_model(family)
    assert why_not_flat(model) is why_not_packed(model) is None
    assert encoder_parts.packing_form(model) == ("modules" if family in BY_MODULES else "layers")


def test_every_known_class_exists_and_is_tested() -> None:
    tested = {type(tiny_model(family)).__name__ for family in (*FAST, *ALIKE, *BY_MODULES)}
    assert tested == {family.classifier for family in FAMILIES.values() if family.packing != "none"}
    assert all(hasattr(transformers, name) for name in tested)


def set_weight(module: torch.nn.Module, weight: torch.Tensor) -> None:
    module.weight = weight if isinstance(weight, torch.nn.Parameter) else torch.nn.Parameter(weight)


FLAT = {
    "the weights are not fp32": lambda model: model.classifier.to(torch.bfloat16),
    "weights have hooks or a type of their own": lambda model: model.classifier.weight.register_hook(lambda grad: grad),
    "weights share memory": lambda model: set_weight(model.classifier, model.bert.pooler.dense.weight.detach()[:2]),
    "gradient checkpointing is on": lambda model: model.gradient_checkpointing_enable(),
}


def test_a_model_whose_weights_cannot_be_stored_flat() -> None:
    for reason, change in FLAT.items():
        model = tiny_model()
        change(model)
        assert why_not_flat(model) == reason
    model = tiny_model()
    model.classifier.weight.register_post_accumulate_grad_hook(lambda weight: None)
    assert why_not_flat(model) == "weights have hooks or a type of their own"


class Doubled(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


def other_method(model: Any) -> None:
    """It changes nothing in an evaluation, so a comparison of logits would not reveal it."""
    layer = model.base_model.encoder.layer[0]
    usual = layer.feed_forward_chunk
    layer.feed_forward_chunk = lambda states: usual(states) * (1.2 if layer.training else 1)


CHANGES = {
    "activation": lambda model, layer: setattr(model.config, "hidden_act", "relu"),
    "activation of the same form": lambda model, layer: setattr(model.config, "hidden_act", "gelu_new"),
    "tables": lambda model, layer: setattr(model.base_model.embeddings.word_embeddings, "max_norm", 1.0),
    "forward": lambda model, layer: setattr(model, "forward", lambda input_ids, attention_mask=None: None),
    "hook inside": lambda model, layer: layer.attention.self.query.register_forward_hook(lambda *args: args[2] * 2),
    "pre-hook inside": lambda model, layer: layer.output.register_forward_pre_hook(lambda module, args: None),
    "hook on the model": lambda model, layer: model.register_full_backward_hook(lambda module, before, after: None),
    "part": lambda model, layer: setattr(layer.attention.self, "query", torch.nn.Sequential(layer.attention.self.query)),
    "part without bias": lambda model, layer: setattr(layer.attention.self, "query", torch.nn.Linear(32, 32, bias=False)),
    "part of another kind": lambda model, layer: setattr(layer.output, "dense", Doubled(64, 32)),
    "classifier": lambda model, layer: setattr(model, "classifier", torch.nn.Sequential(torch.nn.Linear(32, 2))),
    "one more part": lambda model, layer: setattr(model.base_model.encoder, "extra", torch.nn.Linear(2, 2)),
    "epsilon": lambda model, layer: setattr(layer.output.LayerNorm, "eps", 0.1),
    "number of heads": lambda model, layer: setattr(layer.attention.self, "num_attention_heads", 4),
    "weight by parts": lambda model, layer: torch.nn.utils.parametrizations.weight_norm(layer.output.dense),
    "method": lambda model, layer: other_method(model),
    "shared weight": lambda model, layer: set_weight(model.bert.encoder.layer[1].output.dense, layer.output.dense.weight),
    "layers with other names": lambda model, layer: delattr(layer, "intermediate"),
    "tables with other names": lambda model, layer: delattr(model.base_model.embeddings, "LayerNorm"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_parts_are_not_packed(change: str) -> None:
    """A fast layer reads the weights of modules and never calls them, so changes to the modules would be ignored."""
    model = tiny_model()
    CHANGES[change](model, model.base_model.encoder.layer[0])
    assert why_not_packed(model) is not None


@pytest.mark.parametrize("name", STRANGE)
def test_a_model_that_is_not_recognized_is_not_packed(name: str) -> None:
    assert why_not_packed(STRANGE[name]()) is not None


def wrapped(usual: Any) -> Any:
    """A decorator with functools.wraps has the name of what it wraps."""

    @wraps(usual)
    def wrapper(self: Any, *args: Any, **given: Any) -> Any:
        return usual(self, *args, **given)

    return wrapper


def test_a_method_that_was_replaced_or_wrapped_on_its_class_and_hooks_for_all_modules_are_seen(monkeypatch) -> None:
    model = tiny_model()
    for owner, name, part, method in (
        (BertSelfOutput, "forward", "bert.encoder.layer.0.attention.output", lambda self, hidden_states, inputs: inputs),
        (BertLayer, "forward", "bert.encoder.layer.0", wrapped(BertLayer.forward)),
        (BertLayer, "feed_forward_chunk", "bert.encoder.layer.0", wrapped(BertLayer.feed_forward_chunk)),
        (torch.nn.LayerNorm, "forward", "bert.embeddings.LayerNorm", wrapped(torch.nn.LayerNorm.forward)),
        (torch.nn.Module, "__call__", "BertForSequenceClassification", wrapped(torch.nn.Module.__call__)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, method)
            assert why_not_unmodified(model) == f"the {name} method of {part} was replaced"
    assert why_not_unmodified(model) is None
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, args, output: None)
    assert why_not_unmodified(tiny_model()) == "hooks are registered for all modules"
    handle.remove()


def test_harmless_changes_are_accepted(tmp_path) -> None:
    model = tiny_model()
    model.resize_token_embeddings(120)
    model.bert.encoder.layer[0].output.dropout.p = 0.3
    model.note = "mine"
    before = torch.get_rng_state()
    assert why_not_packed(model) is None
    assert torch.equal(torch.get_rng_state(), before), "recognition draws no random number"
    model.save_pretrained(tmp_path)
    assert why_not_packed(type(model).from_pretrained(tmp_path, num_labels=2)) is None


# --- The parts of an encoder: found in every family with a layout, and in no other.
def test_dropout_rates_are_those_of_the_modules() -> None:
    model = tiny_model("bert", dropout=0.1)
    layer = layers_of(model)[0]
    layer.module.attention.self.dropout.p = 0.2
    layer.module.output.dropout.p = 0.3
    assert layer.dropout_rates == [0.2, 0.1, 0.3]
    assert layers_of(tiny_model("distilbert", dropout=0.1))[0].dropout_rates == [0.1, 0.0, 0.1]
    assert layers_of(tiny_model("albert", dropout=0.1))[0].dropout_rates == [0.1, 0.1, 0.0]


def test_the_approximation_of_gelu_is_known_and_other_forms_and_names_have_no_fast_layer() -> None:
    found = {name: layers_of(tiny_model(hidden_act=name))[0].gelu_approximate for name in GELU_APPROXIMATIONS}
    assert found == GELU_APPROXIMATIONS
    options = ({"hidden_act": "relu"}, {"is_decoder": True}, {"position_embedding_type": "relative_key"})
    others = [tiny_model("distilbert", activation="relu"), *(tiny_model(**option) for option in options)]
    assert [layers_of(model) for model in others] == [[]] * 4
    model = tiny_model()
    del model.base_model.encoder.layer[1].intermediate
    del model.base_model.embeddings.LayerNorm
    assert (layers_of(model), embeddings_of(model)) == ([], None)


def test_roberta_counts_positions_after_its_padding_token() -> None:
    for family, padding in (("roberta", 0), ("xlm-roberta", 1), ("roberta", 1)):
        assert encoder_parts.uncounted_token_of(tiny_model(family, pad_token_id=padding)) == padding
    for family in ("bert", "electra", "distilbert"):
        assert encoder_parts.uncounted_token_of(tiny_model(family, pad_token_id=0)) is None
