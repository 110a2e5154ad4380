"""What a training is: equal where the numbers are equal, different where they differ, and readable where it is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from families import tiny_model
from torch.nn import functional

from glassloop.training.checkpoints import (
    differences,
    identified,
    optimizer_values,
    schedule_values,
    weights_fingerprint,
)


def test_weights_are_known_by_every_bit() -> None:
    model, again = tiny_model(), tiny_model()
    found = weights_fingerprint(model)
    assert found == weights_fingerprint(again)
    with torch.no_grad():
        again.classifier.bias[1] += 1e-6
    assert found != weights_fingerprint(again)
    assert weights_fingerprint(model.to(torch.bfloat16)) != found


# --- functions ---------------------------------------------------------------------------------------------------

GAMMA = 2.0


def focal(logits: torch.Tensor, labels: torch.Tensor, power: float = 1.0) -> torch.Tensor:
    costs = functional.cross_entropy(logits, labels, reduction="none")
    return costs * (1 - torch.exp(-costs)) ** (GAMMA * power)


def made(scale: float) -> Any:
    return lambda logits, labels: scale * focal(logits, labels)


class Scaled:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.scale * focal(logits, labels)


class Weighted(torch.nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(scale))

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.scale * focal(logits, labels)


@pytest.mark.parametrize(
    "kind", [made, Scaled, Weighted, lambda scale: partial(focal, power=scale), lambda s: Scaled(s).__call__]
)
def test_a_function_is_known_by_its_code_and_the_values_it_uses(kind: Any) -> None:
    assert identified(kind(2.0)) == identified(kind(2.0))
    assert identified(kind(2.0)) != identified(kind(3.0))


def test_a_constant_that_a_function_uses_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identified(focal)
    assert before.startswith("focal (")
    monkeypatch.setitem(globals(), "GAMMA", 3.0)
    assert identified(focal) != before


def test_functions_that_do_not_show_their_code() -> None:
    assert identified(torch.nn.CrossEntropyLoss(reduction="sum")) != identified(torch.nn.CrossEntropyLoss(reduction="none"))
    assert identified(functional.cross_entropy).startswith("cross_entropy (")
    assert identified(torch.sigmoid) != identified(torch.tanh)


def test_a_function_that_holds_itself_ends() -> None:
    def loop(number: int) -> Any:
        return loop(number - 1)

    holder = Scaled(1.0)
    holder.scale = holder  # type: ignore[assignment]
    assert identified(loop) == identified(loop)
    assert identified(holder) == identified(holder)


# --- optimizers --------------------------------------------------------------------------------------------------


def test_an_optimizer_is_known_by_its_settings_and_its_weights() -> None:
    model = tiny_model()
    one = optimizer_values(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert one == optimizer_values(model, torch.optim.SGD(model.parameters(), lr=0.1))
    (line,) = differences(one, optimizer_values(model, torch.optim.SGD(model.parameters(), lr=0.2)))
    assert line == "groups.0.lr: 0.1 then, 0.2 now"
    (line,) = differences(one, optimizer_values(model, torch.optim.SGD(model.classifier.parameters(), lr=0.1)))
    assert line.startswith("groups.0.weights: 41 (")
    assert "2 (" in line
    assert "class: SGD then, Adam now" in differences(
        one, optimizer_values(model, torch.optim.Adam(model.parameters(), lr=0.1))
    )


def test_what_a_schedule_counts_is_no_part_of_it() -> None:
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    before = (schedule_values(schedule), optimizer_values(model, optimizer))
    optimizer.step()
    schedule.step()
    assert (schedule_values(schedule), optimizer_values(model, optimizer)) == before
    other = torch.optim.lr_scheduler.LambdaLR(torch.optim.SGD(model.parameters(), lr=0.1), lambda step: 1 / (2 + step))
    assert differences(before[0], schedule_values(other))
    cosine = [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps) for steps in (5, 6)]
    assert differences(*map(schedule_values, cosine))


# --- differences -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "now", "lines"),
    [
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": 1, "b": 2}, {"a": 2}, ["a: 1 then, 2 now", "b: 2 then, None now"]),
        ({"a": {"b": {"c": 1}}}, {"a": {"b": {"c": 2}}}, ["a.b.c: 1 then, 2 now"]),
        ({"a": ["x", "y"]}, {"a": ["y", "x"]}, ["a: ['x', 'y'] then, ['y', 'x'] now"]),
        ({"a": []}, {"a": [*"abcdefghij"]}, ["a: 0 then (all), 10 now (a, b, c and 7 more)"]),
        ({"a": None}, {"a": {"b": 1}}, ["a: None then, {'b': 1} now"]),
    ],
)
def test_differences_show_both_values(stored: Any, now: Any, lines: list[str]) -> None:
    assert differences(stored, now) == lines
