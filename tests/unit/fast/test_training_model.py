"""Models that keep their own layers: ModernBERT over packed tokens has the logits and gradients of padded batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from families import FAST, tiny_model, weights_hash
from packs import inputs_of, lively, padded_inputs, plain_gradients, token_rows, weighed

from glassloop.backends.fast.encoder_parts import why_not_flat, why_not_packed
from glassloop.backends.fast.inference_model import make_fast_model
from glassloop.backends.fast.optimizer import FlatAdamW
from glassloop.backends.fast.storage import ReducedVocabulary
from glassloop.backends.fast.training_model import OwnLayers, ReplacedLayers, no_mask, operations_for
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


def test_a_model_that_is_not_packed_has_flat_weights_and_its_own_forward() -> None:
    model = tiny_model("deberta-v2")
    expected = model.eval()(**padded_inputs(token_rows())).logits
    savings = OwnLayers(model)
    assert not savings.packs
    assert "forward" not in vars(model)
    assert torch.equal(model(**padded_inputs(token_rows())).logits, expected)
    assert len({weight.untyped_storage().data_ptr() for weight in model.parameters()}) == 1
    savings.remove()


def test_an_evaluation_draws_nothing() -> None:
    model = tiny_model("modernbert", dropout=0.1).eval()
    savings = OwnLayers(model, packs=True)
    before = torch.get_rng_state()
    model(**inputs_of(model, token_rows()))
    assert torch.equal(before, torch.get_rng_state())
    savings.remove()


def test_an_attention_mask_is_refused() -> None:
    assert no_mask() is None
    with pytest.raises(ModelError, match="came with an attention mask"):
        no_mask(attention_mask=torch.ones(1))


# --- Models with replaced layers: packed and padded inputs give the same numbers, and removal restores the model.


@pytest.mark.parametrize("family", FAST)
def test_padded_inputs_use_the_original_forward_while_layers_are_replaced(family: str) -> None:
    model, rows = lively(family), token_rows()
    expected = model(**padded_inputs(rows)).logits
    savings = ReplacedLayers(model)
    assert torch.equal(model(**padded_inputs(rows)).logits, expected)
    torch.testing.assert_close(model(**inputs_of(model, rows)).logits, expected, **CLOSE)
    assert torch.equal(model(**padded_inputs(rows)).logits, expected)
    savings.remove()
    assert torch.equal(model(**padded_inputs(rows)).logits, expected)


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


@pytest.mark.parametrize("family", FAST)
def test_removal_leaves_no_trace(family: str) -> None:
    model = lively(family)
    before, names = weights_hash(model), [*model.state_dict()]
    attributes = {name: {*vars(module)} for name, module in model.named_modules()}
    savings = ReplacedLayers(model)
    savings.open_for_training()
    weighed(model(**inputs_of(model, token_rows())).logits).backward()
    savings.remove()
    assert {name: {*vars(module)} for name, module in model.named_modules()} == attributes
    assert [*model.state_dict()] == names
    assert weights_hash(model) == before
    assert all(weight.grad is None and not weight._post_accumulate_grad_hooks for weight in model.parameters())
    assert all(weight.untyped_storage().nbytes() == weight.nbytes for weight in model.parameters())
    assert why_not_flat(model) is why_not_packed(model) is None, "they can be put in place again"


@pytest.mark.parametrize("family", FAST)
def test_for_an_evaluation_alone_no_weight_is_moved(family: str) -> None:
    model, rows = lively(family), token_rows()
    expected, places = model(**padded_inputs(rows)).logits, [weight.data_ptr() for weight in model.parameters()]
    savings = make_fast_model(model, torch.float32, trains=False)
    torch.testing.assert_close(model(**inputs_of(model, rows)).logits, expected, **CLOSE)
    assert [weight.data_ptr() for weight in model.parameters()] == places
    savings.remove()
    assert [weight.data_ptr() for weight in model.parameters()] == places
    assert torch.equal(model(**padded_inputs(rows)).logits, expected)


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


def test_layers_can_be_replaced_many_times() -> None:
    model, rows = lively(), token_rows()
    answers = []
    for _ in range(3):
        savings = ReplacedLayers(model)
        answers.append(model(**inputs_of(model, rows)).logits)
        savings.remove()
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])


def test_padded_inputs_still_work_after_a_failed_pass() -> None:
    model, rows = lively(), token_rows()
    expected = model(**padded_inputs(rows)).logits
    savings = ReplacedLayers(model)
    wrong = inputs_of(model, [np.array([10_000])])
    with pytest.raises(IndexError):
        model(**wrong)
    assert torch.equal(model(**padded_inputs(rows)).logits, expected)
    savings.remove()


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


def test_padded_inputs_see_the_trained_word_vectors() -> None:
    """A user who calls the model during training gets the answer of its current weights."""
    trained = Trained()
    with torch.no_grad():
        torch.testing.assert_close(trained.model(**padded_inputs(trained.rows)).logits, trained.packed(), **CLOSE)


def test_trained_words_are_copied_to_the_model_and_loaded_ones_from_it() -> None:
    trained = Trained()
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


def test_plain_torch_on_a_cpu() -> None:
    assert type(operations_for(torch.device("cpu"), torch.float32)).__name__ == "TorchOperations"
