"""Which backend runs a model: the fast one it is understood by and equal under, else plain with one line."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from families import tiny_model, tiny_tokenizer, weights_hash
from packs import token_rows

from glassloop.backends import packed as admission
from glassloop.backends.packed import Figures, PackedBackend, distance, sample_batches, verified_backend
from glassloop.backends.plain import PlainBackend
from glassloop.base.errors import ModelError
from glassloop.data.batches import Batches, PaddingCollator
from glassloop.runs.record import Difference
from glassloop.training.interfaces import TrainingUse


def test_what_knows_the_model_is_kept_and_plain_is_not_compared(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, plain = PackedBackend(), PlainBackend()
    assert admission.supported_backend(backend, tiny_model(), pytest.fail) is backend
    assert admission.supported_backend(plain, tiny_model("deberta-v2"), pytest.fail) is plain
    monkeypatch.setattr(admission, "compare", None)
    assert verified_backend(plain, tiny_model(), lambda: batches) is plain
    assert verified_backend(backend, in_half_precision(), lambda: batches) is backend, "its passes are plain anyway"


def in_half_precision() -> Any:
    return tiny_model().to(torch.bfloat16)


@pytest.mark.parametrize(
    ("make", "backend", "reason", "line"),
    [
        (in_half_precision, PackedBackend(), None, "the weights are not fp32"),
        (partial(tiny_model, hidden_act="relu"), PackedBackend(), None, "has layers without a fast form"),
        (partial(tiny_model, "deberta-v2"), PackedBackend(), None, "is not a classifier that can be packed"),
        (tiny_model, PackedBackend("cpu", "fp16"), None, "fp16 needs a scaler"),
        (tiny_model, PackedBackend(), "the optimizer is your own", "the optimizer is your own"),
    ],
)
def test_the_plain_one_takes_its_place_with_one_line(make: Any, backend: Any, reason: str | None, line: str) -> None:
    said: list[str] = []
    found = admission.supported_backend(backend, make(), said.append, reason)
    assert type(found) is PlainBackend
    assert (found.device, found.precision) == (backend.device, backend.precision)
    (told,) = said
    assert told.startswith("backend plain instead of packed: ")
    assert told.endswith(line)


@pytest.fixture
def batches() -> Batches:
    rows = [{"input_ids": row, "labels": 0} for row in token_rows()]
    return Batches(rows, PaddingCollator(tiny_tokenizer()), 2)


def use_of(batches: Batches) -> TrainingUse:
    return TrainingUse([batches.rows], 0.0)


def test_a_backend_that_is_equal_is_kept_its_difference_known_and_the_model_left_as_it_was(batches: Batches) -> None:
    backend, model = PackedBackend(), tiny_model()
    assert backend.differences.get(model) is None
    assert verified_backend(backend, model, lambda: batches) is backend
    assert backend.differences.get(model).gradients is None
    assert verified_backend(backend, model, lambda: batches, use=use_of(batches)) is backend
    assert backend.differences.get(model).gradients < 1e-3
    backend, model = PackedBackend(), tiny_model().train()
    before, grads = weights_hash(model), {}
    for name, weight in model.named_parameters():
        weight.grad = grads[name] = weight.detach().clone()
    verified_backend(backend, model, lambda: batches, use=use_of(batches))
    assert backend.differences.get(model).gradients < 1e-3, "what was left there is not added"
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


def test_what_is_within_the_rounding_of_plain_is_said_as_that() -> None:
    close = Difference(4, 2e-3, 2.6e-1, 1e-2, 1.2, times_rounding=0.867)
    assert str(close) == "results are as close to fp32 as those of plain in this precision (0.9 times its rounding)"
    far = Difference(4, 2e-3, 2.6e-1, 1e-2, 1e-1, times_rounding=10.4)
    assert "gradients by 2.6e-01 of a weight's gradient norm (allowed: 1.0e-01)" in str(far)


def test_plain_is_computed_in_true_fp32_whatever_the_user_allows(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    """TF32 would make padding look as if it changed logits."""
    seen: list[tuple[str, bool]] = []
    plain = admission.plain_figures

    def watched(*given: Any, **named: Any) -> Figures:
        seen.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
        return plain(*given, **named)

    monkeypatch.setattr(admission, "plain_figures", watched)
    model, sample = tiny_model(), sample_batches(batches)
    widened = next(iter(sample.epoch()))
    fast = plain(model, widened, PlainBackend(), trains=True)
    torch.set_float32_matmul_precision("medium")
    try:
        admission.compare(PackedBackend(), model, sample, lambda: fast._replace(widened=widened), trains=True)
        assert seen == [("highest", False)] * 2
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def batches_of(lengths: list[int]) -> Batches:
    rows = [{"input_ids": np.full(length, place + 1), "labels": 0} for place, length in enumerate(lengths)]
    return Batches(rows, PaddingCollator(tiny_tokenizer()), 2)


def test_the_sample_holds_short_and_long_rows_in_two_orders_and_a_large_data_set_is_not_read_whole() -> None:
    sample = sample_batches(batches_of([5, 9, 3, 7, 30, 4, 8, 6]))
    first, second = sample.epoch()
    lengths = first.inputs["attention_mask"].sum(1).tolist()
    assert len(lengths) == admission.COMPARED_ROWS
    assert {3, 30} <= {*lengths}
    assert torch.equal(first.inputs["input_ids"].flip(0), second.inputs["input_ids"])
    for number in (1, 2, 3):
        first, second = sample_batches(batches_of([4, 6, 5][:number])).epoch()
        assert len(first.numbers) == len(second.numbers) == number

    class Rows(list):
        read = 0

        def __getitem__(self, number):
            Rows.read += 1
            return super().__getitem__(number)

    sample_batches(Batches(Rows(batches_of([4] * 500).rows), PaddingCollator(tiny_tokenizer()), 2))
    assert Rows.read <= 16


def figures(*values: float, logits: float = 1.0) -> Figures:
    weights = {f"weight {place}": torch.full((10,), value) for place, value in enumerate(values)}
    return Figures(torch.tensor([[logits, -0.5]]), weights)


def test_differences_are_shares_of_what_is_wanted_and_more_than_rounding_does_not_hold() -> None:
    logits, gradients = distance(figures(1.0, 2.02, logits=1.001), figures(1.0, 2.0))
    assert logits == pytest.approx(1e-3, rel=1e-3)
    assert gradients == pytest.approx(1e-2, rel=2e-2)
    assert distance(figures(1.0), figures(1.0)) == (0.0, 0.0)
    assert distance(figures(1.0, 1e-7), figures(1.0, -1e-7))[1] < 1e-4
    assert distance(figures(1.0), figures(1.0, 1.0))[1] > 0.9
    assert distance(figures(1.0, 1.0), figures(1.0))[1] > 0.9
    for proof, holds in [
        (Difference(4, 1e-6, 1e-5, 1e-4, 1e-3), True),
        (Difference(4, 1e-6, None, 1e-4, None), True),
        (Difference(4, 2e-4, 1e-5, 1e-4, 1e-3), False),
        (Difference(4, 1e-6, 2e-3, 1e-4, 1e-3), False),
        (Difference(4, float("nan"), None, 1e-4, None), False),
        (Difference(4, 1e-6, float("nan"), 1e-4, 1e-3), False),
    ]:
        assert proof.holds == holds


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_model_whose_logits_depend_on_padding_is_detected(precision: str) -> None:
    """A batch that is padded further must give the same logits, even if bf16 would hide a difference."""
    model, sample = tiny_model("convbert", dropout=0.0, initializer_range=0.2).eval(), sample_batches(batches_of([5, 9, 3, 7]))
    wide = sample_batches(batches_of([5, 9, 3, 7]))
    wide.collate.multiple = 16
    batch, backend = next(iter(wide.epoch())), PlainBackend("cpu", "fp32")
    backend.precision = precision  # a CPU need not compute in it

    def fast() -> Figures:
        return admission.plain_figures(model, next(iter(sample.epoch())), PlainBackend(), trains=True)._replace(widened=batch)

    proof = admission.compare(backend, model, sample, fast, trains=True)
    assert not proof.holds
    assert proof.logits > 1e-5
    model = tiny_model("bert").eval()
    assert admission.compare(backend, model, sample, fast, trains=True).holds
