"""Limits and refusals."""

from __future__ import annotations

from dataclasses import fields

import pytest

from glassloop.serve.limits import Limits, draining, empty, invalid, overloaded, too_large


def test_every_refusal_has_the_status_and_type_of_text_embeddings_inference() -> None:
    found = [empty("a"), too_large("b"), invalid("c"), overloaded("d", 3.6), draining()]
    assert [(one.status, one.kind) for one in found] == [
        (400, "Empty"),
        (413, "Validation"),
        (422, "Validation"),
        (429, "Overloaded"),
        (503, "Unhealthy"),
    ]
    assert [one.retry_after for one in found] == [None, None, None, 4, 1]
    assert overloaded("d", 0.0).retry_after == 1


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", [entry.name for entry in fields(Limits)])
def test_a_limit_is_positive(says, name: str, value: float) -> None:
    with says(f"{name} is {value}, not a positive number", f"set {name} to a positive number, or omit it"):
        Limits(**{name: value})
