"""The comparison with the plain model: which rows, how a difference is measured, and when it is more than rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families import tiny_model, tiny_tokenizer

from glassloop.backends.admission import COMPARED_ROWS, Figures, compare, distance, plain_figures, sample_batches
from glassloop.backends.plain import PlainBackend
from glassloop.data.batches import Batch, Batches
from glassloop.data.collator import PaddingCollator
from glassloop.runs.record import Difference


def batches_of(lengths: list[int]) -> Batches:
    rows = [{"input_ids": np.full(length, place + 1), "labels": 0} for place, length in enumerate(lengths)]
    return Batches(rows, PaddingCollator(tiny_tokenizer()), 2)


def test_the_sample_holds_short_and_long_rows_in_two_orders() -> None:
    sample = sample_batches(batches_of([5, 9, 3, 7, 30, 4, 8, 6]))
    first, second = sample.epoch()
    lengths = first.inputs["attention_mask"].sum(1).tolist()
    assert len(lengths) == COMPARED_ROWS
    assert {3, 30} <= {*lengths}
    assert torch.equal(first.inputs["input_ids"].flip(0), second.inputs["input_ids"])


def test_a_large_data_set_is_not_read_whole() -> None:
    class Rows(list):
        read = 0

        def __getitem__(self, number):
            Rows.read += 1
            return super().__getitem__(number)

    sample_batches(Batches(Rows(batches_of([4] * 500).rows), PaddingCollator(tiny_tokenizer()), 2))
    assert Rows.read <= 16


@pytest.mark.parametrize("number", [1, 2, 3])
def test_few_rows_are_enough(number: int) -> None:
    first, second = sample_batches(batches_of([4, 6, 5][:number])).epoch()
    assert len(first.numbers) == len(second.numbers) == number


def figures(*values: float, logits: float = 1.0) -> Figures:
    weights = {f"weight {place}": torch.full((10,), value) for place, value in enumerate(values)}
    return Figures(torch.tensor([[logits, -0.5]]), weights)


def test_differences_are_shares_of_what_is_wanted() -> None:
    logits, gradients = distance(figures(1.0, 2.02, logits=1.001), figures(1.0, 2.0))
    assert logits == pytest.approx(1e-3, rel=1e-3)
    assert gradients == pytest.approx(1e-2, rel=2e-2)
    assert distance(figures(1.0), figures(1.0)) == (0.0, 0.0)


def test_a_weight_whose_gradient_is_rounding_counts_as_such_and_a_missing_one_does_not() -> None:
    assert distance(figures(1.0, 1e-7), figures(1.0, -1e-7))[1] < 1e-4
    assert distance(figures(1.0), figures(1.0, 1.0))[1] > 0.9
    assert distance(figures(1.0, 1.0), figures(1.0))[1] > 0.9


@pytest.mark.parametrize(
    ("proof", "holds"),
    [
        (Difference(4, 1e-6, 1e-5, 1e-4, 1e-3), True),
        (Difference(4, 1e-6, None, 1e-4, None), True),
        (Difference(4, 2e-4, 1e-5, 1e-4, 1e-3), False),
        (Difference(4, 1e-6, 2e-3, 1e-4, 1e-3), False),
        (Difference(4, float("nan"), None, 1e-4, None), False),
        (Difference(4, 1e-6, float("nan"), 1e-4, 1e-3), False),
    ],
)
def test_what_is_rounding(proof: Difference, holds: bool) -> None:
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
        return plain_figures(model, next(iter(sample.epoch())), PlainBackend(), trains=True)._replace(widened=batch)

    proof = compare(backend, model, sample, fast, trains=True)
    assert not proof.holds
    assert proof.logits > 1e-5
    assert compare(backend, tiny_model("bert"), sample, lambda: fast_of_bert(sample, batch), trains=True).holds


def fast_of_bert(sample: Batches, widened: Batch) -> Figures:
    found = plain_figures(tiny_model("bert").eval(), next(iter(sample.epoch())), PlainBackend(), trains=True)
    return found._replace(widened=widened)
