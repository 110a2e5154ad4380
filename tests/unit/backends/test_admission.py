"""Which backend runs a model: the fast one it is understood by and equal under, else plain with one line."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from families import tiny_model, tiny_tokenizer, weights_hash
from packs import token_rows

from glassloop.backends import admission
from glassloop.backends.admission import known_difference, supported_backend, verified_backend
from glassloop.backends.packed import PackedBackend
from glassloop.backends.plain import PlainBackend
from glassloop.base.errors import ModelError
from glassloop.data.batches import Batches
from glassloop.data.collator import PaddingCollator
from glassloop.runs.record import Difference
from glassloop.training.interfaces import TrainingUse


def test_a_backend_that_understands_the_model_is_kept() -> None:
    said: list[str] = []
    backend, plain = PackedBackend(), PlainBackend()
    assert supported_backend(backend, tiny_model(), said.append) is backend
    assert supported_backend(plain, tiny_model("deberta-v2"), said.append) is plain
    assert said == []


def frozen() -> Any:
    model = tiny_model()
    model.base_model.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("make", "backend", "reason", "line"),
    [
        (frozen, PackedBackend(), None, "39 weights are frozen"),
        (
            partial(tiny_model, hidden_act="relu"),
            PackedBackend(),
            None,
            "BertForSequenceClassification has layers without a fast form",
        ),
        (partial(tiny_model, "deberta-v2"), PackedBackend(), None, "is not a classifier that can be packed"),
        (tiny_model, PackedBackend("cpu", "fp16"), None, "fp16 needs a scaler"),
        (tiny_model, PackedBackend(), "the optimizer is your own", "the optimizer is your own"),
    ],
)
def test_the_plain_one_takes_its_place_with_one_line(make: Any, backend: Any, reason: str | None, line: str) -> None:
    said: list[str] = []
    found = supported_backend(backend, make(), said.append, reason)
    assert type(found) is PlainBackend
    assert (found.device, found.precision) == (backend.device, backend.precision)
    assert len(said) == 1
    assert said[0].startswith("backend plain instead of packed: ")
    assert said[0].endswith(line)


@pytest.fixture
def batches() -> Batches:
    rows = [{"input_ids": row, "labels": 0} for row in token_rows()]
    return Batches(rows, PaddingCollator(tiny_tokenizer()), 2)


def use_of(batches: Batches) -> TrainingUse:
    return TrainingUse([batches.rows], 0.0)


def test_a_backend_that_is_equal_is_kept_and_its_difference_known(batches: Batches) -> None:
    backend, model = PackedBackend(), tiny_model()
    assert known_difference(backend, model) is None
    assert verified_backend(backend, model, lambda: batches) is backend
    assert known_difference(backend, model).gradients is None
    assert verified_backend(backend, model, lambda: batches, use=use_of(batches)) is backend
    assert known_difference(backend, model).gradients < 1e-3
    assert known_difference(PlainBackend(), model) is None


def test_weights_gradients_and_mode_stay_as_they_are(batches: Batches) -> None:
    backend, model = PackedBackend(), tiny_model().train()
    before, grads = weights_hash(model), {}
    for name, weight in model.named_parameters():
        weight.grad = grads[name] = weight.detach().clone()
    verified_backend(backend, model, lambda: batches, use=use_of(batches))
    assert known_difference(backend, model).gradients < 1e-3, "what was left there is not added"
    assert all(weight.grad is grads[name] for name, weight in model.named_parameters())
    assert weights_hash(model) == before
    assert model.training
    assert backend.savings is None


@pytest.mark.parametrize("use", [False, True])
def test_a_difference_is_plain_or_an_error(use: bool, batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Difference(4, 0.5, 0.1 if use else None, 1e-4, 1e-3 if use else None)
    monkeypatch.setattr(admission, "compare", lambda *args, **given: wrong)
    said: list[str] = []
    backend, model = PackedBackend(), tiny_model()
    given = {"use": use_of(batches) if use else None}
    assert type(verified_backend(backend, model, lambda: batches, said.append, **given)) is PlainBackend
    gradients = ", gradients by 1.0e-01 of a weight's gradient norm (allowed: 1.0e-03)" if use else ""
    logits = "logits differ from the plain model by 5.0e-01 of the largest logit (allowed: 1.0e-04)"
    assert said == [f"backend plain instead of packed: {logits}{gradients}"]
    for _ in range(2):
        with pytest.raises(ModelError, match="backend packed: logits differ"):
            verified_backend(backend, model, lambda: batches, by_name=True, **given)


def test_nothing_is_compared_where_there_is_nothing_to_compare(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "compare", None)
    plain, packed = PlainBackend(), PackedBackend()
    assert verified_backend(plain, tiny_model(), lambda: batches) is plain
    assert verified_backend(packed, frozen(), lambda: batches) is packed, "its passes are plain anyway"
