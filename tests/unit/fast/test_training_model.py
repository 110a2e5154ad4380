"""Models that keep their own layers: ModernBERT over packed tokens has the logits and gradients of padded batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import packs
import pytest
import torch
from families import FAST, WITH_TOKEN_TYPES, tiny_model, weights_hash
from packs import LENGTHS, inputs_of, lively, packing_of, padded_inputs, plain_gradients, storage_of, token_rows, weighed

from glassloop.backends.fast import training_model
from glassloop.backends.fast.encoder_parts import embeddings_of, layers_of, why_not_flat, why_not_packed
from glassloop.backends.fast.operations import TorchOperations, attend, attend_backward
from glassloop.backends.fast.optimizer import FlatAdamW
from glassloop.backends.fast.packing import Packing
from glassloop.backends.fast.storage import ReducedVocabulary
from glassloop.backends.fast.training_model import OwnLayers, ReplacedLayers
from glassloop.base.errors import ModelError
from glassloop.training.optimizer import decay_groups

CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def modern(**options: Any) -> Any:
    model = tiny_model("modernbert", dropout=0.0, **options)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0.0, 0.2) if weight.dim() > 1 else weight.add_(0.1)
    return model


def twins(**options: Any) -> tuple[Any, Any]:
    first, second = modern(**options), modern(**options)
    second.load_state_dict(first.state_dict())
    return first.eval(), second.eval()


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_numbers_and_gradients_of_modernbert(pooling: str, multiple: int) -> None:
    model, twin = twins(classifier_pooling=pooling, local_attention=4)
    rows = token_rows()
    savings = OwnLayers(model, packs=True)
    savings.open_for_training()
    answer = model(**inputs_of(model, rows, multiple)).logits
    torch.testing.assert_close(answer, twin(**padded_inputs(rows)).logits, **CLOSE)
    weighed(answer).backward()
    expected = plain_gradients(twin, padded_inputs(rows))
    for name, weight in model.named_parameters():
        if name in expected:
            scale = max(1.0, float(expected[name].abs().max()))
            assert (weight.grad - expected[name]).abs().max() <= 1e-5 * scale, name
    savings.remove()


def test_padded_inputs_use_the_original_forward_and_removal_leaves_no_trace() -> None:
    model, twin = twins()
    rows = token_rows()
    attributes = {name: {*vars(module)} for name, module in model.named_modules()}
    savings = OwnLayers(model, packs=True)
    savings.open_for_training()
    usual = model.config._attn_implementation
    assert torch.equal(model(**padded_inputs(rows)).logits, twin(**padded_inputs(rows)).logits)
    model(**inputs_of(model, rows))
    assert model.config._attn_implementation == usual
    savings.remove()
    assert {name: {*vars(module)} for name, module in model.named_modules()} == attributes
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not any(weight._post_accumulate_grad_hooks for weight in model.parameters())


def test_a_model_that_is_not_packed_has_its_own_forward_and_a_packed_one_refuses_an_attention_mask() -> None:
    model = tiny_model("deberta-v2")
    expected = model.eval()(**padded_inputs(token_rows())).logits
    savings = OwnLayers(model)
    assert not savings.packs
    assert "forward" not in vars(model)
    assert torch.equal(model(**padded_inputs(token_rows())).logits, expected)
    assert len({weight.untyped_storage().data_ptr() for weight in model.parameters()}) == 1
    savings.remove()
    assert training_model.no_mask() is None
    with pytest.raises(ModelError, match="came with an attention mask"):
        training_model.no_mask(attention_mask=torch.ones(1))


# --- Models with replaced layers: packed and padded inputs give the same numbers, and removal restores the model.
@pytest.mark.parametrize("family", FAST)
def test_padded_inputs_use_the_original_forward_and_removal_of_layers_leaves_no_trace(family: str) -> None:
    model, rows = lively(family), token_rows()
    expected, before, names = model(**padded_inputs(rows)).logits, weights_hash(model), [*model.state_dict()]
    attributes = {name: {*vars(module)} for name, module in model.named_modules()}
    savings = ReplacedLayers(model)
    assert torch.equal(model(**padded_inputs(rows)).logits, expected)
    torch.testing.assert_close(model(**inputs_of(model, rows)).logits, expected, **CLOSE)
    assert torch.equal(model(**padded_inputs(rows)).logits, expected)
    with pytest.raises(IndexError):
        model(**inputs_of(model, [np.array([10_000])]))
    assert torch.equal(model(**padded_inputs(rows)).logits, expected), "after a pass that failed, too"
    savings.open_for_training()
    weighed(model(**inputs_of(model, rows)).logits).backward()
    savings.remove()
    assert torch.equal(model(**padded_inputs(rows)).logits, expected)
    assert {name: {*vars(module)} for name, module in model.named_modules()} == attributes
    assert ([*model.state_dict()], weights_hash(model)) == (names, before)
    assert all(weight.grad is None and not weight._post_accumulate_grad_hooks for weight in model.parameters())
    assert all(weight.untyped_storage().nbytes() == weight.nbytes for weight in model.parameters())
    assert why_not_flat(model) is why_not_packed(model) is None, "they can be put in place again"


@pytest.mark.parametrize("family", FAST)
def test_padding_typed_into_a_text_gives_the_numbers_of_the_plain_model(family: str) -> None:
    model, twin, rows = lively(family), lively(family), token_rows()
    rows[0][2:4] = rows[2][5] = model.config.pad_token_id
    savings = ReplacedLayers(model)
    savings.open_for_training()
    logits = model(**inputs_of(model, rows)).logits
    torch.testing.assert_close(logits, twin(**padded_inputs(rows)).logits, **CLOSE)
    weighed(logits).backward()
    savings.after_backward()
    for name, gradient in plain_gradients(twin, padded_inputs(rows)).items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient, atol=1e-4, rtol=1e-4)


def test_gradients_without_dropout_are_right_after_a_pass_that_needed_none() -> None:
    """A pass without gradients may overwrite what it reads; one in evaluation mode with gradients may not."""
    model, rows = lively().eval(), token_rows()
    expected = plain_gradients(model, padded_inputs(rows))
    model.zero_grad()
    savings = ReplacedLayers(model)
    savings.open_for_training()
    with torch.inference_mode():
        model(**inputs_of(model, rows))
    assert not savings.ops.needs_gradients
    weighed(model(**inputs_of(model, rows)).logits).backward()
    savings.after_backward()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(savings.storage.gradient(weight), expected[name], **CLOSE)


class Trained:
    """A model with a smaller vocabulary, one step into its training."""

    def __init__(self) -> None:
        self.model, self.rows = lively(), token_rows()
        used = np.unique(np.concatenate([*self.rows, [0]]))
        self.vocabulary = ReducedVocabulary(used, self.model.get_input_embeddings().num_embeddings, torch.device("cpu"))
        self.savings = ReplacedLayers(self.model, vocabulary=self.vocabulary)
        self.savings.open_for_training()
        self.optimizer = FlatAdamW(decay_groups(self.model, 0.0), self.savings.storage, lr=0.01)
        weighed(self.packed()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def packed(self) -> torch.Tensor:
        return self.model(**inputs_of(self.model, self.rows, vocabulary=self.vocabulary.new_ids.numpy())).logits


def test_trained_words_are_seen_by_padded_inputs_copied_to_the_model_and_loaded_from_it() -> None:
    """A user who calls the model during training gets the answer of its current weights."""
    trained = Trained()
    with torch.no_grad():
        torch.testing.assert_close(trained.model(**padded_inputs(trained.rows)).logits, trained.packed(), **CLOSE)
    trained.savings.sync_to_model()
    found = {name: value.clone() for name, value in trained.model.state_dict().items()}
    answer = trained.packed().detach()
    other = lively()
    other.load_state_dict(found)
    torch.testing.assert_close(other(**padded_inputs(trained.rows)).logits.detach(), answer, **CLOSE)
    fresh = lively()
    trained.model.load_state_dict(fresh.state_dict())
    trained.savings.sync_from_model()
    torch.testing.assert_close(trained.packed(), fresh(**padded_inputs(trained.rows)).logits, **CLOSE)


TYPES = [np.arange(length) % 2 for length in LENGTHS]


def embedded(model: Any, training: bool = False, rate: float = 0.0) -> torch.Tensor:
    tables = embeddings_of(model)
    tables.dropout.p = rate
    storage = storage_of(model)
    ops = TorchOperations(torch.device("cpu"))
    inputs = inputs_of(model, token_rows(), types=TYPES)
    packing = Packing.from_inputs(inputs["packed"], inputs)
    ops.before_forward(storage, packing, training)
    padding = -1 if tables.words.padding_idx is None else tables.words.padding_idx
    return training_model.EmbeddingSum.apply(tables.norm.weight, tables, packing, storage, ops, training, padding)


def test_dropout_comes_after_the_norm_and_gradients_stop_where_it_dropped() -> None:
    model = lively()
    y = embedded(model, training=True, rate=0.5)
    dropped = y == 0
    assert 0.35 < dropped.float().mean() < 0.65
    torch.testing.assert_close(y[~dropped], 2 * embedded(lively())[~dropped], atol=1e-5, rtol=1e-5)
    y.backward(torch.ones_like(y))
    shift = embeddings_of(model).norm.bias.grad
    torch.testing.assert_close(shift, 2.0 * (~dropped).sum(0).float())


def layer_alone(model: Any, x: torch.Tensor, packing: Any, first_tokens_only: bool, training: bool = False) -> torch.Tensor:
    storage = storage_of(model)
    ops, layer = TorchOperations(torch.device("cpu")), layers_of(model)[0]
    ops.before_forward(storage, packing, training)
    given = (layer, packing, storage, ops, training, first_tokens_only, False)
    return training_model.PostNormLayer.apply(x, layer.query.weight, *given)


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("first_tokens_only", [False, True])
@pytest.mark.parametrize("family", FAST)
def test_all_gradients_equal_those_of_autograd(family: str, first_tokens_only: bool, multiple: int) -> None:
    """Two passes before one step: the second is added to the first."""
    model, twin, rows = lively(family), lively(family), [token_rows(), token_rows((3, 9, 4, 1), seed=8)]
    types = [TYPES, [np.arange(len(row)) % 2 for row in rows[1]]] if family in WITH_TOKEN_TYPES else [None, None]
    savings = ReplacedLayers(model, first_tokens_only=first_tokens_only)
    savings.open_for_training()
    expected: dict[str, torch.Tensor] = {}
    for some, kinds in zip(rows, types, strict=True):
        answer = model(**inputs_of(model, some, multiple, kinds)).logits
        torch.testing.assert_close(answer, twin(**padded_inputs(some, kinds)).logits, **CLOSE)
        weighed(answer).backward()
        savings.after_backward()
        for name, grad in plain_gradients(twin, padded_inputs(some, kinds)).items():
            expected[name] = expected.get(name, torch.zeros_like(grad)) + grad
    assert {name for name, weight in model.named_parameters() if weight.grad is not None} == {*expected}
    for name, weight in model.named_parameters():
        scale = max(1.0, float(expected[name].abs().max()))
        assert (weight.grad - expected[name]).abs().max() <= 1e-5 * scale, name
    keys = ("key.bias", "k_lin.bias")
    assert all(grad.abs().max() > 1e-4 for name, grad in expected.items() if not name.endswith(keys))


def test_dropout_rates_reach_their_places_and_the_gradient_is_that_of_the_masks_that_were_drawn() -> None:
    """One rate at a time: each changes the output, and gradients stay finite."""
    packing, x = packing_of(token_rows()), torch.randn(25, 32)
    plain = layer_alone(lively(), x, packing, False)
    for place in range(3):
        model = lively()
        layers_of(model)[0].dropouts[place].p = 0.5
        inside = x.clone().requires_grad_()
        found = layer_alone(model, inside, packing, False, training=True)
        assert (found - plain).abs().max() > 0.01
        found.sum().backward()
        assert torch.isfinite(inside.grad).all()
        assert torch.equal(layer_alone(model, x, packing, False, training=False), plain)
    model, packing = lively(dropout=0.3), packing_of(token_rows((4, 3)))
    x = torch.randn(7, 32, generator=torch.Generator().manual_seed(1))
    grad = torch.randn(7, 32, generator=torch.Generator().manual_seed(2))

    def run(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(9)
        return layer_alone(model, x, packing, False, training=True)

    inside = x.clone().requires_grad_()
    run(inside).backward(grad)
    towards = torch.randn(7, 32, generator=torch.Generator().manual_seed(3))
    slope = ((run(x + 1e-2 * towards) - run(x - 1e-2 * towards)).detach() * grad).sum() / 2e-2
    assert float((inside.grad * towards).sum()) == pytest.approx(float(slope), rel=2e-2, abs=2e-2)


# --- first tokens alone: as with keys and values of all tokens, dropout included ------------------------------------
def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_the_numbers_of_keys_and_values_of_all_tokens(rate: float, multiple: int) -> None:
    model, packing = lively("bert"), packing_of(token_rows((7, 2, 11, 5)), multiple=multiple)
    layer, storage = layers_of(model)[0], storage_of(model)
    x, grad = drawn(packing.tokens, 32, seed=1), drawn(4, layer.heads, 32 // layer.heads, seed=2)
    query = drawn(*grad.shape, seed=3)

    inputs = x.clone().requires_grad_()
    key, value = (part(inputs).view(packing.tokens, layer.heads, -1) for part in (layer.key, layer.value))
    expected, saved = attend(query, key.detach(), value.detach(), packing, rate, packs.masks_of(4))
    grad_query, grad_key, grad_value = attend_backward(grad, saved)
    linears = [layer.key, layer.value]
    parts = [inputs, *(part.weight for part in linears), *(part.bias for part in linears)]
    grad_parts = torch.autograd.grad([key, value], parts, [grad_key, grad_value])

    found, kept = training_model.attend_first_tokens(query, x, layer, packing, storage, rate, packs.masks_of(4))
    torch.testing.assert_close(found, expected, **CLOSE)
    for times in (1, 2):  # the second is added to the first
        mine = training_model.attend_first_tokens_backward(grad, kept, layer, storage)
        torch.testing.assert_close(mine[0], grad_query, **CLOSE)
        torch.testing.assert_close(mine[1], grad_parts[0], **CLOSE)
        for part, grad_part in zip(parts[1:], grad_parts[1:], strict=True):
            torch.testing.assert_close(storage.gradient(part), times * grad_part, atol=5e-5, rtol=1e-5)
    if rate:
        whole = training_model.attend_first_tokens(query, x, layer, packing, storage, 0.0, packs.masks_of(4))[0]
        assert not torch.allclose(found, whole, atol=0.05), "something was dropped"
